"""Share a corpus among processes, and keep what each has done in files, so that a killed run can go on.

Shard s of the corpus belongs to process s modulo the number of processes. Every process writes the sums of its finished
shards to a file of its own in OUT.progress, each time as a whole; sums merge exactly, so that neither the number of
processes nor the moments at which they were killed can be seen in the result. Processes talk through this folder alone.
"""

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from errno import ENOSPC
from pathlib import Path
from secrets import token_hex
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ..files import paths
from ..files.atomic import resolve_path, sync_file
from ..files.errors import LoadError
from ..files.locks import lock_file
from ..files.safetensors import scan_file
from .description import check_done, check_part
from .fingerprint import check_same_run
from .sums import AtlasSums

TIMEOUT = 30.0  # seconds without a sign of life, after which a process is taken to be dead
GRACE = 60.0  # seconds for a process to load its model before it gives its first sign of life
BEAT = 1.0  # seconds between two signs of life
POLL = 0.1  # seconds between two looks while waiting
VERSION = 1


class WorkerError(RuntimeError):
    """Another process of the run has died. What is done is kept: the same command goes on."""


class ShardSet:
    """A set of shard numbers, kept as ranges [first, stop): what is done is mostly one stretch."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self.numbers = {number for first, stop in ranges for number in range(first, stop)}

    def ranges(self) -> list[list[int]]:
        """Return the set as sorted ranges, for JSON."""
        found: list[list[int]] = []
        for number in sorted(self.numbers):
            if found and found[-1][1] == number:
                found[-1][1] += 1
            else:
                found.append([number, number + 1])
        return found


class Progress:
    """The folder OUT.progress: the settings of the run, and a file of sums for each process of each attempt."""

    def __init__(self, out: str | os.PathLike[str], settings: Mapping[str, Any], rank: int) -> None:
        place = resolve_path(out)
        self.folder, self.rank = place.with_name(f"{place.name}.progress"), rank
        self.file = self.folder / f"part-{rank:05d}-{token_hex(4)}.safetensors"
        self.done = ShardSet()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = lock_file(self.folder / f"lock-{rank:05d}")
        except OSError as problem:
            raise ValueError(f"{self.folder} cannot be made or locked: {problem.strerror}") from None
        if self._lock is None:
            raise ValueError(f"{self.folder} is being written by another run; wait for it, or choose another out=")
        try:
            self._check_settings(dict(settings))
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let another run write to the folder."""
        if self._lock is not None:
            self._lock.release()

    def _check_settings(self, settings: dict[str, Any]) -> None:
        """Write the settings of a new run; raise a ValueError where an unfinished run had others."""
        file = self.folder / "settings.json"
        settings = json.loads(json.dumps(settings))
        if not file.exists():
            beside = self.folder / f".settings-{self.rank}-{token_hex(4)}"
            beside.write_text(json.dumps(settings), encoding="utf-8")
            with suppress(OSError):  # another process was first: its settings count
                os.link(beside, file)
            if not file.exists():  # a file system without hard links
                beside.replace(file)
            beside.unlink(missing_ok=True)
        try:
            known = paths.read_json(file)
        except LoadError:
            raise ValueError(f"{file} is damaged; delete {self.folder}, and run the same command again") from None
        way_out = "delete that folder to begin anew"
        check_same_run(f"{self.folder} holds an unfinished atlas", known, settings, way_out)

    def parts(self) -> dict[Path, dict[str, Any]]:
        """Return the description of each file of sums; a LoadError where one is damaged."""
        return {file: _read_header(file) for file in sorted(self.folder.glob("part-*.safetensors"))}

    def finished(self) -> set[int]:
        """Return the shards that are done, by whichever process."""
        return {number for part in self.parts().values() for number in ShardSet(part["done"]).numbers}

    def save(self, sums: AtlasSums, rest: Mapping[str, Any]) -> None:
        """Write the sums of this process's finished shards, as a whole or not at all."""
        header = {"version": VERSION, "done": self.done.ranges(), "sums": sums.description(), **rest}
        beside = self.file.with_name(f".{self.file.name}.new")
        try:
            save_file(sums.tensors(), beside, metadata={"atlas": json.dumps(header)})
            sync_file(beside)
            beside.replace(self.file)
        except (OSError, SafetensorError) as problem:
            beside.unlink(missing_ok=True)
            full = getattr(problem, "errno", None) == ENOSPC or "No space left" in str(problem)
            reason = "the disk is full; make room" if full else f"{problem}; see to it"
            raise ValueError(
                f"{self.folder} cannot be written: {reason}, and run the same command: it goes on from the shards done"
            ) from None

    def merged(self) -> tuple[AtlasSums, list[dict[str, Any]]]:
        """Return the sums of all processes, and the descriptions of their files."""
        total: AtlasSums | None = None
        headers, seen = [], set[int]()
        for file, header in self.parts().items():
            own = ShardSet(header["done"]).numbers
            if own & seen:
                raise LoadError(f"{file} repeats shard {min(own & seen)}: two runs wrote to this folder; delete it")
            seen |= own
            sums = _read_sums(file, header["sums"])
            headers.append(header)
            if total is None or not total.layers:  # a process that found every shard done has sums of nothing
                total = sums
            elif sums.layers:
                total.merge(sums)
        if total is None:
            raise ValueError("no text could be read")
        return total, headers

    def remove(self) -> None:
        """Remove the folder once the atlas is written."""
        for file in [*self.folder.iterdir()]:
            file.unlink(missing_ok=True)
        self.folder.rmdir()


def _read_header(file: Path) -> dict[str, Any]:
    """Return the description of a file of sums, after checking it."""
    try:
        with safe_open(paths.check_is_file(file), "pt") as opened:
            header = paths.parse_json((opened.metadata() or {})["atlas"].encode(), f"the description of {file}")
    except (OSError, SafetensorError, KeyError, LoadError) as problem:
        raise _damaged(file, problem) from None
    if header.get("version") != VERSION:
        raise LoadError(f"{file} is of version {header.get('version')!r}, not {VERSION}; delete its folder")
    try:
        check_part(header, "its description")
        check_done(header.get("done"), "its description")
    except LoadError as problem:
        raise _damaged(file, problem) from None
    return header


def _read_sums(file: Path, description: Mapping[str, Any]) -> AtlasSums:
    try:
        return AtlasSums.load(scan_file(file).read_all(), description)
    except ValueError as problem:
        raise _damaged(file, problem) from None


def _damaged(file: Path, problem: Exception) -> LoadError:
    return LoadError(f"{file} is damaged: {problem}; delete it, and its shards are read again")


class Heartbeat:
    """Give signs of life in a folder, and look for those of the other processes: a counter in a file for each.

    Clocks of machines differ, so that the time is measured here, from when a counter was last seen to change.
    """

    def __init__(self, folder: Path, rank: int, count: int) -> None:
        self.folder, self.rank = folder, rank
        self.others = [other for other in range(count) if other != rank]
        self.seen = dict.fromkeys(self.others, ("", monotonic() + GRACE - TIMEOUT))
        self.checked, self.stopped = 0.0, Event()
        self.thread = Thread(target=self._beat, daemon=True)
        if self.others:
            self.thread.start()

    def _beat(self) -> None:
        token, number = token_hex(4), 0
        while not self.stopped.is_set():
            number += 1
            with suppress(OSError):  # a full disk, or a folder that is gone: the others will say so
                (self.folder / f"alive-{self.rank:05d}").write_text(f"{token} {number}")
            self.stopped.wait(BEAT)

    def check(self) -> None:
        """Raise a WorkerError if another process has given no sign of life for TIMEOUT seconds."""
        now = monotonic()
        if now - self.checked < BEAT:
            return
        self.checked = now
        for other in self.others:
            try:
                sign = (self.folder / f"alive-{other:05d}").read_text()
            except OSError:
                sign = ""
            known, since = self.seen[other]
            if sign != known and sign:
                self.seen[other] = (sign, now)
            elif now - since > TIMEOUT:
                raise WorkerError(
                    f"process {other} of {len(self.others) + 1} has given no sign of life for {TIMEOUT:.0f} s, so this "
                    "one ends too; what is done is kept, and the same command goes on from there"
                )

    def wait(self, done: Any) -> None:
        """Wait until `done()` is true, while the other processes live."""
        while not done():
            self.check()
            sleep(POLL)

    def stop(self) -> None:
        """End the signs of life."""
        self.stopped.set()
        if self.others:
            self.thread.join()
