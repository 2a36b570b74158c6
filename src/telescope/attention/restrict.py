"""An attention at other numbers: its masks and biases are asked about the pairs of the whole that it was taken from."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .biases import Alibi, Bias, OfPositions, Relative
from .definition import Attention
from .mask import Both, Combination, Everyone, Mask, Opposite
from .masks import Causal, Documents, Keep, Left, Lengths, Prefix, Window, prefix
from .pairs import Pairs, Spans, pick
from .scores import Additive, General, Score
from .values import Value, tensors


class Restriction(Value, ABC):
    """Which numbers the pairs have in the whole. A new one says that, the size of the whole, and what is `alike`."""

    alike: ClassVar[tuple[type[Value], ...]] = ()
    """The masks and biases that say the same at both numbers. They stay, so that an engine still finds `causal`."""

    @abstractmethod
    def in_whole(self, at: Pairs) -> Pairs:
        """The same pairs, as they are numbered in the whole."""

    def whole(self, **size: int) -> dict[str, int]:
        """The size of the whole, where this is the size of the part. Keys that are not in the part are the first."""
        return size

    def renumber(self, attention: Attention) -> Attention:
        bias = attention.bias
        return replace(
            attention,
            bias=self.bias(bias) if isinstance(bias, Bias) else bias,
            mask=self.mask(attention.mask),
        )

    def mask(self, mask: Mask) -> Mask:
        """Part by part."""
        if type(mask) in self.alike:
            return mask
        if isinstance(mask, Combination):
            return type(mask)(tuple(self.mask(part) for part in mask.masks))
        return Opposite(self.mask(mask.mask)) if isinstance(mask, Opposite) else Renumbered(mask, self)

    def bias(self, bias: Bias) -> Bias:
        return bias if type(bias) in self.alike else RenumberedBias(bias, self)


@dataclass(frozen=True, eq=False)
class Renumbered(Mask):
    """A mask of the whole, asked about a part of it."""

    mask: Mask
    numbering: Restriction

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        return self.mask.sees(self.numbering.in_whole(at))

    def spans(self, at: Pairs, keys: int) -> Spans:
        of = self.numbering.whole(keys=keys)["keys"]
        spans, gone = self.mask.spans(self.numbering.in_whole(at), of), of - keys
        return Spans.between(spans.start - gone, spans.stop - gone, keys, whole=spans.whole)

    def check(self, **size: int) -> None:
        self.mask.check(**self.numbering.whole(**size))

    @property
    def keys_alone(self) -> bool:
        return self.mask.keys_alone

    def __repr__(self) -> str:
        return repr(self.mask)


@dataclass(frozen=True, eq=False)
class RenumberedBias(Bias):
    """A bias of the whole, asked about a part of it."""

    bias: Bias
    numbering: Restriction

    def __call__(self, at: Pairs) -> Float[Tensor, "#batch #head #query #key"]:
        return self.bias(self.numbering.in_whole(at))

    def added(self, at: Pairs, dtype: torch.dtype) -> Float[Tensor, "#batch #head #query #key"]:
        return self.bias.added(self.numbering.in_whole(at), dtype)

    def check(self, **size: int) -> None:
        self.bias.check(**self.numbering.whole(**size))

    def __repr__(self) -> str:
        return repr(self.bias)


def of_heads(attention: Attention, which: Int[Tensor, " some"], of: int) -> Attention:
    """What these heads of `of` compute, as an attention of that many heads."""
    sink = attention.sink
    return replace(
        SomeHeads(which, of).renumber(attention),
        score=_score(attention.score, which),
        sink=_some(sink, which) if isinstance(sink, Tensor) and sink.numel() > 1 else sink,
    )


def key_heads_of(which: Int[Tensor, " some"], heads: int, key_heads: int) -> Int[Tensor, " some_key_heads"]:
    """The key heads that serve these heads: each once where they still share evenly, otherwise one for each."""
    serving = which // (heads // (key_heads or 1))
    shared, counts = torch.unique_consecutive(serving, return_counts=True)
    return shared if len(counts.unique()) == 1 else serving


@dataclass(frozen=True, eq=False)
class SomeHeads(Restriction):
    which: Int[Tensor, " some"]
    of: int

    alike = (Everyone, Causal, Window, Prefix, Lengths, Left, Keep, Documents, OfPositions)

    def in_whole(self, at: Pairs) -> Pairs:
        return replace(at, head=pick(self.which, at.head))

    def whole(self, **size: int) -> dict[str, int]:
        return size | {"heads": self.of}

    def bias(self, bias: Bias) -> Bias:
        if type(bias) is Alibi:
            return Alibi(_some(bias.slopes, self.which))
        if type(bias) is Relative:
            return Relative(_some(bias.table, self.which)) if len(bias.table) > 1 else bias
        return super().bias(bias)


def _score(score: Score, which: Tensor) -> Score:
    if type(score) is General:
        return General(_some(score.W, which, 2))
    if type(score) is Additive:
        return Additive(_some(score.W_q, which, 2), _some(score.W_k, which, 2), _some(score.v, which, 1))
    if next(tensors(score), None) is not None:
        raise ValueError(f"score={score!r} holds tensors, by head or not, so its heads cannot be taken apart")
    return score


def _some(tensor: Tensor, which: Tensor, shared: int = 0) -> Tensor:
    """Those of these heads; one of `shared` axes is the same for all."""
    return tensor if tensor.ndim == shared else tensor[which.to(tensor.device)]


Size = tuple[int, int]  # queries, keys


def of_queries(attention: Attention, which: Int[Tensor, " some"], of: Size) -> Attention:
    """What these queries of a matrix of that size compute, as an attention of that many queries."""
    if len(which) == of[0] and which.tolist() == list(range(of[0])):
        return attention
    return SomeQueries(which, of).renumber(attention)


@dataclass(frozen=True, eq=False)
class SomeQueries(Restriction):
    which: Int[Tensor, " some"]
    of: Size

    def in_whole(self, at: Pairs) -> Pairs:
        row = pick(self.which, at.row)
        return replace(at, row=row, query=row + (self.of[1] - self.of[0]))

    def whole(self, **size: int) -> dict[str, int]:
        return size | {"queries": self.of[0]}

    def mask(self, mask: Mask) -> Mask:
        return mask if mask.keys_alone else super().mask(mask)


def of_sequences(attention: Attention, which: Int[Tensor, " some"], of: int) -> Attention:
    """What it computes in these sequences of `of`, as an attention of a batch of that many."""
    return attention if which.tolist() == list(range(of)) else SomeSequences(which, of).renumber(attention)


@dataclass(frozen=True, eq=False)
class SomeSequences(Restriction):
    which: Int[Tensor, " some"]
    of: int

    alike = (Everyone, Causal, Window, Prefix, OfPositions, Alibi, Relative)

    def in_whole(self, at: Pairs) -> Pairs:
        return replace(at, batch=pick(self.which, at.batch))

    def whole(self, **size: int) -> dict[str, int]:
        return size | {"batch": self.of}


def of_later_keys(attention: Attention, gone: int) -> Attention:
    """What is computed when the first `gone` keys, which no query sees, are not there."""
    return LaterKeys(gone).renumber(attention) if gone else attention


def without_first_keys(mask: Mask, gone: int, of: tuple[int, int], *, batch: int, heads: int) -> Mask:
    """Return `mask` with the first `gone` keys hidden, in a matrix of size `of`: itself where it hides them already."""
    parts = mask.masks if isinstance(mask, Both) else (mask,)
    at = Pairs.block(range(of[0]), range(0), of=of, batch=batch, heads=heads)
    for part in sorted(parts, key=lambda part: next(tensors(part), None) is not None):  # numbers wait for no GPU
        spans = part.spans(at, of[1])
        if bool((spans.empty | (spans.start >= gone)).all()):
            return mask
    return mask & ~prefix(gone)


@dataclass(frozen=True, eq=False)
class LaterKeys(Restriction):
    gone: int

    alike = (Everyone, Causal, Window, Alibi, Relative)  # of the distance alone

    def in_whole(self, at: Pairs) -> Pairs:
        return replace(at, query=at.query + self.gone, key=at.key + self.gone)

    def whole(self, **size: int) -> dict[str, int]:
        return size | {"keys": size["keys"] + self.gone}


def written(attention: Attention, keys: int, length: Int[Tensor, ""]) -> Attention:
    """The same attention over `keys` keys of which the first `length` are written; a tensor, so that it can be on a
    GPU and change without anyone waiting for it."""
    return BeforeRoom(keys, keys - length).renumber(attention)


@dataclass(frozen=True, eq=False)
class BeforeRoom(Restriction):
    """The last `behind` of `keys` keys are room that is not written yet: the last query stands before them."""

    keys: int
    behind: Int[Tensor, ""]

    @property
    def length(self) -> Int[Tensor, ""]:
        return self.keys - self.behind

    def in_whole(self, at: Pairs) -> Pairs:
        return replace(at, query=at.query - self.behind)

    def mask(self, mask: Mask) -> Mask:
        return WrittenMask(mask, self)


@dataclass(frozen=True, eq=False)
class WrittenMask(Renumbered):
    """`mask`, where nobody sees the room. It is made for one step of a model; what an engine works out of it is `known`
    in all its layers."""

    numbering: BeforeRoom

    def __post_init__(self) -> None:
        self.known: dict[Any, Any]
        object.__setattr__(self, "known", {})

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        return super().sees(at) & (at.key < self.numbering.length)

    def spans(self, at: Pairs, keys: int) -> Spans:
        return Spans.unknown(at, keys)  # more would wait for the length

    def of_last_query(self) -> Mask:
        return replace(self, mask=self.mask.of_last_query())

    def __repr__(self) -> str:
        return f"written({self.mask!r})"
