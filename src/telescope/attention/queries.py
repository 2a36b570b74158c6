"""The same attention, of some of its queries alone."""

from dataclasses import dataclass, replace

from jaxtyping import Int
from torch import Tensor

from .definition import Attention
from .mask import Mask
from .numbering import Numbering
from .pairs import Pairs, pick

Size = tuple[int, int]  # queries, keys


def of_queries(attention: Attention, which: Int[Tensor, " some"], of: Size) -> Attention:
    """What these queries of a matrix of that size compute, as an attention of that many queries."""
    if len(which) == of[0] and which.tolist() == list(range(of[0])):
        return attention
    return SomeQueries(which, of).renumber(attention)


@dataclass(frozen=True, eq=False)
class SomeQueries(Numbering):
    which: Int[Tensor, " some"]
    of: Size

    def in_whole(self, at: Pairs) -> Pairs:
        row = pick(self.which, at.row)
        return replace(at, row=row, query=row + (self.of[1] - self.of[0]))

    def whole(self, **size: int) -> dict[str, int]:
        return size | {"queries": self.of[0]}

    def mask(self, mask: Mask) -> Mask:
        return mask if mask.keys_alone else super().mask(mask)
