"""How a run goes, for whoever looks on: a line that moves on a terminal, plain lines elsewhere."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from .events import Event, Finished, HeadsWatched, Logged, Report, Saved, Started, Stopped, Validated

COLLAPSED = 0.05  # nats: of ten queries nine look at one key alone


def line() -> Report:
    """On standard error, so that what a command prints stays apart."""
    return Moving() if sys.stderr.isatty() else plain


def plain(event: Event) -> None:
    said = sentence(event)
    if said:
        print(said, file=sys.stderr, flush=True)


class Moving:
    """The last step in one line with a bar; what is worth keeping scrolls above it."""

    def __init__(self, console: Console | None = None) -> None:
        columns = TextColumn("{task.description}"), BarColumn(bar_width=24)
        self.progress = Progress(*columns, console=console or Console(stderr=True, highlight=False), transient=True)
        self.task = self.progress.add_task("", total=None)

    def __call__(self, event: Event) -> None:
        said = sentence(event)
        if isinstance(event, Started):
            self.progress.update(self.task, total=event.steps, completed=event.step)
            self.progress.start()
        if isinstance(event, Logged):
            self.progress.update(self.task, completed=event.step, description=said)
        elif said and not isinstance(event, Saved):
            self.progress.console.print(said, markup=False)
        if isinstance(event, Finished | Stopped):
            self.progress.stop()


def sentence(event: Event) -> str | None:
    """An event in one line; None where it is nothing to speak of."""
    match event:
        case Started():
            where = event.device if event.processes == 1 else f"{event.processes} x {event.device}"
            going_on = f"   going on from step {event.step:,}" if event.step else ""
            return f"{_count(event.parameters)} parameters   {event.data}   {where}   {event.steps:,} steps{going_on}"
        case Logged():
            parts = f"step {event.step:,}", f"loss {event.loss:.4f}", f"lr {event.lr:.2e}"
            norm = () if event.norm is None else (f"norm {event.norm:.2f}",)
            speed = f"{_count(event.tokens_per_second)} tokens/s", f"{duration(event.seconds_left)} left"
            return "  ".join((*parts, *norm, *speed))
        case Validated():
            figures = "  ".join(f"{name} {figure:.4f}" for name, figure in event.metrics.items())
            return f"step {event.step:,}  validation  {figures}{'  best so far' if event.best else ''}"
        case HeadsWatched():
            collapsed = sum(entropy < COLLAPSED for heads in event.entropy.values() for entropy in heads)
            largest, name = max((max(heads), name) for name, heads in event.logit.items())
            said = f"step {event.step:,}  attention  largest logit {largest:.1f} ({name})"
            return f"{said}  {collapsed} heads look at one key alone" if collapsed else said
        case Saved():
            return f"step {event.step:,}  saved"
        case Stopped():
            again = f"goes on from step {event.saved:,}" if event.saved else "starts anew"
            return f"stopped at step {event.step:,}; the same command {again}"
        case Finished():
            return f"finished at step {event.step:,} with the weights of step {event.kept:,}"


def duration(seconds: float) -> str:
    """2 h 51 min, 4 min, 12 s"""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _count(number: float) -> str:
    """930, 1.9k, 2.6M"""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}"


class Clock:
    def __init__(self, step: int = 0) -> None:
        self.since, self.step = perf_counter(), step

    def lap(self, step: int) -> tuple[float, int]:
        """The seconds and the steps since the last lap."""
        now = perf_counter()
        seconds, steps = now - self.since, step - self.step
        self.since, self.step = now, step
        return max(seconds, 1e-9), steps

    @contextmanager
    def stopped(self) -> Iterator[None]:
        before = perf_counter()
        yield
        self.since += perf_counter() - before
