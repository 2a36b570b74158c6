"""A call of an attention as it ran: what a hook sees of it."""

from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import Attention
from ..attention.heads import key_heads_of, of_heads
from ..attention.written import WrittenBias, WrittenMask
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

    def of_written(self) -> "Ran":
        """Without the room that a cache of fixed shape has behind its keys."""
        mask, bias = self.attention.mask, self.attention.bias
        if not isinstance(mask, WrittenMask):
            return self
        attention = replace(self.attention, mask=mask.mask, bias=bias.bias if isinstance(bias, WrittenBias) else bias)
        filled = mask.keys - int(mask.behind)
        ran = self._replace(keys=self.keys[:, :, :filled], values=self.values[:, :, :filled], attention=attention)
        return ran if ran.fits(*ran.size) else self  # a mask of the whole room

    def fits(self, queries: int, keys: int) -> bool:
        """Whether its definition would fit so many queries and keys."""
        batch, heads, _, d_q = self.queries.shape
        try:
            self.attention.check(batch=batch, heads=heads, queries=queries, keys=keys, d_q=d_q, d_k=self.keys.shape[-1])
        except ValueError:
            return False
        return True

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
