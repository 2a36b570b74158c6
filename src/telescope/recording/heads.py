"""`recording.heads()`: every head that was watched, and what kind it is."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib import import_module
from math import isnan, nan
from string import punctuation
from typing import Any, overload

import torch
from jaxtyping import Float, Int
from rich.table import Table
from torch import Tensor

from ..trace.terminal import text
from ..words import hint
from .head_shares import COUNTS, NAMES, BatchTokens, Places, counted
from .kept import Call, SummariesCall
from .names import Layers, chosen

Decode = Callable[[list[int]], str]
IsMark = Callable[[int], bool]

CLEAR = 0.4  # a habit that takes as much of the weight makes a kind
HABITS = ("itself", "previous", "first", "sink", "same", "induction", "punctuation", "far")
MEASURES = (*HABITS, "spread")


@dataclass(frozen=True)
class Head:
    """One head: which share of its weight goes where, and at how many keys it looks; NaN where that is not known.

    Shares are exact means over the queries that have something to choose from: those behind the first token that see
    anything. Padding is left out, as query, as key and as first token. Where the keys are another sequence, only
    `first`, `sink`, `punctuation` and `spread` have a meaning.
    """

    layer: str
    number: int
    kind: str
    """The habit with the largest share, if that is at least 0.4, else "mixed"; "far" only if no other is."""
    itself: float
    """At the query's own position."""
    previous: float
    """At the position before."""
    first: float
    """At the first token, where most heads put weight that nothing needs."""
    sink: float
    """At one other token: of all weight that is given, what the key that receives most is given, the first left out;
    of several sequences, each has a key of its own."""
    same: float
    """At earlier occurrences of the query's token; the mean over the queries that may see one."""
    induction: float
    """At what followed earlier occurrences of the query's token; the mean over the queries that may see one of these
    occurrences."""
    punctuation: float
    """At punctuation, of all weight that is given."""
    far: float
    """More than 64 tokens back."""
    spread: float
    """exp(entropy): at about how many keys a query looks."""


class Heads(Sequence[Head]):
    """A table of heads. heads.where(previous=0.5).sort("spread")[:10]

    `layers` are the names of all layers in the order of the model; a part of a table still knows them.
    """

    def __init__(self, heads: Iterable[Head], layers: Sequence[str] | None = None) -> None:
        self._heads = tuple(heads)
        known = sorted({head.layer for head in self._heads}, key=_in_order)
        self.layers = tuple(known if layers is None else layers)

    def sort(self, by: str = "kind", *, rising: bool | None = None) -> "Heads":
        """Return the table sorted by a column; what is not known stands last.

        `rising` says which way; unless it is said, layers, numbers and kinds rise, and shares fall. Kinds stand
        together, in each the clearest head first, and so do layers, in each the lowest number first.
        """
        _must_be(by, [field.name for field in fields(Head)], "column")
        names = by in ("layer", "number", "kind")
        heads = sorted(self, key=_clearest, reverse=True) if by == "kind" else sorted(self, key=lambda it: it.number)
        unknown = [head for head in heads if not names and isnan(getattr(head, by))]
        known = [head for head in heads if names or not isnan(getattr(head, by))]
        place = {layer: i for i, layer in enumerate(self.layers)}
        known.sort(
            key=lambda head: place[head.layer] if by == "layer" else getattr(head, by),
            reverse=not (names if rising is None else rising),
        )
        return Heads([*known, *unknown], self.layers)

    def where(
        self,
        test: Callable[[Head], bool] | None = None,
        *,
        kind: str | Iterable[str] | None = None,
        layer: Layers = None,
        number: int | Iterable[int] | None = None,
        **at_least: float,
    ) -> "Heads":
        """Return the heads that fit all of these: where(kind="first", layer=0), where(induction=0.4).

        test    a function of a head
        kind    of this kind, or one of several
        layer   as watch takes layers: a name, a pattern such as "encoder.*", a number, or several of these
        number  this number in its layer, or one of several
        and for any habit, or spread, the least that it must be
        """
        kinds = None if kind is None else [kind] if isinstance(kind, str) else list(kind)
        numbers = None if number is None else set(number) if isinstance(number, Iterable) else {number}
        layers = None if layer is None else chosen(self.layers, layer, argument="layer")
        for one in kinds or ():
            _must_be(one, (*HABITS, "mixed"), "kind")
        for name in at_least:
            _must_be(name, MEASURES, "habit")
        return Heads(
            (
                head
                for head in self
                if (test is None or test(head))
                and (kinds is None or head.kind in kinds)
                and (layers is None or head.layer in layers)
                and (numbers is None or head.number in numbers)
                and all(getattr(head, name) >= least for name, least in at_least.items())
            ),
            self.layers,
        )

    def to_dict(self) -> list[dict[str, Any]]:
        """For JSON, in which what is not known is null."""
        return [
            {name: None if isinstance(it, float) and isnan(it) else it for name, it in asdict(head).items()}
            for head in self
        ]

    def plot(self, habit: str = "spread", axes: Any = None) -> Any:
        """Draw a square for each head by matplotlib, layers downwards in the order of the model; return the axes."""
        _must_be(habit, MEASURES, "habit")
        try:
            pyplot = import_module("matplotlib.pyplot")
        except ImportError:
            raise ValueError("plot needs matplotlib: pip install matplotlib") from None
        if not self:
            raise ValueError("there is no head in this table, so there is nothing to plot")
        there = {head.layer for head in self}
        layers = [layer for layer in self.layers if layer in there]
        square = [[nan] * (1 + max(head.number for head in self)) for _ in layers]
        for head in self:
            square[layers.index(head.layer)][head.number] = getattr(head, habit)
        axes = pyplot.subplots()[1] if axes is None else axes
        image = axes.imshow(square, vmin=0.0, vmax=1.0 if habit in HABITS else None)
        axes.set(xlabel="head", title=habit, yticks=range(len(layers)), yticklabels=layers)
        axes.figure.colorbar(image, ax=axes, label="share of the weight" if habit in HABITS else "keys")
        return axes

    @overload
    def __getitem__(self, index: int) -> Head: ...

    @overload
    def __getitem__(self, index: slice) -> "Heads": ...

    def __getitem__(self, index: int | slice) -> "Head | Heads":
        return Heads(self._heads[index], self.layers) if isinstance(index, slice) else self._heads[index]

    def __iter__(self) -> Iterator[Head]:
        return iter(self._heads)

    def __len__(self) -> int:
        return len(self._heads)

    def __rich__(self) -> Table:
        drawn = Table(box=None, pad_edge=False)
        for name in ("layer", "head", "kind"):
            drawn.add_column(name, justify="right" if name == "head" else "left", no_wrap=True)
        for name in MEASURES:
            drawn.add_column(name, justify="right", no_wrap=True)
        for head in self:
            shares = [_percent(getattr(head, name)) for name in HABITS]
            spread = "" if isnan(head.spread) else f"{head.spread:.1f}"
            drawn.add_row(head.layer, str(head.number), head.kind, *shares, spread)
        return drawn

    def __repr__(self) -> str:
        return text(self.__rich__(), width=160)


def heads_of(attentions: Mapping[str, Sequence[Call]], decode: Decode | None) -> Heads:
    """The heads of every attention that was called, each measured on all of its calls together."""
    is_mark = None if decode is None else marks_of(decode)
    found: list[Head] = []
    for layer, calls in attentions.items():
        numbers = calls[-1].heads if calls else ()
        parts = [measured(call, is_mark) for call in calls if call.heads == numbers]
        found += [_head(layer, number, place, parts) for place, number in enumerate(numbers)]
    return Heads(found, list(attentions))


def _head(layer: str, number: int, place: int, parts: list["Measured"]) -> Head:
    measures = {}
    for name in MEASURES:
        told = [(float(part.sums[name][place]), float(part.of[name][place])) for part in parts]
        known = [(total, of) for total, of in told if not isnan(total) and of > 0]
        measures[name] = sum(total for total, _ in known) / sum(of for _, of in known) if known else nan
    return Head(layer, number, _kind(measures), **measures)


def _kind(shares: dict[str, float]) -> str:
    """The habit that takes most of the weight, if it takes much; far back is said only where nothing else is."""
    habits = {name: shares[name] for name in HABITS if not isnan(shares[name])}
    near = {name: share for name, share in habits.items() if name != "far"}
    best = max(near, key=lambda name: near[name], default=None)
    if best is not None and near[best] >= CLEAR:
        return best
    return "far" if habits.get("far", 0.0) >= CLEAR else "mixed"


def _clearest(head: Head) -> float:
    known = [getattr(head, name) for name in HABITS if not isnan(getattr(head, name))]
    return max(known, default=0.0) if head.kind == "mixed" else float(getattr(head, head.kind))


def _must_be(name: object, known: Sequence[str], what: str) -> None:
    if name not in known:
        raise ValueError(f'there is no {what} "{name}"; {hint(str(name), known)}')


def _in_order(name: str) -> list[tuple[int, str]]:
    """blocks.2 before blocks.10: numbers count as numbers."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split(".")]


def _percent(share: float) -> str:
    return "" if isnan(share) else f"{share:.0%}"


@dataclass(frozen=True)
class Measured:
    """Of every head of a call: what is averaged, summed up, and the weights of the average. Those of several calls add
    up. NaN where a habit has no meaning or is not known."""

    sums: dict[str, Float[Tensor, " heads"]]
    of: dict[str, Float[Tensor, " heads"]]


def measured(call: Call, is_mark: IsMark | None) -> Measured:
    """Measure where the model ran, wherever its numbers are kept: a CPU would take longer for this than a GPU for the
    model."""
    seen, device = call.survey().summary, call.facts.device
    places = _places(call)
    shares = call.shares(places)
    received, entropy = (it.to(device, torch.float64) for it in (seen.received, seen.entropy))
    chooses = counted(call.kept_attention(), seen, places).to(device)
    sums = dict(zip((*NAMES, *COUNTS), shares.to(device).sum(0).T, strict=True))
    choosing, repeated, given = chooses.sum((0, 2)).double(), sums.pop("repeated"), received.sum((0, 2))
    del sums["queries"]
    sums["sink"] = _sink(received, places.first)
    sums["punctuation"] = _punctuation(call, received, is_mark)
    sums["spread"] = entropy.exp().masked_fill(~chooses, 0.0).sum((0, 2))
    of = dict.fromkeys(NAMES, choosing) | {"same": repeated, "induction": repeated}
    of |= {"sink": given, "punctuation": given, "spread": choosing}
    return Measured(*({name: it.cpu() for name, it in some.items()} for some in (sums, of)))


def _places(call: Call) -> Places:
    """Where its queries and keys stand; of a call that was summed up while it ran, no more than is needed to count."""
    (batch, *_), (queries, keys), rows, told = (
        call.facts.shape,
        call.size,
        call.facts.rows,
        isinstance(call, SummariesCall),
    )
    return Places.of(
        call.attention,
        batch=batch,
        heads=len(call.heads),
        size=call.size,
        positions=None if rows is None else tuple(keys - queries + row for row in rows),
        across=call.across,
        text=None if told or call.key_ids is None else BatchTokens(call.key_ids.to(call.facts.device)),
        lists=not told,
        device=call.facts.device,
    )


def _sink(received: Float[Tensor, "batch heads key"], first: Int[Tensor, "#batch"]) -> Float[Tensor, " heads"]:
    """What the key that receives most is given, the first left out."""
    key = torch.arange(received.shape[-1], device=received.device)
    others = received.masked_fill((key == first.to(received.device)[:, None])[:, None], 0.0)
    return others.amax(-1).sum(0) if others.shape[-1] else others.sum((0, 2))


def _punctuation(
    call: Call, received: Float[Tensor, "batch heads key"], is_mark: IsMark | None
) -> Float[Tensor, " heads"]:
    if is_mark is None or call.key_ids is None:
        return received.new_full((received.shape[1],), torch.nan)
    ids = call.key_ids.to(received.device)
    marks = [number for number in torch.unique(ids).tolist() if is_mark(number)]
    at_mark = torch.isin(ids, ids.new_tensor(marks))
    return (received * at_mark[:, None]).sum((0, 2))


def marks_of(decode: Decode) -> IsMark:
    """Which tokens are punctuation. Each is decoded once, since every layer asks."""
    return cache(lambda number: _is_mark(decode([number])))


def _is_mark(text: str) -> bool:
    bare = text.strip(" \t\r\nĠ▁Ċ")
    return bool(text) and all(letter in punctuation + "…–—«»“”‘’„" for letter in bare)
