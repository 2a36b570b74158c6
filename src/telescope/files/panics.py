"""Turn a panic of a library that is written in Rust into an exception that callers catch."""

from collections.abc import Iterator
from contextlib import contextmanager


class PanicError(ValueError):
    """A library failed at its input in a way that its authors did not expect."""


@contextmanager
def panics_as_errors(what: str) -> Iterator[None]:
    """Raise a PanicError, "`what`: ...", in place of a panic inside the block.

    pyo3 raises PanicException, which is no Exception, so that nobody catches it, and which cannot
    be imported.
    """
    try:
        yield
    except BaseException as problem:
        if type(problem).__name__ != "PanicException":
            raise
        raise PanicError(f"{what}: {str(problem).partition(chr(10))[0]}") from None
