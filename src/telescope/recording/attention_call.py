"""A call of an attention as it ran: what whoever looks on sees of it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import index
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from ..attention import Attention, Mask, Pairs
from ..attention.padding_queries import RealQueries
from ..attention.restrict import RenumberedBias, WrittenMask, key_heads_of, of_heads, of_later_keys, of_queries
from ..survey.extend import Size
from .head_shares import BatchTokens, Places


class AttentionCall(NamedTuple):
    """A call of an attention as it ran, or what some of its heads or queries did in it."""

    queries: Float[Tensor, "batch heads query d_q"]
    keys: Float[Tensor, "batch key_heads key d_k"]
    values: Float[Tensor, "batch key_heads key d_v"]
    attention: Attention
    """The definition, in which the keys that are gone are counted and hidden."""
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
    positions: tuple[int, ...] | None = None
    """Of the queries, counted on the keys, those that are gone included; None is the last ones."""
    text: BatchTokens | None = None
    """The tokens of all keys, where these are the queries' own and known."""
    across: bool | None = None
    """Whether keys and queries come from two sequences; None if the caller does not say."""

    @property
    def size(self) -> Size:
        return self.queries.shape[-2], self.gone + self.keys.shape[-2]

    @property
    def looks_across(self) -> bool:
        """Whether keys and queries come from two sequences: as the caller says, else a guess."""
        if self.across is not None:
            return self.across
        return self.key_ids is not None or seems_across(self.attention, self.size)

    @property
    def places(self) -> Places:
        batch, heads = self.queries.shape[:2]
        return Places.of(
            self.attention,
            batch=batch,
            heads=heads,
            size=self.size,
            positions=self.positions,
            across=self.looks_across,
            text=self.text,
            device=self.queries.device,
            gone=self.gone,
        )

    @property
    def kind(self) -> tuple[object, ...]:
        """What does not change while a sequence grows."""
        batch, heads, _, d_q = self.queries.shape
        return batch, heads, d_q, self.queries.dtype, self.queries.device, self.heads, self.dropout, self.across

    @property
    def known_by(self) -> tuple[Tensor, ...]:
        """What tells a sequence from others."""
        return (self.keys,) if self.keys_of_text else (self.keys, self.values)

    @property
    def here(self) -> Attention:
        """The definition over the keys that are here."""
        return of_later_keys(self.attention, self.gone)

    def from_first_key(self) -> "AttentionCall":
        """Return the same call with a place for every key there ever was: those that are gone are zeros."""
        if not self.gone:
            return self
        keys, values = (pad(tensor, (0, 0, self.gone, 0)) for tensor in (self.keys, self.values))
        return self._replace(keys=keys, values=values, gone=0)

    def of_written(self) -> "AttentionCall":
        """Without the room that a cache of fixed shape has behind its keys."""
        mask, bias = self.attention.mask, self.attention.bias
        if not isinstance(mask, WrittenMask):
            return self
        bias = bias.bias if isinstance(bias, RenumberedBias) else bias
        attention = replace(self.attention, mask=mask.mask, bias=bias)
        filled = int(mask.numbering.length)
        ran = self._replace(keys=self.keys[:, :, :filled], values=self.values[:, :, :filled], attention=attention)
        return ran if ran.fits(*ran.size) else self  # a mask of the whole room

    def of_real_queries(self, known: Mask | None) -> "AttentionCall":
        """Without what padding asks: a query at a key that `known`, a mask of padding, hides sees nothing."""
        (batch, heads), sink = self.queries.shape[:2], self.attention.sink
        if known is None:
            return self
        real = RealQueries(known)
        lse = self.lse
        if lse is not None:
            at = Pairs.block(range(self.size[0]), range(0), of=self.size, batch=batch, heads=heads, device=lse.device)
            none = -torch.inf if sink is None else torch.as_tensor(sink, device=lse.device).reshape(-1, 1).to(lse.dtype)
            lse = torch.where(real.sees(at)[..., 0], lse, none)
        return self._replace(attention=self.attention.seeing(real), lse=lse)

    def fits(self, queries: int, keys: int) -> bool:
        """Whether its definition would fit so many queries and keys."""
        batch, heads, _, d_q = self.queries.shape
        try:
            self.attention.check(batch=batch, heads=heads, queries=queries, keys=keys, d_q=d_q, d_k=self.keys.shape[-1])
        except ValueError:
            return False
        return True

    def of_heads(self, numbers: tuple[int, ...]) -> "AttentionCall":
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

    def of_queries(self, which: Int[Tensor, " some"]) -> "AttentionCall":
        """What these queries did. (Who goes on with it has to know of all of them.)"""
        rows, first = which.to(self.queries.device), self.size[1] - self.size[0]
        return self._replace(
            queries=self.queries[:, :, rows],
            attention=of_queries(self.attention, which, self.size),
            lse=None if self.lse is None else self.lse[:, :, rows],
            positions=tuple(first + row for row in which.tolist()),
        )


def seems_across(attention: Attention, size: Size) -> bool:
    """Guess whether keys and queries come from two sequences, by the number of keys and by the mask."""
    queries, keys = size
    return queries > keys or (queries < keys and attention.mask.keys_alone)


Chosen = Callable[[int, int], Sequence[int]]  # of so many queries, after so many that came before: which of them


def everyone(count: int, before: int) -> Sequence[int]:
    return range(count)


def chosen(queries: Any) -> Chosen:
    """Numbers from 0 are places in the sequence; below 0 they count from the last query of a call, so that -1 is the
    last token read, and then every one that is written. A slice or a range is of places."""
    if queries is None:
        return everyone
    if isinstance(queries, slice):
        if any(end is not None and end < 0 for end in (queries.start, queries.stop)) or (queries.step or 1) < 1:
            raise ValueError(f"queries={queries} counts from the end, which moves while a model writes; use numbers")
        return lambda count, before: [
            row for row in range(count) if before + row in range(*queries.indices(before + count))
        ]
    try:
        numbers = [index(queries)] if not hasattr(queries, "__iter__") else [index(number) for number in queries]
    except TypeError:
        numbers = []
    doubtful = any(isinstance(number, bool) for number in (queries, *numbers)) or len(set(numbers)) < len(numbers)
    if not numbers or doubtful:
        raise ValueError(f"queries={queries!r} are not numbers of queries, each once; -1 is the last, None is all")

    def rows(count: int, before: int) -> list[int]:
        places = {number - before if number >= 0 else count + number for number in numbers}
        return [row for row in range(count) if row in places]

    return rows
