"""Lock a file for this process, until it ends: two runs that would write to one place notice each other."""

import os
from importlib import import_module
from pathlib import Path


class FileLock:
    """The lock of a file; released by `release`, or when the process ends, however it ends."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None


def is_locked(file: Path) -> bool:
    """Return whether a process holds the lock of a file; False where the system or the disk cannot lock files.

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
