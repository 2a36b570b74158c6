"""What was asked: the parameters of a question, each a whole number or one of some words."""

import re
from collections.abc import Mapping, Sequence

from ..words import one_line


class Refusal(Exception):  # noqa: N818  it is no fault of the program
    def __init__(self, status: int, code: str, message: str) -> None:
        """`message` is put on one line: it may quote what was asked."""
        super().__init__(message)
        self.status, self.code, self.message = status, code, one_line(message)


def bad(message: str) -> Refusal:
    return Refusal(400, "bad-parameter", message)


def unknown(message: str) -> Refusal:
    return Refusal(404, "unknown", message)


def not_kept(message: str) -> Refusal:
    return Refusal(409, "not-kept", message)


NUMBER = re.compile(r"-?[0-9]{1,12}", re.ASCII)


class RequestParams:
    def __init__(self, parameters: Mapping[str, str]) -> None:
        self.parameters = parameters

    def number(self, name: str, usual: int | None = None) -> int:
        said = self.parameters.get(name)
        if said is None:
            if usual is None:
                raise bad(f"{name}= is missing; it takes a whole number")
            return usual
        return whole(name, said)

    def index(self, name: str, of: int, what: str, usual: int | None = None) -> int:
        """A number from 0 on, of so many things that there are."""
        number = self.number(name, usual)
        if not 0 <= number < of:
            raise unknown(f"there is no {what} {number}; there are {of:,}, counted from 0")
        return number

    def stretch(self, of: int, most: int) -> range:
        """start= up to stop=, as far as there is something; without them, as many as can be."""
        start = self.number("start", 0)
        stop = min(self.number("stop", min(of, start + most)), of)
        if not 0 <= start < max(of, 1) or stop < start:
            raise bad(f"start={start}, stop={stop} is no stretch of {of:,}")
        if stop - start > most:
            raise bad(f"start={start}, stop={stop} are {stop - start:,} at once; at most {most:,} can be asked for")
        return range(start, stop)

    def word(self, name: str, known: Sequence[str]) -> str:
        """The first of those that are known, unless another is said."""
        said = self.parameters.get(name, known[0])
        if said not in known:
            raise bad(f'{name}="{said[:40]}" is none of {", ".join(known)}')
        return said


def whole(name: str, said: str) -> int:
    if not NUMBER.fullmatch(said):
        raise bad(f'{name}="{said[:40]}" is no whole number')
    return int(said)
