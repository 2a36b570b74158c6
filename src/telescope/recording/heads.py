"""`recording.heads()`: a table of every head that was watched, with its kind and its habits."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from importlib import import_module
from math import isnan, nan
from operator import attrgetter
from typing import Any, overload

import torch
from jaxtyping import Float, Int
from rich.table import Table
from torch import Tensor

from ..field_words import OF_TABLE, FieldNames
from ..files import Columns, Names, frame
from ..measures import CLEAR, COLUMNS, HABITS, MEASURES, Head, IsMark, kinds_of
from ..traces import FirstThatFits, PrintedTable, round_numbers
from ..words import hint, index_range, suggests, whole_number
from .head_measures import DENOMINATORS, QUOTIENTS, HeadSums, measure_heads
from .names import Layers, list_names, select_layers
from .recorded_call import RecordedCall
from .sources import Segments

# The columns that a narrow screen leaves out, in this order.
SPARED = ("far", "punctuation", "same", "induction", "sink", "previous", "itself", "first")


class Heads(PrintedTable, FieldNames, Sequence[Head]):
    """A table of heads, which prints as one: heads.where(previous=0.5).sort("spread")[:10].

    `layers` are the names of all layers in the order of the model; a part of a table keeps all of
    them. `left_out` are the attentions whose heads were not watched, or not in every run; they are
    named below the table.

    Attributes:
        layers: the names of all layers in the order of the model.
        left_out: the attentions whose heads were not watched, or not in every run.
        segments: the names of the segments of `recording.heads(segments=...)`.

    Example:
        >>> import torch, telescope as ts
        >>> layer = ts.layers.MultiHeadAttention(8, 2)
        >>> with ts.watch(layer) as recording:
        ...     _ = layer(torch.randn(1, 5, 8))
        >>> heads = recording.heads()
        >>> heads.sort("first")[0].first == max(head.first for head in heads)
        True
        >>> len(heads.where(number=0)), heads.to_dict()[0]["layer"]
        (1, 'attention')
        >>> len(heads.table()) == len(heads.columns()["kind"])
        True
        >>> from matplotlib.figure import Figure
        >>> heads.plot("spread", Figure().subplots()).get_title()
        'spread'
    """

    _theirs = OF_TABLE
    _width = 160

    def __init__(
        self,
        heads: Iterable[Head],
        layers: Sequence[str] | None = None,
        counts: Mapping[str, int] | None = None,
        left_out: Sequence[str] = (),
    ) -> None:
        self._heads = tuple(heads)
        # Without a model's order, sort by name, numbers by value.
        if layers is None:
            layers = sorted({head.layer for head in self._heads}, key=natural_order)
        self.layers = tuple(layers)
        self.left_out = tuple(left_out)
        # The highest number of a layer, last in this order, tells how many heads it has.
        if counts is None:
            lowest_first = sorted(self._heads, key=lambda head: head.number)
            counts = {head.layer: head.number + 1 for head in lowest_first}
        self._counts = counts
        """How many heads each layer has, as far as the whole table shows."""
        self.segments = tuple(self._heads[0].segments) if self._heads else ()
        """The names of the segments, which can be sorted and filtered by like any column."""

    @suggests(
        "sort",
        descending="rising=False",
        reverse="rising=False",
        ascending="rising=True",
        key="by=",
    )
    def sort(self, by: str = "kind", *, rising: bool | None = None) -> "Heads":
        """Return the table sorted by a column, unknown numbers last.

        `rising` sets the direction; by default layers, numbers and kinds rise, and shares fall.
        Within a kind, the clearest head comes first; within a layer, the lowest number.

        Args:
            by: a column of the table, such as "induction", or a segment.
            rising: whether the smallest number comes first; by default layers, numbers and kinds
                rise, and shares fall.

        Raises:
            ValueError: there is no such column.
        """
        # Segments are a dict in `Head`, and columns here.
        columns = [each.name for each in fields(Head) if each.name != "segments"]
        _check_known(by, [*columns, *self.segments], "column")
        names = by in ("layer", "number", "kind")
        # Sorting is stable: order by the second criterion first.
        heads = (
            sorted(self, key=_clearest, reverse=True)
            if by == "kind"
            else sorted(self, key=lambda head: head.number)
        )

        # Numbers that are NaN have no order, and go to the end.
        unknown = [head for head in heads if not names and isnan(_value(head, by))]
        known = [head for head in heads if names or not isnan(_value(head, by))]
        position = {layer: i for i, layer in enumerate(self.layers)}
        known.sort(
            key=lambda head: position[head.layer] if by == "layer" else _value(head, by),
            reverse=not (names if rising is None else rising),
        )
        return Heads([*known, *unknown], self.layers, self._counts, self.left_out)

    def where(
        self,
        test: Callable[[Head], bool] | None = None,
        *,
        kind: str | Iterable[str] | None = None,
        layer: Layers = None,
        number: int | Iterable[int] | None = None,
        **at_least: float,
    ) -> "Heads":
        """Return the heads that meet all conditions: where(kind="first", layer=-1),
        where(induction=0.4).

        Args:
            test: a function that returns True for a head.
            kind: a kind of head, or several.
            layer: as `layers` of `ts.watch`: a name, a pattern such as "encoder.*", a number, or
                several of these.
            number: the number of a head in its layer, -1 for the last, or several.
            at_least: for any column of numbers, or segment, the least value.

        Raises:
            ValueError: if a kind, a layer, a number or a habit does not exist.
        """
        # Bring each condition into the form of a list, and check its names.
        kinds = None if kind is None else [kind] if isinstance(kind, str) else list(kind)
        numbers = None if number is None else self._select(number)
        layers = None if layer is None else select_layers(self.layers, layer, argument="layer")
        for one in kinds or ():
            _check_known(one, (*HABITS, "neighbours", "mixed"), "kind")
        for name in at_least:
            _check_known(name, (*COLUMNS, *self.segments), "habit")

        # A head must meet every condition; NaN is never at least anything.
        return Heads(
            (
                head
                for head in self
                if (test is None or test(head))
                and (kinds is None or head.kind in kinds)
                and (layers is None or head.layer in layers)
                and (numbers is None or (head.layer, head.number) in numbers)
                and all(_value(head, name) >= least for name, least in at_least.items())
            ),
            self.layers,
            self._counts,
            self.left_out,
        )

    def _select(self, number: int | Iterable[int]) -> set[tuple[str, int]]:
        """Return the (layer, number) of every head that has one of these numbers; negative ones
        count from the last.
        """
        selected: set[tuple[str, int]] = set()
        most = max(self._counts.values(), default=0)
        for one in number if isinstance(number, Iterable) else (number,):
            # A number must be a head of the largest layer, at least.
            if most and not -most <= whole_number("number", one) < most:
                raise ValueError(
                    f"number={one} is no head of any layer; they count {index_range(most)}"
                )
            # -1 is another head in each layer: count from each layer's last.
            selected |= {
                (layer, count + one if one < 0 else one) for layer, count in self._counts.items()
            }
        return selected

    def to_dict(self) -> list[dict[str, Any]]:
        """Return a dict for each head, for JSON: an unknown number is None, others have the digits
        of float32.

        `table()` has the numbers as they were computed.
        """
        return [
            # JSON knows no NaN.
            {name: None if value != value else value for name, value in row.items()}
            for row in (round_numbers(asdict(head)) for head in self)
        ]

    def table(self, *, library: str = "pandas") -> Any:
        """Return the table as a frame of pandas or polars: a row for each head, NaN where a number
        is not known.

        Args:
            library: "pandas" or "polars".
        """
        return frame(self.columns(), library)

    def columns(self) -> Columns:
        """Return the columns of `table`.

        Returns:
            The values of each column by its name.
        """
        columns: dict[str, Any] = {}
        # The last field is the segments, which have columns of their own.
        for each in fields(Head)[:-1]:
            values = [getattr(head, each.name) for head in self]
            columns[each.name] = Names.of(values) if each.name in ("layer", "kind") else values
        for name in self.segments:
            columns[f"segment {name}"] = [head.segments[name] for head in self]
        return columns

    def plot(self, habit: str = "spread", axes: Any = None) -> Any:
        """Draw a square for each head with matplotlib, layers from top to bottom, and return the
        axes.

        Args:
            habit: a column of numbers.
            axes: matplotlib's axes to draw on; None makes new ones.

        Returns:
            matplotlib's axes.

        Raises:
            ValueError: if matplotlib is not installed, or if the table is empty.
        """
        # Check what can go wrong before anything is drawn.
        _check_known(habit, COLUMNS, "habit")
        try:
            pyplot = import_module("matplotlib.pyplot")
        except ImportError:
            raise ValueError("plot needs matplotlib: pip install matplotlib") from None
        if not self:
            raise ValueError("there is no head in this table, so there is nothing to plot")

        # A row for each layer of the table, NaN where a head is not in the table.
        shown = {head.layer for head in self}
        layers = [layer for layer in self.layers if layer in shown]
        squares = [[nan] * (1 + max(head.number for head in self)) for _ in layers]
        for head in self:
            squares[layers.index(head.layer)][head.number] = getattr(head, habit)
        axes = pyplot.subplots()[1] if axes is None else axes
        # Shares have one scale in all plots; other measures take their own.
        limits = {"vmin": 0.0, "vmax": 1.0} if MEASURES[habit].is_share else {}
        image = axes.imshow(squares, **limits)
        axes.set(xlabel="head", title=habit, yticks=range(len(layers)), yticklabels=layers)
        axes.figure.colorbar(image, ax=axes, label=MEASURES[habit].unit)
        return axes

    @overload
    def __getitem__(self, index: int) -> Head: ...

    @overload
    def __getitem__(self, index: slice) -> "Heads": ...

    def __getitem__(self, index: Any) -> "Head | Heads":
        if isinstance(index, slice):
            return Heads(self._heads[index], self.layers, self._counts, self.left_out)
        if isinstance(index, str):
            raise TypeError(
                f'a table of heads has a row for each head, and no ["{index}"]; .sort("{index}"), '
                f'.where({index}=0.4) or .table()["{index}"]'
            )
        head: Head = self._heads[index]
        return head

    def __len__(self) -> int:
        return len(self._heads)

    def __rich__(self) -> FirstThatFits:
        """Return the table; for a narrow screen without some columns, which its caption names."""
        # Leave out all columns that name no kind at once, then habits one by one: first those that
        # are no kind of these heads.
        kinds = {head.kind for head in self}
        order = sorted(SPARED, key=lambda name: name in kinds)
        fewer = [order[:count] for count in range(len(order) + 1)]
        return FirstThatFits(
            lambda: (
                self._table(known, without)
                for known, without in [(self._known(), []), *(([], names) for names in fewer)]
            )
        )

    def _known(self) -> list[str]:
        """Return the columns that name no kind and are known of some head."""
        more = [name for name in COLUMNS if name not in (*HABITS, "spread")]
        return [name for name in more if not all(isnan(_value(head, name)) for head in self)]

    def _table(self, known: Sequence[str], without: Sequence[str]) -> Table:
        captions = [f"not watched: {list_names(self.left_out)}"] if self.left_out else []
        if without:
            captions.append(f"no room for {', '.join(without)}: a wider screen or JSON has them")
        caption = "\n".join(captions) or None
        table = Table(box=None, pad_edge=False, caption=caption, caption_justify="left")
        for name in ("layer", "head", "kind"):
            table.add_column(name, justify="right" if name == "head" else "left", no_wrap=True)

        # Shares first, segments among them, then the other numbers.
        every = (*HABITS, "spread", *known)
        shown = {name: MEASURES[name] for name in every if name not in without}
        shares = [name for name, row in shown.items() if row.is_share] + [*self.segments]
        names = [*shares, *(name for name, row in shown.items() if not row.is_share)]
        for name in names:
            table.add_column(name.replace("_", " "), justify="right", no_wrap=True)
        for head in self:
            # A segment is shown as a share, like "first".
            cells = [shown.get(name, MEASURES["first"]).show(_value(head, name)) for name in names]
            table.add_row(head.layer, str(head.number), head.kind, *cells)
        return table


def heads_of(
    attentions: Mapping[str, Sequence[RecordedCall]],
    is_mark: IsMark | None,
    segments: Segments | None = None,
    left_out: Sequence[str] = (),
) -> Heads:
    """Return the heads of every attention that was called, each measured over all of its calls."""
    # Calls with other heads than the last call's cannot be added up.
    numbers = {name: calls[-1].heads for name, calls in attentions.items() if calls}
    named = [
        (name, call)
        for name, calls in attentions.items()
        for call in calls
        if call.heads == numbers[name]
    ]
    sums = measure_heads([call for _, call in named], is_mark, segments)

    # The row in the table of each head that was measured: calls of an attention share their rows.
    rows = [(name, number) for name, own in numbers.items() for number in own]
    place = {row: i for i, row in enumerate(rows)}
    which = torch.tensor(
        [place[name, number] for name, call in named for number in call.heads],
        dtype=torch.long,
        device="cpu",
    )
    columns, shares, kinds = _columns(sums, which, len(rows))

    # The fields of `Head`, column by column: only this is done once for each head.
    names = () if segments is None else segments.names
    by_segment = [dict(zip(names, own, strict=True)) for own in shares.T.tolist()]
    layers = [name for name, _ in rows]
    own_numbers = [number for _, number in rows]
    each = zip(layers, own_numbers, kinds, *columns.tolist(), by_segment, strict=True)
    found = [Head(*values) for values in each]
    return Heads(found, list(attentions), left_out=left_out)


def _columns(
    sums: HeadSums, which: Int[Tensor, " measured"], count: int
) -> tuple[Float[Tensor, "column head"], Float[Tensor, "segment head"], list[str]]:
    """Return the numbers of `count` heads in the order of the fields of `Head`, the shares of
    segments, and the kinds; `which` tells the head of each column of the sums.
    """
    below = dict(zip(DENOMINATORS, sums.below, strict=True))
    each = torch.stack([below[per] for per in QUOTIENTS.values()])
    # Calls in which a measure is unknown do not count, with their denominators.
    known = ~sums.above.isnan() & (each > 0)
    has_logit = ~sums.largest_logit.isnan()
    parts = [
        torch.where(known, sums.above, 0.0),
        torch.where(known, each, 0.0),
        sums.below.nan_to_num(0.0),
        sums.segments,
        has_logit.double()[None],
    ]

    # Add up the calls of each head.
    numbers = torch.cat(parts)
    total = numbers.new_zeros(len(numbers), count)
    total.scatter_add_(1, which.expand(len(numbers), -1), numbers)
    above, each, denominators, segments, logits = torch.split(total, [len(part) for part in parts])

    # Divide the sums of all calls, which weighs each query alike.
    below = dict(zip(DENOMINATORS, denominators, strict=True))
    measures = dict(zip(QUOTIENTS, above / _positive(each), strict=True))
    largest = torch.where(has_logit, sums.largest_logit, -torch.inf)
    highest = total.new_full((count,), -torch.inf).scatter_reduce_(0, which, largest, "amax")
    measures["largest_logit"] = torch.where(logits[0] > 0, highest, nan)
    # The part of the queries whose token occurred before names kinds; see `kinds_of`.
    kinds = kinds_of(
        torch.stack([measures[name] for name in HABITS]),
        below["repeated"] / _positive(below["queries"]),
    )
    # In an image, "far" counts positions: patches that lie near each other go before.
    local = (measures["neighbours"] >= CLEAR).tolist()
    kinds = [
        "neighbours" if near and kind in ("far", "mixed") else kind
        for near, kind in zip(local, kinds, strict=True)
    ]
    columns = torch.stack([measures[each.name] for each in fields(Head) if each.name in measures])
    return columns, segments / _positive(below["given"]), kinds


def _positive(count: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """Return the numbers above 0, and NaN for the others: a share of nothing is not known."""
    return torch.where(count > 0, count, nan)


def _value(head: Head, name: str) -> Any:
    """Return a column of a head, or the share of a segment."""
    return head.segments[name] if name in head.segments else getattr(head, name)


def _clearest(head: Head) -> float:
    """Return the share of the habit that names the head's kind, or the largest share of a mixed
    head.
    """
    if head.kind != "mixed":
        return float(getattr(head, head.kind))
    # Only NaN differs from itself.
    return max([share for share in _habits(head) if share == share], default=0.0)


_habits = attrgetter(*HABITS)
"""Return the shares of a head's habits."""


def _check_known(name: object, known: Sequence[str], what: str) -> None:
    if name not in known:
        raise ValueError(f'there is no {what} "{name}"; {hint(str(name), known)}')


def natural_order(name: str) -> list[str | int]:
    """Return a sort key that puts blocks.2 before blocks.10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
