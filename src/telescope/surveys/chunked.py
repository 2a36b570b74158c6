"""Survey block by block in plain PyTorch: any definition, on any device, with one block of the
matrix in memory.

On a CPU a block stays in the cache and is passed over few times; that is where the speed comes
from.
"""

from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import Attention, ZeroSumError, softmax
from .blocks import GROUP, Block, BlockScores, blocks, sink_of
from .device import run_within_memory
from .requests import Cells, Extras, Marks
from .summary import Keys, Map, PerPair, PerQuery, Queries, Summary, compute_dtype

# Scores in a block: on a CPU as many as stay in its last-level cache.
SCORES = {"cpu": 2**21, "cuda": 2**26}
STRIP = 64  # rows whose marks are read together
LOW = -1e4  # exp(LOW) is 0, and 0 · LOW is 0, while 0 · -inf would be NaN


def cannot(queries: Tensor, keys: Tensor, attention: Attention, top: int = 0) -> str | None:
    """Return None: this engine can survey every attention."""
    return None


def summarize(
    queries: Queries,
    keys: Keys,
    attention: Attention,
    lse: PerQuery | None,
    top: int,
    cells: Cells | None,
    marks: Marks | None = None,
    extras: Extras = Extras(),
) -> Summary:
    """Return the summary, in smaller blocks where memory runs out. An lse, where given, is not
    computed again.
    """
    most = SCORES.get(queries.device.type, SCORES["cuda"])
    run = partial(_summarize, queries, keys, attention, lse, top, cells, marks, extras)
    return run_within_memory(run, most, keys.shape[-2], queries, keys)


def _summarize(
    queries: Tensor, keys: Tensor, attention: Attention, lse: Tensor | None, top: int,
    cells: Cells | None, marks: Marks | None, extras: Extras, most: int,
) -> Summary:  # fmt: skip
    totals = _Totals(queries, keys, attention, lse, top, cells, marks, extras)
    scores = BlockScores(queries, keys, attention)
    for block in blocks(queries, keys, attention, most):
        if attention.normalize is softmax:
            known = None if lse is None else totals.lse[block.index]
            part = _softmax_statistics(scores, block, known, totals.sink[block.heads], top)
        else:
            part = _other_statistics(scores(block), block, attention, top)
        totals.add(part, block)
    return totals.summary()


class _Totals:
    """The numbers of a survey, to which blocks are added in the order of their rows.

    Before a block writes over them, they are those of a row that sees nothing.
    """

    def __init__(
        self, queries: Tensor, keys: Tensor, attention: Attention, lse: Tensor | None, top: int,
        cells: Cells | None, marks: Marks | None, extras: Extras,
    ) -> None:  # fmt: skip
        batch, heads, rows, _ = queries.shape
        columns = keys.shape[-2]
        sink = sink_of(attention, compute_dtype(queries), queries.device)
        self.sink = sink.reshape(-1, 1, 1).expand(heads, 1, 1)
        self.is_softmax = attention.normalize is softmax
        self.lse_known = lse is not None
        self.cells = cells
        self.marks = marks
        self.extras = extras

        def zeros(*size: int, dtype: torch.dtype = self.sink.dtype) -> Tensor:
            return sink.new_zeros(batch, heads, *size, dtype=dtype)

        # Of a row that sees nothing, the sink alone is left.
        self.lse = self.sink[..., 0].expand(batch, heads, rows).clone()
        if lse is not None:
            self.lse = lse.to(sink.dtype)
        # Sums over many queries: in float64, so that their order does not matter.
        self.received = zeros(columns, dtype=torch.float64)
        self.weighted = zeros(extras.sets, columns, dtype=torch.float64)
        self.entropy = zeros(rows)
        self.top_weights = zeros(rows, top)
        self.top_keys = zeros(rows, top, dtype=torch.int32) - 1
        self.map = None if cells is None else zeros(cells.rows, cells.columns)
        if cells is not None and self.map is not None and cells.how == "max":
            self.map.fill_(-torch.inf)
        self.before = zeros(rows)
        self.single = zeros(rows, 0 if marks is None else len(marks.single))
        self.carried = zeros(rows)
        searched = columns if extras.largest else 0
        self.largest = zeros(searched)
        self.query = zeros(searched, dtype=torch.int32) - 1

    def add(self, part: "BlockStatistics", block: Block) -> None:
        """Add one block."""
        # A block has whole rows, so what belongs to rows is written, and columns are added to.
        at = block.index
        found = part.top_keys.shape[-1]
        keys = part.top_keys + block.columns.start
        if self.is_softmax and not self.lse_known:
            self.lse[at] = part.lse
        self.entropy[at] = part.entropy
        self.top_weights[at][..., :found] = part.top_weights
        self.top_keys[at][..., :found] = torch.where(part.top_keys < 0, -1, keys)
        received = (part.share.mT @ part.powers)[..., 0, : block.width]
        self.received[block.sequences, block.heads, block.columns] += received
        if self.cells is not None and self.map is not None:
            _add_to_map(self.map, part, self.cells, block)
        if self.marks is not None:
            _read_marks(self.before[at], self.single[at], part, self.marks, block)
        if self.extras:
            self._add_extras(part, block)

    def _add_extras(self, part: "BlockStatistics", block: Block) -> None:
        query_weights, norms, largest = self.extras
        powers = part.powers[..., : block.width]
        place = (block.sequences, block.heads)
        # Sums over the rows of the block, over its keys, and the largest of each key.
        if query_weights is not None:
            of_rows = query_weights.expand(*self.weighted.shape[:2], -1, -1)[*place, :, block.rows]
            self.weighted[*place, :, block.columns] += (of_rows * part.share.mT) @ powers
        if norms is not None:
            carried = (powers @ norms[*place, block.columns, None]) * part.share
            self.carried[block.index] = carried[..., 0]
        if largest:
            weights = powers * part.share
            at = (*place, block.columns)
            row = weights.argmax(-2)  # the first of equal ones
            best = weights.gather(-2, row[..., None, :])[..., 0, :]
            better = best > self.largest[at]
            self.query[at] = torch.where(better, row.int() + block.rows.start, self.query[at])
            self.largest[at] = torch.where(better, best, self.largest[at])

    def summary(self) -> Summary:
        """Return the summary, once all blocks are added."""
        # A cell that no block touched is 0, whether it is a share or a maximum.
        pooled = self.map
        if self.cells is not None and pooled is not None:
            nothing = pooled == -torch.inf
            is_share = self.cells.how == "share"
            pooled = self.cells.averaged(pooled) if is_share else pooled.masked_fill(nothing, 0.0)
        query_weights, norms, largest = self.extras
        dtype = self.entropy.dtype
        return Summary(
            lse=self.lse if self.is_softmax else None,
            received=self.received.to(dtype),
            entropy=self.entropy,
            top_weights=self.top_weights,
            top_keys=self.top_keys,
            map=pooled,
            before=None if self.marks is None else self.before,
            single=None if self.marks is None else self.single,
            weighted=None if query_weights is None else self.weighted.to(dtype),
            carried=None if norms is None else self.carried,
            largest_weight=self.largest if largest else None,
            largest_query=self.query if largest else None,
        )


# -------------------------------------------------------------------------- statistics of one block


class BlockStatistics(NamedTuple):
    """Statistics of one block. Its weights are powers · share, not multiplied out, which would be
    one more pass.
    """

    powers: PerPair
    share: Float[Tensor, "batch heads query 1"]
    lse: PerQuery
    entropy: PerQuery
    top_weights: Float[Tensor, "batch heads query found"]
    top_keys: Int[Tensor, "batch heads query found"]


def _softmax_statistics(
    scores: BlockScores,
    block: Block,
    lse: PerQuery | None,
    sink: Float[Tensor, "heads 1 1"],
    top: int,
) -> BlockStatistics:
    """Return the statistics of softmax weights.

    The weights are exp(score - shift) / Σ exp(score - shift), shifted by the largest score, or
    exp(score - lse).
    """
    # The shift: an lse that is known, or the largest score, so that no power overflows.
    shifted = scores(block)
    best, top_keys = _largest(shifted, top)
    if lse is None:
        peak = best[..., :1] if top else shifted.amax(-1, keepdim=True)
        shift = torch.maximum(peak, sink)
    else:
        shift = lse[..., None]
    shift = shift.masked_fill(shift == -torch.inf, 0.0)  # nothing is seen, and there is no sink

    # Take powers, and their sums. What a mask hides is LOW here, not -inf.
    shifted -= shift
    for columns in scores.maybe_hidden(block):
        shifted[..., columns].clamp_(min=LOW)
    powers = torch.exp(shifted, out=scores.buffer(shifted.shape, 1))
    share = torch.ones_like(shift)
    log = shift
    spread = torch.zeros_like(shift)
    if lse is None:
        total = powers.sum(-1, keepdim=True)
        with_sink = total + torch.exp(sink - shift)
        share = 1.0 / with_sink.masked_fill(with_sink == 0.0, 1.0)
        log = shift + with_sink.log()
        spread = total * -share.log()
    # -Σ w ln w, with w = power · share and ln w = shifted + ln share.
    entropy = share * (spread - shifted.mul_(powers).sum(-1, keepdim=True))
    return BlockStatistics(
        powers=powers,
        share=share,
        lse=log[..., 0],
        entropy=entropy[..., 0].clamp(min=0.0),
        top_weights=torch.exp(best - shift) * share,
        top_keys=top_keys,
    )


def _other_statistics(
    masked: PerPair, block: Block, attention: Attention, top: int
) -> BlockStatistics:
    """Return the statistics of the weights of any other normaliser, which is given whole rows."""
    real = masked[..., : block.width]
    # A normaliser may give a hidden key any weight; it does not count among the top.
    hidden = real == -torch.inf
    try:
        weights = attention.normalize(real)
    except ZeroSumError as problem:  # name the row of the whole matrix
        row = [i + part.start for i, part in zip(problem.row, block.index, strict=True)]
        raise ZeroSumError(row) from None
    # The scores are not needed any more: their memory takes the weights, by which the top goes.
    real.copy_(weights.masked_fill(hidden, -torch.inf))
    best, top_keys = _largest(masked, top)
    return BlockStatistics(
        powers=weights,
        share=torch.ones_like(weights[..., :1]),
        lse=torch.empty(0),
        entropy=-torch.xlogy(weights, weights).sum(-1),
        top_weights=best.masked_fill(top_keys < 0, 0.0),
        top_keys=top_keys,
    )


def _largest(
    scores: PerPair, count: int
) -> tuple[Float[Tensor, "batch heads query found"], Int[Tensor, "batch heads query found"]]:
    """Return the largest scores and their keys, the lower key first among equal ones; key -1 where
    a score is -inf.

    The `count` largest scores are in the `count` groups of keys with the largest maxima, so only
    those are searched.
    """
    groups = scores.view(*scores.shape[:-1], -1, GROUP)
    few = min(count, groups.shape[-2])
    if few < groups.shape[-2]:
        # Sorted by key, so that the lower one stays first.
        chosen = top_indices(groups.amax(-1), few).sort(-1).values
        # Search these groups alone, and translate places back to keys.
        groups = groups.gather(-2, chosen[..., None].expand(*chosen.shape, GROUP))
        key = (chosen[..., None] * GROUP + torch.arange(GROUP, device=scores.device)).flatten(-2)
    else:
        key = torch.arange(scores.shape[-1], device=scores.device).expand(scores.shape)
    candidates = groups.flatten(-2)
    where = top_indices(candidates, min(count, candidates.shape[-1]))
    best = candidates.gather(-1, where)
    return best, key.gather(-1, where).masked_fill(best == -torch.inf, -1)


def top_indices(scores: Float[Tensor, "*rows key"], count: int) -> Int[Tensor, "*rows found"]:
    """Return the indices of the largest scores, the lower index first among equal ones, in any
    order among -inf.

    torch.topk alone leaves the order of equal scores open.
    """
    best, where = scores.topk(min(count + 1, scores.shape[-1]), dim=-1)
    equal = (best[..., 1:] == best[..., :-1]) & (best[..., 1:] > -torch.inf)
    return _top_indices_with_ties(scores, count) if equal.any() else where[..., :count]


def _top_indices_with_ties(
    scores: Float[Tensor, "*rows key"], count: int
) -> Int[Tensor, "*rows found"]:
    """Return `top_indices` of scores with ties, from a topk of int64 numbers that hold a float32
    and its index.

    The bits of floats, read as integers, have the order of the floats, once those of negative
    floats are inverted.
    """
    if scores.dtype == torch.float64:
        return torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :count]
    # Score in the upper half of 64 bits, and in the lower half what falls with the index.
    bits = (scores + 0.0).view(torch.int32)  # + 0.0, since -0.0 equals 0.0
    order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    last = scores.shape[-1] - 1
    packed = order.long() << 32 | last - torch.arange(last + 1, device=scores.device)
    return last - (packed.topk(count, dim=-1).values & 0xFFFFFFFF)


def _read_marks(
    before: PerQuery,
    single: Float[Tensor, "batch heads query which"],
    statistics: BlockStatistics,
    marks: Marks,
    block: Block,
) -> None:
    """Add a block's part of the marked weights to `before` and `single`, which have the block's
    rows.
    """
    start = block.columns.start
    width = block.width
    powers = statistics.powers[..., :width]
    stop = (marks.before[block.rows] - start).clamp(0, width)
    for row in range(0, len(stop), STRIP):
        strip = slice(row, row + STRIP)
        strip_powers = powers[:, :, strip]
        strip_stop = stop[strip]
        # All rows count keys up to common, none from last.
        common = int(strip_stop.min())
        last = int(strip_stop.max())
        edge = torch.arange(common, last, device=powers.device) < strip_stop[:, None]
        total = strip_powers[..., :common].sum(-1) + (strip_powers[..., common:last] * edge).sum(-1)
        before[:, :, strip] += total * statistics.share[:, :, strip, 0]
    # Single keys: those in another block are read there.
    for i, keys in enumerate(marks.single):
        key = keys.expand(len(keys) if len(keys) > 1 else block.sequences.stop, -1)
        key = key[block.sequences, block.rows][:, None, :, None] - start
        in_block = (key >= 0) & (key < width)
        found = powers.gather(-1, key.clamp(0, width - 1).expand(*powers.shape[:3], 1))
        single[..., i] += (found * statistics.share * in_block)[..., 0]


def _add_to_map(
    pooled: Map,
    statistics: BlockStatistics,
    cells: Cells,
    block: Block,
) -> None:
    """Add a block to the map: first pool its queries, then its keys. A weight may be below zero
    (by_sum).
    """
    # The rows of the map that this block touches, and where its queries and keys fall.
    part = pooled[block.sequences, block.heads]
    width = block.width
    batch, heads, _, columns = part.shape
    powers = statistics.powers[..., :width]
    sides = ((cells.row_of_query, block.rows), (cells.column_of_key, block.columns))
    row_of_query, column_of_key = (
        ids.expand(len(pooled), -1)[block.sequences, positions] for ids, positions in sides
    )
    rows, row = torch.unique(row_of_query, return_inverse=True)
    across = column_of_key[:, None, None].expand(batch, heads, len(rows), width)
    if cells.how == "share":
        # Summing the queries of a cell is a product with ones and zeros.
        member = row[:, None] == torch.arange(len(rows), device=row.device)[:, None]
        summed = (member[:, None] * statistics.share.mT) @ powers
        empty = part.new_zeros(batch, heads, len(rows), columns)
        part.index_add_(2, rows, empty.scatter_add(3, across, summed))
    else:
        down = row[:, None, :, None].expand(powers.shape)
        lowest = part.new_full((batch, heads, len(rows), width), -torch.inf)
        largest = lowest.scatter_reduce(2, down, powers * statistics.share, "amax")
        part[:, :, rows] = part[:, :, rows].scatter_reduce(3, across, largest, "amax")
