"""Show how far a long call is: a bar on a terminal, a line now and then elsewhere."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from ..words import format_duration

# Seconds between two lines where there is no terminal: a log must stay short.
PAUSE = 60.0
PAUSE_ASKED = 10.0  # with progress=True
# The share that is done from which on the time left is more than a guess.
KNOWN = 0.02


class Advance(Protocol):
    """Say what share is done, from 0 to 1, and what was done last."""

    def __call__(self, share: float, said: str = "") -> None: ...


@contextmanager
def showing_progress(task: str, progress: bool | None) -> Iterator[Advance]:
    """Show on standard error how far the block is, as its calls of the yielded function say.

    Args:
        task: what runs, in a word.
        progress: False shows nothing. None shows a bar on a terminal, which is removed when the
            block ends, and elsewhere a line a minute; True shows six lines a minute there.
    """
    if progress is False:
        yield lambda share, said="": None
    elif sys.stderr.isatty():
        # The last column is what was done last: it may be of any length.
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[said]}", markup=False),
        )
        with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
            shown = bar.add_task(task, total=1.0, said="")
            yield lambda share, said="": bar.update(shown, completed=share, said=said)
    else:
        yield _lines(task, PAUSE_ASKED if progress else PAUSE)


def _lines(task: str, pause: float) -> Advance:
    """Return the function that prints a line, if the last one is long ago enough."""
    began = last = monotonic()

    def advance(share: float, said: str = "") -> None:
        nonlocal last
        now = monotonic()
        if now - last < pause:
            return
        last = now
        parts = [f"{task} {share:.0%}", said]
        if KNOWN <= share < 1:
            parts.append(f"{format_duration((now - began) * (1 - share) / share)} left")
        print("   ".join(part for part in parts if part), file=sys.stderr, flush=True)

    return advance
