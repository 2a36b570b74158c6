"""The same attention, of some of its heads alone."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .biases import Alibi, Bias, OfPositions, Relative
from .definition import Attention
from .mask import Combination, Everyone, Mask, Opposite
from .masks import Causal, Documents, Keep, Left, Lengths, Prefix, Window
from .pairs import Pairs
from .scores import Additive, General, Score
from .spans import Spans
from .values import tensors

ALIKE = (Everyone, Causal, Window, Prefix, Lengths, Left, Keep, Documents)  # masks that are the same in every head


def of_heads(attention: Attention, which: Int[Tensor, " some"], of: int) -> Attention:
    """What these heads of `of` compute, as an attention of that many heads."""
    bias, sink = attention.bias, attention.sink
    return replace(
        attention,
        score=_score(attention.score, which),
        bias=_bias(bias, which, of) if isinstance(bias, Bias) else bias,
        sink=_some(sink, which) if isinstance(sink, Tensor) and sink.numel() > 1 else sink,
        mask=_mask(attention.mask, which, of),
    )


def key_heads_of(which: Int[Tensor, " some"], heads: int, key_heads: int) -> Int[Tensor, " some_key_heads"]:
    """The key heads that serve these heads: each once where they still share evenly, otherwise one for each."""
    serving = which // (heads // (key_heads or 1))
    shared, counts = torch.unique_consecutive(serving, return_counts=True)
    return shared if len(counts.unique()) == 1 else serving


@dataclass(frozen=True, eq=False)
class SeenByHeads(Mask):
    """A mask that may differ from head to head, for some of them."""

    mask: Mask
    which: Int[Tensor, " some"]
    of: int

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        return self.mask.sees(_renumbered(at, self.which))

    def spans(self, at: Pairs, keys: int) -> Spans:
        return self.mask.spans(_renumbered(at, self.which), keys)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        self.mask.check(batch=batch, heads=self.of, queries=queries, keys=keys)

    @property
    def keys_alone(self) -> bool:
        return self.mask.keys_alone

    def __repr__(self) -> str:
        return repr(self.mask)


@dataclass(frozen=True, eq=False)
class OfHeads(Bias):
    """A bias that may differ from head to head, for some of them."""

    bias: Bias
    which: Int[Tensor, " some"]
    of: int

    def __call__(self, at: Pairs) -> Float[Tensor, "#batch #head #query #key"]:
        return self.bias(_renumbered(at, self.which))

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        self.bias.check(batch=batch, heads=self.of, queries=queries, keys=keys)

    def __repr__(self) -> str:
        return repr(self.bias)


def _renumbered(at: Pairs, which: Tensor) -> Pairs:
    return replace(at, head=which.to(at.head.device)[at.head])


def _mask(mask: Mask, which: Tensor, of: int) -> Mask:
    """Part by part, so that an engine still finds `causal` among them."""
    if type(mask) in ALIKE:
        return mask
    if isinstance(mask, Combination):
        return type(mask)(tuple(_mask(part, which, of) for part in mask.masks))
    if isinstance(mask, Opposite):
        return Opposite(_mask(mask.mask, which, of))
    return SeenByHeads(mask, which, of)


def _bias(bias: Bias, which: Tensor, of: int) -> Bias:
    if type(bias) is OfPositions:
        return bias
    if type(bias) is Alibi:
        return Alibi(_some(bias.slopes, which))
    if type(bias) is Relative:
        return Relative(_some(bias.table, which)) if len(bias.table) > 1 else bias
    return OfHeads(bias, which, of)


def _score(score: Score, which: Tensor) -> Score:
    if type(score) is General:
        return General(_some(score.W, which) if score.W.ndim == 3 else score.W)
    if type(score) is Additive:
        W_q, W_k, v = score.W_q, score.W_k, score.v
        return Additive(
            _some(W_q, which) if W_q.ndim == 3 else W_q,
            _some(W_k, which) if W_k.ndim == 3 else W_k,
            _some(v, which) if v.ndim == 2 else v,
        )
    if next(tensors(score), None) is not None:
        raise ValueError(f"score={score!r} holds tensors, by head or not, so its heads cannot be taken apart")
    return score


def _some(tensor: Tensor, which: Tensor) -> Tensor:
    return tensor[which.to(tensor.device)]
