"""Typed answers: what they are made of, how they become JSON, and those about runs as a whole.

An answer is a frozen dataclass, or several inside each other, whose fields are the keys of the JSON
object, in their order. It stands in the file of the function that gives it. tools/api_types.py
writes the types of the page and the API's reference from the same classes: their docstrings may
explain a field in a line that begins with its name.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor

from ..traces.numbers import json_number, json_numbers, round_numbers

# Tensors become lists of numbers. Those of the second kind may hold infinities: strings in JSON.
Vector = Float[Tensor, " n"]
Matrix = Float[Tensor, "row column"]
Scores = Float[Tensor, " key"]
Weights = Float[Tensor, "query key"]
JsonNumber = float | str


class Absent:
    """The value of a field that an answer may lack: its key is left out of the JSON object."""


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
        value = json_numbers(value) if value.is_floating_point() else value.tolist()
        return value if exact else round_numbers(value)
    if isinstance(value, float):
        return json_number(value if exact else round_numbers(value))
    if isinstance(value, Answer):
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
    if isinstance(value, Mapping):
        return {name: to_json(part, exact=exact) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(part, exact=exact) for part in value]
    return value


def json_bytes(contents: object) -> bytes:
    """Return JSON in UTF-8, without spaces; half a character, which UTF-8 lacks, becomes "?"."""
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
             tiles, positions
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
    """A scene of a worked example, one for each attention; `query` is the query to look at first."""

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
    written  what a translator wrote
    keep     what was recorded: "summaries", "queries-keys" or "steps"
    notice   what a reader should know before believing the numbers
    output   what the model made of a sentence; null of a recording
    held     in an exported file
    opened   of a text that an atlas names
    """

    exact = True
    run: str
    rev: str
    kind: str
    title: str
    model: str
    text: str | None
    written: str | None
    keep: str
    example: ExampleFacts | None
    notice: str | None
    output: OutputFacts | None
    attentions: Sequence[AttentionFacts]
    opened: OpenedText | Absent = ABSENT
    held: HeldHead | Absent = ABSENT
