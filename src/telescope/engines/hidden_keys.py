"""Split an attention from which rectangles are hidden into calls of a fused kernel without a mask.

Queries that are denied the same keys attend to the remaining keys: these are gathered, and the
kernel needs no mask. Under a causal mask, the tokens that most queries may see are a shorter causal
sequence by themselves, for which the kernel has its own causal mask; the other queries are a few
more calls. The result is exact: no weight is computed and taken away again.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..attention import (
    Causal,
    IdentityCache,
    Mask,
    Opposite,
    Rectangle,
    everyone,
    is_cheap_to_read,
    runs_of,
)

MAX_CALLS = 16  # of one attention: more are slower than a kernel that reads a mask
MAX_RECTANGLES = 8
MAX_GROUPS = 4  # of heads from which different keys are hidden
MAX_CACHED = 16
Ranges = tuple[range, ...]


@dataclass(frozen=True)
class KernelCall:
    """One call of a kernel: the queries `rows` attend to `keys`, causally from the last row and key
    on, or to all.

    `kept` are those of the computed rows that are part of the result: a causal call over a sequence
    of tokens may compute more.
    """

    rows: Ranges
    keys: Ranges
    causal: bool
    kept: Ranges


@dataclass(frozen=True)
class HeadGroup:
    """Heads from which the same keys are hidden, and the calls that compute them."""

    heads: tuple[int, ...]
    calls: tuple[KernelCall, ...]


_groups = IdentityCache(MAX_CACHED)


def kernel_calls(mask: Mask, rows: int, columns: int, heads: int) -> tuple[HeadGroup, ...] | None:
    """Return the calls that compute an attention of this size; None if the mask is of another kind,
    or needs many.

    A mask of the right kind is causal or `everyone`, without some rectangles that hold for every
    sequence. The latest results are cached, since all layers of a model have one mask.
    """
    if not has_hidden_rectangles(mask) or torch.compiler.is_compiling():
        return None
    sizes = (rows, columns, heads)
    groups: tuple[HeadGroup, ...] | None = _groups.get_or_make(
        mask, sizes, lambda: _make_groups(mask, *sizes)
    )
    return groups


def has_hidden_rectangles(mask: Mask) -> bool:
    """Return whether rectangles are hidden by a mask, beside others."""
    return any(
        isinstance(part, Opposite) and isinstance(part.mask, Rectangle) for part in mask.parts
    )


def _make_groups(mask: Mask, rows: int, columns: int, heads: int) -> tuple[HeadGroup, ...] | None:
    hidden = [part.mask for part in mask.parts if isinstance(part, Opposite)]
    others = [part for part in mask.parts if not isinstance(part, Opposite)]
    # Anything but shared rectangles goes to another engine.
    if not hidden or len(hidden) > MAX_RECTANGLES or any(not _is_shared(part) for part in hidden):
        return None
    rectangles = [part for part in hidden if isinstance(part, Rectangle)]
    is_causal = any(isinstance(part, Causal) for part in others)
    if not all(isinstance(part, Causal) or part == everyone for part in others) or (
        is_causal and rows > columns
    ):
        return None
    # Which heads each rectangle concerns; heads with the same set share their calls.
    shown = [[True] * heads if one.heads is None else one.heads.tolist() for one in rectangles]
    kinds = list(zip(*shown, strict=True))  # by head, the rectangles that concern it
    groups = []
    for kind in dict.fromkeys(kinds):
        own = [
            rectangle for rectangle, concerned in zip(rectangles, kind, strict=True) if concerned
        ]
        sets = HiddenSets.of(own, rows, columns)
        calls = _causal_calls(sets, rows, columns) if is_causal else _full_calls(sets)
        if calls is None:
            return None
        groups.append(
            HeadGroup(tuple(head for head in range(heads) if kinds[head] == kind), tuple(calls))
        )
    # Too many small calls are slower than one kernel with a mask.
    count = sum(len(group.calls) for group in groups)
    return tuple(groups) if len(groups) <= MAX_GROUPS and count <= MAX_CALLS else None


def _is_shared(part: Mask) -> bool:
    """Return whether a hidden mask is a rectangle that is the same for every sequence, and can be
    read.
    """
    if not isinstance(part, Rectangle) or (
        part.heads is not None and not is_cheap_to_read(part.heads)
    ):
        return False
    # The tables are read, which is cheap only for small ones on the CPU.
    tables = [part.keys, *([] if part.queries is None else [part.queries])]
    return all(len(table) == 1 and is_cheap_to_read(table) for table in tables)


@dataclass(frozen=True, eq=False)
class HiddenSets:
    """The sets of keys that are hidden from the queries; queries with the same number have the same
    set.
    """

    number: Int[Tensor, " query"]
    kept: dict[int, Bool[Tensor, " key"]]
    """Which keys remain, by the number of a set."""

    @classmethod
    def of(cls, rectangles: list[Rectangle], rows: int, columns: int) -> "HiddenSets":
        """Read the rectangles for an attention of this size."""
        # Each rectangle is one bit; equal numbers are equal sets of hidden keys.
        numbers = torch.zeros(rows, dtype=torch.long)
        hidden = []
        for bit, rectangle in enumerate(rectangles):
            first = 0 if rectangle.by_row else columns - rows
            inside = torch.ones(rows, dtype=torch.bool)
            if rectangle.queries is not None:
                inside = _extended(rectangle.queries[0], first, rows)
            numbers += inside.long() << bit
            hidden.append(_extended(rectangle.keys[0], 0, columns))
        kept = {}
        for number in sorted({*numbers.tolist()}):
            # The union of the rectangles whose bits are set.
            gone = [keys for bit, keys in enumerate(hidden) if number >> bit & 1]
            kept[number] = (
                ~torch.stack(gone).any(0) if gone else torch.ones(columns, dtype=torch.bool)
            )
        return cls(numbers, kept)


def _extended(table: Bool[Tensor, " position"], first: int, count: int) -> Bool[Tensor, " count"]:
    """Return table[first : first + count], where a position beyond the end has the value of the
    last column.
    """
    positions = torch.arange(first, first + count).clamp(0, len(table) - 1)
    return table[positions]


def _full_calls(sets: HiddenSets) -> list[KernelCall]:
    """Return one call for each set of hidden keys."""
    calls = []
    for number, kept in sets.kept.items():
        # Without a causal mask, queries with one set attend in one call.
        own = tuple(runs_of(sets.number == number))
        calls.append(KernelCall(own, tuple(runs_of(kept)), False, own))
    return calls


def _causal_calls(sets: HiddenSets, rows: int, columns: int) -> list[KernelCall] | None:
    """Return the calls under a causal mask: one over the tokens that the last query may see, and
    the other queries.

    Return None if there would be more than MAX_CALLS.
    """
    ahead = columns - rows
    # The last query sees most tokens: they are the sequence of the causal call.
    tokens = sets.kept[int(sets.number[-1])]
    positions = torch.arange(ahead, columns)
    # A query is right in the call over `tokens` if its own token is among them, and no key before
    # it differs.
    right = torch.zeros(rows, dtype=torch.bool)
    for number, kept in sets.kept.items():
        differing = (kept != tokens).nonzero()
        first = int(differing[0]) if len(differing) else columns
        right |= (sets.number == number) & (positions < first)
    right &= tokens[ahead:]
    calls = []
    if right.any():
        kept_rows = runs_of(right)
        # Tokens behind the last kept row, and rows before the first, are not computed.
        computed = tokens.clone()
        computed[ahead + kept_rows[-1].stop :] = False
        own = computed[ahead:].clone()
        own[: kept_rows[0].start] = False
        calls.append(
            KernelCall(tuple(runs_of(own)), tuple(runs_of(computed)), True, tuple(kept_rows))
        )
    for run in runs_of(~right):
        numbers = sets.number[run.start : run.stop]
        own_keys = torch.zeros(len(run), dtype=torch.bool)
        for number in sorted({*numbers.tolist()}):
            own_keys |= (numbers == number) & sets.kept[number][
                ahead + run.start : ahead + run.stop
            ]
        # A call ends where the set changes, or whether a query sees its own token.
        borders = (torch.diff(2 * numbers + own_keys) != 0).nonzero().flatten() + 1
        edges = [0, *borders.tolist(), len(run)]
        if len(calls) + len(edges) > MAX_CALLS + 1:
            return None
        for start, stop in pairwise(edges):
            part = range(run.start + start, run.start + stop)
            own_key = bool(own_keys[start])
            seen = sets.kept[int(numbers[start])].clone()
            # With its own token the last row sees itself; else all rows see what is before them.
            seen[ahead + (part.stop if own_key else part.start) :] = False
            calls.append(KernelCall((part,), tuple(runs_of(seen)), own_key, (part,)))
    return calls
