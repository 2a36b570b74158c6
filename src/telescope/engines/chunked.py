"""Plain PyTorch, one block of queries at a time: any definition, in memory that grows with the
length, not its square.

The scores of a block are not kept for the backward pass, which computes them again.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import dropout as drop
from torch.utils.checkpoint import checkpoint

from ..attention import Attention, Pairs, ZeroSumError, grouped_matmul
from . import exact, torch_modes

# How many scores a block holds: on a CPU the best of 2**17 to 2**24 (two Neoverse cores, 8 heads,
# 512 to 4,096 tokens).
SCORES = {"cpu": 2**22, "cuda": 2**26}
MIN_ROWS = (
    128  # a block of fewer rows costs more to launch than it saves, even where a row sees few keys
)


def cannot(
    queries: Tensor, keys: Tensor, values: Tensor, attention: Attention, dropout: float = 0.0
) -> str | None:
    """Return None: this engine runs every definition."""
    return None


def attend(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    values: Float[Tensor, "batch key_heads key d_v"],
    attention: Attention,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads query d_v"]:
    """Return the context in the dtype of `queries`, in smaller blocks each time memory runs out.

    Raises:
        torch.OutOfMemoryError: The scores of a single query do not fit.
    """
    ranges = exact.find_key_ranges(queries, keys, attention)
    rows = _choose_rows(queries, keys, attention, ranges)
    while True:
        try:
            return _by_blocks(queries, keys, values, attention, dropout, ranges, rows)
        except torch.OutOfMemoryError:
            if rows == 1:
                raise torch.OutOfMemoryError(
                    f"queries {tuple(queries.shape)}: the scores of a single position with "
                    f"{keys.shape[-2]} keys do "
                    f"not fit into what is left on {queries.device}; attend to a part of the batch "
                    "at a time"
                ) from None
        rows = (
            rows + 1
        ) // 2  # not within `except`, where the exception still references the tensors


def _by_blocks(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    values: Float[Tensor, "batch key_heads key d_v"],
    attention: Attention,
    dropout: float,
    ranges: Int[Tensor, "query 2"] | None,
    rows: int,
) -> Float[Tensor, "batch heads query d_v"]:
    """Return the context, computed in blocks of `rows` queries, each with the keys in its
    ranges.
    """
    q = exact.upcast_half(queries)
    k = exact.upcast_half(keys)
    v = exact.upcast_half(values)
    batch, heads, count, _ = q.shape
    of = (q.shape[-2], k.shape[-2])
    nan_safe = exact.may_be_nonfinite(q, k, v)
    recompute = torch_modes.can_checkpoint()
    contexts = []
    for first, block_queries in zip(
        range(0, max(count, 1), rows), torch.split(q, rows, dim=2), strict=True
    ):
        block = range(first, min(first + rows, count))
        seen = exact.range_of_block(ranges, block, k.shape[-2])
        at = Pairs.block(block, seen, of=of, batch=batch, heads=heads, device=q.device)
        inputs = block_queries, k[:, :, seen.start : seen.stop], v[:, :, seen.start : seen.stop]
        arguments = (*inputs, at, attention, dropout, nan_safe)
        if recompute:
            contexts.append(
                checkpoint(
                    _block, *arguments, use_reentrant=False, preserve_rng_state=dropout > 0.0
                )
            )
        else:
            contexts.append(_block(*arguments))
    return torch.cat(contexts, dim=2).to(queries.dtype)


def _block(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    values: Float[Tensor, "batch key_heads key d_v"],
    at: Pairs,
    attention: Attention,
    dropout: float,
    nan_safe: bool,
) -> Float[Tensor, "batch heads query d_v"]:
    """Return the context of the pairs `at`; with `nan_safe` a hidden NaN changes nothing, at some
    cost.
    """
    scores = (
        exact.nan_safe_score(attention.score, queries, keys)
        if nan_safe
        else attention.score(queries, keys)
    )
    capped = attention.capped(attention.scaled(scores, keys))
    masked = attention.masked(attention.biased(capped, at), at)
    try:
        weights = drop(attention.weights(masked), dropout)
    except ZeroSumError as problem:
        raise problem.shifted(int(at.row.min())) from None
    return (
        exact.nan_safe_weigh(weights, values, masked)
        if nan_safe
        else grouped_matmul(weights, values)
    )


def _choose_rows(
    queries: Tensor, keys: Tensor, attention: Attention, ranges: Int[Tensor, "query 2"] | None
) -> int:
    """Return how many queries make a block: few under a narrow mask, where large blocks cover many
    hidden pairs.
    """
    widest = keys.shape[-2] if ranges is None else int((ranges[:, 1] - ranges[:, 0]).max())
    row = (
        queries.shape[0]
        * queries.shape[1]
        * widest
        * attention.score.numbers_per_score(queries, keys)
    )
    most = SCORES.get(queries.device.type, SCORES["cuda"]) // max(1, row)
    return max(1, min(most, queries.shape[-2], max(MIN_ROWS, widest // 2)))
