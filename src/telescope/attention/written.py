"""An attention over more keys than there are yet: what a cache of fixed size needs."""

from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Bool, Int
from torch import Tensor

from .definition import Attention
from .mask import Mask
from .numbering import Numbering, Renumbered
from .pairs import Pairs
from .spans import Spans


def written(attention: Attention, keys: int, length: Int[Tensor, ""]) -> Attention:
    """The same attention over `keys` keys of which the first `length` are written; a tensor, so that it can be on a
    GPU and change without anyone waiting for it."""
    return BeforeRoom(keys, keys - length).renumber(attention)


@dataclass(frozen=True, eq=False)
class BeforeRoom(Numbering):
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
