"""Cross entropy from hidden states: the logits of a whole batch are never there at once.

A vocabulary of 50,000 makes the logits the largest thing in training by far. Here they come for some positions at a
time, in the dtype of the product; their gradient takes their place and goes at once into those of the hidden states
and of the head, so that nothing has to be kept or computed again for the backward pass.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from math import ceil
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from ..attention.values import has_numbers
from ..engines import torch_modes
from ..engines.exact import precise
from ..layers.check_sizes import one_of

# How many logits there are at a time: on a CPU the best of 2**19 to 2**25 (one Neoverse core). On a GPU each piece more
# is another sum into the gradient of the head, and its kernel keeps nothing beside them.
LOGITS = {"cpu": 2**23, "cuda": 2**30}
ALIGNED = {"cuda": 64}  # tensor cores want rows of a multiple of this: GPT-2's 50,257 words become 50,304
INSTALLED = find_spec("triton") is not None

Reduction = Literal["mean", "sum"]


def cross_entropy(
    hidden: Float[Tensor, "*batch d_model"],
    weight: Float[Tensor, "vocabulary d_model"],
    targets: Int[Tensor, "*batch"],
    bias: Float[Tensor, " vocabulary"] | None = None,
    *,
    ignore: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
) -> Float[Tensor, ""]:
    """torch's cross_entropy(hidden @ weight.T + bias, targets): the mean, or sum, over all targets but `ignore`.

    Of no such target there is no mean: it is NaN, as in torch. It has a first derivative, no second.
    """
    one_of("reduction", reduction, get_args(Reduction))
    if not 0.0 <= label_smoothing < 1.0:
        raise ValueError(f"label_smoothing={label_smoothing} is a share: from 0, below 1")
    if targets.shape != hidden.shape[:-1]:
        raise ValueError(
            f"targets has shape {tuple(targets.shape)}; "
            f"hidden states {tuple(hidden.shape)} need one for each, {tuple(hidden.shape[:-1])}"
        )
    states, wanted = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    _check(wanted, len(weight), ignore)
    loss: Tensor = _OverTheHead.apply(states, weight, bias, wanted, ignore, label_smoothing, reduction)  # type: ignore[no-untyped-call]
    return loss


class _OverTheHead(torch.autograd.Function):
    """The gradients are made on the way forward, and only scaled on the way back."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Float[Tensor, "n d_model"],
        weight: Float[Tensor, "vocabulary d_model"],
        bias: Float[Tensor, " vocabulary"] | None,
        targets: Int[Tensor, " n"],
        ignore: int,
        smoothing: float,
        reduction: Reduction,
    ) -> Float[Tensor, ""]:
        for_hidden, for_weight, for_bias, *_ = ctx.needs_input_grad
        states, W = torch_modes.cast_for_autocast(hidden, weight)
        with torch_modes.without_autocast(hidden.device):
            W = pad(W, (0, 0, 0, -len(W) % ALIGNED.get(W.device.type, 1)))
            real = targets != ignore
            d_hidden: list[Tensor] = []
            d_weight = torch.zeros_like(weight) if for_weight else None
            d_bias = torch.zeros_like(bias) if bias is not None and for_bias else None
            total = precise(states).new_zeros(())
            for some in _pieces(len(states), len(W), W.device.type):
                logits = states[some] @ W.mT
                if _by_kernel(logits):
                    from .loss_kernel import in_place

                    losses, d_logits = in_place(logits, bias, targets[some], len(weight), ignore, smoothing), logits
                else:
                    losses, d_logits = _piece(logits, bias, targets[some], real[some], len(weight), smoothing)
                total = total + losses.sum()
                if for_hidden:
                    d_hidden.append(d_logits @ W)
                if d_weight is not None:
                    _add_product(d_weight, d_logits, states[some])
                if d_bias is not None:
                    d_bias += d_logits.sum(0, dtype=d_bias.dtype)[: len(weight)]
        count = real.sum() if reduction == "mean" else torch.ones_like(total)
        ctx.save_for_backward(torch.cat(d_hidden) if d_hidden else None, d_weight, d_bias, count)
        ctx.dtype = hidden.dtype
        return total / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, ""]) -> tuple[Tensor | None, ...]:
        d_hidden, d_weight, d_bias, count = ctx.saved_tensors
        each = gradient / count
        return (
            None if d_hidden is None else (d_hidden * each).to(ctx.dtype),
            None if d_weight is None else (d_weight * each).to(d_weight.dtype),
            None if d_bias is None else (d_bias * each).to(d_bias.dtype),
            None,
            None,
            None,
            None,
        )


def _by_kernel(logits: Tensor) -> bool:
    return INSTALLED and logits.is_cuda and logits.dtype != torch.float64


def _piece(
    logits: Float[Tensor, "some width"],
    bias: Float[Tensor, " vocabulary"] | None,
    targets: Int[Tensor, " some"],
    real: Bool[Tensor, " some"],
    vocabulary: int,
    smoothing: float,
) -> tuple[Float[Tensor, "some 1"], Float[Tensor, "some width"]]:
    """The loss of some positions, and its gradient in place of their logits z.

    -log p_target = ln Σ exp(z) - z_target, in which `smoothing` of z_target is the mean of all z.
    """
    width, kept, even = logits.shape[-1], 1.0 - smoothing, smoothing / vocabulary
    columns = torch.arange(width, device=logits.device)
    wanted, mine = targets.masked_fill(~real, 0)[:, None], real[:, None].to(precise(logits).dtype)

    z = precise(logits) if bias is None else precise(logits) + pad(bias, (0, width - vocabulary))
    losses = -kept * z.gather(-1, wanted)
    if smoothing:
        losses = losses - even * z[:, :vocabulary].sum(-1, keepdim=True)
    if width > vocabulary:
        z = z.masked_fill(columns >= vocabulary, -torch.inf)  # no word, only there for the sake of speed

    largest = z.amax(-1, keepdim=True)
    weights = z.sub_(largest).exp_()
    sums = weights.sum(-1, keepdim=True)
    losses = (losses + sums.log() + largest) * mine

    d = weights.mul_(mine / sums)  # softmax, less what was wanted
    d.scatter_add_(-1, wanted, -kept * mine)
    if smoothing:
        d = d - torch.where(columns < vocabulary, even * mine, 0.0)
    return losses, d.to(logits.dtype)


def _add_product(
    total: Float[Tensor, "vocabulary d_model"],
    d_logits: Float[Tensor, "some width"],
    states: Float[Tensor, "some d_model"],
) -> None:
    """total += d_logitsᵀ states; products of halves are summed in the dtype of the total."""
    if total.dtype == d_logits.dtype:
        total.addmm_(d_logits.mT[: len(total)], states)
    else:  # all of the width, since tensor cores want it aligned
        total += (d_logits.mT @ states)[: len(total)]


def _pieces(rows: int, width: int, device: str) -> Iterator[slice]:
    """As few as the number of logits allows, all of one size but the last."""
    pieces = max(1, ceil(rows * width / LOGITS.get(device, LOGITS["cpu"])))
    size = max(1, ceil(rows / pieces))
    return (slice(first, min(first + size, rows)) for first in range(0, rows, size))


def _check(targets: Tensor, vocabulary: int, ignore: int) -> None:
    if targets.device.type != "cpu" or not has_numbers(targets):
        return  # on a GPU looking would wait
    strange = targets[((targets < 0) | (targets >= vocabulary)) & (targets != ignore)]
    if len(strange):
        raise ValueError(
            f"targets has the id {int(strange[0])}; the vocabulary is 0 to {vocabulary - 1}, and ignore={ignore}"
        )
