"""What an engine of `survey` gives back: numbers for each query and each key, none for their pairs."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Marks(NamedTuple):
    """Keys of each query whose weight is asked for beside the summary, where an engine has it at hand; -1 is none."""

    before: Int[Tensor, " query"]
    """The weight of all keys before this one is asked for."""
    single: Int[Tensor, "which #batch query"]
    """The weight of this key is asked for."""


@dataclass(frozen=True, eq=False)
class Summary:
    """In float32, or in float64 for float64 inputs. A row that sees nothing has entropy 0, weights 0 and keys -1."""

    lse: Float[Tensor, "batch heads query"] | None
    """ln Σ exp(score), the sink included, so that exp(score - lse) is the weight. None where it is not softmax."""
    received: Float[Tensor, "batch heads key"]
    """The weight each key gets from all queries together."""
    entropy: Float[Tensor, "batch heads query"]
    """-Σ w ln w over the keys, in nats. NaN where a weight is below zero, which softmax never gives."""
    top_weights: Float[Tensor, "batch heads query top"]
    """The largest weights, largest first; 0 where fewer keys are seen."""
    top_keys: Int[Tensor, "batch heads query top"]
    """Their keys, int32, the lower one first where scores are equal; -1 where fewer are seen."""
    map: Float[Tensor, "batch heads rows columns"] | None
    before: Float[Tensor, "batch heads query"] | None = None
    """The weights that Marks ask for, from engines that have them at hand."""
    single: Float[Tensor, "batch heads query which"] | None = None

    def of_head(self, i: int) -> "Summary":
        """The same numbers of one head."""
        kept: dict[str, Any] = {name: some[:, i : i + 1] for name, some in vars(self).items() if some is not None}
        return replace(self, **kept)


def precision(queries: Tensor) -> torch.dtype:
    """The dtype a survey is computed in."""
    return torch.float64 if queries.dtype == torch.float64 else torch.float32
