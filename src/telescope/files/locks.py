"""Lock a file for this process, until it ends: two runs that would write to one place notice each
other.
"""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

from .errors import WriteError

LOCK = ".lock"  # in a folder that one process writes to


def lock_descriptor(path: Path, flags: int = os.O_RDONLY, *, shared: bool = False) -> int | None:
    """Open a file or a folder and lock it; return the descriptor, which holds the lock until it is
    closed or the process ends.

    Returns None where the system or the disk cannot lock; raises a BlockingIOError where another
    process has the lock.
    """
    try:
        fcntl = import_module("fcntl")
    except ImportError:  # Windows
        return None
    opened = os.open(path, flags, 0o666)
    try:
        fcntl.flock(opened, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(opened)
        raise
    except OSError:  # a network disk without locks
        os.close(opened)
        return None
    return opened


class FileLock:
    """The lock of a file; released by `release`, or when the process ends, however it ends."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def write(self, contents: bytes) -> None:
        """Replace the contents of the locked file."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, contents, 0)

    def is_of(self, file: Path) -> bool:
        """Return whether the file of this name is the locked one: its last owner may have removed
        it meanwhile.
        """
        if self._descriptor is None:
            return True
        try:
            return os.path.samestat(os.fstat(self._descriptor), file.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None


def is_locked(file: Path) -> bool:
    """Return whether a process holds the lock of a file; False where the system or the disk cannot
    lock files.
    """
    try:
        # A shared lock, so that several processes can ask at once.
        descriptor = lock_descriptor(file, shared=True)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    FileLock(descriptor).release()
    return False


def lock_file(file: Path) -> FileLock | None:
    """Lock a file, which is made if it does not exist; return None if another process has the lock.

    Where the system or the disk cannot lock files, the lock has no effect.
    """
    try:
        return FileLock(lock_descriptor(file, os.O_RDWR | os.O_CREAT))
    except BlockingIOError:
        return None


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Make a folder where there is none, and lock it for this process; the file .lock in it says
    who has the lock.

    Afterwards the file is removed, and so is a folder that was made here and is still empty. The
    lock of a process that was killed is free: the system holds the lock, and the file only
    describes its owner.

    Raises a ValueError that names the process, its host and the time since when, if another process
    has the lock.
    """
    file = folder / LOCK
    is_new = not folder.exists()
    try:
        lock = _lock_described(file)
    except OSError as problem:
        raise WriteError(folder, problem) from None
    if lock is None:
        owner = _describe_owner(file)
        raise ValueError(
            f"{folder} is in use by {owner}; wait until it ends, or choose another folder"
        )
    try:
        yield
    finally:
        file.unlink(missing_ok=True)  # while it is locked: it is nobody else's
        lock.release()
        if is_new:
            with suppress(OSError):  # not empty
                folder.rmdir()


def _lock_described(file: Path) -> FileLock | None:
    """Lock a file and write into it who has the lock; return None if another process has it."""
    while True:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = lock_file(file)
        if lock is None:
            return None
        if lock.is_of(file):
            break
        # Another process has removed the file between our opening and our locking: try again.
        lock.release()
    since = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
    lock.write(json.dumps(owner).encode())
    return lock


def _describe_owner(file: Path) -> str:
    """Return who wrote the file of a lock, in words."""
    try:
        owner = json.loads(file.read_bytes())
        return f"process {owner['pid']} on {owner['host']}, since {owner['since']}"
    except (OSError, ValueError, KeyError, TypeError):  # locked a moment ago, and not yet described
        return "another process"
