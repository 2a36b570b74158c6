"""Reports of a run: lines or a progress bar on standard error, TensorBoard, and a log of JSON
lines.
"""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from itertools import chain
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from ..files import import_optional
from ..words import describe_error, format_duration
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
from .settings import TrainingError

LOG = "log.jsonl"
COLLAPSED = 0.05  # nats: the mean entropy when nine of ten queries attend to one key alone, or so


def default_report(out: Path) -> Report:
    """Return a report to the terminal, to TensorBoard logs in out/log and to out/log.jsonl."""
    reports = terminal_report(), tensorboard(out / "log"), json_log(out / LOG)

    def report(event: Event) -> None:
        for each in reports:
            each(event)

    return report


# ------------------------------------------------------------------------------------- the terminal


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
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            console=console or Console(stderr=True, highlight=False),
            transient=True,
        )
        self.task = self.progress.add_task("", total=None)

    def __call__(self, event: Event) -> None:
        # Checkpoints are not shown: there are many, and the bar says that the run lives.
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
        case Started(left_out=left_out):
            device = event.device if event.processes == 1 else f"{event.processes} x {event.device}"
            resumed = f"   going on from step {event.step:,}" if event.step else ""
            without = f", left out: {format_counts(left_out)}" if left_out else ""
            return (
                f"{_format_count(event.parameters)} parameters   {event.data}{without}   {device}"
                f"   {event.steps:,} steps{resumed}"
            )
        case Logged():
            norm = "" if event.norm is None else f"norm {event.norm:.2f}  "
            return (
                f"step {event.step:,}  loss {event.loss:.4f}  lr {event.lr:.2e}  {norm}"
                f"{_format_count(event.tokens_per_second)} tokens/s  "
                f"{format_duration(event.seconds_left)} left"
            )
        case Validated():
            metrics = "  ".join(f"{name} {value:.4f}" for name, value in event.metrics.items())
            best = "  best so far" if event.best else ""
            return f"step {event.step:,}  validation  {metrics}{best}"
        case HeadsWatched():
            entropies = chain.from_iterable(event.entropy.values())
            collapsed = sum(entropy < COLLAPSED for entropy in entropies)
            # One head with exploding logits is enough to watch out.
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
        # Never 0, by which the speed is divided.
        return max(seconds, 1e-9), steps

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time spent in this context."""
        before = perf_counter()
        yield
        self.lap_start += perf_counter() - before


# -------------------------------------------------------------------------------------- TensorBoard


def tensorboard(folder: Path) -> Report:
    """Return a report that writes TensorBoard logs to the folder.

    When a run resumes, logs after the step from which it resumes are purged: the run will write
    them again.
    """
    import_optional("tensorboard", "training", "train")  # before the training begins, not within
    writer: Any = None

    def report(event: Event) -> None:
        nonlocal writer
        numbers: dict[str, float | None] = {}
        match event:
            case Started():
                module = import_module("torch.utils.tensorboard")
                writer = module.SummaryWriter(folder, purge_step=event.step + 1)
            case Logged():
                for name in ("loss", "lr", "tokens_per_second", "norm"):
                    numbers[f"train/{name}"] = getattr(event, name)
            case Validated():
                numbers = {f"validation/{name}": number for name, number in event.metrics.items()}
            case HeadsWatched():
                measures = {"entropy": event.entropy, "largest_logit": event.logit}
                numbers = {
                    f"{measure}/{name}.{head}": number
                    for measure, by_name in measures.items()
                    for name, per_head in by_name.items()
                    for head, number in enumerate(per_head)
                }
        # Events of other kinds have no numbers.
        assert writer is not None, "the first event must be Started"
        for name, number in numbers.items():
            if number is not None:
                writer.add_scalar(name, number, event.step)
        # Closing flushes what is still in memory.
        if isinstance(event, Finished | Stopped):
            writer.close()

    return report


# --------------------------------------------------------------------------------------- JSON lines


def json_log(file: Path) -> Report:
    """Return a report that appends each event to the file as one line of JSON, in one write.

    A line that a killed run has left unfinished at the end of the file is removed when the next run
    starts.
    """

    def report(event: Event) -> None:
        try:
            if isinstance(event, Started):
                file.parent.mkdir(parents=True, exist_ok=True)
                _remove_unfinished_line(file)
            # One write for each line: a reader, or a kill, sees whole lines.
            with file.open("ab", buffering=0) as opened:
                opened.write(_to_line(event))
        except OSError as problem:
            raise TrainingError(
                f"{file} cannot be written: {describe_error(problem)}; see to it, and run the same "
                "command: it goes on from the last checkpoint"
            ) from None

    return report


def read_log(out: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the events in the log of a run, without those of steps that a resumed run has run
    again.

    Each event is a dict with "event", such as "logged", "time", and the fields of the event. The
    last line is left out where it is not finished: the run is writing it, or was killed.

    Args:
        out: the folder of the run, or of one stage such as runs/mine/training, or the file
            log.jsonl itself.

    Returns:
        The events, the first first.

    Raises:
        ValueError: for a missing file, and names the line that is not JSON.

    Example:
        >>> from pathlib import Path
        >>> from telescope.training import read_log
        >>> lines = '{"event": "logged", "step": 1, "loss": 2.5}\\n{"event": "sav'
        >>> _ = Path("log.jsonl").write_text(lines)
        >>> read_log("log.jsonl")
        [{'event': 'logged', 'step': 1, 'loss': 2.5}]
    """
    file = Path(out)
    if file.is_dir():
        places = [file / LOG, file / "training" / LOG]
        file = next(filter(Path.exists, places), places[0])
    try:
        # After the last line break there is nothing, or an unfinished line.
        *lines, _ = file.read_bytes().split(b"\n")
    except OSError as problem:
        reason = describe_error(problem)
        raise ValueError(f"{file} cannot be read: {reason}; telescope train writes it") from None
    events: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        event = _parse_line(line, f"{file}, line {number}")
        # A resumed run runs the steps after its checkpoint again.
        if event["event"] == "started":
            events = [earlier for earlier in events if earlier["step"] <= event["step"]]
        events.append(event)
    return events


def _parse_line(line: bytes, where: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"{where}: is not JSON; delete the line to read the others") from None
    match event:
        case {"event": _, "step": int()}:
            return dict(event)
    raise ValueError(
        f'{where}: is not an event with "event" and "step"; delete the line to read the others'
    )


def _to_line(event: Event) -> bytes:
    """Return an event as a line of JSON, with its kind and the time in UTC."""
    # HeadsWatched: heads_watched
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(event).__name__).lower()
    head = {"event": kind, "time": datetime.now(UTC).isoformat(timespec="milliseconds")}
    line = json.dumps(head | _to_json(asdict(event)), ensure_ascii=False, allow_nan=False)
    return f"{line}\n".encode()


def _to_json(value: Any) -> Any:
    """Return a value as JSON has it: paths are texts, and numbers that are not finite, which JSON
    lacks, are null.
    """
    if isinstance(value, Mapping):
        return {str(name): _to_json(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(part) for part in value]
    if isinstance(value, float):
        return value if isfinite(value) else None
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _remove_unfinished_line(file: Path) -> None:
    """Cut what follows the last line break of a file."""
    if not file.exists():
        return
    contents = file.read_bytes()
    # What follows the last line break was not finished.
    whole = contents.rfind(b"\n") + 1
    if whole < len(contents):
        os.truncate(file, whole)
