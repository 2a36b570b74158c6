"""The words of an error: what was probably meant, and how much it is."""

from collections.abc import Iterable
from difflib import get_close_matches
from operator import index
from typing import Any

LONGEST = 1000  # characters of an error


def near(given: str, known: Iterable[str]) -> str | None:
    """The known name that is most like the given one, if any is; or the only one that has it within."""
    names, asked = {name.lower(): name for name in known}, given.lower()
    found = get_close_matches(asked, names, n=1, cutoff=0.5) or [name for name in names if asked and asked in name]
    return names[found[0]] if len(found) == 1 else None


def hint(given: str, known: Iterable[str]) -> str:
    """did you mean "journey"? Or, where nothing is near, all there are."""
    names = list(known)
    meant = near(given, names)
    return f'did you mean "{meant}"?' if meant else f"there are {', '.join(names)}"


def whole_number(name: str, given: Any) -> int:
    """Return `given` as an int, whichever library's whole number it is; raise a TypeError where it is none."""
    try:
        number = index(given)
    except TypeError:
        number = None
    if number is None or isinstance(given, bool):
        raise TypeError(f"{name}={given!r} is {type(given).__name__}; it takes a whole number, such as {name}=1")
    return number


def one_line(sentence: str) -> str:
    """A sentence that may quote a file: on one line, and not too long, whatever the file holds."""
    cut = sentence if len(sentence) <= LONGEST else f"{sentence[:LONGEST]} …"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in cut)


def size(bytes: float) -> str:
    """1.5 MiB"""
    for unit in ("KiB", "MiB"):
        bytes /= 1024
        if bytes < 1024:
            return f"{bytes:.1f} {unit}"
    return f"{bytes / 1024:,.1f} GiB"
