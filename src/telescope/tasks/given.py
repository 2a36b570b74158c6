"""What a command is given: a text, a file, or what comes through a pipe."""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from io import StringIO, TextIOWrapper
from pathlib import Path
from typing import IO

LIKE_A_FILE = re.compile(r"(?:\.{0,2}/|~).*|\S*\.[a-z]{2,5}")


@contextmanager
def opened(words: Sequence[str]) -> Iterator[IO[str]]:
    """The words are a text, or the name of a file; `-`, or no word at all before a pipe, is the pipe."""
    text = " ".join(words)
    pipe = text == "-" or not words
    try:
        with nullcontext(_pipe(asked=bool(words))) if pipe else _file_or_text(text) as stream:
            yield stream
    except UnicodeDecodeError:
        name = "standard input" if pipe else text
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
