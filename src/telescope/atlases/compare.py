"""`compare`: pair the heads of two atlases, and rank what changed between two checkpoints or models
of one shape.
"""

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import inf, isnan, nan
from typing import Any, overload

import torch
from jaxtyping import Float
from torch import Tensor

from ..field_words import FieldNames
from ..files import import_optional
from ..guesses import OF_TABLE
from ..measures import HABITS, Head
from ..traces import FirstThatFits, PlainTable, PrintedTable
from .atlas import Atlas
from .sums import error_of_sum

# The columns that a narrow screen leaves out, in this order.
SPARED = ("moved", "errors", "after", "before")


@dataclass(frozen=True)
class HeadChange:
    """One head in two atlases: its kinds, and the habit whose share changed the most.

    Attributes:
        layer: the name of the attention.
        number: of the head in the attention.
        kind_before, kind_after: the head's kind in each atlas.
        habit: the habit whose share changed the most.
        before, after: the share of that habit in each atlas.

    Example:
        >>> import telescope as ts
        >>> text = "To be, or not to be: that is the question. " * 3
        >>> atlas = ts.atlas(ts.load("shakespeare"), [text])
        >>> head = ts.compare(atlas, atlas)[0]
        >>> head.before == head.after, head.change
        (True, 0.0)
    """

    layer: str
    number: int
    kind_before: str
    kind_after: str
    habit: str
    before: float
    after: float
    errors: float
    """The change in units of its standard error, from how much texts differ; below 3 it may be
    chance.

    NaN where the error is unknown: with fewer than two texts, or an atlas of an earlier version.
    """
    moved: float
    """Half the sum of the differences of the distance profiles: the share of the weight that went
    to other distances; NaN in cross-attention.
    """

    @property
    def change(self) -> float:
        """The change of the share, after - before."""
        return self.after - self.before


class Comparison(PrintedTable, FieldNames, Sequence[HeadChange]):
    """The heads of two atlases, those that changed the most first; printed, a table.

    Example:
        >>> import telescope as ts
        >>> model = ts.load("shakespeare")
        >>> atlas = ts.atlas(model, ["To be, or not to be: that is the question. " * 3])
        >>> changes = ts.compare(atlas, atlas)
        >>> changes[0].change, len(changes.to_dict()) == len(changes.table())
        (0.0, True)
    """

    _theirs = OF_TABLE

    def __init__(self, changes: Sequence[HeadChange]) -> None:
        self._changes = tuple(changes)

    @overload
    def __getitem__(self, index: int) -> HeadChange: ...

    @overload
    def __getitem__(self, index: slice) -> "Comparison": ...

    def __getitem__(self, index: int | slice) -> "HeadChange | Comparison":
        return (
            Comparison(self._changes[index]) if isinstance(index, slice) else self._changes[index]
        )

    def __len__(self) -> int:
        return len(self._changes)

    def to_dict(self) -> list[dict[str, Any]]:
        """Return a dict for each head, for JSON: an unknown number is None."""
        rows = [asdict(head) | {"change": head.change} for head in self]
        # JSON has no NaN, which is the number that differs from itself.
        return [
            {name: None if value != value else value for name, value in row.items()} for row in rows
        ]

    def table(self) -> Any:
        """Return a pandas data frame with a row for each head."""
        return import_optional("pandas", "table()", "atlas").DataFrame(self.to_dict())

    def __rich__(self) -> FirstThatFits:
        """Return the table; on a narrow screen without the last columns, which its caption
        names.
        """
        return FirstThatFits(lambda: map(self._table, range(len(SPARED) + 1)))

    def _table(self, fewer: int) -> PlainTable:
        spared = SPARED[:fewer]
        caption = f"no room for {', '.join(spared)}: a wider screen or JSON has them"
        table = PlainTable(
            box=None, pad_edge=False, caption=caption if spared else None, caption_justify="left"
        )
        shares = [
            name for name in ("before", "after", "change", "errors", "moved") if name not in spared
        ]
        for name in ("layer", "head", "kind", "habit", *shares):
            is_word = name in ("layer", "kind", "habit")
            table.add_column(name, justify="left" if is_word else "right", no_wrap=True)
        for head in self:
            same = head.kind_before == head.kind_after
            kind = head.kind_before if same else f"{head.kind_before} → {head.kind_after}"
            # An unknown number is an empty cell.
            cells = {
                "before": f"{head.before:.0%}",
                "after": f"{head.after:.0%}",
                "change": f"{head.change:+.0%}",
                "errors": "" if isnan(head.errors) else f"{head.errors:.1f}",
                "moved": "" if isnan(head.moved) else f"{head.moved:.0%}",
            }
            table.add_row(
                head.layer, str(head.number), kind, head.habit, *(cells[name] for name in shares)
            )
        return table


def compare(before: Atlas, after: Atlas) -> Comparison:
    """Pair the heads of two atlases by layer and number, and rank them by how much their strongest
    change is.

    The two may be of two checkpoints, of two models of one shape, or of one model over two corpora.
    If both have read the same texts, `errors` are those of the difference text by text: what texts
    have in common cancels.

    Args:
        before: the atlas that changes are counted from.
        after: the other atlas.

    Returns:
        A `Comparison`: a `HeadChange` for each head, those that changed the most first.

    Raises:
        ValueError: if the two have other layers or other numbers of heads.

    Example:
        >>> import telescope as ts
        >>> model = ts.load("shakespeare")
        >>> prose = ts.atlas(
        ...     model, ["What is the city but the people? The people are the city."]
        ... )
        >>> names = ts.atlas(model, ["ROMEO:\\nJULIET:\\n" * 4])
        >>> len(ts.compare(prose, names))
        16
    """
    _check_same_shape(before, after)
    # The two tables are sorted by kind: pair their heads by layer and number.
    other = {(head.layer, head.number): head for head in after.heads()}
    profiles = [_distances(atlas) for atlas in (before, after)]
    errors = {name: error_of_change(before, after, name).tolist() for name in HABITS}
    _warn_of_earlier_versions(before, after)
    places = {place: i for i, place in enumerate(before.places)}
    changes = []
    for head in before.heads():
        i = places[head.layer, head.number]
        twin = other[head.layer, head.number]
        # The habit whose share changed the most stands for the head.
        habit = max(HABITS, key=partial(_difference, head, twin))
        moved = float((profiles[0][i] - profiles[1][i]).abs().sum() / 2)
        old = getattr(head, habit)
        new = getattr(twin, habit)
        in_errors = _in_errors(new - old, errors[habit][i])
        changes.append(
            HeadChange(
                head.layer, head.number, head.kind, twin.kind, habit, old, new, in_errors, moved
            )
        )
    # The largest change first; equal ones in the order of the model.
    changes.sort(key=lambda head: (-abs(head.change), places[head.layer, head.number]))
    return Comparison(changes)


def error_of_change(before: Atlas, after: Atlas, name: str) -> Float[Tensor, " heads"]:
    """Return the standard error of the change of each head's share of a habit."""
    # Different texts are independent: the variances of the two shares add up.
    if not have_same_texts(before, after):
        return (before.standard_error(name) ** 2 + after.standard_error(name) ** 2).sqrt()
    # Of the same texts, subtract group by group: what texts have in common cancels.
    first = before.sums.influences(name)
    second = after.sums.influences(name)
    either = ~(first.isnan() & second.isnan())  # a text may count in one of the two alone
    return error_of_sum(torch.where(either, second.nan_to_num() - first.nan_to_num(), nan))


def have_same_texts(before: Atlas, after: Atlas) -> bool:
    """Return whether two atlases are of the same texts in the same order, by the checksums of their
    contents.
    """
    corpora = [_contents(atlas.about.get("texts")) for atlas in (before, after)]
    same_column = before.about.get("column") == after.about.get("column")
    return corpora[0] == corpora[1] and bool(corpora[0]) and same_column


def _contents(texts: Any) -> list[object]:
    """Return the checksums of a corpus as `Corpus.describe` tells them; none of those of an earlier
    version.
    """
    match texts:
        case [str(count), str(checksum)]:
            # Texts in memory: how many, and one checksum of all.
            return [count, checksum]
        case [*files]:
            # Files as [name, size, checksum]; an earlier version stored no checksum.
            found = [
                file[2] if isinstance(file, list) and len(file) == 3 else None for file in files
            ]
            return [] if None in found else found
    return []


def _in_errors(change: float, error: float) -> float:
    """Return a change in units of its standard error; NaN where the error is unknown."""
    # No change is zero errors, even where the error is zero or unknown.
    if change == 0.0:
        return 0.0
    return abs(change) / error if error != 0.0 else inf


def _warn_of_earlier_versions(before: Atlas, after: Atlas) -> None:
    for which, atlas in (("first", before), ("second", after)):
        if atlas.sums.group_numerator is None:
            warnings.warn(
                f"the standard errors are unknown (NaN), since the {which} atlas was made by an "
                "earlier version, which "
                "kept no sums of groups of texts; make it again with ts.atlas",
                stacklevel=3,
            )


def _difference(one: Head, other: Head, habit: str) -> float:
    """Return how much a share differs; -1 where it is unknown in one of the two."""
    difference = abs(getattr(one, habit) - getattr(other, habit))
    # NaN is the number that differs from itself.
    return difference if difference == difference else -1.0


def _distances(atlas: Atlas) -> torch.Tensor:
    # A head without weight at any distance, as in cross-attention, gets NaN.
    weight = atlas.sums.distances.value
    return weight / torch.where(weight.sum(1, keepdim=True) > 0, weight.sum(1, keepdim=True), nan)


def _check_same_shape(before: Atlas, after: Atlas) -> None:
    if not isinstance(before, Atlas) or not isinstance(after, Atlas):
        kinds = f"{type(before).__name__} and {type(after).__name__}"
        raise TypeError(f"compare takes two atlases, not {kinds}; ts.open opens a folder")
    if before.places == after.places:
        return
    # Name the first layer that has another number of heads.
    first, second = (Counter(layer for layer, _ in atlas.places) for atlas in (before, after))
    for layer in [*first, *second]:
        if first[layer] != second[layer]:
            raise ValueError(
                f'the atlases are of models of different shapes: "{layer}" has {first[layer]} '
                f"heads in one and {second[layer]} in the "
                "other; compare two checkpoints, or two models of one shape"
            )
    raise ValueError(
        "the atlases are of models of different shapes: their heads have other numbers"
    )
