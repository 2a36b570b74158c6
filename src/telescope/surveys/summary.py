"""What an engine of `survey` returns: numbers for each query and each key, none for each pair of
them.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Summary:
    """Numbers for each query and each key, in float32, or in float64 for float64 inputs.

    A row that sees nothing has entropy 0, weights 0 and keys -1.

    Example:
        >>> import telescope as ts, torch
        >>> zeros = torch.zeros(1, 2, 4, 8)
        >>> summary = ts.survey(zeros, zeros, top=1).summary
        >>> summary.received.shape, summary.one_head(1).received.shape
        (torch.Size([1, 2, 4]), torch.Size([1, 1, 4]))
    """

    lse: Float[Tensor, "batch heads query"] | None
    """ln Σ exp(score), the sink included, so that exp(score - lse) is the weight. None where it is
    not softmax.
    """
    received: Float[Tensor, "batch heads key"]
    """The weight each key gets from all queries together."""
    entropy: Float[Tensor, "batch heads query"]
    """-Σ w ln w over the keys, in nats. NaN where a weight is below zero, which softmax never
    gives.
    """
    top_weights: Float[Tensor, "batch heads query top"]
    """The largest weights, largest first; 0 where fewer keys are seen."""
    top_keys: Int[Tensor, "batch heads query top"]
    """The keys of these weights, int32, the lower one first where scores are equal; -1 where fewer
    are seen.
    """
    map: Float[Tensor, "batch heads rows columns"] | None
    """The pooled matrix, if cells were given."""
    before: Float[Tensor, "batch heads query"] | None = None
    """The total weight that `Marks.before` names, from the engine that reports it."""
    single: Float[Tensor, "batch heads query which"] | None = None
    """The weights that `Marks.single` names, from the engine that reports them."""
    listed: Float[Tensor, "batch heads query list"] | None = None
    """The total weights of the lists of `Marks.listed`, from the engine that reports them."""
    listed_seen: Bool[Tensor, "batch heads query list"] | None = None
    """Whether the query may see a key of the list."""
    weighted: Float[Tensor, "batch heads sets key"] | None = None
    """The weight each key gets from all queries together, each query counted with its
    `query_weights`.
    """
    carried: Float[Tensor, "batch heads query"] | None = None
    """Σ weight · norm over the keys, if `norms` were given."""
    largest_weight: Float[Tensor, "batch heads key"] | None = None
    """The largest weight that each key gets; 0 if no query gives it a weight above 0."""
    largest_query: Int[Tensor, "batch heads key"] | None = None
    """The query that gives it, int32, the lower one where weights are equal; -1 if there is none.
    """
    within: Float[Tensor, "batch heads query"] | None = None
    """The share of each query's weight inside of a mask."""
    lost: Float[Tensor, "batch heads query"] | None = None
    """How far the context moves if each query sees only what that mask lets it see: the norm of the
    difference.
    """
    shares: Float[Tensor, "batch heads query segment"] | None = None
    """The share of each query's weight that goes to each segment of the keys."""

    def one_head(self, i: int) -> "Summary":
        """Return the numbers of head i; every tensor keeps its heads axis, of size 1."""
        kept: dict[str, Any] = {
            name: part[:, i : i + 1] for name, part in vars(self).items() if part is not None
        }
        return replace(self, **kept)


def compute_dtype(queries: Tensor) -> torch.dtype:
    """Return the dtype a survey is computed in: float64 for float64 queries, else float32."""
    return torch.float64 if queries.dtype == torch.float64 else torch.float32
