"""The base class of models that read a source and write a target: logits and loss, and what
`decode` checks.
"""

from abc import ABC, abstractmethod
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from ..attention import Mask
from .loss import Reduction, cross_entropy
from .model import Model


class Translator(Model, ABC):
    """The base class of Transformer and LuongTranslator, which implement `hidden` and
    `head_weight`.
    """

    config: Any  # has the fields vocabulary and target_vocabulary
    head_bias: nn.Parameter | None

    def forward(
        self,
        source: Int[Tensor, "batch n"],
        target: Int[Tensor, "batch m"],
        source_mask: Mask | None = None,
        target_mask: Mask | None = None,
    ) -> Float[Tensor, "batch m vocabulary"]:
        """Return the logits of the token that follows each token of the target, given the source.

        The masks hide padding, ts.padding(lengths). Raises a ValueError where ids are not in the
        vocabulary, or too many for learned positions.
        """
        return self.logits(self.hidden(source, target, source_mask, target_mask))

    def loss(
        self,
        source: Int[Tensor, "batch n"],
        target: Int[Tensor, "batch m"],
        targets: Int[Tensor, "batch m"],
        source_mask: Mask | None = None,
        target_mask: Mask | None = None,
        *,
        ignore: int = -100,
        label_smoothing: float = 0.0,
        reduction: Reduction = "mean",
    ) -> Float[Tensor, ""]:
        """Return the cross entropy of `targets`, which follow the tokens of `target`: mean or sum
        without `ignore`.

        See `models.loss.cross_entropy` for the options; the logits of the whole batch are never in
        memory at once.
        """
        hidden = self.hidden(source, target, source_mask, target_mask)
        W = self.head_weight
        b = self.head_bias
        return cross_entropy(
            hidden,
            W,
            targets,
            b,
            ignore=ignore,
            label_smoothing=label_smoothing,
            reduction=reduction,
        )

    def logits(
        self, hidden: Float[Tensor, "batch m d_model"]
    ) -> Float[Tensor, "batch m vocabulary"]:
        """Return hidden states times the head, plus its bias where it has one."""
        return linear(hidden, self.head_weight, self.head_bias)

    @abstractmethod
    def hidden(
        self,
        source: Int[Tensor, "batch n"],
        target: Int[Tensor, "batch m"],
        source_mask: Mask | None = None,
        target_mask: Mask | None = None,
    ) -> Float[Tensor, "batch m d_model"]:
        """Return the decoder's hidden states for the target, given the source; `logits` turns them
        into logits.
        """

    @property
    def vocabulary(self) -> int:
        """The size of the target's vocabulary."""
        size: int = (
            self.config.vocabulary
            if self.config.target_vocabulary is None
            else self.config.target_vocabulary
        )
        return size

    @property
    @abstractmethod
    def head_weight(self) -> Float[Tensor, "vocabulary d_model"]:
        """The matrix that turns hidden states into logits."""


def check_memory_or_cache(memory: Any, cache: Any) -> None:
    """Raise a ValueError unless exactly one of memory and cache is given."""
    if memory is None and cache is None:
        raise ValueError(
            "decode needs the memory, model.encode(source), or a cache that was made for one"
        )
    if memory is not None and cache is not None:
        raise ValueError("the cache holds the memory already; pass only one of memory and cache")
