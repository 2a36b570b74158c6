"""The same attention, of some sequences of its batch alone."""

from dataclasses import dataclass, replace

from jaxtyping import Int
from torch import Tensor

from .biases import Alibi, OfPositions, Relative
from .definition import Attention
from .mask import Everyone
from .masks import Causal, Prefix, Window
from .numbering import Numbering
from .pairs import Pairs, pick


def of_sequences(attention: Attention, which: Int[Tensor, " some"], of: int) -> Attention:
    """What it computes in these sequences of `of`, as an attention of a batch of that many."""
    return attention if which.tolist() == list(range(of)) else SomeSequences(which, of).renumber(attention)


@dataclass(frozen=True, eq=False)
class SomeSequences(Numbering):
    which: Int[Tensor, " some"]
    of: int

    alike = (Everyone, Causal, Window, Prefix, OfPositions, Alibi, Relative)

    def in_whole(self, at: Pairs) -> Pairs:
        return replace(at, batch=pick(self.which, at.batch))

    def whole(self, **size: int) -> dict[str, int]:
        return size | {"batch": self.of}
