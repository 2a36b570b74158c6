"""Block by block, in plain PyTorch: any definition, on any device, and never more than a block of the matrix.

On a CPU a block stays in the cache and is passed over few times; that is where the speed comes from.
"""

from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import Attention, softmax
from ..attention.normalizers import ZeroSumError
from .blocks import GROUP, Block, BlockScores, blocks
from .cells import Cells
from .device import as_it_fits
from .summary import Marks, Summary, precision

SCORES = {"cpu": 2**21, "cuda": 2**26}  # how many a block holds: on a CPU as many as stay in its last cache
STRIP = 64  # rows whose marks are read together
LOW = -1e4  # exp(LOW) is 0, and 0 · LOW is 0, which 0 · -inf is not


def cannot(queries: Tensor, keys: Tensor, attention: Attention, top: int = 0) -> str | None:
    """It can run everything."""
    return None


def pool(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    lse: Float[Tensor, "batch heads query"] | None,
    cells: Cells,
) -> Float[Tensor, "batch heads rows columns"]:
    pooled = summarize(queries, keys, attention, lse, 0, cells).map
    assert pooled is not None
    return pooled


def summarize(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    lse: Float[Tensor, "batch heads query"] | None,
    top: int,
    cells: Cells | None,
    marks: Marks | None = None,
) -> Summary:
    most = SCORES.get(queries.device.type, SCORES["cuda"])
    run = partial(_summarize, queries, keys, attention, lse, top, cells, marks)
    return as_it_fits(run, most, keys.shape[-2], queries, keys)


def _summarize(
    queries: Tensor,
    keys: Tensor,
    attention: Attention,
    lse: Tensor | None,
    top: int,
    cells: Cells | None,
    marks: Marks | None,
    most: int,
) -> Summary:
    (batch, heads, rows, _), columns, device = queries.shape, keys.shape[-2], queries.device
    sink = -torch.inf if attention.sink is None else attention.sink
    sink = torch.as_tensor(sink, dtype=precision(queries), device=device).reshape(-1, 1, 1).expand(heads, 1, 1)

    # what holds for a row that sees nothing; blocks write over it
    logs = sink[..., 0].expand(batch, heads, rows).clone() if lse is None else lse.to(sink.dtype)
    received = torch.zeros(batch, heads, columns, dtype=torch.float64, device=device)
    entropy = sink.new_zeros(batch, heads, rows)
    top_weights = sink.new_zeros(batch, heads, rows, top)
    top_keys = torch.full((batch, heads, rows, top), -1, dtype=torch.int32, device=device)
    pooled = None if cells is None else _empty_map(sink, batch, cells)

    before = single = None
    if marks is not None:
        before, single = torch.zeros_like(entropy), sink.new_zeros(batch, heads, rows, len(marks.single))
    scores = BlockScores(queries, keys, attention)
    for block in blocks(queries, keys, attention, most):
        here, real = block.here, block.columns.stop - block.columns.start
        if attention.normalize is softmax:
            read = _softmax(scores, block, None if lse is None else logs[here], sink[block.heads], top)
            if lse is None:
                logs[here] = read.lse
        else:
            read = _normalized(scores(block), block, attention, top)
        entropy[here] = read.entropy
        found = read.top_keys.shape[-1]
        top_weights[here][..., :found] = read.top_weights
        top_keys[here][..., :found] = torch.where(read.top_keys < 0, -1, read.top_keys + block.columns.start)
        received[block.sequences, block.heads, block.columns] += (read.share.mT @ read.powers)[..., 0, :real]
        if cells is not None and pooled is not None:
            _pool(pooled, read, cells, block)
        if marks is not None and before is not None and single is not None:
            _read_marks(before[here], single[here], read, marks, block)

    if cells is not None and pooled is not None:
        pooled = cells.averaged(pooled) if cells.how == "share" else pooled.masked_fill(pooled == -torch.inf, 0.0)
    lse = logs if attention.normalize is softmax else None
    return Summary(lse, received.to(sink.dtype), entropy, top_weights, top_keys, pooled, before, single)


# ------------------------------------------------------------------------------------------------ what a block says


class BlockStatistics(NamedTuple):
    """What is read off a block. Its weights are powers · share: multiplying them out would be one more pass."""

    powers: Float[Tensor, "batch heads query key"]
    share: Float[Tensor, "batch heads query 1"]
    lse: Float[Tensor, "batch heads query"]
    entropy: Float[Tensor, "batch heads query"]
    top_weights: Float[Tensor, "batch heads query found"]
    top_keys: Int[Tensor, "batch heads query found"]


def _softmax(
    scores: BlockScores,
    block: Block,
    lse: Float[Tensor, "batch heads query"] | None,
    sink: Float[Tensor, "heads 1 1"],
    top: int,
) -> BlockStatistics:
    """exp(score - shift) / Σ exp(score - shift), shifted by the largest score; exp(score - lse) where that is known."""
    shifted = scores(block)
    best, top_keys = _largest(shifted, top)
    if lse is None:
        peak = best[..., :1] if top else shifted.amax(-1, keepdim=True)
        shift = torch.maximum(peak, sink)
    else:
        shift = lse[..., None]
    shift = shift.masked_fill(shift == -torch.inf, 0.0)  # nothing is seen, and there is no sink

    shifted -= shift
    for edge in scores.hidden(block):
        shifted[..., edge].clamp_(min=LOW)
    powers = torch.exp(shifted, out=scores.room(shifted.shape, 1))
    share, log, spread = torch.ones_like(shift), shift, torch.zeros_like(shift)
    if lse is None:
        total = powers.sum(-1, keepdim=True)
        whole = total + torch.exp(sink - shift)
        share, log = 1.0 / whole.masked_fill(whole == 0.0, 1.0), shift + whole.log()
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


def _normalized(
    masked: Float[Tensor, "batch heads query key"], block: Block, attention: Attention, top: int
) -> BlockStatistics:
    """By any other normaliser, which says the weights of whole rows."""
    real = block.columns.stop - block.columns.start
    hidden = masked[..., :real] == -torch.inf
    try:
        weights = attention.normalize(masked[..., :real])
    except ZeroSumError as problem:
        raise ZeroSumError([i + part.start for i, part in zip(problem.row, block.here, strict=True)]) from None
    masked[..., :real] = weights.masked_fill(hidden, -torch.inf)
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
    """The largest scores, the lower key first where they are equal; key -1 where a score is -inf.

    A group of keys that holds one of the `count` largest is among the `count` groups with the largest best.
    """
    groups = scores.view(*scores.shape[:-1], -1, GROUP)
    few = min(count, groups.shape[-2])
    if few < groups.shape[-2]:
        chosen = first(groups.amax(-1), few).sort(-1).values  # by key, so that the lower one stays first
        groups = groups.gather(-2, chosen[..., None].expand(*chosen.shape, GROUP))
        key = (chosen[..., None] * GROUP + torch.arange(GROUP, device=scores.device)).flatten(-2)
    else:
        key = torch.arange(scores.shape[-1], device=scores.device).expand(scores.shape)
    candidates = groups.flatten(-2)
    where = first(candidates, min(count, candidates.shape[-1]))
    best = candidates.gather(-1, where)
    return best, key.gather(-1, where).masked_fill(best == -torch.inf, -1)


def _read_marks(
    before: Float[Tensor, "batch heads query"],
    single: Float[Tensor, "batch heads query which"],
    read: BlockStatistics,
    marks: Marks,
    block: Block,
) -> None:
    start, real = block.columns.start, block.columns.stop - block.columns.start
    powers, stop = read.powers[..., :real], (marks.before[block.rows] - start).clamp(0, real)
    for row in range(0, len(stop), STRIP):
        strip = slice(row, row + STRIP)
        some, own = powers[:, :, strip], stop[strip]
        whole, last = int(own.min()), int(own.max())  # up to the one all of these queries count, from the other on none
        edge = torch.arange(whole, last, device=powers.device) < own[:, None]
        total = some[..., :whole].sum(-1) + (some[..., whole:last] * edge).sum(-1)
        before[:, :, strip] += total * read.share[:, :, strip, 0]
    for i, where in enumerate(marks.single):
        own = where.expand(len(where) if len(where) > 1 else block.sequences.stop, -1)
        own = own[block.sequences, block.rows][:, None, :, None] - start
        there = (own >= 0) & (own < real)
        found = powers.gather(-1, own.clamp(0, real - 1).expand(*powers.shape[:3], 1)) * read.share * there
        single[..., i] += found[..., 0]


# ------------------------------------------------------------------------------------------------------------- a map


def _empty_map(sink: Float[Tensor, "heads 1 1"], batch: int, cells: Cells) -> Float[Tensor, "batch heads rows columns"]:
    """Return a map that no block has been put into: 0 begins a sum, -inf a maximum."""
    return sink.new_full((batch, len(sink), cells.rows, cells.columns), 0.0 if cells.how == "share" else -torch.inf)


def _pool(pooled: Float[Tensor, "batch heads rows columns"], read: BlockStatistics, cells: Cells, block: Block) -> None:
    """Put a block into the map: first its queries together, then its keys. A weight may be below zero (by_sum)."""
    here, real = pooled[block.sequences, block.heads], block.columns.stop - block.columns.start
    (batch, heads, _, columns), powers = here.shape, read.powers[..., :real]
    of_queries, of_keys = (
        ids.expand(pooled.shape[0], -1)[block.sequences, part]
        for ids, part in ((cells.of_queries, block.rows), (cells.of_keys, block.columns))
    )
    rows, row = torch.unique(of_queries, return_inverse=True)
    across = of_keys[:, None, None].expand(batch, heads, len(rows), real)
    if cells.how == "share":
        member = row[:, None] == torch.arange(len(rows), device=row.device)[:, None]
        summed = (member[:, None] * read.share.mT) @ powers
        here.index_add_(2, rows, here.new_zeros(batch, heads, len(rows), columns).scatter_add(3, across, summed))
    else:
        down = row[:, None, :, None].expand(powers.shape)
        lowest = here.new_full((batch, heads, len(rows), real), -torch.inf)
        largest = lowest.scatter_reduce(2, down, powers * read.share, "amax")
        here[:, :, rows] = here[:, :, rows].scatter_reduce(3, across, largest, "amax")


def first(scores: Float[Tensor, "*rows key"], count: int) -> Int[Tensor, "*rows found"]:
    """Where the largest stand, the lower index first where they are equal, which topk by itself leaves to chance; of
    what is -inf any."""
    best, where = scores.topk(min(count + 1, scores.shape[-1]), dim=-1)
    equal = (best[..., 1:] == best[..., :-1]) & (best[..., 1:] > -torch.inf)
    return _by_index(scores, count) if equal.any() else where[..., :count]


def _by_index(scores: Float[Tensor, "*rows key"], count: int) -> Int[Tensor, "*rows found"]:
    """A float32 and its index make one whole number of 64 bits: bits of floats are in the order of the floats, once
    those of negative ones are turned round."""
    if scores.dtype == torch.float64:
        return torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :count]
    bits = (scores + 0.0).view(torch.int32)  # + 0.0, since -0.0 equals 0.0
    order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    last = scores.shape[-1] - 1
    packed = order.long() << 32 | last - torch.arange(last + 1, device=scores.device)
    return last - (packed.topk(count, dim=-1).values & 0xFFFFFFFF)
