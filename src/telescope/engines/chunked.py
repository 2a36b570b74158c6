"""Plain PyTorch, a block of queries at a time: any definition, in memory that grows with the length, not its square.

A block's scores are not kept for the backward pass: it computes them again.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import dropout as drop
from torch.utils.checkpoint import checkpoint

from ..attention import Attention, Pairs
from ..attention.normalizers import ZeroSumError
from . import exact, key_ranges, torch_modes

# How many scores a block holds: on a CPU the best of 2**17 to 2**24 (two Neoverse cores, 8 heads, 512 to 4,096 tokens).
SCORES = {"cpu": 2**22, "cuda": 2**26}
FEW = 128  # a block of fewer rows is hardly worth its start, even where a row sees little


def cannot(queries: Tensor, keys: Tensor, values: Tensor, attention: Attention, dropout: float = 0.0) -> str | None:
    """Why this engine cannot run it: there is nothing that it cannot."""
    return None


def attend(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    values: Float[Tensor, "batch key_heads key d_v"],
    attention: Attention,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads query d_v"]:
    looks = key_ranges.key_ranges(queries, keys, attention)
    rows = _rows(queries, keys, attention, looks)
    while True:
        try:
            return _by_blocks(queries, keys, values, attention, dropout, looks, rows)
        except torch.OutOfMemoryError:
            if rows == 1:
                raise torch.OutOfMemoryError(
                    f"queries {tuple(queries.shape)}: the scores of a single position with {keys.shape[-2]} keys do "
                    f"not fit into what is left on {queries.device}; give it a part of the batch at a time"
                ) from None
        rows = (rows + 1) // 2  # not within `except`, where the problem still holds on to its tensors


def _by_blocks(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    values: Float[Tensor, "batch key_heads key d_v"],
    attention: Attention,
    dropout: float,
    looks: Int[Tensor, "query 2"] | None,
    rows: int,
) -> Float[Tensor, "batch heads query d_v"]:
    q, k, v = exact.precise(queries), exact.precise(keys), exact.precise(values)
    (batch, heads, count, _), of = q.shape, (q.shape[-2], k.shape[-2])
    careful, again = exact.broken(q, k, v), torch_modes.can_checkpoint()
    contexts = []
    for first, mine in zip(range(0, max(count, 1), rows), torch.split(q, rows, dim=2), strict=True):
        block = range(first, min(first + rows, count))
        seen = key_ranges.range_of_block(looks, block, k.shape[-2])
        at = Pairs.block(block, seen, of=of, batch=batch, heads=heads, device=q.device)
        inputs = mine, k[:, :, seen.start : seen.stop], v[:, :, seen.start : seen.stop]
        block_of = (*inputs, at, attention, dropout, careful)
        if again:
            contexts.append(checkpoint(_block, *block_of, use_reentrant=False, preserve_rng_state=dropout > 0.0))
        else:
            contexts.append(_block(*block_of))
    return torch.cat(contexts, dim=2).to(queries.dtype)


def _block(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    values: Float[Tensor, "batch key_heads key d_v"],
    at: Pairs,
    attention: Attention,
    dropout: float,
    careful: bool,
) -> Float[Tensor, "batch heads query d_v"]:
    scores = exact.score(attention.score, queries, keys) if careful else attention.score(queries, keys)
    capped = attention.capped(attention.scaled(scores, keys))
    masked = attention.masked(attention.biased(capped, at), at)
    try:
        weights = drop(attention.weights(masked), dropout)
    except ZeroSumError as problem:
        raise problem.below(int(at.row.min())) from None
    return exact.weigh(weights, values, masked) if careful else exact.times(weights, values)


def _rows(queries: Tensor, keys: Tensor, attention: Attention, looks: Int[Tensor, "query 2"] | None) -> int:
    """How many queries make a block. Where one sees little, the next ones see something else: then few."""
    widest = keys.shape[-2] if looks is None else int((looks[:, 1] - looks[:, 0]).max())
    row = queries.shape[0] * queries.shape[1] * widest * attention.score.size(queries, keys)
    most = SCORES.get(queries.device.type, SCORES["cuda"]) // max(1, row)
    return max(1, min(most, queries.shape[-2], max(FEW, widest // 2)))
