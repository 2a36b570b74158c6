"""`recording.heads()`: every head that was watched, and what kind it is."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from math import isnan, nan
from typing import Any, overload

from rich.table import Table

from ..words import hint
from .habits import HABITS, Decode, Measured, marks_of, measured
from .kept import Call
from .table import text

CLEAR = 0.4  # a habit that takes as much of the weight makes a kind


@dataclass(frozen=True)
class Head:
    """One head: its share of weight for each habit, and at about how many keys it looks; NaN is not known."""

    layer: str
    number: int
    kind: str
    itself: float
    previous: float
    first: float
    same: float
    induction: float
    punctuation: float
    far: float
    spread: float


class Heads(Sequence[Head]):
    """A table of heads. heads.where(previous=0.5).sort("spread")[:10]"""

    def __init__(self, heads: Iterable[Head]) -> None:
        self._heads = tuple(heads)

    def sort(self, by: str = "kind", *, rising: bool = False) -> "Heads":
        """The largest first; what is not known last. Kinds stand together, the clearest first."""
        _must_be_known(by)
        if by in ("layer", "kind"):
            return Heads(sorted(self, key=lambda head: (getattr(head, by), -_clearest(head))))
        sign = 1 if rising else -1
        return Heads(sorted(self, key=lambda head: (isnan(getattr(head, by)), sign * getattr(head, by))))

    def where(
        self,
        test: Callable[[Head], bool] | None = None,
        *,
        kind: str | None = None,
        layer: str | None = None,
        **at_least: float,
    ) -> "Heads":
        """Those of a kind, of a layer, that do something at least so much, or pass any test."""
        for name in at_least:
            _must_be_known(name)
        return Heads(
            head
            for head in self
            if (test is None or test(head))
            and (kind is None or head.kind == kind)
            and (layer is None or head.layer == layer or head.layer.startswith(f"{layer}."))
            and all(getattr(head, name) >= least for name, least in at_least.items())
        )

    def to_dict(self) -> list[dict[str, Any]]:
        """For JSON, in which what is not known is null."""
        return [
            {name: None if isinstance(it, float) and isnan(it) else it for name, it in asdict(head).items()}
            for head in self
        ]

    def plot(self, habit: str = "spread", axes: Any = None) -> Any:
        """A square for each head, layers downwards, by matplotlib; the axes come back."""
        _must_be_known(habit)
        try:
            pyplot = import_module("matplotlib.pyplot")
        except ImportError:
            raise ValueError("plot needs matplotlib: pip install matplotlib") from None
        layers = list(dict.fromkeys(head.layer for head in self))
        width = max((head.number for head in self), default=-1) + 1
        square = [[nan] * width for _ in layers]
        for head in self:
            square[layers.index(head.layer)][head.number] = getattr(head, habit)
        axes = pyplot.subplots()[1] if axes is None else axes
        axes.imshow(square)
        axes.set(xlabel="head", title=habit, yticks=range(len(layers)), yticklabels=layers)
        return axes

    @overload
    def __getitem__(self, index: int) -> Head: ...

    @overload
    def __getitem__(self, index: slice) -> "Heads": ...

    def __getitem__(self, index: int | slice) -> "Head | Heads":
        return Heads(self._heads[index]) if isinstance(index, slice) else self._heads[index]

    def __iter__(self) -> Iterator[Head]:
        return iter(self._heads)

    def __len__(self) -> int:
        return len(self._heads)

    def __rich__(self) -> Table:
        drawn = Table(box=None, pad_edge=False)
        for name in ("layer", "head", "kind"):
            drawn.add_column(name, justify="right" if name == "head" else "left", no_wrap=True)
        for name in (*HABITS, "spread"):
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
    return Heads(found)


def _head(layer: str, number: int, place: int, parts: list[Measured]) -> Head:
    shares = {}
    for name in (*HABITS, "spread"):
        told = [(float(getattr(part, name)[place]), part.queries) for part in parts if part.queries]
        known = [(share, count) for share, count in told if not isnan(share)]
        shares[name] = sum(share * count for share, count in known) / sum(count for _, count in known) if known else nan
    return Head(layer, number, _kind(shares), **shares)


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


def _must_be_known(name: str) -> None:
    known = [field.name for field in fields(Head)]
    if name not in known:
        raise ValueError(f'there is no habit "{name}"; {hint(str(name), known)}')


def _percent(share: float) -> str:
    return "" if isnan(share) else f"{share:.0%}"
