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
        try:
            return self._descriptor is None or os.path.samestat(
                os.fstat(self._descriptor), file.stat()
            )
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

    The lock that is tried is a shared one, so that several processes can ask at once.
    """
    try:
        fcntl = import_module("fcntl")
        opened = os.open(file, os.O_RDONLY)
    except (ImportError, FileNotFoundError):
        return False
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a network disk without locks
        return False
    finally:
        os.close(opened)
    return False


def lock_file(file: Path) -> FileLock | None:
    """Lock a file, which is made if it does not exist; return None if another process has the lock.

    Where the system or the disk cannot lock files, the lock has no effect.
    """
    try:
        fcntl = import_module("fcntl")
    except ImportError:  # Windows
        return FileLock(None)
    opened = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(opened)
        return None
    except OSError:  # a network disk without locks
        os.close(opened)
        return FileLock(None)
    return FileLock(opened)


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
        raise ValueError(
            f"{folder} is in use by {_describe_owner(file)}; wait until it ends, or choose another "
            "folder"
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
