"""The definition of `survey`: form the whole matrix and apply plain formulas. Other engines must
agree with it.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import Attention, Pairs, softmax
from .cells import Cells
from .extras import Extras
from .summary import Summary, compute_dtype


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
    extras: Extras = Extras(),
) -> Summary:
    """Return the summary, with the map of `cells` if there are any. An lse, where given, is not
    computed again.
    """
    masked = _masked_scores(queries, keys, attention)
    lse = _lse(masked, attention) if lse is None else lse.to(masked.dtype)
    weights = _weights(masked, attention, lse)
    order = (
        masked
        if attention.normalize is softmax
        else weights.masked_fill(masked == -torch.inf, -torch.inf)
    )
    top_weights, top_keys = _top(weights, order, top)
    largest_weight, largest_query = _largest(weights) if extras.largest else (None, None)
    return Summary(
        lse=lse if attention.normalize is softmax else None,
        received=weights.sum(-2),
        entropy=-torch.xlogy(weights, weights).sum(-1),
        top_weights=top_weights,
        top_keys=top_keys,
        map=None if cells is None else _pool(weights, cells),
        weighted=None
        if extras.query_weights is None
        else extras.query_weights.to(weights.dtype) @ weights,
        carried=None
        if extras.norms is None
        else (weights @ extras.norms.to(weights.dtype)[..., None])[..., 0],
        largest_weight=largest_weight,
        largest_query=largest_query,
    )


def _masked_scores(
    queries: Tensor, keys: Tensor, attention: Attention
) -> Float[Tensor, "batch heads query key"]:
    batch, heads, rows, _ = queries.shape
    columns = keys.shape[-2]
    dtype = compute_dtype(queries)
    at = Pairs.block(
        range(rows),
        range(columns),
        of=(rows, columns),
        batch=batch,
        heads=heads,
        device=queries.device,
    )
    return attention.masked_scores(queries.to(dtype), keys.to(dtype), at)


def _lse(
    masked: Float[Tensor, "batch heads query key"], attention: Attention
) -> Float[Tensor, "batch heads query"]:
    """Return ln Σ exp(score), where a sink is one more score."""
    lse = (
        torch.logsumexp(masked, -1)
        if masked.shape[-1]
        else masked.new_full(masked.shape[:-1], -torch.inf)
    )
    if attention.sink is None:
        return lse
    return torch.logaddexp(
        lse, torch.as_tensor(attention.sink, dtype=lse.dtype, device=lse.device).reshape(-1, 1)
    )


def _weights(
    masked: Tensor, attention: Attention, lse: Tensor
) -> Float[Tensor, "batch heads query key"]:
    if attention.normalize is not softmax:
        return attention.weights(masked)
    return torch.exp(masked - lse[..., None]).masked_fill(masked == -torch.inf, 0.0)


def _top(weights: Tensor, order: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Return weights and keys of the `top` largest by `order`, largest first; among equal ones the
    lower key first.
    """
    ranked, keys = torch.sort(order, dim=-1, descending=True, stable=True)
    ranked = ranked[..., :top]
    keys = keys[..., :top]
    hidden = ranked == -torch.inf
    missing = (0, top - keys.shape[-1])
    return (
        torch.nn.functional.pad(
            weights.gather(-1, keys).masked_fill(hidden, 0.0), missing, value=0.0
        ),
        torch.nn.functional.pad(keys.masked_fill(hidden, -1).int(), missing, value=-1),
    )


def _largest(weights: Float[Tensor, "batch heads query key"]) -> tuple[Tensor, Tensor]:
    """Return the largest weight of each key above 0, and its query; 0 and -1 if there is none."""
    if not weights.shape[-2]:
        return weights.sum(-2), torch.full_like(weights.sum(-2), -1, dtype=torch.int32)
    query = weights.argmax(-2)  # the first of equal ones
    largest = weights.gather(-2, query[..., None, :])[..., 0, :].clamp(min=0.0)
    return largest, query.masked_fill(largest == 0.0, -1).int()


def _pool(
    weights: Float[Tensor, "batch heads query key"], cells: Cells
) -> Float[Tensor, "batch heads rows columns"]:
    batch, heads, queries, keys = weights.shape
    cell = cells.row_of_query[:, :, None] * cells.columns + cells.column_of_key[:, None]
    cell = cell.expand(batch, queries, keys).flatten(1)[:, None].expand(batch, heads, -1)
    pooled = weights.new_zeros(batch, heads, cells.rows * cells.columns)
    if cells.how == "share":
        pooled = pooled.scatter_add(2, cell, weights.flatten(2)).view(
            batch, heads, cells.rows, cells.columns
        )
        return cells.averaged(pooled)
    pooled = pooled.scatter_reduce(2, cell, weights.flatten(2), "amax", include_self=False)
    return pooled.view(batch, heads, cells.rows, cells.columns)
