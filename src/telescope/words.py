"""Checks and wording of errors that all rooms share: indices, the nearest known name, sizes with
units.
"""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from errno import ELOOP
from functools import wraps
from inspect import Parameter, signature
from operator import index
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

MAX_LENGTH = 1000  # characters of an error message


def closest_name(given: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to `given`, else the only one that contains it, else None.
    Case is ignored.
    """
    names = {name.lower(): name for name in known}
    wanted = given.lower()
    # With a lower cutoff names are suggested that nobody meant.
    found = get_close_matches(wanted, names, n=1, cutoff=0.5) or [
        name for name in names if wanted and wanted in name
    ]
    return names[found[0]] if len(found) == 1 else None


def hint(given: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: 'did you mean "journey"?', or the list of
    all known names.
    """
    names = list(known)
    closest = closest_name(given, names)
    return f'did you mean "{closest}"?' if closest else f"there are {', '.join(names)}"


def suggests(
    own: str, way: str = "", /, **theirs: str
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate the function that callers know as `own`: an argument that it does not take raises a
    TypeError with the way out.

    `theirs` has, by what others call an argument, what is written here instead; of other unknown
    names the closest is suggested. `way` is said where too many arguments are given by position.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = signature(function).parameters.values()
        if any(one.kind in (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL) for one in parameters):
            raise TypeError(f"{function.__name__} takes any argument: nothing can be suggested")
        # Tuples: torch.compile reads them as constants.
        names = tuple(one.name for one in parameters)
        # A method's own object is no argument to its callers.
        own_self = names[:1] == ("self",)
        most = sum(one.kind is not Parameter.KEYWORD_ONLY for one in parameters)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in names:
                    raise TypeError(_unknown_argument(own, name, names, theirs))
            if way and len(args) > most:
                raise TypeError(
                    f"{own} takes {most - own_self} by position, and was given "
                    f"{len(args) - own_self}; {way}"
                )
            return function(*args, **kwargs)

        return call

    return decorate


def _unknown_argument(own: str, name: str, names: Iterable[str], theirs: dict[str, str]) -> str:
    if name in theirs:
        return f"{own} takes no {name}=; write {theirs[name]}"
    known = [one for one in names if one not in ("self", "cls")]
    return f"{own} takes no {name}=; {hint(name, known)}"


def whole_number(name: str, given: Any) -> int:
    """Return `given` as an int; raise a TypeError unless it is a whole number of Python, numpy or
    another library.
    """
    try:
        number = index(given)
    except TypeError:
        number = None
    # True is a whole number to Python.
    if number is None or isinstance(given, bool):
        raise TypeError(
            f"{name}={given!r} is {type(given).__name__}; it takes a whole number, such as {name}=1"
        )
    return number


def index_range(count: int) -> str:
    """Return which indices fit `count` things, for errors: "from 0 to 3 or from -4 to -1"."""
    return f"from 0 to {count - 1} or from -{count} to -1"


def check_index(what: str, given: Any, count: int, of: str = "") -> int:
    """Return `given`, an index into `count` things, counted from 0; -1 is the last thing, as in
    Python.

    Raise a TypeError unless `given` is a whole number, and a ValueError that names the range if it
    is outside: 'there is no head 4 of "encoder.0"; there are 4, counted from 0 to 3 or from -4 to
    -1'.
    """
    number = whole_number(what, given)
    if not -count <= number < count:
        owner = f" of {of}" if of else ""
        known = f"there are {count:,}, counted {index_range(count)}" if count else "there is none"
        raise ValueError(f"there is no {what} {number}{owner}; {known}")
    return number % count


def direction(rising: bool | None, descending: bool | None) -> bool | None:
    """Return whether the smallest comes first; None where neither says so."""
    if descending is None:
        return rising
    if rising is not None and rising == descending:
        raise ValueError(
            f"rising={rising} and descending={descending} are two directions; pass one of them"
        )
    return not descending


def one_line(sentence: str) -> str:
    """Return `sentence` on one line of at most `MAX_LENGTH` characters, for errors that quote a
    file.
    """
    # A name in a hostile file may have megabytes, or move the cursor of a terminal.
    cut = sentence if len(sentence) <= MAX_LENGTH else f"{sentence[:MAX_LENGTH]} …"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in cut)


def format_bytes(bytes: float) -> str:
    """Return a number of bytes with its unit: "1.5 MiB"."""
    for unit in ("KiB", "MiB"):
        bytes /= 1024
        if bytes < 1024:
            return f"{bytes:.1f} {unit}"
    return f"{bytes / 1024:,.1f} GiB"


def format_duration(seconds: float) -> str:
    """Return a duration in words: "2 h 51 min", "4 min", "12 s"."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def describe_error(error: Exception) -> str:
    """Return the reason of a failed system call in a few words."""
    if isinstance(error, PermissionError):
        return "no permission"
    if isinstance(error, OSError) and error.errno == ELOOP:
        return "its links go in a circle"
    return str(error.strerror or error).lower() if isinstance(error, OSError) else str(error)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: "1 text", "1,200 texts"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
