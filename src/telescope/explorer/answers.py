"""Requests and typed answers: how parameters are parsed and refused, what answers are made of, how
they become JSON, and the facts of runs.

An answer is a frozen dataclass, or several inside each other, whose fields are the keys of the JSON
object, in their order. It stands in the file of the function that gives it. tools/api_types.py
writes the types of the page and the API's reference from the same classes: their docstrings may
explain a field in a line that begins with its name.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from threading import Lock
from typing import Any, ClassVar, Generic, TypeVar

from jaxtyping import Float
from torch import Tensor

from ..traces import json_number, json_numbers, round_numbers
from ..words import one_line

# Tensors become lists of numbers. Those of the second kind may hold infinities: strings in JSON.
Vector = Float[Tensor, " n"]
Matrix = Float[Tensor, "row column"]
Scores = Float[Tensor, " key"]
Weights = Float[Tensor, "query key"]
JsonNumber = float | str
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

# Numbers as a query may write them: at most 12 digits, or 4 before and 6 after the point.
WHOLE_NUMBER = re.compile(r"-?[0-9]{1,12}", re.ASCII)
DECIMAL = re.compile(r"[0-9]{1,4}(\.[0-9]{1,6})?", re.ASCII)


class Absent:
    """The value of a field that an answer may lack: its key is left out of the JSON object."""


# The only instance: fields are compared with `is`.
ABSENT = Absent()


class Columns(dict[str, Any]):
    """The value of a field whose entries stand in the JSON object itself, whatever their names."""


@dataclass(frozen=True)
class Answer:
    """The base of all answers and of their parts.

    `exact` tells that numbers are sent with all digits of float64: the page computes with them.
    Others have the seven digits of float32, in which models compute. None is that of the answer
    around it.
    """

    exact: ClassVar[bool | None] = None


def to_json(value: Any, *, exact: bool = False) -> Any:
    """Return an answer as JSON holds it; -inf, inf and nan are strings, since JSON has no such
    numbers.
    """
    if isinstance(value, Tensor):
        # Whole numbers stay whole: 3 and not 3.0.
        value = json_numbers(value) if value.is_floating_point() else value.tolist()
        return value if exact else round_numbers(value)
    if isinstance(value, float):
        return json_number(value if exact else round_numbers(value))
    if isinstance(value, Answer):
        # A part that says nothing about its digits follows the answer around it.
        exact = exact if value.exact is None else value.exact
        found: dict[str, Any] = {}
        for field in fields(value):
            part = getattr(value, field.name)
            if isinstance(part, Columns):
                found |= to_json(dict(part), exact=exact)
            elif part is not ABSENT:
                # with_ is "with", which Python keeps for itself
                found[field.name.removesuffix("_")] = to_json(part, exact=exact)
        return found
    # Containers keep their form; texts, whole numbers and None are JSON already.
    if isinstance(value, Mapping):
        return {name: to_json(part, exact=exact) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(part, exact=exact) for part in value]
    return value


def json_bytes(contents: object) -> bytes:
    """Return JSON in UTF-8, without spaces; half a character, which UTF-8 lacks, becomes "?"."""
    # allow_nan=False: what is not a number must have become a string before.
    text = json.dumps(contents, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


# ------------------------------------------------------------------------------------ facts of runs


@dataclass(frozen=True)
class AttentionFacts(Answer):
    """One attention of a run.

    l        its index in the run's list of attentions
    title    a name for people, where it has one
    kind     "encoder", "decoder", "cross" or "self"
    heads    the numbers of the heads in the model
    n_q      queries that were kept; n_k: keys
    d_k      features of a key; d_v: of a value, null where values were not kept
    formula  such as softmax(mask(q·k / √16)) v
    has      which requests are answered: trace, context, map, geometry, alignment, tokens, after,
             tiles, positions, image
    why      the reason for each that is not, which answers 409
    """

    l: int
    name: str
    title: str | None
    kind: str
    heads: Sequence[int]
    batch: int
    n_q: int
    n_k: int
    d_k: int
    d_v: int | None
    formula: str
    mask: str
    has: dict[str, bool]
    why: dict[str, str]


@dataclass(frozen=True)
class ExampleInput(Answer):
    """A matrix that a worked example is computed from; `rows` labels its rows where they are
    words.
    """

    name: str
    rows: Sequence[str] | None
    numbers: Sequence[Sequence[float]]


@dataclass(frozen=True)
class ExampleStep(Answer):
    """A scene of a worked example, one for each attention; `query` is the one to look at first."""

    title: str
    caption: str
    query: int
    findings: Sequence[str]
    inputs: Sequence[str]


@dataclass(frozen=True)
class ExampleFacts(Answer):
    """A worked example: the matrices that it is computed from, and a scene for each attention.

    normalize  "softmax" or "by_sum"
    """

    name: str
    origin: str
    normalize: str
    inputs: Sequence[ExampleInput]
    scenes: Sequence[ExampleStep]


@dataclass(frozen=True)
class WrittenWord(Answer):
    """A word that a translator wrote.

    first  the query that wrote its first token; i: its last
    word   its row in an alignment
    """

    name: str
    first: int
    i: int
    word: int


@dataclass(frozen=True)
class OutputFacts(Answer):
    """What the model made of a text: `n` queries can be asked for; a GPT has read its words, and
    written none.

    kind  "gpt" or "translator"
    """

    kind: str
    n: int
    words: Sequence[WrittenWord]


@dataclass(frozen=True)
class HeldHead(Answer):
    """The attention and head that an exported file holds in full."""

    l: int
    h: int


@dataclass(frozen=True)
class OpenedText(Answer):
    """The head whose evidence a text is, and whether the text is all that the atlas read."""

    l: int
    h: int
    whole: bool


@dataclass(frozen=True)
class RunFacts(Answer):
    """Everything about a run but its numbers.

    rev      changes with the contents
    kind     "sentence", "recording" or "example"
    target   the translation that it was given to write; null if it wrote its own
    written  what a translator wrote
    keep     what was recorded: "summaries", "queries-keys" or "steps"
    notice   what a reader should know before believing the numbers
    output   what the model made of a sentence; null of a recording
    held     in an exported file
    opened   of a text that an atlas names
    """

    # Without an annotation: a property of the class, and no field of the answer.
    exact = True
    run: str
    rev: str
    kind: str
    title: str
    model: str
    text: str | None
    target: str | None
    written: str | None
    keep: str
    example: ExampleFacts | None
    notice: str | None
    output: OutputFacts | None
    attentions: Sequence[AttentionFacts]
    opened: OpenedText | Absent = ABSENT
    held: HeldHead | Absent = ABSENT


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
        # Messages quote at most 40 characters of a parameter.
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
        # An index beyond the end names nothing, which is 404; what is no number at all is 400.
        if not 0 <= number < count:
            raise unknown(f"there is no {what} {number}; there are {count:,}, counted from 0")
        return number

    def span(self, count: int, most: int) -> range:
        """Return the range start= to stop=, clipped to `count`; by default as many as `most`, from
        0.
        """
        # Only `stop` is clipped: a page may ask beyond the end, but not begin there.
        start = self.number("start", 0)
        stop = min(self.number("stop", min(count, start + most)), count)
        # Of an empty axis, the empty range from 0 is allowed.
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

    With `nbytes`, the size of a value, at most `most_bytes` of them; one value is kept whatever its
    size.
    """

    def __init__(
        self, capacity: int, most_bytes: int = 0, nbytes: Callable[[V], int] | None = None
    ) -> None:
        self.capacity = capacity
        self.most_bytes = most_bytes
        self._nbytes = nbytes or (lambda value: 0)
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._sizes: dict[K, int] = {}
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
        size = self._nbytes(value)
        with self._lock:
            # Two threads may have made the value at once; the first one stays.
            if key not in self._entries:
                self._entries[key] = value
                self._sizes[key] = size
            self._entries.move_to_end(key)
            value = self._entries[key]
            while self._is_full() and len(self._entries) > 1:
                dropped, _ = self._entries.popitem(last=False)
                del self._sizes[dropped]
            return value

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of a key, made and stored if it is absent. `make` runs outside of the
        lock.
        """
        # Threads may make the same value twice, without waiting for each other; `put` keeps one.
        found = self.get(key)
        return self.put(key, make()) if found is None else found

    def drop(self, is_dropped: Callable[[V], bool]) -> None:
        """Drop the values for which a function returns True."""
        with self._lock:
            for key in [key for key, value in self._entries.items() if is_dropped(value)]:
                del self._entries[key], self._sizes[key]

    def keys(self) -> list[K]:
        """Return the keys, the most recently used first; none of them is used by this."""
        with self._lock:
            return list(reversed(self._entries))

    def _is_full(self) -> bool:
        return len(self._entries) > self.capacity or sum(self._sizes.values()) > self.most_bytes

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[V]:
        """Iterate over the values, the most recently used first."""
        with self._lock:
            # A copy: other threads may store values while the caller iterates.
            return iter(list(reversed(self._entries.values())))


def _cache(capacity: int) -> Any:
    return field(default_factory=lambda: LruCache(capacity))


@dataclass(frozen=True)
class Memory:
    """The latest results of one server, so that panning and zooming compute nothing twice."""

    heads: LruCache[Any, Any] = _cache(8)  # tiles of a map, by view, head and sequence
    tiles: LruCache[Any, Any] = _cache(512)  # half a megabyte each
    sources: LruCache[Any, Any] = _cache(16)  # by run, span and segments
    contexts: LruCache[Any, Any] = _cache(4)  # texts cut into words and sentences, by run
