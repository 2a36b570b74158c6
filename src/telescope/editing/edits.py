"""The edits: frozen values that say what to change in which attentions. `ts.edit` applies them
while a model runs.

Whatever the order in which edits are listed, one attention is edited in this order, that of their
`rank`:

    redefine   the definition is replaced, in the order of the list
    boost      some keys count more: ln(by) is added to their scores
    hide       some keys are hidden from some queries; the weights of the others sum to one again
    frozen     queries and keys are those of a recording, values those of this run
    patch      queries, keys, values or weights are those of a recording of another text
    mute       after the attention, the context of some heads is multiplied, before W_O; or patched

Each class says what it needs to know of a call and which part of it it changes, and does so.
Boost and hide are in key_edits.py, redefine and frozen in pattern_edits.py, patch in patching.py;
muting.py and ablation.py make mutes.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, fields
from enum import Enum, Flag, auto
from types import NoneType
from typing import Any, ClassVar, NamedTuple, SupportsIndex, TypeVar, get_args, get_origin

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import Attention
from ..recording import (
    AttentionCall,
    Layers,
    Recording,
    head_numbers,
    numbers_of_heads,
    select_layers,
)
from ..words import whole_number
from .prompts import Place
from .spans import Span

Heads = SupportsIndex | Sequence[SupportsIndex] | None
"""Numbers of heads, -1 for the last; None is all."""
# What a caller may guess, and what is written here.
GUESSES = {"layer": "layers=, a name, a number or a list", "head": "heads=, a number or a list"}
GUESSED_KEYS = GUESSES | {
    **{"key": "keys=", "query": "queries="},
    **dict.fromkeys(("token", "tokens", "text", "word", "words", "position", "positions"), "keys="),
}
Shared = TypeVar("Shared")

# --------------------------------------------------------------------------------------- every edit


class Part(Enum):
    """The part of a call that an edit changes, by its method of this name."""

    DEFINITION = "redefinition"
    TENSORS = "change_tensors"
    CONTEXT = "change_context"


class Needs(Flag):
    """What an edit has to know besides the tensors and the definition of a call."""

    NOTHING = 0
    PLACE = auto()
    """Where the call stands in its text: the prompt, its token ids and its padding."""
    POSITIONS = auto()
    """Where the queries of a cross-attention stand: then every attention is followed."""
    PASS = auto()
    """Which pass through its layer the call is, where a model runs a layer several times."""
    WHOLE_BATCH = auto()
    """All sequences of the batch: the edit cannot concern some of them alone."""


class Pass(NamedTuple):
    """One of the passes through an attention in a forward pass; the first has number 1."""

    attention: str
    number: int


def split_pass(name: str, attentions: Collection[str]) -> Pass:
    """Return which pass a name means: ("layer", 2) for "layer.2".

    The first pass is recorded by the attention's own name; "layer.1" names it too.
    """
    base, _, number = name.rpartition(".")
    is_number = number.isdecimal() and not number.startswith("0")
    # Paths end in numbers, too, as "layers.2" does: an attention of the full name comes first.
    is_pass = is_number and name not in attentions and base in attentions
    return Pass(base, int(number)) if is_pass else Pass(name, 1)


class Block:
    """What the edits of one `ts.edit` block share until it ends."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.checks: list[Callable[[], list[str]]] = []
        """Called when the block ends; return sentences on what went wrong."""
        self.regions = 0
        """How many regions the layers share at least, with their masks."""
        self.longest = 0
        """How long the texts are that compiled steps have written, in tokens."""
        self._shared: dict[Any, Any] = {}

    def share(self, kind: Callable[["Block"], Shared]) -> Shared:
        """Return the block's one object of a class, which is made when an edit first asks."""
        if kind not in self._shared:
            self._shared[kind] = kind(self)
        made: Shared = self._shared[kind]
        return made


class EditedCall(NamedTuple):
    """A call of an attention, as one of its edits finds it."""

    name: str
    """Of the attention."""
    own: "LayerEdit"
    block: Block
    call: AttentionCall | None
    """The call as the model made it; None if no edit needs more than the context."""
    place: Place | None
    """Known if an edit of the attention needs it."""
    value_set: int = 0
    """Tells calls apart that multiply the same weights by several sets of values."""


class Redefinition(NamedTuple):
    """The change of a definition in one call."""

    apply: Callable[[Attention], Attention]
    key: Hashable | None
    """Equal for equal changes, whose results are shared; None if results may differ."""


@dataclass(frozen=True)
class Edit:
    """The base of all edits: a change of some heads of some attentions."""

    kind: ClassVar[str]
    """The name of the function that makes the edit, and of the edit in JSON."""
    _made_by: ClassVar[str] = ""
    """The name of the function that makes the edit, where `kind` is another."""
    _changes: ClassVar[Part]
    _rank: ClassVar[int]
    """Edits of one attention apply in the order of their ranks; equal ranks as they are listed."""
    _kept_by_name: ClassVar[str] = ""
    """The field of which JSON has only the name; an edit that was read cannot be applied then."""

    layers: tuple[str | int, ...] | None
    """Names, patterns and numbers of layers, as in `ts.watch`, and of passes; None is all."""
    heads: tuple[int, ...] | None
    """The numbers of the heads; None is all."""

    def __init_subclass__(cls) -> None:
        # Bases such as KeyEdit have no kind of their own, and are not made from JSON.
        if "kind" in vars(cls):
            KINDS[cls.kind] = cls

    @abstractmethod
    def __str__(self) -> str:
        """Return the edit as a sentence."""

    @property
    def _needs(self) -> Needs:
        """What the edit has to know of its calls."""
        return Needs.NOTHING

    @property
    def _factor(self) -> float | None:
        """What the context of the heads is multiplied by; None if the edit is no such product."""
        return None

    @property
    def _adds_to_scores(self) -> bool:
        """Whether the edit is a term that is added to the scores, -inf for keys that it hides."""
        return False

    def _redefinition(self, at: EditedCall) -> Redefinition | None:
        """Return the change of a call's definition; None if nothing changes in this call."""
        raise NotImplementedError

    def _change_tensors(self, at: EditedCall, call: AttentionCall) -> AttentionCall:
        """Return `call`, which edits of a lower rank have changed, with other queries and keys."""
        raise NotImplementedError

    def _change_context(
        self, at: EditedCall, context: Float[Tensor, "batch heads query d_v"]
    ) -> Float[Tensor, "batch heads query d_v"]:
        """Return the context after the edit; it may be changed in place unless gradients flow."""
        raise NotImplementedError

    @property
    def _edits_every_layer(self) -> bool:
        """Whether the edit means every attention that the model has."""
        return self.layers is None

    def _select(
        self, names: Sequence[str], passes: Sequence[str], unwatched: Sequence[str]
    ) -> list[str]:
        """Return what `layers` selects of a model's attentions and of the passes that it names."""
        return select_layers([*names, *passes], self.layers, unwatched)

    def _select_heads(self, name: str, count: int) -> Sequence[int] | None:
        """Return the numbers of the edited heads of an attention with `count` heads; None is all.

        Raise a ValueError if a head does not exist.
        """
        return None if self.heads is None else head_numbers(name, self.heads, count)

    def _contradicts(self, other: "Edit") -> str:
        """Return why this edit and another cannot both change the same head; "" if they can."""
        return ""

    def to_json(self) -> dict[str, Any]:
        """Return the edit as JSON. Of a recording and a function only the name is kept.

        Example:
            >>> import telescope as ts
            >>> ts.mute("blocks.0.self", heads=[1]).to_json()["is"]
            'mute'
        """
        return {"is": self.kind} | {
            part.name: _to_json(getattr(self, part.name)) for part in fields(self)
        }


KINDS: dict[str, type[Edit]] = {}
"""Every class of edits by its `kind`."""


@dataclass(frozen=True, eq=False)
class LayerEdit:
    """An edit of one attention."""

    edit: Edit
    sequences: range | None = None
    """The sequences of a batch that the edit concerns; None is all."""
    first_head: int = 0
    """This process's first head among those of the whole model; `edit` counts heads from there."""


def describe_heads(heads: tuple[int, ...] | None) -> str:
    """Return heads in words: "every head", "heads 2 and 4"."""
    if heads is None:
        return "every head"
    if len(heads) == 1:
        return f"head {heads[0]}"
    return f"heads {', '.join(map(str, heads[:-1]))} and {heads[-1]}"


def describe_layers(layers: tuple[str | int, ...] | None) -> str:
    """Return layers in words, with the preposition before them: " in every layer"."""
    if layers is None or layers == ("*",):
        return " in every layer"
    return f" of {', '.join(one if isinstance(one, str) else f'layer {one}' for one in layers)}"


def read_layers(given: Layers) -> tuple[str | int, ...] | None:
    """Return `layers=` as a tuple; names are compared with a model's when `ts.edit` gets one."""
    if given is None:
        return None
    # A single name or number is a list of one.
    listed = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    if not listed:
        raise ValueError("layers=[] edits nothing; leave it out for every attention")
    for one in listed:
        if not isinstance(one, str | SupportsIndex):
            raise TypeError(
                'layers takes names, patterns such as "encoder.*" and numbers, not '
                f"{type(one).__name__}"
            )
    return tuple(one if isinstance(one, str) else whole_number("layers", one) for one in listed)


def read_heads(given: Heads) -> tuple[int, ...] | None:
    """Return `heads=` as a tuple of numbers, each once."""
    return None if given is None else numbers_of_heads(given)


# --------------------------------------------------------------------------------------------- JSON


def _to_json(value: Any) -> Any:
    match value:
        case Span():
            return value.to_json()
        case tuple():
            return list(value)
        case Recording():
            # A file holds the name of the recorded model in the place of its recording.
            return value.model
    # Of a function, only the name can be written.
    return getattr(value, "__name__", repr(value)) if callable(value) else value


def from_json(parsed: Any) -> Edit:
    """Return the edit that `Edit.to_json` wrote; raise a ValueError for anything else.

    An edit that is `kept_by_name` can be printed and compared, and not applied.
    """
    shown = str(parsed)[:80]
    kind = KINDS.get(str(parsed.get("is"))) if isinstance(parsed, dict) else None
    if kind is None:
        raise ValueError(f"{shown} is no edit")
    # Require exactly the fields of the class, so that none falls back to its default.
    types = {part.name: part.type for part in fields(kind)}
    if set(parsed) != {"is", *types}:
        raise ValueError(f"{shown} is no {kind.kind} edit; it has {', '.join(types)}")
    # `_from_json` raises a TypeError for a value that does not fit its field.
    try:
        return kind(**{name: _from_json(parsed[name], types[name]) for name in types})
    except TypeError:
        raise ValueError(f"{shown} is no {kind.kind} edit: a field is of another type") from None


def _from_json(value: Any, annotation: Any) -> Any:
    """Return the value of a field from JSON; raise a TypeError unless it fits the annotation."""
    # Take a plain type as a union of one.
    options = get_args(annotation) or (annotation,)
    if value is None and NoneType in options:
        return None
    if Span in options:
        return Span.from_json(value)
    # A list for `tuple[int, ...]`. type() tells True from 1, which isinstance does not.
    first = options[0]
    if get_origin(first) is tuple and isinstance(value, list):
        allowed = get_args(first)[0]
        if all(type(one) in (get_args(allowed) or (allowed,)) for one in value):
            return tuple(value)
    # Accept a whole number for a float.
    plain = tuple(one for one in options if isinstance(one, type))
    if isinstance(value, plain) or (float in plain and isinstance(value, int)):
        return value
    raise TypeError(f"{value!r} is no {annotation}")


# --------------------------------------------------------------------------------------------- mute


@dataclass(frozen=True)
class Mute(Edit):
    """Multiply the context of some heads, or its distance from the mean, by `times`.

    Attributes:
        times: the factor; 0 switches the heads off.
        by: "zero" or "mean".

    Example:
        >>> import telescope as ts
        >>> edit = ts.mute("blocks.0.self", heads=[1], times=0.5)
        >>> edit.layers, edit.heads, edit.times
        (('blocks.0.self',), (1,), 0.5)
        >>> (
        ...     edit == ts.mute("blocks.0.self", heads=[1], times=0.5),
        ...     edit.to_json()["times"],
        ... )
        (True, 0.5)
    """

    kind = "mute"
    _changes = Part.CONTEXT
    _rank = 4
    times: float = 0.0
    by: str = "zero"

    def __str__(self) -> str:
        what = f"{describe_heads(self.heads)}{describe_layers(self.layers)}"
        factor = f" times {self.times:g}" if self.times else ""
        return f"mute {what}{factor}" + (" by the mean" if self.by == "mean" else "")

    @property
    def _needs(self) -> Needs:
        return Needs.PLACE | Needs.POSITIONS if self.by == "mean" else Needs.NOTHING

    @property
    def _factor(self) -> float | None:
        return self.times if self.by == "zero" else None

    def _change_context(
        self, at: EditedCall, context: Float[Tensor, "batch heads query d_v"]
    ) -> Float[Tensor, "batch heads query d_v"]:
        # Find the heads and the sequences of the batch that the edit concerns.
        count = context.shape[1]
        selected = self._select_heads(at.name, count)
        heads = list(range(count) if selected is None else selected)
        sequences = at.own.sequences
        rows = slice(None) if sequences is None else slice(sequences.start, sequences.stop)

        # Without gradients, in place: nobody else reads the context yet.
        if not context.requires_grad or not torch.is_grad_enabled():
            part = context[rows]
            if self.by == "mean":
                part[:, heads] = self._muted(part[:, heads], at, rows)
                return context
            # Each head as a view: on a GPU, a list of heads would be copied there in every call.
            for view in [part] if len(heads) == count else [part[:, head] for head in heads]:
                if self.times:
                    view.mul_(self.times)
                else:
                    view.zero_()
            return context

        # With gradients, a copy in which the muted heads are chosen by a mask.
        chosen = torch.zeros(len(context), count, 1, 1, dtype=torch.bool, device=context.device)
        chosen[rows, heads] = True
        muted = torch.zeros_like(context)
        muted[rows, heads] = self._muted(context[rows][:, heads], at, rows)
        return torch.where(chosen, muted, context)

    def _muted(
        self, part: Float[Tensor, "some chosen query d_v"], at: EditedCall, rows: slice
    ) -> Tensor:
        """Return the context of the muted heads after the edit."""
        if self.by == "mean":
            mean = self._mean(part, at, rows)
            return mean + self.times * (part - mean)
        if self.times:
            return part * self.times
        # Not times 0: 0 · NaN would be NaN.
        return part.masked_fill(torch.ones((), dtype=torch.bool, device=part.device), 0.0)

    def _mean(self, part: Tensor, at: EditedCall, rows: slice) -> Tensor:
        """Return the mean of each head over the queries of the prompt, (some, chosen, 1, d_v)."""
        place = at.place
        assert place is not None
        assert at.call is not None
        means = place.prompt.means
        key = (id(at.own), at.value_set)

        # A generated token has the mean of its prompt.
        if not place.reads_prompt:
            known = means[key]
            sequences = place.rows(at.call)
            return known if sequences is None else known[sequences]

        # Refuse a prompt in chunks, whose mean is known only after the last chunk.
        if not place.reads_all:
            raise ValueError(
                f'"{self}" needs the mean of the whole prompt, which is read in several forward '
                "passes here; let the model read it at once, in generate without prefill_chunk_size"
            )

        # Average over the queries of each sequence that are no padding.
        real = place.real_queries(at.call)
        if real is None:
            mean = part.mean(2, keepdim=True)
        else:
            # A sequence of padding alone divides by 1 instead of 0.
            counts = real[rows].to(part.dtype)
            total = counts.sum(2, keepdim=True).clamp(min=1.0)
            mean = (part * counts).sum(2, keepdim=True) / total
        # Keep the mean for generated tokens, detached: the graph of this pass may be gone by then.
        means[key] = mean.detach()
        return mean
