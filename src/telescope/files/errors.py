"""The errors that reading and writing files raise."""

import os
import re
from errno import EDQUOT, ENOSPC

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
        self.errno = number
        self.strerror = system

    def __str__(self) -> str:
        return str(self.args[0])
