"""The law of `survey`: the whole matrix formed, and read off by plain formulas. The other engines mean this."""

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import Attention, Pairs, softmax
from .cells import Cells
from .summary import Summary, precision


def cannot(queries: Tensor, keys: Tensor, attention: Attention, top: int = 0) -> str | None:
    """It can run everything."""
    return None


def summarize(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    lse: Float[Tensor, "batch heads query"] | None,
    top: int,
    cells: Cells | None,
) -> Summary:
    masked = _masked(queries, keys, attention)
    lse = _lse(masked, attention) if lse is None else lse.to(masked.dtype)
    weights = _weights(masked, attention, lse)
    order = masked if attention.normalize is softmax else weights.masked_fill(masked == -torch.inf, -torch.inf)
    top_weights, top_keys = _top(weights, order, top)
    return Summary(
        lse=lse if attention.normalize is softmax else None,
        received=weights.sum(-2),
        entropy=-torch.xlogy(weights, weights).sum(-1),
        top_weights=top_weights,
        top_keys=top_keys,
        map=None if cells is None else _pooled(weights, cells),
    )


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


def _masked(queries: Tensor, keys: Tensor, attention: Attention) -> Float[Tensor, "batch heads query key"]:
    (batch, heads, rows, _), columns = queries.shape, keys.shape[-2]
    at = Pairs.block(range(rows), range(columns), of=(rows, columns), batch=batch, heads=heads, device=queries.device)
    return attention.masked_scores(queries.to(precision(queries)), keys.to(precision(queries)), at)


def _lse(masked: Float[Tensor, "batch heads query key"], attention: Attention) -> Float[Tensor, "batch heads query"]:
    """ln Σ exp(score); a sink is one more score."""
    lse = torch.logsumexp(masked, -1) if masked.shape[-1] else masked.new_full(masked.shape[:-1], -torch.inf)
    if attention.sink is None:
        return lse
    return torch.logaddexp(lse, torch.as_tensor(attention.sink, dtype=lse.dtype, device=lse.device).reshape(-1, 1))


def _weights(masked: Tensor, attention: Attention, lse: Tensor) -> Float[Tensor, "batch heads query key"]:
    if attention.normalize is not softmax:
        return attention.weights(masked)
    return torch.exp(masked - lse[..., None]).masked_fill(masked == -torch.inf, 0.0)


def _top(weights: Tensor, order: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """The first `top` by order, largest first, the lower key first where they are equal."""
    ranked, keys = torch.sort(order, dim=-1, descending=True, stable=True)
    ranked, keys = ranked[..., :top], keys[..., :top]
    hidden = ranked == -torch.inf
    missing = (0, top - keys.shape[-1])
    return (
        torch.nn.functional.pad(weights.gather(-1, keys).masked_fill(hidden, 0.0), missing, value=0.0),
        torch.nn.functional.pad(keys.masked_fill(hidden, -1).int(), missing, value=-1),
    )


def _pooled(weights: Float[Tensor, "batch heads query key"], cells: Cells) -> Float[Tensor, "batch heads rows columns"]:
    batch, heads, queries, keys = weights.shape
    cell = cells.of_queries[:, :, None] * cells.columns + cells.of_keys[:, None]
    cell = cell.expand(batch, queries, keys).flatten(1)[:, None].expand(batch, heads, -1)
    pooled = weights.new_zeros(batch, heads, cells.rows * cells.columns)
    if cells.how == "share":
        pooled = pooled.scatter_add(2, cell, weights.flatten(2)).view(batch, heads, cells.rows, cells.columns)
        return cells.averaged(pooled)
    pooled = pooled.scatter_reduce(2, cell, weights.flatten(2), "amax", include_self=False)
    return pooled.view(batch, heads, cells.rows, cells.columns)
