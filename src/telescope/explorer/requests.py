"""Parse the parameters of API requests: each is an integer or one of a few words. Errors are
refusals.
"""

import re
from collections.abc import Mapping, Sequence

from ..words import one_line


class Refusal(Exception):  # noqa: N818  an answer to a bad request, not an error of the program
    """An HTTP error answer: status, a short code for programs, and one sentence for people."""

    def __init__(self, status: int, code: str, message: str) -> None:
        """Store the error. `message` is reduced to one line, because it may quote a parameter."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = one_line(message)

    def to_json(self, request: str | None = None) -> dict[str, dict[str, str]]:
        """Return the body of the answer; `request` is the id of the request, where it has one."""
        named = {} if request is None else {"request": request}
        return {"error": {"code": self.code, "message": self.message, **named}}


def bad_parameter(message: str) -> Refusal:
    return Refusal(400, "bad-parameter", message)


def unknown(message: str) -> Refusal:
    return Refusal(404, "unknown", message)


def not_kept(message: str) -> Refusal:
    return Refusal(409, "not-kept", message)


NUMBER = re.compile(r"-?[0-9]{1,12}", re.ASCII)


class RequestParams:
    """The query parameters of one request, as text; the methods parse them or raise Refusal."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self.parameters = parameters

    def number(self, name: str, default: int | None = None) -> int:
        """Return an integer parameter; without a default the parameter is required."""
        text = self.parameters.get(name)
        if text is None:
            if default is None:
                raise bad_parameter(f"{name}= is missing; it takes a whole number")
            return default
        return parse_int(name, text)

    def index(self, name: str, count: int, what: str, default: int | None = None) -> int:
        """Return a parameter that is an index into `count` things, 0 <= index < count."""
        number = self.number(name, default)
        if not 0 <= number < count:
            raise unknown(f"there is no {what} {number}; there are {count:,}, counted from 0")
        return number

    def span(self, count: int, most: int) -> range:
        """Return the range start= to stop=, clipped to `count`; by default as many as `most`, from
        0.
        """
        start = self.number("start", 0)
        stop = min(self.number("stop", min(count, start + most)), count)
        if not 0 <= start < max(count, 1) or stop < start:
            raise bad_parameter(f"start={start}, stop={stop} is not a range within {count:,}")
        if stop - start > most:
            raise bad_parameter(
                f"start={start}, stop={stop} spans {stop - start:,}; one answer holds {most:,}"
            )
        return range(start, stop)

    def word(self, name: str, known: Sequence[str]) -> str:
        """Return a parameter that is one of the known words; the first of them is the default."""
        word = self.parameters.get(name, known[0])
        if word not in known:
            raise bad_parameter(f'{name}="{word[:40]}" is not known; known: {", ".join(known)}')
        return word


def parse_int(name: str, text: str) -> int:
    """Return the integer that a parameter's text holds, of at most 12 digits."""
    if not NUMBER.fullmatch(text):
        raise bad_parameter(f'{name}="{text[:40]}" is not a whole number of at most 12 digits')
    return int(text)
