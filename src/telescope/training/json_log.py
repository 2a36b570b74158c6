"""The log of a run as JSON lines: one object for each event, for programs that follow a
training.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any

from .events import Event, Report, Started
from .settings import TrainingError

LOG = "log.jsonl"


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
            with file.open("ab", buffering=0) as opened:
                opened.write(_to_line(event))
        except OSError as problem:
            reason = str(problem.strerror or problem).lower()
            raise TrainingError(
                f"{file} cannot be written: {reason}; see to it, and run the same command: it goes "
                "on from the "
                "last checkpoint"
            ) from None

    return report


def read_log(out: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the events in the log of a run, without those of steps that a resumed run has run
    again.

    out  the folder of the run, or of one stage such as runs/mine/training, or the file log.jsonl
    itself

    Each event is a dict with "event", such as "logged", "time", and the fields of the event. The
    last line is left out where it is not finished: the run is writing it, or was killed.

    Raises a ValueError for a missing file, and names the line that is not JSON.

    Example:
        >>> from pathlib import Path
        >>> from telescope.training import read_log
        >>> _ = Path("log.jsonl").write_text('{"event": "logged", "step": 1, "loss": 2.5}\\n{"event": "sav')
        >>> read_log("log.jsonl")
        [{'event': 'logged', 'step': 1, 'loss': 2.5}]
    """
    file = Path(out)
    if file.is_dir():
        file = next(
            (place for place in (file / LOG, file / "training" / LOG) if place.exists()), file / LOG
        )
    try:
        lines = file.read_bytes().split(b"\n")[
            :-1
        ]  # after the last line break: nothing, or an unfinished line
    except OSError as problem:
        reason = str(problem.strerror or problem).lower()
        raise ValueError(f"{file} cannot be read: {reason}; telescope train writes it") from None
    events: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        event = _parse_line(line, f"{file}, line {number}")
        if event["event"] == "started":
            events = [earlier for earlier in events if earlier["step"] <= event["step"]]
        events.append(event)
    return events


def _parse_line(line: bytes, where: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"{where}: is not JSON; delete the line to read the others") from None
    if (
        not isinstance(event, dict)
        or not isinstance(event.get("step"), int)
        or "event" not in event
    ):
        raise ValueError(
            f'{where}: is not an event with "event" and "step"; delete the line to read the others'
        )
    return event


def _to_line(event: Event) -> bytes:
    """Return an event as a line of JSON, with its kind and the time in UTC."""
    kind = re.sub(
        r"(?<=[a-z])(?=[A-Z])", "_", type(event).__name__
    ).lower()  # HeadsWatched: heads_watched
    head = {"event": kind, "time": datetime.now(UTC).isoformat(timespec="milliseconds")}
    return (
        json.dumps(head | _to_json(asdict(event)), ensure_ascii=False, allow_nan=False) + "\n"
    ).encode()


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
    whole = contents.rfind(b"\n") + 1
    if whole < len(contents):
        os.truncate(file, whole)
