"""`recording.heads()`: a table of every head that was watched, with its kind and its habits."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from importlib import import_module
from math import isnan, nan
from operator import attrgetter
from typing import Any, SupportsFloat, overload

from ..field_words import FieldNames
from ..files import Columns, Names, frame
from ..guesses import OF_TABLE
from ..measures import COLUMNS, HABITS, MEASURES, Head
from ..traces import FirstThatFits, PlainTable, PrintedTable, round_numbers
from ..words import direction, hint, index_range, suggests, whole_number
from .names import Layers, list_names, select_layers

# The columns that a narrow screen leaves out, in this order.
SPARED = ("far", "punctuation", "same", "induction", "sink", "previous", "itself", "first")
# Kinds that say where a head rests, and little of what it looks for.
RESTING = ("first", "sink", "far")
# Conditions that callers of `where` guess.
CONDITIONS = {
    "head": "number=",
    "heads": "number=",
    "layers": "layer=",
    "kinds": "kind=",
    "name": "layer=",
}
LONG = 10  # rows of a printed table from which on a line says how it is sorted


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
        order: str = "",
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
        self._order = order
        """Which heads come first, for a long table that is printed."""
        self.segments = tuple(self._heads[0].segments) if self._heads else ()
        """The names of the segments, which can be sorted and filtered by like any column."""

    @suggests(
        "sort",
        reverse="descending=True",
        ascending="rising=, True for the smallest first",
        key="by=",
    )
    def sort(
        self, by: str | None = None, *, rising: bool | None = None, descending: bool | None = None
    ) -> "Heads":
        """Return the table sorted by a column, unknown numbers last; without a column, the most
        telling heads first.

        A head tells most by a clear kind: heads with a kind come first, by the share that names it.
        Heads that rest on the first token or on a sink, or look far back, come after them, and
        mixed heads last.

        Args:
            by: a column, or a segment; None is how telling a head is.
            rising: the direction; by default layers, numbers and kinds rise, and shares fall.
                Within a kind, the clearest head comes first; within a layer, the lowest number.
            descending: the same, the other way round: `descending=True` is `rising=False`.

        Raises:
            TypeError, ValueError: there is no such column, or the two directions differ.
        """
        rising = direction(rising, descending)
        # Sorting is stable: equal heads keep the order of the model.
        position = {layer: i for i, layer in enumerate(self.layers)}
        if by is None:
            heads = sorted(self, key=lambda head: (position[head.layer], head.number))
            heads.sort(key=_how_telling, reverse=not rising)
            order = "" if rising else "the most telling first, mixed ones last"
            return self._part(heads, order)
        # Segments are a dict in `Head`, and columns here.
        columns = [each.name for each in fields(Head) if each.name != "segments"]
        _check_known(by, [*columns, *self.segments], "column")
        names = by in ("layer", "number", "kind")
        # Order by the second criterion first.
        heads = (
            sorted(self, key=_clearest, reverse=True)
            if by == "kind"
            else sorted(self, key=lambda head: head.number)
        )

        # Numbers that are NaN have no order, and go to the end.
        unknown = [head for head in heads if not names and isnan(_value(head, by))]
        known = [head for head in heads if names or not isnan(_value(head, by))]
        known.sort(
            key=lambda head: position[head.layer] if by == "layer" else _value(head, by),
            reverse=not (names if rising is None else rising),
        )
        return self._part([*known, *unknown], "")

    def _part(self, heads: Iterable[Head], order: str | None = None) -> "Heads":
        """Return a table of some of these heads, in the given order."""
        order = self._order if order is None else order
        return Heads(heads, self.layers, self._counts, self.left_out, order)

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
        for name, least in at_least.items():
            if name in CONDITIONS:
                raise TypeError(f"where takes no {name}=; write {CONDITIONS[name]}")
            _check_known(name, (*COLUMNS, *self.segments), "habit")
            if not isinstance(least, SupportsFloat):
                raise TypeError(
                    f"{name}={least!r} is {type(least).__name__}; it takes the least value, such "
                    f"as {name}=0.4"
                )

        # A head must meet every condition; NaN is never at least anything.
        return self._part(
            head
            for head in self
            if (test is None or test(head))
            and (kinds is None or head.kind in kinds)
            and (layers is None or head.layer in layers)
            and (numbers is None or (head.layer, head.number) in numbers)
            and all(_value(head, name) >= least for name, least in at_least.items())
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
            # Read backwards, the order is another one.
            backwards = index.step is not None and index.step < 0
            return self._part(self._heads[index], "" if backwards else None)
        if isinstance(index, str | tuple):
            raise TypeError(f"a table of heads has a row for each head; {self._way_to(index)}")
        head: Head = self._heads[index]
        return head

    def _way_to(self, index: str | tuple[Any, ...]) -> str:
        """Return the call for an index by name, for errors."""
        if isinstance(index, tuple):
            layer, number = (*index, 0)[:2]
            return f".where(layer={layer!r}, number={number!r}) has the head of a layer"
        if index in self.layers:
            return f'.where(layer="{index}") has those of a layer'
        ways = f'.sort("{index}") or .table()["{index}"] reads a column'
        return f'{ways}, .where(kind="{index}") has those of a kind' if index in HABITS else ways

    def _ours(self, name: str) -> str | None:
        if name in COLUMNS or name in ("layer", "number", "kind"):
            return f"[head.{name} for head in heads]"
        return super()._ours(name)

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

    def _table(self, known: Sequence[str], without: Sequence[str]) -> PlainTable:
        captions = [f"not watched: {list_names(self.left_out)}"] if self.left_out else []
        if self._order and len(self) > LONG:
            captions.insert(0, f"{len(self):,} heads, {self._order}; [:{LONG}] are the top {LONG}")
        if without:
            captions.append(f"no room for {', '.join(without)}: a wider screen or JSON has them")
        caption = "\n".join(captions) or None
        table = PlainTable(box=None, pad_edge=False, caption=caption, caption_justify="left")
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


def _value(head: Head, name: str) -> Any:
    """Return a column of a head, or the share of a segment."""
    return head.segments[name] if name in head.segments else getattr(head, name)


def _how_telling(head: Head) -> tuple[int, float]:
    """Return the rank of a head's kind, and the share that names the kind."""
    rank = 0 if head.kind == "mixed" else 1 if head.kind in RESTING else 2
    return rank, _clearest(head)


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
