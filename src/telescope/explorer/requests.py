"""Requests: parse the parameters of one, refuse it, and keep the latest results."""

import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Generic, TypeVar

from ..words import one_line

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

WHOLE_NUMBER = re.compile(r"-?[0-9]{1,12}", re.ASCII)
DECIMAL = re.compile(r"[0-9]{1,4}(\.[0-9]{1,6})?", re.ASCII)

# ----------------------------------------------------------------------------------------- refusals


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


# --------------------------------------------------------------------------------------- parameters


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
        if not WHOLE_NUMBER.fullmatch(text):
            raise bad_parameter(f'{name}="{text[:40]}" is not a whole number of at most 12 digits')
        return int(text)

    def decimal(self, name: str, default: float) -> float:
        """Return a parameter that is a number such as 0.8."""
        text = self.parameters.get(name)
        if text is not None and not DECIMAL.fullmatch(text):
            raise bad_parameter(f'{name}="{text[:40]}" is not a number such as 0.8')
        return default if text is None else float(text)

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


# -------------------------------------------------------------------------------------------- cache


class LruCache(Generic[K, V]):
    """At most `capacity` values by key, for several threads; the least recently used value is
    dropped first.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K) -> V | None:
        """Return the value of a key, now the most recently used, or None."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def put(self, key: K, value: V) -> V:
        """Store a value unless the key has one, and return the stored one: threads that race share
        one value.
        """
        with self._lock:
            value = self._entries.setdefault(key, value)
            self._entries.move_to_end(key)
            while len(self._entries) > self.capacity:
                self._entries.popitem(last=False)
            return value

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of a key, made and stored if it is absent. `make` runs outside of the
        lock.
        """
        found = self.get(key)
        return self.put(key, make()) if found is None else found

    def __iter__(self) -> Iterator[V]:
        """Iterate over the values, the most recently used first."""
        with self._lock:
            return iter(list(reversed(self._entries.values())))


def _cache(capacity: int) -> Any:
    return field(default_factory=lambda: LruCache(capacity))


@dataclass(frozen=True)
class Memory:
    """The latest results of one server, so that panning and zooming compute nothing twice."""

    heads: LruCache[Any, Any] = _cache(8)
    tiles: LruCache[Any, Any] = _cache(512)  # half a megabyte each
    sources: LruCache[Any, Any] = _cache(16)
    contexts: LruCache[Any, Any] = _cache(4)
