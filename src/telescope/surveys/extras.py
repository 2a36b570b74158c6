"""Statistics that `survey` computes besides its summary, each only where it is asked for."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import Attention, Mask, softmax
from .cells import Cells, segments
from .summary import compute_dtype


class Extras(NamedTuple):
    """What an engine computes besides the summary, in the dtype of the survey. By default nothing.

    query_weights   sum the matrix over the queries with these weights: `Summary.weighted`
    norms           sum each row with these factors of the keys: `Summary.carried`
    largest         find the largest weight that each key gets: `Summary.largest_weight` and
                    `.largest_query`
    """

    query_weights: Float[Tensor, "#batch #heads sets query"] | None = None
    norms: Float[Tensor, "batch heads key"] | None = None
    largest: bool = False

    def __bool__(self) -> bool:
        return self.query_weights is not None or self.norms is not None or self.largest

    @property
    def sets(self) -> int:
        """How many weighted sums are computed."""
        return 0 if self.query_weights is None else self.query_weights.shape[2]


def read_extras(
    queries: Tensor,
    keys: Tensor,
    values: Tensor | None,
    query_weights: Any,
    norms: Any,
    largest: bool,
) -> Extras:
    """Return the extras that `survey` is asked for; raise a TypeError or ValueError where they do
    not fit.
    """
    return Extras(
        None if query_weights is None else read_query_weights(queries, query_weights),
        None if norms is None or norms is False else _norms(queries, keys, values, norms),
        bool(largest),
    )


def read_query_weights(queries: Tensor, given: Any) -> Float[Tensor, "#batch #heads sets query"]:
    """Return weights of the queries, given as (query,), (sets, query) or (batch or 1, heads or 1,
    sets, query).
    """
    weights = torch.as_tensor(given)
    (batch, heads, rows, _) = queries.shape
    shape = tuple(weights.shape)
    while weights.ndim < 2:
        weights = weights[None]
    weights = weights if weights.ndim == 4 else weights[None, None]
    fits = weights.ndim == 4 and weights.shape[-1] == rows and weights.shape[2] > 0
    if not fits or weights.shape[0] not in (1, batch) or weights.shape[1] not in (1, heads):
        raise ValueError(
            f"query_weights has shape {shape}; it takes a weight for each of the {rows} queries: "
            "(query,), "
            f"(sets, query) or (batch, heads, sets, query) with batch {batch} and heads {heads}, "
            "or 1 for either"
        )
    return weights.detach().to(queries.device, compute_dtype(queries))


def _norms(
    queries: Tensor, keys: Tensor, values: Tensor | None, given: Any
) -> Float[Tensor, "batch heads key"]:
    """Return one norm for each head and key; given for each key head, they are shared by its
    queries.
    """
    if given is True:
        if values is None:
            raise ValueError(
                "norms=True takes the norms of the values; give values= too, or the norms "
                "themselves"
            )
        given = values.detach().to(compute_dtype(queries)).norm(dim=-1)
    norms = torch.as_tensor(given)
    batch, heads = queries.shape[:2]
    key_heads, columns = keys.shape[1:3]
    if (
        norms.ndim != 3
        or len(norms) != batch
        or norms.shape[1] not in (heads, key_heads)
        or norms.shape[2] != columns
    ):
        raise ValueError(
            f"norms has shape {tuple(norms.shape)}; it takes (batch, heads, key) = "
            f"{(batch, heads, columns)}, "
            f"or {key_heads} key heads in place of heads"
        )
    norms = norms.detach().to(queries.device, compute_dtype(queries))
    return norms.repeat_interleave(heads // max(norms.shape[1], 1), 1).contiguous()


def segment_cells(ids: Any, queries: Tensor, keys: Tensor) -> Cells:
    """Return a map with a row for each query and a column for each segment of the keys."""
    rows = torch.arange(queries.shape[-2])
    size = (queries.shape[-2], keys.shape[-2])
    return segments((rows, ids), "share", of=size, batch=len(queries), device=queries.device)


def check_within(mask: Any, queries: Tensor, keys: Tensor, attention: Attention) -> None:
    """Raise a TypeError or ValueError if the share of weights within this mask cannot be
    computed.
    """
    if not isinstance(mask, Mask):
        raise TypeError(
            "within takes a mask, such as ts.window(4096) | ts.prefix(4), not "
            f"{type(mask).__name__}"
        )
    if attention.normalize is not softmax:
        raise ValueError("within is defined for softmax only; leave it out for another normaliser")
    batch, heads, rows, _ = queries.shape
    mask.check(batch=batch, heads=heads, queries=rows, keys=keys.shape[-2])
