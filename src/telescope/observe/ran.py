"""A call of an attention as it ran: what a hook sees of it."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import Attention
from ..attention.heads import key_heads_of, of_heads
from .survey.extend import Size


class Ran(NamedTuple):
    """A call of an attention as it ran, or what some of its heads did in it."""

    queries: Float[Tensor, "batch heads query d_q"]
    keys: Float[Tensor, "batch key_heads key d_k"]
    values: Float[Tensor, "batch key_heads key d_v"]
    attention: Attention
    heads: tuple[int, ...]
    """The numbers these heads have in the model."""
    dropout: float

    @property
    def size(self) -> Size:
        return self.queries.shape[-2], self.keys.shape[-2]

    @property
    def kind(self) -> tuple[object, ...]:
        """What does not change while a sequence grows."""
        batch, heads, _, d_q = self.queries.shape
        return batch, heads, d_q, self.queries.dtype, self.queries.device, self.heads, self.dropout

    def of_heads(self, numbers: tuple[int, ...]) -> "Ran":
        """What these heads did, with the keys and values that serve them."""
        count, which = self.queries.shape[1], torch.tensor(numbers)
        serving = key_heads_of(which, count, self.keys.shape[1]).tolist()
        return self._replace(
            queries=self.queries[:, numbers],
            keys=self.keys[:, serving],
            values=self.values[:, serving],
            attention=of_heads(self.attention, which, count),
            heads=numbers,
        )
