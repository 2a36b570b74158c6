"""A call of an attention as it ran: what whoever looks on sees of it."""

from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import Attention
from ..attention.heads import key_heads_of, of_heads
from ..attention.later import of_later_keys
from ..attention.numbering import RenumberedBias
from ..attention.queries import of_queries
from ..attention.written import WrittenMask
from .survey.extend import Size


class Ran(NamedTuple):
    """A call of an attention as it ran, or what some of its heads or queries did in it."""

    queries: Float[Tensor, "batch heads query d_q"]
    keys: Float[Tensor, "batch key_heads key d_k"]
    values: Float[Tensor, "batch key_heads key d_v"]
    attention: Attention
    """The definition, in which the keys that are gone are counted."""
    heads: tuple[int, ...]
    """The numbers these heads have in the model."""
    dropout: float
    lse: Float[Tensor, "batch heads query"] | None = None
    """Where the engine gave it."""
    gone: int = 0
    """How many keys there were before the first of these: a cache that keeps a window lets them go."""
    query_ids: Int[Tensor, "batch query"] | None = None
    key_ids: Int[Tensor, "batch key"] | None = None
    """The tokens, where they are known; of the keys where these are another sequence."""
    keys_of_text: bool = False
    """Keys may be a table's, the same for every text; whether these are known not to be."""

    @property
    def size(self) -> Size:
        return self.queries.shape[-2], self.gone + self.keys.shape[-2]

    @property
    def kind(self) -> tuple[object, ...]:
        """What does not change while a sequence grows."""
        batch, heads, _, d_q = self.queries.shape
        return batch, heads, d_q, self.queries.dtype, self.queries.device, self.heads, self.dropout

    @property
    def known_by(self) -> tuple[Tensor, ...]:
        """What tells a sequence from others."""
        return (self.keys,) if self.keys_of_text else (self.keys, self.values)

    @property
    def here(self) -> Attention:
        """The definition over the keys that are here."""
        return of_later_keys(self.attention, self.gone)

    def of_written(self) -> "Ran":
        """Without the room that a cache of fixed shape has behind its keys."""
        mask, bias = self.attention.mask, self.attention.bias
        if not isinstance(mask, WrittenMask):
            return self
        bias = bias.bias if isinstance(bias, RenumberedBias) else bias
        attention = replace(self.attention, mask=mask.mask, bias=bias)
        filled = int(mask.numbering.length)
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
            lse=None if self.lse is None else self.lse[:, numbers],
        )

    def of_queries(self, which: Int[Tensor, " some"]) -> "Ran":
        """What these queries did. (Who goes on with it has to know of all of them.)"""
        rows = which.to(self.queries.device)
        return self._replace(
            queries=self.queries[:, :, rows],
            attention=of_queries(self.attention, which, self.size),
            lse=None if self.lse is None else self.lse[:, :, rows],
        )
