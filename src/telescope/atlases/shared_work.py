"""Share a corpus among processes, and keep what each has done in files, so that a killed run can go
on.

    OUT.progress/
        settings.json                  what the run is of; removed last
        lock-RANK-of-COUNT             locked while the process of this rank lives
        alive-RANK                     a counter that rises while it does
        part-RANK-RANDOM.safetensors   the sums of the shards that one process has finished, in one
                                       attempt

Shard s of the corpus belongs to process s modulo the number of processes. Every process writes the
sums of its finished shards to a file of its own in OUT.progress, each time as a whole; sums merge
exactly, so that neither the number of processes nor the moments at which they were killed can be
seen in the result. Processes talk through this folder alone.
"""

import json
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ..files import (
    LoadError,
    WriteError,
    is_locked,
    lock_file,
    paths,
    resolve_path,
    scan_file,
    sync_file,
)
from .fingerprint import check_same_run
from .folder import check_done, check_part
from .sums import AtlasSums, has_own_measures

TIMEOUT = 30.0  # seconds without a sign of life, after which a process is taken to be dead
GRACE = 60.0  # seconds for a process to load its model before it gives its first sign of life
BEAT = 1.0  # seconds between two signs of life
POLL = 0.1  # seconds between two looks while waiting
# Attempts to empty a folder into which other processes write their last signs of life.
REMOVALS = 20
SETTINGS = "settings.json"
VERSION = 1  # of the files of sums


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
    """The folder OUT.progress: the settings of the run, and a file of sums for each process of each
    attempt.
    """

    def __init__(
        self, out: str | os.PathLike[str], settings: Mapping[str, Any], rank: int, count: int = 1
    ) -> None:
        self.folder = progress_folder(out)
        self.rank = rank
        self.file = self.folder / f"part-{rank:05d}-{token_hex(4)}.safetensors"
        self.done = ShardSet()
        self._saved = 0  # of the shards in `done`, how many the file holds
        self._damaged: set[Path] = set()
        # The system releases this lock when the process ends, even by kill -9.
        own_lock = self.folder / f"lock-{rank:05d}-of-{count:05d}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = lock_file(own_lock)
        except OSError as problem:
            raise WriteError(self.folder, problem) from None
        try:
            # Processes of one run have the same count; a run with another may have left some of its
            # own alive.
            others = [
                file
                for file in self.folder.glob("lock-*")
                if not file.name.endswith(f"-of-{count:05d}")
            ]
            if self._lock is None or any(map(is_locked, others)):
                raise ValueError(
                    f"{self.folder} is being written by another run; wait for it, or choose "
                    "another out="
                )
            self._remove_unfinished(count)
            self._check_settings(dict(settings))
        # Whatever goes wrong, also Ctrl+C, must not leave the folder locked.
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let another run write to the folder."""
        if self._lock is not None:
            self._lock.release()

    def _remove_unfinished(self, count: int) -> None:
        """Remove the files that processes of this rank were writing when they were killed.

        The first process does so for the ranks that this run does not have.
        """
        for file in self.folder.glob(".*"):
            match = re.match(r"\.(?:part|settings)-(\d+)-", file.name)
            if match and (
                int(match[1]) == self.rank or (self.rank == 0 and int(match[1]) >= count)
            ):
                file.unlink(missing_ok=True)

    def _check_settings(self, settings: dict[str, Any]) -> None:
        """Write the settings of a new run; raise a ValueError where an unfinished run had
        others.
        """
        file = self.folder / SETTINGS
        # Compare settings as JSON gives them back: tuples become lists.
        settings = json.loads(json.dumps(settings))
        if not file.exists():
            # Write beside, then link: of processes that start at once, the first one counts.
            beside = self.folder / f".settings-{self.rank:05d}-{token_hex(4)}"
            try:
                beside.write_text(json.dumps(settings), encoding="utf-8")
                # Flush before the file gets its name: a crash must not leave half of it there.
                sync_file(beside)
                with suppress(OSError):  # another process was first: its settings count
                    os.link(beside, file)
                if not file.exists():  # a file system without hard links
                    beside.replace(file)
            except OSError as problem:
                raise WriteError(self.folder, problem) from None
            finally:
                beside.unlink(missing_ok=True)
        try:
            known = paths.read_json(file)
        except LoadError:
            raise ValueError(
                f"{file}, the settings of an unfinished atlas, is cut off or damaged; delete "
                f"{self.folder}, and run "
                "the same command again"
            ) from None
        way_out = "delete that folder to begin anew"
        check_same_run(f"{self.folder} holds an unfinished atlas", known, settings, way_out)

    def parts(self) -> dict[Path, dict[str, Any]]:
        """Return the description of each file of sums; one that is damaged is named in a warning
        and left out.
        """
        found = {}
        for file in sorted(self.folder.glob("part-*.safetensors")):
            try:
                found[file] = _read_header(file)
            except DamagedError as problem:
                # Warn once for each file: a process that waits looks again and again.
                if file not in self._damaged:
                    warnings.warn(
                        f"{file} is damaged, so its shards are read again: {problem}", stacklevel=2
                    )
                self._damaged.add(file)
        return found

    def disjoint_parts(self) -> dict[Path, dict[str, Any]]:
        """Return the description of the files of sums that are added up: no two of them have a
        shard in common.

        Two runs at once, which nothing prevents on a disk without locks, may read a shard twice.
        The file with more shards then counts, and what the other one alone has is read again. A
        file of other shards changes no choice.
        """
        found = {}
        taken = set[int]()
        parts = self.parts()
        # The name breaks ties, so that the choice is the same in every process.
        for file in sorted(parts, key=lambda file: (-len(_shards(parts[file])), file)):
            own = _shards(parts[file])
            if not own & taken:
                found[file] = parts[file]
                taken |= own
        return found

    def finished(self) -> set[int]:
        """Return the shards that are done, by whichever process, and need not be read again."""
        return {number for part in self.disjoint_parts().values() for number in _shards(part)}

    def is_complete(self, count: int) -> bool:
        """Return whether each of `count` shards is done by some process."""
        # A shard in two files counts once; `check_disjoint` finds such files.
        return len({number for part in self.parts().values() for number in _shards(part)}) == count

    def save(self, sums: AtlasSums, rest: Mapping[str, Any]) -> None:
        """Write the sums of this process's finished shards, as a whole or not at all; nothing if
        there are no new ones.

        Once all shards are saved, the first process may remove the folder: whoever has nothing new
        must not write.
        """
        if len(self.done.numbers) == self._saved:
            return
        # The description is part of the file, so that it always matches the sums.
        header = {
            "version": VERSION,
            "done": self.done.ranges(),
            "sums": sums.description(),
            **rest,
        }
        beside = self.file.with_name(f".{self.file.name}.new")
        try:
            save_file(sums.tensors(), beside, metadata={"atlas": json.dumps(header)})
            # Flush, then rename: a reader finds the old file or the new one, as a whole.
            sync_file(beside)
            beside.replace(self.file)
            self._saved = len(self.done.numbers)
        except (OSError, SafetensorError) as problem:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
            raise WriteError(self.folder, problem) from None

    def check_disjoint(self, count: int) -> None:
        """Raise a ValueError if `finished` lacks some of the `count` shards, though all are
        done.
        """
        missing = count - len(self.finished())
        if missing:
            raise ValueError(
                f"two runs wrote to {self.folder} at once; run the same command again, which reads "
                f"{missing} shards"
            )

    def merged(self) -> tuple[AtlasSums, list[dict[str, Any]]]:
        """Return the sums of all processes, and the descriptions of their files."""
        parts = self.disjoint_parts()
        total = AtlasSums([])
        for file, header in parts.items():
            sums = _read_sums(file, header["sums"])
            # The sums of shards without a text that could be read have no layers.
            if sums.layers and total.layers:
                total.merge(sums)
            elif sums.layers:
                total = sums
        return total, [*parts.values()]

    def remove(self) -> None:
        """Remove the folder once the atlas is written."""
        _remove(self.folder)


def progress_folder(out: str | os.PathLike[str]) -> Path:
    """Return the folder in which the progress towards the atlas `out` is kept."""
    place = resolve_path(out)
    return place.with_name(f"{place.name}.progress")


def remove_finished(out: str | os.PathLike[str], settings: Mapping[str, Any]) -> None:
    """Remove the progress of a run with these settings that was killed after it had written its
    atlas.

    The progress of another run is kept, and so is that of one which is alive.
    """
    folder = progress_folder(out)
    if not folder.is_dir() or any(map(is_locked, folder.glob("lock-*"))):
        return
    file = folder / SETTINGS
    try:
        # Settings are removed last: a folder without them was being removed already.
        is_other = file.exists() and json.loads(file.read_text(encoding="utf-8")) != json.loads(
            json.dumps(settings)
        )
    except ValueError:  # damaged
        return
    if not is_other:
        _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a folder of progress: the settings last, so that sums are never found without what
    they are of.
    """
    for _ in range(REMOVALS):
        try:
            for file in sorted(folder.iterdir(), key=lambda file: file.name == SETTINGS):
                file.unlink(missing_ok=True)
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # another process has given one more sign of life
            sleep(POLL)


def _shards(header: Mapping[str, Any]) -> set[int]:
    """Return the shards whose sums a file holds, from its description."""
    return ShardSet(header["done"]).numbers


class DamagedError(Exception):
    """Raised for a file of sums whose description cannot be read."""


def _read_header(file: Path) -> dict[str, Any]:
    """Return the description of a file of sums; raise a DamagedError if the file is cut or holds
    something else.
    """
    try:
        with safe_open(paths.check_is_file(file), "pt") as opened:
            header = paths.parse_json(
                (opened.metadata() or {})["atlas"].encode(), f"the description of {file}"
            )
    except (OSError, SafetensorError, KeyError, LoadError) as problem:
        raise DamagedError(problem) from None
    # Another version is no damage: say so, rather than read the shards again.
    if header.get("version") != VERSION:
        raise LoadError(
            f"{file} is of version {header.get('version')!r}, not {VERSION}; delete its folder"
        )
    try:
        check_part(header, "its description")
        check_done(header.get("done"), "its description")
    except LoadError as problem:
        raise DamagedError(problem) from None
    # Sums of some texts only would make a share of these texts alone.
    if not has_own_measures(header["sums"]):
        raise LoadError(f"{file} has the measures of another version; delete its folder")
    return header


def _read_sums(file: Path, description: Mapping[str, Any]) -> AtlasSums:
    try:
        return AtlasSums.load(scan_file(file).read_all(), description)
    except ValueError as problem:
        raise LoadError(
            f"{file} is damaged: {problem}; delete it, and its shards are read again"
        ) from None


class Heartbeat:
    """Give signs of life in a folder, and look for those of the other processes: a counter in a
    file for each.

    Clocks of machines differ, so that the time is measured here, from when a counter was last seen
    to change.
    """

    def __init__(self, folder: Path, rank: int, count: int) -> None:
        self.folder = folder
        self.rank = rank
        self.others = [other for other in range(count) if other != rank]
        # As if last seen in the future: the first sign may take GRACE seconds, not TIMEOUT.
        self.seen = dict.fromkeys(self.others, ("", monotonic() + GRACE - TIMEOUT))
        # Signs from before this attempt, perhaps of processes that were killed.
        self.before = {other: self._sign(other) for other in self.others}
        self.checked = 0.0
        self.stopped = Event()
        # A daemon thread: the signs end with the process, however it ends.
        self.thread = Thread(target=self._beat, daemon=True)
        if self.others:
            self.thread.start()

    def _beat(self) -> None:
        # The token tells the signs of this attempt from those that a killed one has left.
        token = token_hex(4)
        number = 0
        while not self.stopped.is_set():
            number += 1
            with suppress(OSError):  # a full disk, or a folder that is gone: the others will say so
                (self.folder / f"alive-{self.rank:05d}").write_text(f"{token} {number}")
            self.stopped.wait(BEAT)

    def check(self) -> None:
        """Raise a WorkerError if another process has given no sign of life for TIMEOUT seconds."""
        now = monotonic()
        # No new sign is to be expected within one BEAT.
        if now - self.checked < BEAT:
            return
        self.checked = now
        for other in self.others:
            sign = self._sign(other)
            known, since = self.seen[other]
            if sign != known and sign:
                self.seen[other] = (sign, now)
            elif now - since > TIMEOUT:
                raise WorkerError(
                    f"process {other} of {len(self.others) + 1} has given no sign of life for "
                    f"{TIMEOUT:.0f} s, so this "
                    "one ends too; what is done is kept, and the same command goes on from there"
                )

    def _sign(self, other: int) -> str:
        """Return the latest sign of life of a process; nothing if there is none."""
        try:
            return (self.folder / f"alive-{other:05d}").read_text()
        except OSError:
            return ""

    def all_came(self) -> bool:
        """Return whether every other process has given a sign of life since this one began."""
        return all(self._sign(other) not in ("", self.before[other]) for other in self.others)

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
