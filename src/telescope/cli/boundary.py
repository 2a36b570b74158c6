"""The boundary of the command line: whatever ends a command becomes an exit code and at most one
sentence.

0    the command did what it says
1    the command could not do it: a disk, memory, a closed or full output; of `doctor`: an engine is
     wrong
2    the command line, or a file that it names, is wrong
130  Ctrl-C
141  the reader of standard output stopped reading, as `head` does
143  of `train`: stopped by SIGTERM, after a checkpoint

TELESCOPE_DEBUG=1 prints the traceback before the sentence.
"""

import errno
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import Any

import typer

from ..guesses import OF_COMMANDS
from ..words import describe_error, one_line

# Exit codes, as listed above; 130 and 141 are 128 plus SIGINT and SIGPIPE, as shells report them.
DONE = 0
FAILED = 1
WRONG = 2
STOPPED = 130
UNREAD = 141
# Parts of the sentences of `describe`.
FAULT = "this is a fault of telescope"  # how the sentence about an unexpected error begins
# The options after which these commands take what they read.
TEXT_OPTIONS = {"watch": "--text", "atlas": "--texts"}
ENOUGH = "a shorter text, a smaller batch or a smaller model needs less"


def run(command: Callable[[], int | None]) -> int:
    """Run a command and return the exit code; print one sentence to standard error if the command
    fails.
    """
    # Run the command, and note how it ended.
    problem: BaseException | None = None
    code = DONE
    try:
        _prepare_streams()
        with _spoken_warnings(), _shown_log():
            code = command() or DONE
        sys.stdout.flush()
    except SystemExit as end:
        # typer exits by itself where a pipe is closed; what it was raised for says so.
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        code = UNREAD
    except BaseException as raised:
        problem = raised
        code = exit_code(raised)

    # Say what went wrong, after everything that was printed.
    _give_up_output()
    if problem is not None and os.environ.get("TELESCOPE_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(problem)
    if code == STOPPED:
        _say("stopped by Ctrl-C")
    elif problem is not None and code != UNREAD:
        _say(describe(problem))
    return code


def exit_code(problem: BaseException) -> int:
    """Return the exit code for what a command raised."""
    if isinstance(problem, KeyboardInterrupt | typer.Abort):
        return STOPPED
    if isinstance(problem, BrokenPipeError):
        return UNREAD
    if isinstance(problem, OSError):  # a WriteError is a ValueError, too
        return FAILED
    # A wrong command line or a wrong value is the caller's to correct; anything else is a failure.
    return WRONG if isinstance(problem, typer.TyperException | ValueError) else FAILED


def describe(problem: BaseException) -> str:
    """Return the sentence for what a command raised."""
    if isinstance(problem, typer.TyperException):
        return _describe_usage(problem)
    # Before ValueError, of which UnicodeError is a subclass.
    if isinstance(problem, UnicodeError):
        return "a text or a name holds bytes that are not UTF-8; iconv -t utf-8 converts a text"
    # The library's own errors are sentences already.
    if isinstance(problem, ValueError) or type(problem).__module__.startswith("telescope."):
        return str(problem)
    if isinstance(problem, OSError):
        return _describe_system(problem)
    if _is_out_of_memory(problem):
        where = "the GPU" if type(problem).__name__ == "OutOfMemoryError" else "this machine"
        return f"{where} has not enough memory for this; {ENOUGH}"
    if isinstance(problem, RecursionError):
        return "something in the input is nested too deep to be read"
    # Anything else is a bug: name the error, and how to see its traceback.
    return (
        f"{FAULT}: {type(problem).__name__}: {problem}; TELESCOPE_DEBUG=1 shows where, please "
        "report it"
    )


def _describe_usage(problem: typer.TyperException) -> str:
    """Return typer's sentence, and what the caller probably intended."""
    said = problem.format_message().rstrip(".")
    context = getattr(problem, "ctx", None)
    command = getattr(context, "info_name", None) or ""
    # A guessed name of a command.
    if said.startswith("No such command "):
        guessed = said.removeprefix("No such command ").split("'")[1]
        if way := OF_COMMANDS.get(guessed.lower()):
            return f"No such command '{guessed}'; {way}"
        return said if "Did you mean" in said else f"{said}; telescope --help lists the commands"
    # A text where the command has an option for it.
    if said.startswith("Got unexpected extra argument") and command in TEXT_OPTIONS:
        return f"{said}; write it after {TEXT_OPTIONS[command]}, a text in quotes"
    return said


def _describe_system(problem: OSError) -> str:
    """Return what the system refused: the file, where there is one, and the reason in its words."""
    reason = describe_error(problem)
    if problem.errno == errno.ENOSPC:
        reason = "no space is left to write to; make room, and run the same command again"
    if isinstance(problem.filename, str | bytes):
        return f"{os.fsdecode(problem.filename)}: {reason}"
    return reason


def _is_out_of_memory(problem: BaseException) -> bool:
    """Return whether memory ran out: Python's, a GPU's, or the CPU's as torch reports it, by a
    RuntimeError.
    """
    kinds: tuple[Any, ...] = (MemoryError,)
    if "torch" in sys.modules:  # else nothing of torch was raised; importing it takes seconds
        kinds = (*kinds, sys.modules["torch"].OutOfMemoryError)
    return isinstance(problem, kinds) or "can't allocate memory" in str(problem)


# ------------------------------------------------------------------------------------------ streams


def _prepare_streams() -> None:
    """Check where output goes and where the command runs, before any work is done."""
    # A closed descriptor is taken by the next file that is opened, which prints would then be
    # written into.
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)

    # A stream that was closed before Python started is None.
    if sys.stderr is None:  # print(file=None) prints to standard output
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  open until the process ends
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        raise OSError("standard output is closed; send it to a file, or to /dev/null")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show √ shows ? instead

    # Refuse a deleted working directory now, before a relative path is resolved.
    try:
        os.getcwd()
    except OSError:
        raise OSError("the working directory was deleted; cd to a directory that exists") from None


def _give_up_output() -> None:
    """Drop what standard output does not take, so that Python does not try again, and complain,
    when it exits.
    """
    try:
        sys.stdout.flush()
    except (OSError, ValueError):  # ValueError: it was closed
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(sentence: str) -> None:
    """Print a sentence to standard error, on one line."""
    # Standard error may be full or closed too: then only the exit code is left.
    with suppress(OSError):
        print(f"telescope: {one_line(' '.join(sentence.split()))}", file=sys.stderr, flush=True)


@contextmanager
def _spoken_warnings() -> Iterator[None]:
    """Print each warning as one sentence, without the line of code that it came from."""

    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: _say(str(message))
        yield


@contextmanager
def _shown_log() -> Iterator[None]:
    """Print what the library logs, from the level INFO on, to standard error."""
    logger = logging.getLogger("telescope")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("telescope: %(message)s"))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
