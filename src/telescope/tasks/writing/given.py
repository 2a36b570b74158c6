"""Read the texts that a command is given: arguments, files or standard input. Each argument is a text of its own."""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from io import StringIO, TextIOWrapper
from pathlib import Path
from typing import IO

LIKE_A_FILE = re.compile(r"(?:\.{0,2}/|~).*|\S*\.[a-z]{2,5}")


def documents(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the whole text of each argument, or of standard input where there are no arguments."""
    for argument in _arguments_or_stdin(arguments):
        with _open_argument(argument) as stream:
            yield stream.read()


def lines(arguments: Sequence[str]) -> Iterator[str]:
    """Yield every line of every argument, without its line break, as soon as the line can be read."""
    for argument in _arguments_or_stdin(arguments):
        with _open_argument(argument) as stream:
            yield from (line.rstrip("\r\n") for line in stream)
        if argument == "":
            yield ""  # an empty text is one line too: each text has a line in the output


def is_typed(arguments: Sequence[str]) -> bool:
    """Return whether a person types the lines, and waits for the answer to each."""
    return (not arguments or "-" in arguments) and sys.stdin.isatty()


def _arguments_or_stdin(arguments: Sequence[str]) -> Sequence[str | None]:
    """Return the arguments, or None alone, which stands for standard input."""
    if list(arguments).count("-") > 1:
        raise ValueError('"-" is given twice; standard input can be read once')
    return arguments or (None,)


@contextmanager
def _open_argument(argument: str | None) -> Iterator[IO[str]]:
    """Open an argument as a stream: a text, or the name of a file; `-` and None are standard input."""
    stdin = argument is None or argument == "-"
    try:
        with nullcontext(_open_stdin(argument)) if stdin else _open_file_or_text(str(argument)) as stream:
            yield stream
    except UnicodeDecodeError:
        name = "standard input" if stdin else argument
        raise ValueError(f"{name} is not UTF-8 text; iconv -t utf-8 makes it so") from None


def _open_stdin(argument: str | None) -> IO[str]:
    """Return standard input as UTF-8. A terminal is read only where the argument is "-"."""
    if sys.stdin.isatty() and argument is None:
        raise ValueError('there is nothing to read; give a text in quotes, a file, or "-" for a pipe')
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8-sig")
    return sys.stdin


def _open_file_or_text(text: str) -> IO[str]:
    try:
        if Path(text).is_file():
            return Path(text).open(encoding="utf-8-sig")
    except PermissionError:
        raise ValueError(f"{text} cannot be read: no permission") from None
    except (OSError, ValueError):  # too long for a file's name, or with characters that no name has: a text
        return StringIO(text)
    if LIKE_A_FILE.fullmatch(text):
        raise ValueError(f'there is no file "{text}"; if that is a text, send it through a pipe')
    return StringIO(text)
