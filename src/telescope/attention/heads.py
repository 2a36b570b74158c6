"""The same attention, of some of its heads alone."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from .biases import Alibi, Bias, OfPositions, Relative
from .definition import Attention
from .mask import Everyone
from .masks import Causal, Documents, Keep, Left, Lengths, Prefix, Window
from .numbering import Numbering
from .pairs import Pairs, pick
from .scores import Additive, General, Score
from .values import tensors


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
class SomeHeads(Numbering):
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
