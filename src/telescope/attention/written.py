"""An attention over more keys than there are yet: what a cache of fixed size needs."""

from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor

from .biases import Bias
from .definition import Attention
from .mask import Mask
from .pairs import Pairs


@dataclass(frozen=True, eq=False)
class WrittenMask(Mask):
    """`mask`, where the last `behind` of `keys` keys are room that is not written yet: nobody sees them, and the last
    query stands before them. It is made for one step of a model; what an engine works out of it is `known` in all its
    layers."""

    mask: Mask
    keys: int
    behind: Int[Tensor, ""]

    def __post_init__(self) -> None:
        self.known: dict[Any, Any]
        object.__setattr__(self, "known", {})

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        return self.mask.sees(_before(at, self.behind)) & (at.key < self.keys - self.behind)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        self.mask.check(batch=batch, heads=heads, queries=queries, keys=keys)

    def of_last_query(self) -> Mask:
        return replace(self, mask=self.mask.of_last_query())

    @property
    def keys_alone(self) -> bool:
        return self.mask.keys_alone

    def __repr__(self) -> str:
        return f"written({self.mask!r})"


@dataclass(frozen=True, eq=False)
class WrittenBias(Bias):
    """`bias`, where the last query stands before the last `behind` keys."""

    bias: Bias
    behind: Int[Tensor, ""]

    def __call__(self, at: Pairs) -> Float[Tensor, "#batch #head #query #key"]:
        return self.bias(_before(at, self.behind))

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        self.bias.check(batch=batch, heads=heads, queries=queries, keys=keys)

    def __repr__(self) -> str:
        return repr(self.bias)


def written(attention: Attention, keys: int, length: Int[Tensor, ""]) -> Attention:
    """The same attention over `keys` keys of which the first `length` are written; a tensor, so that it can be on a
    GPU and change without anyone waiting for it."""
    behind = keys - length
    bias = WrittenBias(attention.bias, behind) if isinstance(attention.bias, Bias) else None
    return replace(attention, mask=WrittenMask(attention.mask, keys, behind), bias=bias)


def _before(at: Pairs, behind: Tensor) -> Pairs:
    return replace(at, query=at.query - behind)
