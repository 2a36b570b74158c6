# sh quietly.sh TEXT COMMAND ...: run a command that takes minutes, and show that it is alive.
#
# A terminal shows TEXT and the seconds so far; elsewhere a line is printed every half minute. What the command prints is
# shown only if it fails, with its exit code as ours.
text=$1
shift
log=$(mktemp) || exit 1
ticker=
trap '[ -z "$ticker" ] || kill "$ticker" 2>/dev/null; rm -f "$log"' EXIT

count() { # in steps of $1 seconds; sleep must not hold on to our output when its shell is killed
    passed=0
    while sleep "$1" >/dev/null 2>&1; do
        passed=$((passed + $1))
        printf "$2" "$text" "$passed"
    done
}

if [ -t 1 ]; then
    printf '%s' "$text"
    count 1 '\r%s: %s s' &
else
    printf '%s\n' "$text"
    count 30 '%s: %s s so far\n' &
fi
ticker=$!
trap 'exit 130' INT # after the ticker was forked: a shell that has yet to reset our traps could lose its TERM
trap 'exit 143' TERM
"$@" >"$log" 2>&1
code=$?
kill "$ticker" 2>/dev/null
wait "$ticker" 2>/dev/null
ticker=
[ ! -t 1 ] || printf '\n'
[ $code -eq 0 ] || cat "$log" >&2
exit $code
