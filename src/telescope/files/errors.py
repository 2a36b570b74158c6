"""Errors of reading and writing files, panics of libraries, and packages that are not installed."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC
from importlib import import_module
from typing import Any

from ..words import one_line


class LoadError(ValueError):
    """Raised where a file cannot be read: one sentence with the file, the tensor or field, what
    came and what fits.

    Nothing in the file was executed, and no model or recording was built.

    Example:
        >>> import telescope as ts
        >>> try:
        ...     ts.load("no/such/folder")
        ... except ts.LoadError as error:
        ...     print(error)
        no/such/folder does not exist
    """

    def __init__(self, sentence: str) -> None:
        """Keep the sentence on one line: names in a file may hold any character."""
        super().__init__(one_line(sentence))


class WriteError(OSError, ValueError):
    """Raised where a file or folder cannot be written: one sentence with its path and the reason.

    What was there before is still whole. `reason` is the part of the sentence that tells what is
    wrong and what to do.
    """

    def __init__(self, path: str | os.PathLike[str], problem: Exception) -> None:
        """Explain `problem`, an error of the system or of the safetensors library."""
        # The safetensors library has the number of the system's error in its text alone.
        match = re.search(r"os error (\d+)", str(problem))
        number = int(match[1]) if match else getattr(problem, "errno", None)
        system = str(problem) if number is None else os.strerror(number)
        is_full = number in (ENOSPC, EDQUOT)
        self.reason = (
            "the disk is full; make room, and run the same command again" if is_full else system
        )
        super().__init__(one_line(f"{path} cannot be written: {self.reason}"))
        # After super().__init__: OSError with a single argument resets both.
        self.errno = number
        self.strerror = system

    def __str__(self) -> str:
        return str(self.args[0])


class PanicError(ValueError):
    """A library failed at its input in a way that its authors did not expect."""


@contextmanager
def panics_as_errors(what: str) -> Iterator[None]:
    """Raise a PanicError, "`what`: ...", in place of a panic of a library written in Rust."""
    try:
        yield
    except BaseException as problem:
        # pyo3's PanicException is no Exception, so that nobody catches it, and cannot be imported.
        if type(problem).__name__ != "PanicException":
            raise
        raise PanicError(f"{what}: {str(problem).partition(chr(10))[0]}") from None


def import_optional(module: str, what: str, extra: str | None = None) -> Any:
    """Import a module of an optional package when it is first used.

    what   needs the package, for the error
    extra  the extra of Telescope that installs the package; without one, the package's own name

    Raises a ValueError that says how to install the package where it is missing.
    """
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0].replace("_", "-")
        wanted = package if extra is None else f"'telescope-attention[{extra}]'"
        raise ValueError(
            f"{what} needs {package}, which is not installed: pip install {wanted}"
        ) from None
