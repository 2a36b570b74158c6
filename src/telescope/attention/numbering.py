"""An attention at other numbers: its masks and biases are asked about the pairs of the whole that it was taken from."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .biases import Bias
from .definition import Attention
from .mask import Combination, Mask, Opposite
from .pairs import Pairs
from .spans import Spans
from .values import Value


class Numbering(Value, ABC):
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
    numbering: Numbering

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
    numbering: Numbering

    def __call__(self, at: Pairs) -> Float[Tensor, "#batch #head #query #key"]:
        return self.bias(self.numbering.in_whole(at))

    def added(self, at: Pairs, dtype: torch.dtype) -> Float[Tensor, "#batch #head #query #key"]:
        return self.bias.added(self.numbering.in_whole(at), dtype)

    def check(self, **size: int) -> None:
        self.bias.check(**self.numbering.whole(**size))

    def __repr__(self) -> str:
        return repr(self.bias)
