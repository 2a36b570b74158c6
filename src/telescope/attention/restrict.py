"""Restrict an attention to some heads, queries, sequences or keys.

The restricted definition is an ordinary Attention of the smaller size. Its masks and biases compute
the pairs of the full attention that it was taken from: the indices are translated, and no tensor is
formed. Read `restrict_to_heads` and its restriction `SomeHeads` first; the others follow the same
pattern.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from .definition import Attention
from .mask import Combination, Everyone, Mask, Opposite, Pairs, Seen, Spans
from .masks import Causal, Documents, Keep, Left, Lengths, Prefix, Window, prefix
from .scores import Added, Additive, Alibi, Bias, General, OfPositions, Relative, Score, SumOfBiases
from .values import Value, pick, tensors

# Indices of the heads, queries or sequences that are kept, in the order of the result.
Selected = Int[Tensor, " selected"]


class Restriction(Value, ABC):
    """Translate indices of the restricted attention into those of the full one.

    A subclass defines `to_full`, `full_size` if sizes differ, and the types that are `unaffected`.
    """

    unaffected: ClassVar[tuple[type[Value], ...]] = ()
    """Masks and biases that give the same for both indices. They stay as they are: engines then
    still find `causal`.
    """

    @abstractmethod
    def to_full(self, at: Pairs) -> Pairs:
        """Return the pairs `at` with their indices in the full attention."""

    def full_size(self, **size: int) -> dict[str, int]:
        """Return the sizes of the full attention for these of the restricted one. Dropped keys are
        the first ones.
        """
        return size

    def apply(self, attention: Attention) -> Attention:
        """Return the restricted attention. Scores and sinks by head are left to the caller."""
        bias = attention.bias
        restricted = self.bias(bias) if isinstance(bias, Bias) else None
        return replace(attention, bias=restricted, mask=self.mask(attention.mask))

    def mask(self, mask: Mask) -> Mask:
        """Return the restricted mask; a combination is restricted part by part."""
        if type(mask) in self.unaffected:
            return mask
        if isinstance(mask, Combination):
            return type(mask)(tuple(self.mask(part) for part in mask.masks))
        if isinstance(mask, Opposite):
            return Opposite(self.mask(mask.mask))  # torch.compile cannot trace `~` of a mask
        # Anything else is asked at the indices of the full attention.
        return Renumbered(mask, self)

    def bias(self, bias: Bias) -> Bias:
        """Return the restricted bias; a sum is restricted part by part."""
        if isinstance(bias, SumOfBiases):
            return SumOfBiases(tuple(self.bias(part) for part in bias.biases))
        return bias if type(bias) in self.unaffected else RenumberedBias(bias, self)


@dataclass(frozen=True, eq=False)
class Renumbered(Mask):
    """A mask of the full attention, evaluated at the restricted indices."""

    mask: Mask
    numbering: Restriction

    def sees(self, at: Pairs) -> Seen:
        return self.mask.sees(self.numbering.to_full(at))

    def spans(self, at: Pairs, keys: int) -> Spans:
        # Spans of the full attention, moved by the keys that were dropped in front.
        full_keys = self.numbering.full_size(keys=keys)["keys"]
        spans = self.mask.spans(self.numbering.to_full(at), full_keys)
        dropped = full_keys - keys
        return Spans.between(spans.start - dropped, spans.stop - dropped, keys, whole=spans.whole)

    def check(self, **size: int) -> None:
        self.mask.check(**self.numbering.full_size(**size))

    @property
    def same_for_all_queries(self) -> bool:
        return self.mask.same_for_all_queries

    def __repr__(self) -> str:
        return repr(self.mask)


@dataclass(frozen=True, eq=False)
class RenumberedBias(Bias):
    """A bias of the full attention, evaluated at the restricted indices."""

    bias: Bias
    numbering: Restriction

    def __call__(self, at: Pairs) -> Added:
        return self.bias(self.numbering.to_full(at))

    def added(self, at: Pairs, dtype: torch.dtype) -> Added:
        return self.bias.added(self.numbering.to_full(at), dtype)

    def check(self, **size: int) -> None:
        self.bias.check(**self.numbering.full_size(**size))

    def __repr__(self) -> str:
        return repr(self.bias)


def restrict_to_heads(attention: Attention, which: Selected, of: int) -> Attention:
    """Return what the heads `which` of an attention with `of` heads compute, as an attention of
    len(which) heads.
    """
    sink = attention.sink
    return replace(
        SomeHeads(which, of).apply(attention),
        # Scores and sinks may have a part for each head.
        score=_restrict_score(attention.score, which),
        sink=_select_heads(sink, which) if isinstance(sink, Tensor) and sink.numel() > 1 else sink,
    )


def key_heads_of(which: Selected, heads: int, key_heads: int) -> Int[Tensor, " selected_key_heads"]:
    """Return the key heads of the query heads `which`: each once if groups stay equally large, else
    one per query head.

    Args:
        which: Query heads.
        heads: How many query heads there are.
        key_heads: How many key heads there are.
    """
    # Neighbouring query heads share a key head.
    per_query_head = which // (heads // (key_heads or 1))
    shared, counts = torch.unique_consecutive(per_query_head, return_counts=True)
    # Kernels take groups of one size only.
    return shared if len(counts.unique()) == 1 else per_query_head


@dataclass(frozen=True, eq=False)
class SomeHeads(Restriction):
    """Heads `which` out of `of`."""

    which: Selected
    of: int

    # None of these depends on the head.
    unaffected = (Everyone, Causal, Window, Prefix, Lengths, Left, Keep, Documents, OfPositions)

    def to_full(self, at: Pairs) -> Pairs:
        return replace(at, head=pick(self.which, at.head))

    def full_size(self, **size: int) -> dict[str, int]:
        return size | {"heads": self.of}

    def bias(self, bias: Bias) -> Bias:
        # Biases with one row for each head stay what they are, so that kernels find them.
        if type(bias) is Alibi:
            return Alibi(_select_heads(bias.slopes, self.which))
        if type(bias) is Relative:
            return Relative(_select_heads(bias.table, self.which)) if len(bias.table) > 1 else bias
        return super().bias(bias)


def _restrict_score(score: Score, which: Tensor) -> Score:
    """Return the score of the heads `which`; raise a ValueError for an unknown score that holds
    tensors.
    """
    if type(score) is General:
        return General(_select_heads(score.W, which, 2))
    if type(score) is Additive:
        W_q = _select_heads(score.W_q, which, 2)
        W_k = _select_heads(score.W_k, which, 2)
        return Additive(W_q, W_k, _select_heads(score.v, which, 1))
    # Nobody knows which axis of a tensor of another class belongs to heads.
    if next(tensors(score), None) is not None:
        raise ValueError(
            f"score={score!r} holds tensors that may differ by head; it cannot be restricted to "
            "some heads"
        )
    return score


def _select_heads(tensor: Tensor, which: Tensor, shared_ndim: int = 0) -> Tensor:
    """Return tensor[which]; a tensor of `shared_ndim` axes has no axis of heads and is returned as
    it is.
    """
    return tensor if tensor.ndim == shared_ndim else tensor[which.to(tensor.device)]


Size = tuple[int, int]  # queries, keys


def restrict_to_queries(attention: Attention, which: Selected, of: Size) -> Attention:
    """Return what the queries `which` of a matrix of size `of` compute, as an attention of
    len(which) queries.
    """
    # All queries in order: nothing changes, and kernels keep their masks.
    if len(which) == of[0] and which.tolist() == list(range(of[0])):
        return attention
    return SomeQueries(which, of).apply(attention)


@dataclass(frozen=True, eq=False)
class SomeQueries(Restriction):
    """Queries `which` of a matrix of size `of` = (queries, keys)."""

    which: Selected
    of: Size

    def to_full(self, at: Pairs) -> Pairs:
        row = pick(self.which, at.row)
        # The last query of the full attention is at its last key.
        return replace(at, row=row, query=row + (self.of[1] - self.of[0]))

    def full_size(self, **size: int) -> dict[str, int]:
        return size | {"queries": self.of[0]}

    def mask(self, mask: Mask) -> Mask:
        # One row stands for all queries, whichever are chosen.
        return mask if mask.same_for_all_queries else super().mask(mask)


def restrict_to_sequences(attention: Attention, which: Selected, of: int) -> Attention:
    """Return what the sequences `which` of a batch of `of` compute, as an attention of a batch of
    len(which).
    """
    return (
        attention
        if which.tolist() == list(range(of))
        else SomeSequences(which, of).apply(attention)
    )


@dataclass(frozen=True, eq=False)
class SomeSequences(Restriction):
    """Sequences `which` of a batch of `of`."""

    which: Selected
    of: int

    # None of these depends on the sequence.
    unaffected = (Everyone, Causal, Window, Prefix, OfPositions, Alibi, Relative)

    def to_full(self, at: Pairs) -> Pairs:
        return replace(at, batch=pick(self.which, at.batch))

    def full_size(self, **size: int) -> dict[str, int]:
        return size | {"batch": self.of}


def drop_first_keys(attention: Attention, gone: int) -> Attention:
    """Return the attention over the keys from `gone` on. No query may see a key before that."""
    return LaterKeys(gone).apply(attention) if gone else attention


def hide_first_keys(mask: Mask, gone: int, of: tuple[int, int], *, batch: int, heads: int) -> Mask:
    """Return `mask` with the first `gone` keys hidden, in a matrix of size `of` = (queries, keys).

    A mask that hides these keys already is returned as it is.
    """
    at = Pairs.block(range(of[0]), range(0), of=of, batch=batch, heads=heads)
    # First the masks that read no tensor.
    for part in sorted(mask.parts, key=lambda part: next(tensors(part), None) is not None):
        spans = part.spans(at, of[1])
        if bool((spans.empty | (spans.start >= gone)).all()):
            return mask
    # No part hides all of these keys by itself.
    return mask & ~prefix(gone)


@dataclass(frozen=True, eq=False)
class LaterKeys(Restriction):
    """The keys from `gone` on."""

    gone: int

    unaffected = (Everyone, Causal, Window, Alibi, Relative)  # they depend on the distance alone

    def to_full(self, at: Pairs) -> Pairs:
        # Queries and keys move alike, so that their distances stay.
        return replace(at, query=at.query + self.gone, key=at.key + self.gone)

    def full_size(self, **size: int) -> dict[str, int]:
        # The full attention still has the dropped keys, in front.
        return size | {"keys": size["keys"] + self.gone}


def restrict_to_written_keys(attention: Attention, keys: int, length: Int[Tensor, ""]) -> Attention:
    """Return the attention over a cache of `keys` keys of which only the first `length` are
    written.

    `length` is a scalar tensor: it may be on a GPU and change in place, and nothing waits for its
    value.
    """
    return BeforeRoom(keys, keys - length).apply(attention)


@dataclass(frozen=True, eq=False)
class BeforeRoom(Restriction):
    """A cache of `keys` keys whose last `behind` are not written yet: the last query is at the last
    written key.
    """

    keys: int
    behind: Int[Tensor, ""]

    @property
    def length(self) -> Int[Tensor, ""]:
        """How many keys are written."""
        return self.keys - self.behind

    def to_full(self, at: Pairs) -> Pairs:
        # Positions count to the last written key, not to the end of the cache.
        return replace(at, query=at.query - self.behind)

    def mask(self, mask: Mask) -> Mask:
        return WrittenMask(mask, self)


@dataclass(frozen=True, eq=False)
class WrittenMask(Renumbered):
    """`mask` over a cache, with the keys hidden that are not written yet.

    It is made for one step of a model. Engines keep what they compute from it in `cache`, for all
    layers of that step.
    """

    numbering: BeforeRoom

    @cached_property
    def cache(self) -> dict[Any, Any]:
        """What engines have computed from this mask, by keys of their own; not read inside
        torch.compile.
        """
        return {}

    def sees(self, at: Pairs) -> Seen:
        # The tensor may be on a GPU and change with each step: compare, never read it.
        return super().sees(at) & (at.key < self.numbering.length)

    def spans(self, at: Pairs, keys: int) -> Spans:
        return Spans.unknown(at, keys)  # a tighter bound would wait for the length

    def for_last_query(self) -> Mask:
        return replace(self, mask=self.mask.for_last_query())

    def __repr__(self) -> str:
        return f"written({self.mask!r})"


def without_room(attention: Attention) -> tuple[Attention, WrittenMask | None]:
    """Return the definition without the mask of a cache's unwritten keys, and that mask."""
    mask = attention.mask
    bias = attention.bias
    if not isinstance(mask, WrittenMask):
        return attention, None
    # A bias over such a cache is wrapped, to count keys as the cache does.
    inner = bias.bias if isinstance(bias, RenumberedBias) else bias
    return replace(attention, mask=mask.mask, bias=inner), mask
