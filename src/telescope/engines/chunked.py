"""Plain PyTorch, one block of queries at a time: any definition, in memory that grows with the
length, not its square.

The scores of a block are not kept for the backward pass, which computes them again.
"""

from functools import partial

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import dropout as drop

from ..attention import (
    Attention,
    Context,
    Keys,
    Pairs,
    Queries,
    Values,
    ZeroSumError,
    grouped_matmul,
)
from . import exact, torch_modes

# How many scores a block holds: on a CPU the best of 2**17 to 2**24 (two Neoverse cores, 8 heads,
# 512 to 4,096 tokens).
SCORES = {"cpu": 2**22, "cuda": 2**26}
# A block of fewer rows costs more to launch than it saves, even where a row sees few keys.
MIN_ROWS = 128


def cannot(
    queries: Tensor, keys: Tensor, values: Tensor, attention: Attention, dropout: float = 0.0
) -> str | None:
    """Return None: this engine runs every definition."""
    return None


def attend(
    queries: Queries, keys: Keys, values: Values, attention: Attention, dropout: float = 0.0
) -> Context:
    """Return the context in the dtype of `queries`, in smaller blocks each time memory runs out.

    Raises:
        torch.OutOfMemoryError: The scores of a single query do not fit.
    """
    ranges = exact.find_key_ranges(queries, keys, attention)
    rows = _choose_rows(queries, keys, attention, ranges)
    # Halve the blocks until they fit.
    while True:
        try:
            return _by_blocks(queries, keys, values, attention, dropout, ranges, rows)
        except torch.OutOfMemoryError:
            if rows == 1:
                raise torch.OutOfMemoryError(
                    f"queries {tuple(queries.shape)}: the scores of a single position with "
                    f"{keys.shape[-2]} keys do not fit into what is left on {queries.device}; "
                    "attend to a part of the batch at a time"
                ) from None
        # Not within `except`, where the exception still references the tensors.
        rows = (rows + 1) // 2


def _by_blocks(
    queries: Queries,
    keys: Keys,
    values: Values,
    attention: Attention,
    dropout: float,
    ranges: Int[Tensor, "query 2"] | None,
    rows: int,
) -> Context:
    """Return the context, computed in blocks of `rows` queries, each with the keys in its
    ranges.
    """
    q, k, v = map(exact.upcast_half, (queries, keys, values))
    batch, heads, count, _ = q.shape
    of = (q.shape[-2], k.shape[-2])
    # Looked at once for all blocks: finite inputs take the faster arithmetic.
    nan_safe = exact.may_be_nonfinite(q, k, v)
    recompute = torch_modes.can_checkpoint()
    contexts = []
    for first, block_queries in zip(
        range(0, max(count, 1), rows), torch.split(q, rows, dim=2), strict=True
    ):
        block = range(first, min(first + rows, count))
        # Keys that no query of the block sees are not read at all.
        seen = exact.range_of_block(ranges, block, k.shape[-2])
        at = Pairs.block(block, seen, of=of, batch=batch, heads=heads, device=q.device)
        part = slice(seen.start, seen.stop)
        inputs = (block_queries, k[:, :, part], v[:, :, part], at, attention, dropout, nan_safe)
        contexts.append(torch_modes.run_block(_block, inputs, recompute, dropout))
    return torch.cat(contexts, dim=2).to(queries.dtype)


def _block(
    queries: Queries,
    keys: Keys,
    values: Values,
    at: Pairs,
    attention: Attention,
    dropout: float,
    nan_safe: bool,
) -> Context:
    """Return the context of the pairs `at`; with `nan_safe` a hidden NaN changes nothing, at some
    cost.
    """
    score = partial(exact.nan_safe_score, attention.score) if nan_safe else attention.score
    capped = attention.capped(attention.scaled(score(queries, keys), keys))
    masked = attention.masked(attention.biased(capped, at), at)
    try:
        weights = drop(attention.weights(masked), dropout)
    # The error counts queries from the block's first; the user counts from the text's.
    except ZeroSumError as problem:
        raise problem.shifted(int(at.row.min())) from None
    if nan_safe:
        return exact.nan_safe_weigh(weights, values, masked)
    return grouped_matmul(weights, values)


def _choose_rows(
    queries: Tensor, keys: Tensor, attention: Attention, ranges: Int[Tensor, "query 2"] | None
) -> int:
    """Return how many queries make a block: few under a narrow mask, where large blocks cover many
    hidden pairs.
    """
    # The query that sees most decides, since a block is as wide as its widest row.
    widest = keys.shape[-2] if ranges is None else int((ranges[:, 1] - ranges[:, 0]).max())
    batch, heads = queries.shape[:2]
    row = batch * heads * widest * attention.score.numbers_per_score(queries, keys)
    most = SCORES.get(queries.device.type, SCORES["cuda"]) // max(1, row)
    return max(1, min(most, queries.shape[-2], max(MIN_ROWS, widest // 2)))
