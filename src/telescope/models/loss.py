"""Cross entropy from hidden states, without holding the logits of a whole batch in memory.

With a vocabulary of 50,000 the logits are by far the largest tensor in training. Here they are
computed for a chunk of positions at a time, in the dtype of the product; their gradient overwrites
them and is added at once to the gradients of the hidden states and of the head, so that the
backward pass needs neither the logits nor a second computation.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from importlib.util import find_spec
from math import ceil
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, pad

from ..attention import Mask, has_data
from ..engines import torch_modes, upcast_half
from ..layers import check_choice
from .model import Ids, Model, Targets, TargetStates

# The number of logits in a chunk, by device. CPU: the fastest of 2**19 to 2**25 on one Neoverse
# core. GPU: large, since every chunk adds once to the gradient of the head, and the kernel needs no
# memory besides the logits.
MAX_LOGITS = {"cpu": 2**23, "cuda": 2**30}
# Rows are padded to a multiple of this, for tensor cores: GPT-2's 50,257 become 50,304.
ROW_ALIGNMENT = {"cuda": 64}
# Asked once: importing triton takes a second.
TRITON_INSTALLED = find_spec("triton") is not None

Reduction = Literal["mean", "sum"]


# The matrix from hidden states to logits.
Head = Float[Tensor, "vocabulary d_model"]


def cross_entropy(
    hidden: Float[Tensor, "*batch d_model"],
    weight: Head,
    targets: Int[Tensor, "*batch"],
    bias: Float[Tensor, " vocabulary"] | None = None,
    *,
    ignore: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
) -> Float[Tensor, ""]:
    """Return torch's cross_entropy(hidden @ weight.T + bias, targets), without the logits of the
    whole batch.

    hidden           the states before the head
    weight, bias     of the head
    targets          one id for each state; those equal to `ignore` do not count
    label_smoothing  the share of the target's probability that is spread over the vocabulary, 0 <=
                     share < 1
    reduction        "mean" or "sum" over the targets that count; a mean over none is NaN, as in
                     torch

    The result can be differentiated once, not twice. Raises a ValueError where shapes or options do
    not fit and, on a CPU, where a target is outside the vocabulary.
    """
    check_choice("reduction", reduction, get_args(Reduction))
    if not 0.0 <= label_smoothing < 1.0:
        raise ValueError(f"label_smoothing={label_smoothing} is a share: from 0, below 1")
    if targets.shape != hidden.shape[:-1]:
        raise ValueError(
            f"targets has shape {tuple(targets.shape)}; "
            f"hidden states {tuple(hidden.shape)} need one for each, {tuple(hidden.shape[:-1])}"
        )
    states = hidden.reshape(-1, hidden.shape[-1])
    flat_targets = targets.reshape(-1)
    _check_targets(flat_targets, len(weight), ignore)
    loss: Tensor = _ChunkedCrossEntropy.apply(
        states, weight, bias, flat_targets, ignore, label_smoothing, reduction
    )  # type: ignore[no-untyped-call]
    return loss


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Compute the gradients in the forward pass, chunk by chunk; the backward pass only scales
    them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Float[Tensor, "n d_model"],
        weight: Head,
        bias: Float[Tensor, " vocabulary"] | None,
        targets: Int[Tensor, " n"],
        ignore: int,
        smoothing: float,
        reduction: Reduction,
    ) -> Float[Tensor, ""]:
        # Gradients that nobody needs are not computed.
        for_hidden, for_weight, for_bias, *_ = ctx.needs_input_grad
        states, W = torch_modes.cast_for_autocast(hidden, weight)
        with torch_modes.without_autocast(hidden.device):
            W = pad(W, (0, 0, 0, -len(W) % ROW_ALIGNMENT.get(W.device.type, 1)))
            real = targets != ignore
            d_hidden: list[Tensor] = []
            d_weight = torch.zeros_like(weight) if for_weight else None
            d_bias = torch.zeros_like(bias) if bias is not None and for_bias else None
            total = upcast_half(states).new_zeros(())
            for chunk in _chunks(len(states), len(W), W.device.type):
                # The only large tensor, and it lives for one chunk.
                logits = states[chunk] @ W.mT
                if _use_kernel(logits):
                    # Late: triton is imported only where a GPU needs it.
                    from .loss_kernel import differentiate_in_place

                    losses = differentiate_in_place(
                        logits, bias, targets[chunk], len(weight), ignore, smoothing
                    )
                    d_logits = logits
                else:
                    losses, d_logits = _differentiate_chunk(
                        logits, bias, targets[chunk], real[chunk], len(weight), smoothing
                    )
                total = total + losses.sum()
                if for_hidden:
                    d_hidden.append(d_logits @ W)
                if d_weight is not None:
                    _add_product(d_weight, d_logits, states[chunk])
                if d_bias is not None:
                    d_bias += d_logits.sum(0, dtype=d_bias.dtype)[: len(weight)]
        # Divided at the end, so that chunks of padding do not count.
        count = real.sum() if reduction == "mean" else torch.ones_like(total)
        ctx.save_for_backward(torch.cat(d_hidden) if d_hidden else None, d_weight, d_bias, count)
        ctx.dtype = hidden.dtype
        return total / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, ""]) -> tuple[Tensor | None, ...]:
        d_hidden, d_weight, d_bias, count = ctx.saved_tensors
        # The gradients are there already; one factor is left.
        scale = gradient / count
        return (
            None if d_hidden is None else (d_hidden * scale).to(ctx.dtype),
            None if d_weight is None else (d_weight * scale).to(d_weight.dtype),
            None if d_bias is None else (d_bias * scale).to(d_bias.dtype),
            None,
            None,
            None,
            None,
        )


def _use_kernel(logits: Tensor) -> bool:
    """Return whether the Triton kernel can differentiate these logits."""
    return TRITON_INSTALLED and logits.is_cuda and logits.dtype != torch.float64


def _differentiate_chunk(
    logits: Float[Tensor, "chunk width"],
    bias: Float[Tensor, " vocabulary"] | None,
    targets: Int[Tensor, " chunk"],
    real: Bool[Tensor, " chunk"],
    vocabulary: int,
    smoothing: float,
) -> tuple[Float[Tensor, "chunk 1"], Float[Tensor, "chunk width"]]:
    """Return the loss of each position, and its gradient with respect to the logits z.

    -log p_target = ln Σ exp(z) - z_target, where with smoothing z_target becomes
    (1 - smoothing) · z_target + smoothing · mean(z).
    """
    width = logits.shape[-1]
    target_share = 1.0 - smoothing
    smooth_share = smoothing / vocabulary
    columns = torch.arange(width, device=logits.device)
    target = targets.masked_fill(~real, 0)[:, None]
    counts = real[:, None].to(upcast_half(logits).dtype)

    z = (
        upcast_half(logits)
        if bias is None
        else upcast_half(logits) + pad(bias, (0, width - vocabulary))
    )
    # ln Σ exp(z) is added below, when the largest is known.
    losses = -target_share * z.gather(-1, target)
    if smoothing:
        losses = losses - smooth_share * z[:, :vocabulary].sum(-1, keepdim=True)
    if width > vocabulary:
        # The padding of the rows is no part of the vocabulary.
        z = z.masked_fill(columns >= vocabulary, -torch.inf)

    # exp(z - largest) cannot overflow.
    largest = z.amax(-1, keepdim=True)
    weights = z.sub_(largest).exp_()
    sums = weights.sum(-1, keepdim=True)
    losses = (losses + sums.log() + largest) * counts

    d = weights.mul_(counts / sums)  # softmax minus the target distribution
    d.scatter_add_(-1, target, -target_share * counts)
    if smoothing:
        d = d - torch.where(columns < vocabulary, smooth_share * counts, 0.0)
    return losses, d.to(logits.dtype)


def _add_product(
    total: Head, d_logits: Float[Tensor, "chunk width"], states: Float[Tensor, "chunk d_model"]
) -> None:
    """Add d_logitsᵀ states to `total`, in the dtype of `total`."""
    if total.dtype == d_logits.dtype:
        total.addmm_(d_logits.mT[: len(total)], states)
    else:  # the product of the padded width, which tensor cores compute faster
        total += (d_logits.mT @ states)[: len(total)]


def _chunks(rows: int, width: int, device: str) -> Iterator[slice]:
    """Yield slices of positions: as few as MAX_LOGITS allows, all of one size except the last."""
    count = max(1, ceil(rows * width / MAX_LOGITS.get(device, MAX_LOGITS["cpu"])))
    size = max(1, ceil(rows / count))
    return (slice(first, min(first + size, rows)) for first in range(0, rows, size))


def _check_targets(targets: Tensor, vocabulary: int, ignore: int) -> None:
    """Raise a ValueError where a target is outside the vocabulary; on a GPU do nothing, since
    reading would wait.
    """
    # On a GPU reading the ids would wait for all work before.
    if targets.device.type != "cpu" or not has_data(targets):
        return
    outside = targets[((targets < 0) | (targets >= vocabulary)) & (targets != ignore)]
    if len(outside):
        raise ValueError(
            f"targets has the id {int(outside[0])}; the vocabulary is 0 to {vocabulary - 1}, and "
            f"ignore={ignore}"
        )


# ---------------------------------------------------------------- models with a source and a target


class Translator(Model, ABC):
    """The base class of Transformer and LuongTranslator, which implement `hidden`."""

    config: Any  # has the fields vocabulary and target_vocabulary
    head_bias: nn.Parameter | None

    def forward(
        self,
        source: Ids,
        target: Targets,
        source_mask: Mask | None = None,
        target_mask: Mask | None = None,
    ) -> Float[Tensor, "batch m vocabulary"]:
        """Return the logits of the token that follows each token of the target, given the source.

        The masks hide padding, ts.padding(lengths).

        Args:
            source: (batch, n), token ids.
            target: (batch, m), token ids; the first starts the decoder.
            source_mask, target_mask: hide padding, ts.padding(lengths).

        Raises:
            ValueError: ids are not in the vocabulary, or too many for learned positions.
        """
        return self.logits(self.hidden(source, target, source_mask, target_mask))

    def loss(
        self,
        source: Ids,
        target: Targets,
        targets: Targets,
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

        Args:
            source, target, source_mask, target_mask: as in `forward`.
            targets: (batch, m), the token that follows each token of the target.
            ignore: targets of this number do not count.
            label_smoothing: the share of the target's probability that is spread over all tokens.
            reduction: "mean" or "sum", over all targets that count.

        Returns:
            A scalar tensor, in nats.
        """
        hidden = self.hidden(source, target, source_mask, target_mask)
        return cross_entropy(
            hidden,
            self.head_weight,
            targets,
            self.head_bias,
            ignore=ignore,
            label_smoothing=label_smoothing,
            reduction=reduction,
        )

    def logits(self, hidden: TargetStates) -> Float[Tensor, "batch m vocabulary"]:
        """Return hidden states times the head, plus its bias where it has one.

        Args:
            hidden: (batch, m, d_model), from `hidden` or `decode`.
        """
        return linear(hidden, self.head_weight, self.head_bias)

    @abstractmethod
    def hidden(
        self,
        source: Ids,
        target: Targets,
        source_mask: Mask | None = None,
        target_mask: Mask | None = None,
    ) -> TargetStates:
        """Return the decoder's hidden states, which `logits` turns into logits.

        Args:
            source, target, source_mask, target_mask: as in `forward`.

        Returns:
            (batch, m, d_model), the decoder's states, which `logits` turns into logits.
        """

    @property
    def vocabulary(self) -> int:
        """The size of the target's vocabulary."""
        size: int = self.config.target_vocabulary or self.config.vocabulary
        return size

    @property
    @abstractmethod
    def head_weight(self) -> Head:
        """The matrix that turns hidden states into logits."""


def check_memory_or_cache(memory: Any, cache: Any) -> None:
    """Raise a ValueError unless exactly one of memory and cache is given."""
    if memory is None and cache is None:
        raise ValueError(
            "decode needs the memory, model.encode(source), or a cache that was made for one"
        )
    if memory is not None and cache is not None:
        raise ValueError("the cache holds the memory already; pass only one of memory and cache")
