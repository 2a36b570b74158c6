"""The edits: frozen values that say what to change in which attentions. `ts.edit` applies them
while a model runs.

Whatever the order in which edits are listed, one attention is edited in this order:

    redefine   the definition is replaced, in the order of the list
    boost      some keys count more: ln(by) is added to their scores
    hide       some keys are hidden from some queries; the weights of the others sum to one again
    frozen     queries and keys are those of a recording, values those of this run
    mute       after the attention, the context of some heads is multiplied, before W_O
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, SupportsIndex

from torch import nn

from ..attention import Attention, require_real
from ..recording.names import Layers, numbers_of_heads
from ..recording.recording import Recording
from ..words import hint, whole_number
from .spans import Given, Span, span

Heads = SupportsIndex | Sequence[SupportsIndex] | None
"""Numbers of heads, -1 for the last; None is all."""
MEANS = ("zero", "mean")


@dataclass(frozen=True)
class Edit:
    """The base of all edits: a change of the attentions that `layers` names, in their heads
    `heads`.
    """

    kind: ClassVar[str]
    layers: tuple[str | int, ...] | None
    """Names, patterns such as "decoder.*.cross" and numbers of layers, as in `ts.watch`, and of
    passes; None is all.
    """
    heads: tuple[int, ...] | None
    """The numbers of the heads; None is all."""

    @abstractmethod
    def __str__(self) -> str:
        """Return the edit as a sentence."""

    def to_json(self) -> dict[str, Any]:
        """Return the edit as JSON. Of a recording and a function only the name is kept."""
        return {"is": self.kind} | {
            part.name: _to_json(getattr(self, part.name)) for part in fields(self)
        }


def _to_json(value: Any) -> Any:
    if isinstance(value, Span):
        return value.to_json()
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Recording):
        return value.model
    if callable(value):
        return getattr(value, "__name__", repr(value))
    return value


@dataclass(frozen=True)
class Mute(Edit):
    """Multiply the context of some heads, or its distance from the mean, by `times`."""

    kind = "mute"
    times: float = 0.0
    by: str = "zero"

    def __str__(self) -> str:
        what = f"{_of_heads(self.heads)}{_of_layers(self.layers)}"
        factor = f" times {self.times:g}" if self.times else ""
        return f"mute {what}{factor}" + (" by the mean" if self.by == "mean" else "")


@dataclass(frozen=True)
class Hide(Edit):
    """Hide some keys from some queries."""

    kind = "hide"
    keys: Span = Span()
    queries: Span | None = None
    new: bool = True

    def __str__(self) -> str:
        return f"hide {_of_pairs(self)}"


@dataclass(frozen=True)
class Boost(Edit):
    """Let some keys count `by` times as much for some queries."""

    kind = "boost"
    keys: Span = Span()
    by: float = 1.0
    queries: Span | None = None
    new: bool = True

    def __str__(self) -> str:
        return f"boost {_of_pairs(self, 'for')} by {self.by:g}"


@dataclass(frozen=True)
class Frozen(Edit):
    """Attend as a recording did, with the values of this run."""

    kind = "frozen"
    recording: Recording | str = ""
    """The recording; the name of its model where the edit was read from a file."""

    def __str__(self) -> str:
        model = self.recording.model if isinstance(self.recording, Recording) else self.recording
        return f"freeze {_of_heads(self.heads)}{_of_layers(self.layers)} as recorded of {model}"


@dataclass(frozen=True)
class Redefine(Edit):
    """Replace the definition of some attentions by a function of it."""

    kind = "redefine"
    function: Callable[[Attention], Attention] | str = ""
    """From Attention to Attention; its name where the edit was read from a file."""

    def __str__(self) -> str:
        name = (
            self.function
            if isinstance(self.function, str)
            else getattr(self.function, "__name__", "a function")
        )
        return (
            f"redefine {_of_layers(self.layers).removeprefix(' of ').removeprefix(' in ')} by "
            f"{name}"
        )


def _of_heads(heads: tuple[int, ...] | None) -> str:
    if heads is None:
        return "every head"
    if len(heads) == 1:
        return f"head {heads[0]}"
    return f"heads {', '.join(map(str, heads[:-1]))} and {heads[-1]}"


def _of_layers(layers: tuple[str | int, ...] | None) -> str:
    if layers is None or layers == ("*",):
        return " in every layer"
    return (
        f" of {', '.join(str(one) if isinstance(one, str) else f'layer {one}' for one in layers)}"
    )


def _of_pairs(edit: Hide | Boost, to: str = "from") -> str:
    queries = "every query" if edit.queries is None else edit.queries.named("query", "queries")
    old = "" if edit.new else " of the prompt"
    heads = "" if edit.heads is None else f" in {_of_heads(edit.heads)}"
    return f"{edit.keys.named('key', 'keys')} {to} {queries}{old}{heads}{_of_layers(edit.layers)}"


# -------------------------------------------------------------------------------- what a user calls


def _layers(given: Layers) -> tuple[str | int, ...] | None:
    """Return `layers=` as a tuple; names are compared with a model's when `ts.edit` gets one."""
    if given is None:
        return None
    listed = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    if not listed:
        raise ValueError("layers=[] edits nothing; leave it out for every attention")
    return tuple(one if isinstance(one, str) else _layer_number(one) for one in listed)


def _layer_number(given: Any) -> int:
    try:
        return whole_number("layers", given)
    except TypeError:
        kind = type(given).__name__
        raise TypeError(
            f'layers takes names, patterns such as "encoder.*" and numbers, not {kind}'
        ) from None


def _heads(given: Heads) -> tuple[int, ...] | None:
    """Return `heads=` as a tuple of numbers, each once."""
    return None if given is None else numbers_of_heads(given)


class MuteEdits:
    """`ts.mute`: make edits that multiply the context of heads."""

    def __call__(
        self, layers: Layers = None, heads: Heads = None, *, times: float = 0.0, by: str = "zero"
    ) -> Mute:
        """Return the edit that multiplies the context of some heads by `times`, before W_O.

        Args:
            layers: names, patterns or numbers of attentions, as in `ts.watch`; None is all. Of a
                layer that a model runs several times in one forward pass, these edit every pass;
                "name.2" edits the second pass alone, as it is named in a recording, and "name.1"
                the first.
            heads: the numbers of the heads, -1 for the last; None is all. times: the factor; 0
            switches the heads off. by: what remains at times=0: "zero", or "mean", the mean of the
            head's context over the queries of the
                prompt, of each sequence by itself and without padding. Generated tokens get the
                mean of their prompt. With another factor, the distance from the mean is multiplied.
                A prompt that is read in several forward passes is refused.

        Example:
            >>> import telescope as ts
            >>> print(ts.mute("decoder.1.cross", heads=[2, 4]))
            mute heads 2 and 4 of decoder.1.cross
        """
        factor = require_real("times", times)
        if not math.isfinite(factor):
            raise ValueError(
                f"times={times} is not a finite number; 0 switches a head off, 1 leaves it as it is"
            )
        if by not in MEANS:
            raise ValueError(f'there is no by="{by}"; {hint(str(by), MEANS)}')
        return Mute(_layers(layers), _heads(heads), float(factor), by)

    def each(
        self, model: nn.Module, layers: Layers = None, *, times: float = 0.0, by: str = "zero"
    ) -> list[Mute]:
        """Return one edit for each head of the attentions of a model, for `ts.effect`.

        A head of a layer that runs several times has one edit, of all passes. Raise a ValueError if
        the number of heads of an attention cannot be told before the model runs.
        """
        from .targets import count_heads

        counts = count_heads(model, layers)
        return [
            self(name, head, times=times, by=by)
            for name, count in counts.items()
            for head in range(count)
        ]


class HideEdits:
    """`ts.hide`: make edits that hide keys from queries."""

    def __call__(
        self,
        keys: Given,
        queries: Given | None = None,
        *,
        layers: Layers = None,
        heads: Heads = None,
        new: bool = True,
    ) -> Hide:
        """Return the edit that hides some keys from some queries; the weights of the other keys sum
        to one again.

        A query from which every key is hidden that it may see gets zeros as context.

        Args:
            keys: positions (a number, range, slice or list), text such as "the astronomer", or
                `ts.tokens(...)`. Positions count the tokens of each sequence from 0, without
                padding. Text is found in the prompt through the tokenizer, wherever it occurs as
                whole words. In cross-attention, keys are tokens of the source.
            queries: the same; None is every query. layers, heads: the attentions and heads, as in
            `ts.mute`; None is all. new: whether queries and keys may be tokens that the model
            generates. A span without an end, and
                queries=None, then include them.

        Example:
            >>> import telescope as ts
            >>> print(ts.hide(range(10, 40), slice(200, None)))
            hide keys 10 to 39 from queries from 200 on in every layer
        """
        whom = None if queries is None else span("queries", queries)
        return Hide(_layers(layers), _heads(heads), span("keys", keys), whom, bool(new))

    def each(
        self,
        segments: Iterable[Given],
        queries: Given | None = "later",
        *,
        layers: Layers = None,
        heads: Heads = None,
    ) -> list[Hide]:
        """Return one edit for each segment of a text, such as its sentences, for `ts.effect`.

        Args:
            segments: spans; or one whole number for each token, which tells its segment, as in
            `survey(...).map`. queries: from which queries each segment is hidden; "later" are all
            tokens after it, None is every query. layers, heads: as in `ts.hide`.
        """
        edits = []
        for keys in _segments(list(segments)):
            own = span("segments", keys)
            whom: Given | None = queries
            if isinstance(queries, str) and queries == "later":
                ends = [stop for _, stop in own.ranges if stop is not None]
                if own.needs_ids or len(ends) < len(own.ranges):
                    raise ValueError(
                        f"segment {own} has no known end; give positions, or queries=None for "
                        "every query"
                    )
                whom = slice(max(ends), None)
            edits.append(self(own, whom, layers=layers, heads=heads))
        return edits


def _segments(given: list[Any]) -> list[Any]:
    """Return the spans of segments that are given as one number for each token; spans are returned
    as they are.
    """
    if not given or not all(
        isinstance(one, SupportsIndex) and not isinstance(one, bool) for one in given
    ):
        return given
    numbers = [whole_number("segments", one) for one in given]
    return [
        [i for i, number in enumerate(numbers) if number == segment]
        for segment in dict.fromkeys(numbers)
    ]


mute = MuteEdits()
hide = HideEdits()


def boost(
    keys: Given,
    by: float,
    *,
    queries: Given | None = None,
    layers: Layers = None,
    heads: Heads = None,
    new: bool = True,
) -> Boost:
    """Return the edit that lets some keys count `by` times as much: ln(by) is added to their
    scores.

    Args:
        keys, queries, layers, heads, new: as in `ts.hide`.
        by: the factor, above 0; 1 changes nothing, below 1 the keys count less.

    Example:
        >>> import telescope as ts
        >>> print(ts.boost("the astronomer", by=4.0))
        boost "the astronomer" for every query in every layer by 4
    """
    factor = require_real("by", by)
    if not (math.isfinite(factor) and factor > 0):
        raise ValueError(f"by={by} is not a factor above 0; ts.hide hides keys altogether")
    whom = None if queries is None else span("queries", queries)
    return Boost(_layers(layers), _heads(heads), span("keys", keys), float(factor), whom, bool(new))


def frozen(recording: Recording, layers: Layers = None, heads: Heads = None) -> Frozen:
    """Return the edit that attends with the queries and keys of a recording, and with the values of
    this run.

    Args:
        recording: of the same model and a text of the same length, with keep="queries-keys" or
        "steps". layers: the attentions to freeze, by their names in the recording; None is all that
        were recorded. The name of a
            layer that ran several times freezes every pass, each by its own pattern; see `ts.mute`.
        heads: the heads to freeze; None is all that were recorded.

    Raises:
        TypeError, ValueError: `recording` is no recording, or keeps no queries and keys.

    Example:
        >>> import torch, telescope as ts
        >>> layer = ts.layers.MultiHeadAttention(8, 2)
        >>> with ts.watch(layer, keep="queries-keys") as recording:
        ...     _ = layer(torch.randn(1, 5, 8))
        >>> print(ts.frozen(recording, heads=1))
        freeze head 1 in every layer as recorded of MultiHeadAttention
    """
    if not isinstance(recording, Recording):
        raise TypeError(
            f"frozen takes a recording of ts.watch or ts.open, not {type(recording).__name__}"
        )
    if recording.keep == "summaries":
        raise ValueError(
            'frozen needs queries and keys: record with ts.watch(model, keep="queries-keys")'
        )
    return Frozen(_layers(layers), _heads(heads), recording)


def redefine(layers: Layers, function: Callable[[Attention], Attention]) -> Redefine:
    """Return the edit that replaces the definition of some attentions by function(definition).

    Args:
        layers: names, patterns or numbers of attentions, as in `ts.mute`; None is all. function:
        from Attention to Attention, such as `lambda attention: replace(attention, scale=1.0)`, with
            `replace` of the module dataclasses.

    Example:
        >>> import telescope as ts
        >>> from dataclasses import replace
        >>> print(ts.redefine("decoder.*.cross", lambda attention: replace(attention, scale=1.0)))
        redefine decoder.*.cross by <lambda>
    """
    if not callable(function):
        raise TypeError(
            f"redefine takes a function from Attention to Attention, not {type(function).__name__}"
        )
    return Redefine(_layers(layers), None, function)


# ---------------------------------------------------------------------------------------- from JSON

KINDS: dict[str, type[Edit]] = {kind.kind: kind for kind in (Mute, Hide, Boost, Frozen, Redefine)}


def from_json(parsed: Any) -> Edit:
    """Return the edit that `Edit.to_json` wrote; raise a ValueError for anything else.

    A frozen or redefining edit that was read can be printed and compared, and not applied.
    """
    if not isinstance(parsed, dict) or parsed.get("is") not in KINDS:
        raise ValueError(f"{str(parsed)[:80]} is no edit")
    kind = KINDS[parsed["is"]]
    names = [part.name for part in fields(kind)]
    if set(parsed) != {"is", *names}:
        raise ValueError(f"{str(parsed)[:80]} is no {parsed['is']} edit; it has {', '.join(names)}")
    layers = parsed["layers"]
    heads = parsed["heads"]
    given: dict[str, Any] = {"layers": None if layers is None else tuple(layers)}
    given["heads"] = None if heads is None else tuple(heads)
    for name in names[2:]:
        value = parsed[name]
        is_span = name == "keys" or (name == "queries" and value is not None)
        given[name] = Span.from_json(value) if is_span else value
    checks = {
        "times": float | int,
        "by": float | int | str,
        "new": bool,
        "recording": str,
        "function": str,
    }
    if (
        not all(isinstance(one, str | int) for one in given["layers"] or ())
        or not all(type(one) is int for one in given["heads"] or ())
        or not all(
            isinstance(given[name], allowed) for name, allowed in checks.items() if name in given
        )
    ):
        raise ValueError(
            f"{str(parsed)[:80]} is no {parsed['is']} edit: a field is of another type"
        )
    return kind(**given)
