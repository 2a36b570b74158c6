"""Show a run's events on standard error: one line with a progress bar on a terminal, plain lines
elsewhere.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from .events import (
    Event,
    Finished,
    HeadsWatched,
    Logged,
    Report,
    Saved,
    Started,
    Stopped,
    Validated,
)

COLLAPSED = (
    0.05  # nats: the mean entropy when, for example, nine of ten queries attend to one key alone
)


def terminal_report() -> Report:
    """Return a report to standard error, so that standard output holds only what a command
    prints.
    """
    return ProgressBar() if sys.stderr.isatty() else print_event


def print_event(event: Event) -> None:
    """Print an event as one line to standard error."""
    text = format_event(event)
    if text:
        print(text, file=sys.stderr, flush=True)


class ProgressBar:
    """A report that redraws the last logged step in one line with a bar; other events scroll above
    that line.
    """

    def __init__(self, console: Console | None = None) -> None:
        columns = TextColumn("{task.description}"), BarColumn(bar_width=24)
        self.progress = Progress(
            *columns, console=console or Console(stderr=True, highlight=False), transient=True
        )
        self.task = self.progress.add_task("", total=None)

    def __call__(self, event: Event) -> None:
        text = format_event(event)
        if isinstance(event, Started):
            self.progress.update(self.task, total=event.steps, completed=event.step)
            self.progress.start()
        if isinstance(event, Logged):
            self.progress.update(self.task, completed=event.step, description=text)
        elif text and not isinstance(event, Saved):
            self.progress.console.print(text, markup=False)
        if isinstance(event, Finished | Stopped):
            self.progress.stop()


def format_event(event: Event) -> str | None:
    """Return an event as one line of text."""
    match event:
        case Started():
            device = event.device if event.processes == 1 else f"{event.processes} x {event.device}"
            resumed = f"   going on from step {event.step:,}" if event.step else ""
            parameters = _format_count(event.parameters)
            left_out = f", left out: {format_counts(event.left_out)}" if event.left_out else ""
            return (
                f"{parameters} parameters   {event.data}{left_out}   {device}   "
                f"{event.steps:,} "
                f"steps{resumed}"
            )
        case Logged():
            parts = f"step {event.step:,}", f"loss {event.loss:.4f}", f"lr {event.lr:.2e}"
            norm = () if event.norm is None else (f"norm {event.norm:.2f}",)
            speed = (
                f"{_format_count(event.tokens_per_second)} tokens/s",
                f"{format_duration(event.seconds_left)} left",
            )
            return "  ".join((*parts, *norm, *speed))
        case Validated():
            metrics = "  ".join(f"{name} {value:.4f}" for name, value in event.metrics.items())
            return (
                f"step {event.step:,}  validation  {metrics}{'  best so far' if event.best else ''}"
            )
        case HeadsWatched():
            collapsed = sum(
                entropy < COLLAPSED for heads in event.entropy.values() for entropy in heads
            )
            largest, name = max((max(heads), name) for name, heads in event.logit.items())
            text = f"step {event.step:,}  attention  largest logit {largest:.1f} ({name})"
            return f"{text}  heads that attend to one key alone: {collapsed}" if collapsed else text
        case Saved():
            return f"step {event.step:,}  saved"
        case Stopped():
            next_run = f"goes on from step {event.saved:,}" if event.saved else "starts anew"
            return f"stopped at step {event.step:,}; the same command {next_run}"
        case Finished():
            return f"finished at step {event.step:,} with the weights of step {event.kept:,}"


def format_counts(counts: Mapping[str, int]) -> str:
    """Return counts by name as text: "3 empty, 12 too long"."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def format_duration(seconds: float) -> str:
    """Return a duration in words: "2 h 51 min", "4 min", "12 s"."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _format_count(number: float) -> str:
    """Return a count in three digits or so: "930", "1.9k", "2.6M"."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}"


class Clock:
    """Measure the seconds of steps, without the time spent in `paused` blocks."""

    def __init__(self, step: int = 0) -> None:
        self.lap_start = perf_counter()
        self.step = step

    def lap(self, step: int) -> tuple[float, int]:
        """Return the seconds and the steps since the last lap, and start the next one."""
        now = perf_counter()
        seconds = now - self.lap_start
        steps = step - self.step
        self.lap_start = now
        self.step = step
        return max(seconds, 1e-9), steps

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time spent in this context."""
        before = perf_counter()
        yield
        self.lap_start += perf_counter() - before
