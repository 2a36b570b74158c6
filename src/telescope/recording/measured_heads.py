"""Measure the heads of recorded calls: `heads_of` makes the table of `recording.heads()`."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import nan

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..measures import CLEAR, HABITS, Head, IsMark, kinds_of
from .head_measures import DENOMINATORS, QUOTIENTS, HeadSums, measure_heads
from .heads import Heads
from .recorded_call import RecordedCall
from .sources import Segments


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
