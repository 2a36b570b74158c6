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
from .blocks import GROUP, Block, BlockScores, blocks
from .cells import Cells
from .device import run_within_memory
from .extras import Extras
from .marks import Marks
from .summary import Summary, compute_dtype

SCORES = {
    "cpu": 2**21,
    "cuda": 2**26,
}  # scores in a block: on a CPU as many as stay in its last-level cache
STRIP = 64  # rows whose marks are read together
LOW = -1e4  # exp(LOW) is 0, and 0 · LOW is 0, while 0 · -inf would be NaN


def cannot(queries: Tensor, keys: Tensor, attention: Attention, top: int = 0) -> str | None:
    """Return None: this engine can survey every attention."""
    return None


def summarize(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    lse: Float[Tensor, "batch heads query"] | None,
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
    queries: Tensor,
    keys: Tensor,
    attention: Attention,
    lse: Tensor | None,
    top: int,
    cells: Cells | None,
    marks: Marks | None,
    extras: Extras,
    most: int,
) -> Summary:
    batch, heads, rows, _ = queries.shape
    columns = keys.shape[-2]
    device = queries.device
    sink = -torch.inf if attention.sink is None else attention.sink
    sink = (
        torch.as_tensor(sink, dtype=compute_dtype(queries), device=device)
        .reshape(-1, 1, 1)
        .expand(heads, 1, 1)
    )

    # The numbers of a row that sees nothing. Blocks write over them.
    logs = sink[..., 0].expand(batch, heads, rows).clone() if lse is None else lse.to(sink.dtype)
    received = torch.zeros(batch, heads, columns, dtype=torch.float64, device=device)
    entropy = sink.new_zeros(batch, heads, rows)
    top_weights = sink.new_zeros(batch, heads, rows, top)
    top_keys = torch.full((batch, heads, rows, top), -1, dtype=torch.int32, device=device)
    pooled = None if cells is None else _empty_map(sink, batch, cells)

    before = single = None
    if marks is not None:
        before = torch.zeros_like(entropy)
        single = sink.new_zeros(batch, heads, rows, len(marks.single))
    more = ExtraSums(extras, received, entropy)
    scores = BlockScores(queries, keys, attention)
    for block in blocks(queries, keys, attention, most):
        at = block.index
        if attention.normalize is softmax:
            part = _softmax_statistics(
                scores, block, None if lse is None else logs[at], sink[block.heads], top
            )
            if lse is None:
                logs[at] = part.lse
        else:
            part = _other_statistics(scores(block), block, attention, top)
        entropy[at] = part.entropy
        found = part.top_keys.shape[-1]
        top_weights[at][..., :found] = part.top_weights
        top_keys[at][..., :found] = torch.where(
            part.top_keys < 0, -1, part.top_keys + block.columns.start
        )
        received[block.sequences, block.heads, block.columns] += (part.share.mT @ part.powers)[
            ..., 0, : block.width
        ]
        if cells is not None and pooled is not None:
            _add_to_map(pooled, part, cells, block)
        if marks is not None and before is not None and single is not None:
            _read_marks(before[at], single[at], part, marks, block)
        more.add(part, block)

    if cells is not None and pooled is not None:
        pooled = (
            cells.averaged(pooled)
            if cells.how == "share"
            else pooled.masked_fill(pooled == -torch.inf, 0.0)
        )
    lse = logs if attention.normalize is softmax else None
    received = received.to(sink.dtype)
    return Summary(
        lse, received, entropy, top_weights, top_keys, pooled, before, single, **more.named()
    )


# -------------------------------------------------------------------------- statistics of one block


class BlockStatistics(NamedTuple):
    """Statistics of one block. Its weights are powers · share, not multiplied out, which would be
    one more pass.
    """

    powers: Float[Tensor, "batch heads query key"]
    share: Float[Tensor, "batch heads query 1"]
    lse: Float[Tensor, "batch heads query"]
    entropy: Float[Tensor, "batch heads query"]
    top_weights: Float[Tensor, "batch heads query found"]
    top_keys: Int[Tensor, "batch heads query found"]


def _softmax_statistics(
    scores: BlockScores,
    block: Block,
    lse: Float[Tensor, "batch heads query"] | None,
    sink: Float[Tensor, "heads 1 1"],
    top: int,
) -> BlockStatistics:
    """Return the statistics of softmax weights.

    The weights are exp(score - shift) / Σ exp(score - shift), shifted by the largest score, or
    exp(score - lse).
    """
    shifted = scores(block)
    best, top_keys = _largest(shifted, top)
    if lse is None:
        peak = best[..., :1] if top else shifted.amax(-1, keepdim=True)
        shift = torch.maximum(peak, sink)
    else:
        shift = lse[..., None]
    shift = shift.masked_fill(shift == -torch.inf, 0.0)  # nothing is seen, and there is no sink

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
    masked: Float[Tensor, "batch heads query key"], block: Block, attention: Attention, top: int
) -> BlockStatistics:
    """Return the statistics of the weights of any other normaliser, which is given whole rows."""
    real = masked[..., : block.width]
    hidden = real == -torch.inf
    try:
        weights = attention.normalize(real)
    except ZeroSumError as problem:
        raise ZeroSumError(
            [i + part.start for i, part in zip(problem.row, block.index, strict=True)]
        ) from None
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
    scores: Float[Tensor, "batch heads query key"], count: int
) -> tuple[Float[Tensor, "batch heads query found"], Int[Tensor, "batch heads query found"]]:
    """Return the largest scores and their keys, the lower key first among equal ones; key -1 where
    a score is -inf.

    The `count` largest scores are in the `count` groups of keys with the largest maxima, so only
    those are searched.
    """
    groups = scores.view(*scores.shape[:-1], -1, GROUP)
    few = min(count, groups.shape[-2])
    if few < groups.shape[-2]:
        chosen = (
            top_indices(groups.amax(-1), few).sort(-1).values
        )  # by key, so that the lower one stays first
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
    bits = (scores + 0.0).view(torch.int32)  # + 0.0, since -0.0 equals 0.0
    order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    last = scores.shape[-1] - 1
    packed = order.long() << 32 | last - torch.arange(last + 1, device=scores.device)
    return last - (packed.topk(count, dim=-1).values & 0xFFFFFFFF)


def _read_marks(
    before: Float[Tensor, "batch heads query"],
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
        common = int(strip_stop.min())
        last = int(strip_stop.max())  # all rows count keys up to common, none from last
        edge = torch.arange(common, last, device=powers.device) < strip_stop[:, None]
        total = strip_powers[..., :common].sum(-1) + (strip_powers[..., common:last] * edge).sum(-1)
        before[:, :, strip] += total * statistics.share[:, :, strip, 0]
    for i, keys in enumerate(marks.single):
        key = keys.expand(len(keys) if len(keys) > 1 else block.sequences.stop, -1)
        key = key[block.sequences, block.rows][:, None, :, None] - start
        in_block = (key >= 0) & (key < width)
        found = (
            powers.gather(-1, key.clamp(0, width - 1).expand(*powers.shape[:3], 1))
            * statistics.share
            * in_block
        )
        single[..., i] += found[..., 0]


class ExtraSums:
    """The sums and maxima of `Extras`, to which blocks are added in the order of their rows."""

    def __init__(
        self,
        extras: Extras,
        received: Float[Tensor, "batch heads key"],
        entropy: Float[Tensor, "batch heads query"],
    ) -> None:
        self.extras = extras
        batch, heads, columns = received.shape
        self.dtype = entropy.dtype
        self.weighted = received.new_zeros(batch, heads, extras.sets, columns)
        self.carried = torch.zeros_like(entropy)
        size = (batch, heads, columns if extras.largest else 0)
        self.largest = entropy.new_zeros(size)
        self.query = entropy.new_full(size, -1, dtype=torch.int32)

    def add(self, part: "BlockStatistics", block: Block) -> None:
        """Add one block."""
        query_weights, norms, largest = self.extras
        if not self.extras:
            return
        powers = part.powers[..., : block.width]
        place = (block.sequences, block.heads)
        if query_weights is not None:
            of_rows = query_weights.expand(*self.weighted.shape[:2], -1, -1)[*place, :, block.rows]
            self.weighted[*place, :, block.columns] += (of_rows * part.share.mT) @ powers
        if norms is not None:
            self.carried[block.index] = (
                (powers @ norms[*place, block.columns, None]) * part.share
            )[..., 0]
        if largest:
            weights = powers * part.share
            at = (*place, block.columns)
            row = weights.argmax(-2)  # the first of equal ones
            best = weights.gather(-2, row[..., None, :])[..., 0, :]
            better = best > self.largest[at]
            self.query[at] = torch.where(better, row.int() + block.rows.start, self.query[at])
            self.largest[at] = torch.where(better, best, self.largest[at])

    def named(self) -> dict[str, Tensor | None]:
        """Return the fields of a Summary."""
        query_weights, norms, largest = self.extras
        return {
            "weighted": None if query_weights is None else self.weighted.to(self.dtype),
            "carried": None if norms is None else self.carried,
            "largest_weight": self.largest if largest else None,
            "largest_query": self.query if largest else None,
        }


# -------------------------------------------------------------------------------------------- a map


def _empty_map(
    sink: Float[Tensor, "heads 1 1"], batch: int, cells: Cells
) -> Float[Tensor, "batch heads rows columns"]:
    """Return a map without any block: 0 begins a sum, -inf a maximum."""
    return sink.new_full(
        (batch, len(sink), cells.rows, cells.columns), 0.0 if cells.how == "share" else -torch.inf
    )


def _add_to_map(
    pooled: Float[Tensor, "batch heads rows columns"],
    statistics: BlockStatistics,
    cells: Cells,
    block: Block,
) -> None:
    """Add a block to the map: first pool its queries, then its keys. A weight may be below zero
    (by_sum).
    """
    part = pooled[block.sequences, block.heads]
    width = block.width
    batch, heads, _, columns = part.shape
    powers = statistics.powers[..., :width]
    row_of_query, column_of_key = (
        ids.expand(pooled.shape[0], -1)[block.sequences, positions]
        for ids, positions in (
            (cells.row_of_query, block.rows),
            (cells.column_of_key, block.columns),
        )
    )
    rows, row = torch.unique(row_of_query, return_inverse=True)
    across = column_of_key[:, None, None].expand(batch, heads, len(rows), width)
    if cells.how == "share":
        member = row[:, None] == torch.arange(len(rows), device=row.device)[:, None]
        summed = (member[:, None] * statistics.share.mT) @ powers
        part.index_add_(
            2, rows, part.new_zeros(batch, heads, len(rows), columns).scatter_add(3, across, summed)
        )
    else:
        down = row[:, None, :, None].expand(powers.shape)
        lowest = part.new_full((batch, heads, len(rows), width), -torch.inf)
        largest = lowest.scatter_reduce(2, down, powers * statistics.share, "amax")
        part[:, :, rows] = part[:, :, rows].scatter_reduce(3, across, largest, "amax")
