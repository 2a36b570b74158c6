"""The tensors of one head in one sequence."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from ..attention import Attention


class OneHead(NamedTuple):
    """Of one head and one sequence; the values and the lse only where they were kept."""

    queries: Float[Tensor, "1 1 query d_q"]
    keys: Float[Tensor, "1 1 key d_k"]
    values: Float[Tensor, "1 1 key d_v"] | None
    attention: Attention
    lse: Float[Tensor, "1 1 query"] | None = None

    @property
    def size(self) -> tuple[int, int]:
        return self.queries.shape[-2], self.keys.shape[-2]
