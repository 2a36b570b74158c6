"""What a command is given: texts, files, or what comes through a pipe. Each argument is a text of its own."""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from io import StringIO, TextIOWrapper
from pathlib import Path
from typing import IO

LIKE_A_FILE = re.compile(r"(?:\.{0,2}/|~).*|\S*\.[a-z]{2,5}")


def documents(given: Sequence[str]) -> Iterator[str]:
    """Yield the whole text of each argument."""
    for argument in _arguments(given):
        with _opened(argument) as stream:
            yield stream.read()


def lines(given: Sequence[str]) -> Iterator[str]:
    """Yield every line of every argument as it comes, without its end."""
    for argument in _arguments(given):
        with _opened(argument) as stream:
            yield from (line.rstrip("\r\n") for line in stream)
        if argument == "":
            yield ""  # a text of its own: as many lines are written as there are texts


def typed(given: Sequence[str]) -> bool:
    """Return whether a person types the lines, who waits for an answer to each."""
    return (not given or "-" in given) and sys.stdin.isatty()


def _arguments(given: Sequence[str]) -> Sequence[str | None]:
    """Without an argument, None: the pipe."""
    if list(given).count("-") > 1:
        raise ValueError('"-" is given twice; standard input can be read once')
    return given or (None,)


@contextmanager
def _opened(argument: str | None) -> Iterator[IO[str]]:
    """An argument is a text, or the name of a file; `-` and None are standard input."""
    pipe = argument is None or argument == "-"
    try:
        with nullcontext(_pipe(asked=argument is not None)) if pipe else _file_or_text(str(argument)) as stream:
            yield stream
    except UnicodeDecodeError:
        name = "standard input" if pipe else argument
        raise ValueError(f"{name} is not UTF-8 text; iconv -t utf-8 makes it so") from None


def _pipe(*, asked: bool) -> IO[str]:
    if sys.stdin.isatty() and not asked:
        raise ValueError('there is nothing to read; give a text in quotes, a file, or "-" for a pipe')
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8-sig")
    return sys.stdin


def _file_or_text(text: str) -> IO[str]:
    try:
        if Path(text).is_file():
            return Path(text).open(encoding="utf-8-sig")
    except PermissionError:
        raise ValueError(f"{text} cannot be read: no permission") from None
    except (OSError, ValueError):  # longer than a name can be, or with characters that none has: a text
        return StringIO(text)
    if LIKE_A_FILE.fullmatch(text):
        raise ValueError(f'there is no file "{text}"; where that is a text, it can come through a pipe')
    return StringIO(text)
