"""Fork children that share the imports of this process, and kill them at any moment.

A child dies after some seconds, or at an exact step: before or after one of the calls that change a
folder.
"""

import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any

from telescope.files import atomic

from ..supervisor import WrongError

CALLS = ("link", "mkdir", "open", "fsync", "rename", "replace", "rmdir", "unlink")  # of os
PATIENCE = 100.0  # seconds for a child that is not killed
KILLED = -signal.SIGKILL
Work = Callable[[], object]


@dataclass(frozen=True)
class Death:
    """When a child dies: after `seconds`, or at its `step`-th step, counted from 1; never, if both
    are None.
    """

    seconds: float | None = None
    step: int | None = None


NEVER = Death()


@dataclass(frozen=True)
class Measured:
    """What a piece of work takes undisturbed: seconds, and steps."""

    seconds: float
    steps: int

    def draw(self, dice: Random) -> Death:
        """Draw a moment of the work: half of the time a step, else a time."""
        if dice.random() < 0.5:
            return Death(step=dice.randint(1, self.steps))
        return Death(seconds=dice.uniform(0.0, 1.1 * self.seconds))


def measure(work: Work, folder: Path) -> Measured:
    """Run the work in a child, and return what it takes."""
    counted = folder / "steps"

    def run_and_count() -> None:
        steps = _on_each_step(lambda number: None)
        work()
        counted.write_text(str(steps()))

    began = monotonic()
    finish(start(run_and_count, folder))
    taken = monotonic() - began
    steps = int(counted.read_text())
    counted.unlink()
    return Measured(taken, steps)


def start(work: Work, folder: Path, death: Death = NEVER) -> int:
    """Run the work in a child, which kills itself at the step of `death`, and return its process
    id.

    If the work raises, the child exits with 1, and the error is in a file of `folder`, see
    `complaint`.
    """
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        if death.step is not None:
            last = death.step
            _on_each_step(
                lambda number: os.kill(os.getpid(), signal.SIGKILL) if number == last else None
            )
        work()
        code = 0
    except BaseException as problem:
        with open(_complaint_file(folder, os.getpid()), "w") as opened:
            opened.write(f"{type(problem).__name__}: {problem}\n")
            traceback.print_exc(file=opened)
    os._exit(code)


def wait(child: int, seconds: float = PATIENCE) -> int:
    """Return the exit code of a child; kill the child after some seconds, and return KILLED."""
    deadline = monotonic() + seconds
    while monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        sleep(min(0.005, max(deadline - monotonic(), 0.0)))
    return kill(child)


def is_killed(work: Work, folder: Path, death: Death) -> bool:
    """Run the work in a child that is to die, and return whether it died before it was done."""
    child = start(work, folder, death)
    code = wait(child, PATIENCE if death.seconds is None else death.seconds)
    if code not in (0, KILLED):
        raise WrongError(f"a run after a kill ended with {code}: {complaint(folder, child)}")
    return code == KILLED


def kill(child: int) -> int:
    """Kill a child now, and return its exit code: KILLED, unless it had ended before."""
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def finish(*children: int, folder: Path | None = None) -> None:
    """Wait for children that nobody kills; raise a WrongError if one of them fails or hangs."""
    for child in children:
        code = wait(child)
        if code:
            told = "" if folder is None else complaint(folder, child)
            raise WrongError(f"the next run ended with {code}: {told}")


def complaint(folder: Path, child: int) -> str:
    """Return and remove what a child said that raised an error; nothing if it said nothing."""
    file = _complaint_file(folder, child)
    told = file.read_text() if file.exists() else ""
    file.unlink(missing_ok=True)
    return told


def _complaint_file(folder: Path, child: int) -> Path:
    return folder / f"complaint-{child}"


def _on_each_step(reach: Callable[[int], object]) -> Callable[[], int]:
    """Call `reach` with 1, 2, 3, ... before and after each call that changes a folder, in this
    process from now on.

    Return a function that returns how many steps there were.
    """
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        reach(count)

    def stepping(call: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*given: Any, **named: Any) -> Any:
            step()
            result = call(*given, **named)
            step()
            return result

        return stepped

    for name in CALLS:
        setattr(os, name, stepping(getattr(os, name)))
    atomic._exchange = stepping(atomic._exchange)
    return lambda: count


def contents(place: Path) -> dict[str, bytes]:
    """Return the bytes of the files of a folder, by name, without hidden ones; nothing if there is
    no folder.
    """
    found = {}
    for file in sorted(place.rglob("*")):
        name = file.relative_to(place)
        if file.is_file() and not any(part.startswith(".") for part in name.parts):
            found[str(name)] = file.read_bytes()
    return found


def put(place: Path, files: dict[str, bytes]) -> None:
    """Write what `contents` returned of another folder."""
    for name, data in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
