"""Compute single rows of the matrix exactly, and check a given lse against some of them.

The cost of a row grows with the number of keys.
"""

from collections.abc import Callable
from dataclasses import replace
from math import inf, log

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import Attention, Pairs, dot, has_data
from .summary import compute_dtype

KEYS = 2**16  # how many keys are converted to float32 at once


def masked_rows(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    rows: Int[Tensor, " row"],
    columns: range,
    batch: range,
    heads: range,
) -> Float[Tensor, "some_batch some_heads row column"]:
    """Return the masked scores of these rows and columns, in these sequences and heads."""
    size = (queries.shape[-2], keys.shape[-2])
    dtype = compute_dtype(queries)
    row_queries = queries[_slice(batch), :, rows].to(dtype)
    parts = []
    for start in range(columns.start, columns.stop, KEYS):
        part = range(start, min(start + KEYS, columns.stop))
        at = Pairs.block(
            range(len(rows)), part, of=size, batch=batch, heads=heads, device=queries.device
        )
        at = replace(
            at, row=rows[None, None, :, None], query=rows[None, None, :, None] + (size[1] - size[0])
        )
        part_keys = keys[_slice(batch), :, _slice(part)]
        scaled = attention.scaled(_scores(row_queries, part_keys, attention, heads), keys)
        parts.append(attention.masked(attention.biased(attention.capped(scaled), at), at))
    return (
        torch.cat(parts, -1)
        if parts
        else row_queries.new_zeros(len(batch), len(heads), len(rows), 0)
    )


def _scores(queries: Tensor, keys: Tensor, attention: Attention, heads: range) -> Tensor:
    """Return the scores of these heads. Only a dot product skips the others: any other score may
    differ by head.
    """
    score = attention.score
    group = queries.shape[1] // (keys.shape[1] or 1)
    if not score.is_dot_product:
        return score(queries, keys.to(queries.dtype))[:, _slice(heads)]
    queries, keys = score.as_dot(queries, keys)
    queries = queries[:, _slice(heads)]
    head_keys = keys[:, heads.start // group : -(-heads.stop // group)]
    if heads.step > 1:  # heads are not neighbours: one copy of the keys for each
        head_keys = torch.stack([keys[:, head // group] for head in heads], 1)
    return dot(queries, head_keys.to(queries.dtype))


def _slice(indices: range) -> slice:
    return slice(indices.start, indices.stop, indices.step)


# Rows that check_sums computes, or one more, in the first and the last head of the first and last
# sequence.
ROWS = 3


def check_lse(queries: Tensor, lse: Tensor) -> None:
    """Raise a TypeError or ValueError, one sentence, if lse is not a float tensor that fits the
    queries.
    """
    if not isinstance(lse, Tensor) or not lse.is_floating_point():
        kind = lse.dtype if isinstance(lse, Tensor) else type(lse).__name__
        raise TypeError(
            f"lse is a float tensor, the log of each row's sum of exponentials, not {kind}"
        )
    if lse.shape != queries.shape[:3]:
        raise ValueError(
            f"lse has shape {tuple(lse.shape)}; it must be (batch, heads, query) = "
            f"{tuple(queries.shape[:3])}"
        )
    if lse.device != queries.device:
        raise ValueError(f"lse is on {lse.device}, queries on {queries.device}; move one of them")


def check_sums(
    queries: Tensor,
    keys: Tensor,
    attention: Attention,
    lse: Tensor,
    by: Callable[..., Tensor | None] | None = None,
) -> None:
    """Raise a ValueError, one sentence, if the weights of some rows do not sum to one with this
    lse.

    `by` may compute `row_numbers` otherwise, or return None. Synchronises with a GPU, once.
    """
    if not lse.numel() or not keys.shape[-2] or not has_data(lse):
        return
    batch, heads, rows = (
        range(0, size, max(1, (size - 1) // gaps))
        for size, gaps in zip(lse.shape, (1, 1, ROWS - 1), strict=True)
    )
    given = queries, keys, attention, lse, batch, heads, rows
    computed = None if by is None else by(*given)
    numbers = (row_numbers(*given) if computed is None else computed).flatten(1).T.tolist()
    rounding = max(torch.finfo(lse.dtype).eps, torch.finfo(queries.dtype).eps)
    checked = [
        (total, base_2, 1e-3 + (8.0 + most) * rounding)
        for total, base_2, most, top in numbers
        if top > -inf
    ]
    wrong = [total for total, _, slack in checked if not abs(total - 1.0) <= slack]
    if wrong:
        why = (
            "it looks like one of base 2: multiply it by ln 2"
            if all(abs(base_2 - 1.0) <= slack for _, base_2, slack in checked)
            else (
                "it belongs to other queries, keys or another definition; leave lse out and it "
                "is "
                "computed"
            )
        )
        raise ValueError(f"with this lse the weights of a row sum to {wrong[0]:.4g}, not 1; {why}")


def row_numbers(
    queries: Tensor,
    keys: Tensor,
    attention: Attention,
    lse: Tensor,
    batch: range,
    heads: range,
    rows: range,
) -> Float[Tensor, "4 some_batch some_heads row"]:
    """Return four numbers of each of these rows, with the sink as one more score.

    They are the sum of the weights with this lse, their sum if it is to base two, the largest
    absolute score and the largest score.
    """
    where = torch.arange(rows.start, rows.stop, rows.step, device=lse.device)
    scores = masked_rows(queries, keys, attention, where, range(keys.shape[-2]), batch, heads)
    scores = _with_sink(scores, attention, heads)
    logs = lse[:: batch.step, :: heads.step, :: rows.step, None].to(scores.dtype)
    sums, sums_base_2 = (torch.exp(scores - unit * logs).sum(-1) for unit in (1.0, log(2.0)))
    largest = scores.masked_fill(scores == -torch.inf, 0.0).abs().amax(-1)
    return torch.stack([sums, sums_base_2, largest, scores.amax(-1)])


def _with_sink(
    masked: Float[Tensor, "batch head row key"], attention: Attention, heads: range
) -> Float[Tensor, "batch head row key_and_sink"]:
    """Return the scores with the sink as one more score."""
    if attention.sink is None:
        return masked
    sink = torch.as_tensor(attention.sink, dtype=masked.dtype, device=masked.device).flatten()
    sink = sink[:: heads.step] if len(sink) > 1 else sink
    return torch.cat([masked, sink[:, None, None].expand(*masked.shape[:3], 1)], -1)
