"""The error that reading a file raises, and the error of writing one."""

import os
import re
from pathlib import Path

from ..words import one_line


class LoadError(ValueError):
    """Raised where a file cannot be read: one sentence with the file, the tensor or field, what came and what fits.

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


def error_of_writing(problem: Exception, place: Path) -> OSError:
    """Return the error with the destination as its file, not the hidden folder beside it.

    The safetensors library reports a full disk as its own error, with the system's number in the text.
    """
    if isinstance(problem, OSError) and problem.errno is not None:
        return OSError(problem.errno, problem.strerror, str(place))
    found = re.search(r"\(os error (\d+)\)", str(problem))
    if found is None:
        return OSError(None, str(problem), str(place))
    number = int(found[1])
    return OSError(number, os.strerror(number), str(place))
