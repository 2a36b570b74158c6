"""The definition of `survey`: form the whole matrix and apply plain formulas. Other engines must
agree with it.

Single rows are formed likewise, and some of them check an lse that was given. The cost of a row
grows with the number of keys.
"""

from collections.abc import Callable
from math import log

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from ..attention import Attention, dot, has_data, softmax
from .blocks import pairs_of_rows, row_pairs, sink_of
from .requests import Cells, Extras
from .summary import Keys, Map, PerKey, PerPair, PerQuery, Queries, Summary, compute_dtype

KEYS = 2**16  # how many keys are converted to float32 at once
# Rows that check_sums computes, or one more, in the first and the last head of the first and last
# sequence.
CHECKED_ROWS = 3


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
    extras: Extras = Extras(),
) -> Summary:
    """Return the summary, with the map of `cells` if there are any. An lse, where given, is not
    computed again.
    """
    masked = _masked_scores(queries, keys, attention)
    lse = _lse(masked, attention) if lse is None else lse.to(masked.dtype)
    weights = _weights(masked, attention, lse)
    is_softmax = attention.normalize is softmax
    # The top is ordered by scores: weights may be equal where scores are not.
    order = masked if is_softmax else weights.masked_fill(masked == -torch.inf, -torch.inf)
    top_weights, top_keys = _top(weights, order, top)
    largest_weight, largest_query = _largest(weights) if extras.largest else (None, None)
    queries_weighted = extras.weighted
    norms = extras.carried
    return Summary(
        lse=lse if is_softmax else None,
        received=weights.sum(-2),
        entropy=-torch.xlogy(weights, weights).sum(-1),
        top_weights=top_weights,
        top_keys=top_keys,
        map=None if cells is None else _pool(weights, cells),
        weighted=None if queries_weighted is None else queries_weighted.to(weights.dtype) @ weights,
        carried=None if norms is None else (weights @ norms.to(weights.dtype)[..., None])[..., 0],
        largest_weight=largest_weight,
        largest_query=largest_query,
    )


def _masked_scores(queries: Tensor, keys: Tensor, attention: Attention) -> PerPair:
    dtype = compute_dtype(queries)
    at = row_pairs(queries, keys, keys.shape[-2])
    return attention.masked_scores(queries.to(dtype), keys.to(dtype), at)


def _lse(masked: PerPair, attention: Attention) -> PerQuery:
    """Return ln Σ exp(score), where a sink is one more score."""
    lse = (
        torch.logsumexp(masked, -1)
        if masked.shape[-1]
        else masked.new_full(masked.shape[:-1], -torch.inf)
    )
    if attention.sink is None:
        return lse
    return torch.logaddexp(lse, sink_of(attention, lse.dtype, lse.device).reshape(-1, 1))


def _weights(masked: Tensor, attention: Attention, lse: Tensor) -> PerPair:
    if attention.normalize is not softmax:
        return attention.weights(masked)
    return torch.exp(masked - lse[..., None]).masked_fill(masked == -torch.inf, 0.0)


def _top(weights: Tensor, order: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Return weights and keys of the `top` largest by `order`, largest first; among equal ones the
    lower key first.
    """
    ranked, keys = torch.sort(order, dim=-1, descending=True, stable=True)
    keys = keys[..., :top]
    hidden = ranked[..., :top] == -torch.inf
    missing = (0, top - keys.shape[-1])
    return (
        pad(weights.gather(-1, keys).masked_fill(hidden, 0.0), missing, value=0.0),
        pad(keys.masked_fill(hidden, -1).int(), missing, value=-1),
    )


def _largest(weights: PerPair) -> tuple[PerKey, Tensor]:
    """Return the largest weight of each key above 0, and its query; 0 and -1 if there is none."""
    if not weights.shape[-2]:  # argmax of nothing is an error
        return weights.sum(-2), torch.full_like(weights.sum(-2), -1, dtype=torch.int32)
    query = weights.argmax(-2)  # the first of equal ones
    largest = weights.gather(-2, query[..., None, :])[..., 0, :].clamp(min=0.0)
    return largest, query.masked_fill(largest == 0.0, -1).int()


def _pool(weights: PerPair, cells: Cells) -> Map:
    batch, heads, queries, keys = weights.shape
    # The number of the cell that each pair falls into.
    cell = cells.row_of_query[:, :, None] * cells.columns + cells.column_of_key[:, None]
    cell = cell.expand(batch, queries, keys).flatten(1)[:, None].expand(batch, heads, -1)
    pooled = weights.new_zeros(batch, heads, cells.rows * cells.columns)
    size = (batch, heads, cells.rows, cells.columns)
    if cells.how == "share":
        return cells.averaged(pooled.scatter_add(2, cell, weights.flatten(2)).view(size))
    pooled = pooled.scatter_reduce(2, cell, weights.flatten(2), "amax", include_self=False)
    return pooled.view(size)


# -------------------------------------------------------------------------------------- single rows


def masked_rows(
    queries: Queries,
    keys: Keys,
    attention: Attention,
    rows: Int[Tensor, " row"],
    columns: range,
    batch: range,
    heads: range,
) -> Float[Tensor, "some_batch some_heads row column"]:
    """Return the masked scores of these rows and columns, in these sequences and heads."""
    size = (queries.shape[-2], keys.shape[-2])
    dtype = compute_dtype(queries)
    # Some keys at a time: a long cache in half precision is not converted as a whole.
    row_queries = queries[_slice(batch), :, rows].to(dtype)
    parts = []
    for start in range(columns.start, columns.stop, KEYS):
        part = range(start, min(start + KEYS, columns.stop))
        at = pairs_of_rows(rows, part, size, batch, heads)
        part_keys = keys[_slice(batch), :, _slice(part)]
        scaled = attention.scaled(_scores(row_queries, part_keys, attention, heads), keys)
        parts.append(attention.masked(attention.biased(attention.capped(scaled), at), at))
    if not parts:
        return row_queries.new_zeros(len(batch), len(heads), len(rows), 0)
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _scores(queries: Tensor, keys: Tensor, attention: Attention, heads: range) -> Tensor:
    """Return the scores of these heads. Only a dot product skips the others: any other score may
    differ by head.
    """
    score = attention.score
    group = queries.shape[1] // (keys.shape[1] or 1)
    if not score.is_dot_product:
        return score(queries, keys.to(queries.dtype))[:, _slice(heads)]
    # Pick these heads before the keys are converted.
    queries, keys = score.as_dot(queries, keys)
    queries = queries[:, _slice(heads)]
    head_keys = keys[:, heads.start // group : -(-heads.stop // group)]
    if heads.step > 1:  # heads are not neighbours: one copy of the keys for each
        head_keys = torch.stack([keys[:, head // group] for head in heads], 1)
    return dot(queries, head_keys.to(queries.dtype))


def _slice(indices: range) -> slice:
    return slice(indices.start, indices.stop, indices.step)


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
    # A few rows of the first and last head of the first and last sequence.
    batch, heads, rows = (
        range(0, size, max(1, (size - 1) // gaps))
        for size, gaps in zip(lse.shape, (1, 1, CHECKED_ROWS - 1), strict=True)
    )
    # Four numbers of each row, by the engine's kernel if it has one.
    given = queries, keys, attention, lse, batch, heads, rows
    computed = None if by is None else by(*given)
    numbers = (row_numbers(*given) if computed is None else computed).flatten(1).T.tolist()
    rounding = max(torch.finfo(lse.dtype).eps, torch.finfo(queries.dtype).eps)
    # A weight is exp(score - lse): its error grows with the rounding of large scores.
    checked = [
        (total, base_2, 1e-3 + (8.0 + most) * rounding)
        for total, base_2, most, seen in numbers
        if seen
    ]
    wrong = [total for total, _, slack in checked if not abs(total - 1.0) <= slack]
    if wrong:
        is_base_2 = all(abs(base_2 - 1.0) <= slack for _, base_2, slack in checked)
        why = (
            "it looks like one of base 2: multiply it by ln 2"
            if is_base_2
            else "it belongs to other queries, keys or another definition; leave lse out and it is "
            "computed"
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
    absolute score, and 1 if there is a score, else 0.
    """
    where = torch.arange(rows.start, rows.stop, rows.step, device=lse.device)
    scores = masked_rows(queries, keys, attention, where, range(keys.shape[-2]), batch, heads)
    scores = _with_sink(scores, attention, heads)
    # The weights with this lse, and with one that was meant to base two.
    logs = lse[:: batch.step, :: heads.step, :: rows.step, None].to(scores.dtype)
    sums, sums_base_2 = (torch.exp(scores - unit * logs).sum(-1) for unit in (1.0, log(2.0)))
    # How large scores are tells how much rounding is to be expected.
    largest = scores.masked_fill(scores == -torch.inf, 0.0).abs().amax(-1)
    has_scores = (scores.amax(-1) > -torch.inf).to(sums.dtype)  # not where one of them is NaN
    return torch.stack([sums, sums_base_2, largest, has_scores])


def _with_sink(
    masked: Float[Tensor, "batch head row key"], attention: Attention, heads: range
) -> Float[Tensor, "batch head row key_and_sink"]:
    """Return the scores with the sink as one more score."""
    if attention.sink is None:
        return masked
    sink = sink_of(attention, masked.dtype, masked.device).flatten()
    sink = sink[:: heads.step] if len(sink) > 1 else sink
    return torch.cat([masked, sink[:, None, None].expand(*masked.shape[:3], 1)], -1)
