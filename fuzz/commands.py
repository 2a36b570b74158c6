"""Random command lines: whatever is typed, a command does its work or says in one sentence why not.

Commands and options are read from the command line itself. Each gets values that fit, and odd ones:
wrong types, files where folders are meant, devices that do not exist, bytes that are not UTF-8.
Standard input and output may be closed, full or unread, the working directory deleted, files
limited to a few bytes.

A worker imports everything once and forks a child for each command line, which calls the entry
point `main` on real file descriptors; one in fifty starts a Python of its own instead. What would
run for long is kept small: models, texts, steps. A failure is a traceback, an error that only a
fault of Telescope explains, an exit code that is not documented, several lines about one error, a
leftover of a trial, a signal, or a command that does not end.
"""

import atexit
import os
import resource
import selectors
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from random import Random
from time import monotonic
from typing import Any

from .command_values import FITTING, LIMITS, ODD_NUMBERS, ODD_PATHS, ODD_TEXTS, make_places
from .supervisor import ROOT, Done, WrongError

UNIT = "command lines"
SECONDS = 10.0  # of a core, for the worker itself; a child has LIMIT
HUNG = 240.0
BYTES = None  # the server and its threads reserve more than they use

# Seconds by the clock until a command counts as hanging, on a machine that has other things to do.
LIMIT = 180.0
SERVED = 1.5  # seconds after which a command that serves a page gets Ctrl-C
REAL = 0.02  # share of command lines that start a Python of their own
# Most lines on standard error of a command that fails: warnings, events of a training, the
# sentence.
LINES = 6
RAW = ("Traceback (most recent call last)", "Exception ignored", "[Errno ")

UNUSED = (
    "__main__",
    "huggingface",
    "telescope.plot",
    "telescope.callbacks",
)  # and slow to import
IMPORTED_LATE = (
    "accelerate",
    "torch._dynamo",
    "torch.utils.tensorboard",
    "pyarrow.parquet",
)  # by what commands do

Leaves = dict[tuple[str, ...], Any]
STATE: dict[str, Any] = {}


@dataclass
class Case:
    """A command line, and what surrounds it."""

    path: tuple[str, ...]
    arguments: list[str]
    stdin: str = "text"  # or closed, empty, odd
    stdout: str = "read"  # or closed, full, unread
    folder: str = "new"  # or deleted
    file_size: int | None = None  # most bytes of a file
    real: bool = False
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def serves(self) -> bool:
        return self.path == ("serve",) or "--open" in self.arguments


# ------------------------------------------------------------------------------------------ drawing


def prepare() -> None:
    """Import everything that a command may, and make the models and files that command lines
    name.
    """
    import telescope

    for module in walk_packages(telescope.__path__, "telescope."):
        if not any(part in module.name for part in UNUSED):
            import_module(module.name)
    for name in IMPORTED_LATE:
        import_module(name)
    from telescope.cli import app

    with suppress(ValueError):  # what typer itself imports when it first reads a number
        app(["explain", "--example", "none", "--head", "0"], standalone_mode=False)
    place = Path(tempfile.mkdtemp(prefix="telescope-commands-"))
    # In a child: what has run in this process (threads of kernels, of autograd) could not be
    # forked.
    code, complaint = _watch_child(lambda: make_places(place), serves=False)
    if code != 0:
        raise RuntimeError(f"the files of the command lines could not be made: {complaint}")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    STATE["places"] = place
    STATE["leaves"] = _leaves()


def _leaves() -> Leaves:
    """Return every command by its path, read from the command line itself."""
    import typer

    from telescope.cli import app

    def walk(group: Any, path: tuple[str, ...]) -> Leaves:
        found: Leaves = {}
        for name, command in group.commands.items():
            inside = (
                walk(command, (*path, name))
                if hasattr(command, "commands")
                else {(*path, name): command}
            )
            found |= inside
        return found

    return walk(typer.main.get_command(app), ())


def draw(dice: Random) -> Case:
    """Draw a command line."""
    path = dice.choice([*STATE["leaves"]])
    if path == ("doctor",) and dice.random() < 0.8:
        path = ("watch",)  # what doctor does takes long, and only its options are tried
    odd = dice.choice(
        (0.0, 0.1, 0.3)
    )  # share of values that do not fit: without any, the work is done
    arguments: list[str] = []
    for parameter in STATE["leaves"][path].params:
        arguments += _draw_parameter(dice, path[-1], parameter, odd)
    match dice.randrange(25):
        case 0:
            arguments.insert(
                dice.randint(0, len(arguments)),
                dice.choice(("--nope", "-q", "--", "--model", "extra")),
            )
        case 1 if arguments:
            arguments.pop(dice.randrange(len(arguments)))
        case 2 if arguments:
            arguments.append(dice.choice(arguments))
        case 3:
            arguments.append("--help")
    if path == ("doctor",) and "--help" not in arguments:
        arguments.append("--nope")
    case = Case((*path,), arguments)
    case.stdin = dice.choices(("text", "empty", "closed", "odd"), (12, 2, 1, 1))[0]
    case.stdout = dice.choices(("read", "closed", "full", "unread"), (40, 1, 2, 1))[0]
    case.folder = dice.choices(("new", "deleted"), (60, 1))[0]
    case.file_size = dice.choices((None, 0, 100, 20_000), (40, 1, 1, 1))[0]
    case.real = (
        dice.random() < REAL and not case.serves
    )  # Ctrl-C could come before a new Python has started
    if dice.random() < 0.1:
        case.environment["TELESCOPE_DATA"] = _fill(dice.choice(ODD_PATHS))
    return case


def _draw_parameter(dice: Random, command: str, parameter: Any, odd: float) -> list[str]:
    """Return the words that set one option or argument; none if it is left out."""
    is_option = parameter.param_type_name == "option"
    if parameter.name == "help" or (command, parameter.name) == ("doctor", "every"):
        return []
    always = parameter.required or (command, parameter.name) in LIMITS
    if dice.random() > (0.97 if always else 0.25 if is_option else 0.6):
        return []
    if getattr(parameter, "is_flag", False):
        return [parameter.opts[0]]
    words: list[str] = []
    several = getattr(parameter, "multiple", False) or parameter.nargs == -1
    for _ in range(dice.choice((1, 1, 2)) if several else 1):
        value = _draw_value(dice, command, parameter, odd)
        if not is_option:
            words.append(value)
        elif dice.random() < 0.3:
            words.append(f"{parameter.opts[0]}={value}")
        else:
            words += [parameter.opts[0], value]
    return words


def _draw_value(dice: Random, command: str, parameter: Any, odd: float) -> str:
    fitting = FITTING.get((command, parameter.name)) or FITTING.get(("", parameter.name))
    if fitting is None:
        raise WrongError(
            f"telescope {command}: no values are known for {parameter.name}; see "
            "fuzz/command_values.py"
        )
    if dice.random() >= odd:
        return _fill(dice.choice(fitting))
    values = (*ODD_PATHS, *ODD_TEXTS)
    if all(value.lstrip("-").replace(".", "").isdigit() for value in fitting):
        # A large number of steps or tokens is no mistake, and takes long.
        values = tuple(
            value
            for value in ODD_NUMBERS
            if (command, parameter.name) not in LIMITS or len(value) < 5
        )
    return _fill(dice.choice(values))


def _fill(value: str) -> str:
    return value.replace("{places}", str(STATE["places"]))


# ------------------------------------------------------------------------------------------ running


def run(dice: Random, folder: Path) -> Done:
    case = draw(dice)
    code, complaint = _watch_child(lambda: _be_command(case, folder), serves=case.serves)
    _check(case, code, complaint, folder)
    return Done(" ".join(case.path), code == 0)


def _watch_child(work: Callable[[], int], *, serves: bool) -> tuple[int, str]:
    """Run `work` in a forked child, and return its exit code, negative for a signal, and its
    standard error.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(writing, 2)
        os.close(writing)
        os._exit(_run_as_python(work))
    os.close(writing)
    began = monotonic()
    interrupted = False
    complaint = b""
    with selectors.DefaultSelector() as selector:
        selector.register(reading, selectors.EVENT_READ)
        while True:
            if selector.select(0.05):
                piece = os.read(reading, 1 << 16)
                if not piece:
                    break
                complaint += piece
            if serves and not interrupted and monotonic() - began > SERVED:
                os.kill(child, signal.SIGINT)
                interrupted = True
            if monotonic() - began > LIMIT:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                os.close(reading)
                raise WrongError(
                    f"does not end; standard error: {complaint[-1000:].decode(errors='replace')}"
                )
    os.close(reading)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), complaint.decode(errors="replace")


def _run_as_python(work: Callable[[], int]) -> int:
    """Call `work` and return the exit code that Python would end with."""
    sys.stderr = open(  # noqa: SIM115
        2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code: Any = work()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError) as problem:
        print(f"Exception ignored while flushing sys.stdout: {problem}", file=sys.stderr)
        code = 120
    return int(code)


def _be_command(case: Case, folder: Path) -> int:
    """Become the command: its directory, descriptors, limits and arguments; never returns but by
    the entry point.
    """
    os.environ.update(
        {"HOME": str(folder), "BROWSER": "true", "ACCELERATE_USE_CPU": "true", **case.environment}
    )
    os.environ["PYTHONPATH"] = str(ROOT / "src")
    os.chdir(folder)
    _redirect(case)
    if case.folder == "deleted":
        shutil.rmtree(folder)
    if case.file_size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (case.file_size, case.file_size))
    words = [*case.path, *case.arguments]
    if case.real:
        os.execv(sys.executable, [sys.executable, "-m", "telescope.cli", *words])
    from telescope.cli import main

    sys.argv = ["telescope", *words]
    main()
    raise AssertionError("main returned")


def _redirect(case: Case) -> None:
    """Replace standard input and output, and Python's objects for them, as a shell and Python's
    start would.
    """
    if case.stdin == "closed":
        os.close(0)
    else:
        name = {"text": "text.txt", "odd": "latin.txt"}.get(case.stdin)
        os.dup2(os.open(os.devnull if name is None else STATE["places"] / name, os.O_RDONLY), 0)
    if case.stdout == "closed":
        os.close(1)
    elif case.stdout == "unread":
        reading, writing = os.pipe()
        os.dup2(writing, 1)
        os.close(writing)
        os.close(reading)
    else:
        os.dup2(os.open("/dev/full" if case.stdout == "full" else os.devnull, os.O_WRONLY), 1)
    sys.stdin = None if case.stdin == "closed" else open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = None if case.stdout == "closed" else open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


# ----------------------------------------------------------------------------------------- checking


def _check(case: Case, code: int, complaint: str, folder: Path) -> None:
    """Raise a WrongError unless the command ended as documented."""
    from telescope.cli import boundary

    documented = {boundary.DONE, boundary.FAILED, boundary.WRONG}
    if case.serves:
        documented.add(boundary.STOPPED)
    if case.stdout == "unread":
        documented.add(boundary.UNREAD)
    lines = complaint.splitlines()
    wrong = None
    if code not in documented:
        wrong = f"exit code {code}"
    elif any(raw in complaint for raw in (*RAW, boundary.FAULT)):
        wrong = "raw words of Python"
    elif code in (boundary.FAILED, boundary.WRONG) and not (
        lines and lines[-1].startswith("telescope: ")
    ):
        wrong = "an error without its sentence"
    elif code != boundary.DONE and len(lines) > LINES:
        wrong = f"{len(lines)} lines about an error"
    elif folder.exists() and any(folder.rglob(".*.new-*")):
        wrong = "a trial file is left behind"
    folder.mkdir(exist_ok=True)  # the supervisor removes it
    if wrong is not None:
        raise WrongError(f"{wrong}: {case}: {complaint[-3000:]}")
