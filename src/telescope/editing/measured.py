"""Numbers that are read from logits."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

LOGITS = {"cpu": 2**22, "cuda": 2**27}  # of a block of positions whose loss is computed at once


def find_logits(output: Any) -> Tensor | None:
    """Return the logits of a model's output, if it has any."""
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    return logits if isinstance(logits, Tensor) else None


def logits_of(output: Any) -> Tensor:
    """Return the logits of a model's output, (batch, n, vocabulary), in float32 or more."""
    logits = find_logits(output)
    if logits is None:
        raise ValueError(
            f"the model returns {type(output).__name__} without logits; give measure= a function "
            "of it"
        )
    return logits.float() if logits.element_size() < 4 else logits


def token_loss(
    logits: Float[Tensor, "*place vocabulary"], labels: Int[Tensor, "*place"]
) -> Float[Tensor, ""]:
    """Return the mean cross-entropy of the labels, in float32 or more; -100 does not count.

    Blocks of positions are computed one after the other, and so is their gradient: beside the
    logits, memory holds one tensor of their size where gradients flow, and none where they do not.
    """
    flat = logits.flatten(0, -2)
    loss: Tensor = _TokenLoss.apply(flat, labels.flatten())  # type: ignore[no-untyped-call]
    return loss


class _TokenLoss(torch.autograd.Function):
    """Compute the gradient in the forward pass; the backward pass only scales it."""

    @staticmethod
    def forward(
        ctx: Any, logits: Float[Tensor, "n vocabulary"], labels: Int[Tensor, " n"]
    ) -> Float[Tensor, ""]:
        needs_gradient = ctx.needs_input_grad[0]
        dtype = torch.promote_types(logits.dtype, torch.float32)
        labels = labels.to(logits.device)
        counts = labels != -100
        number = counts.sum()
        gradient = torch.empty_like(logits) if needs_gradient else None
        total = torch.zeros((), dtype=dtype, device=logits.device)
        most = LOGITS.get(logits.device.type, LOGITS["cuda"])
        step = max(1, most // max(logits.shape[-1], 1))
        for start in range(0, len(logits), step):
            block = slice(start, start + step)
            logs = logits[block].to(dtype).log_softmax(-1)
            label = labels[block].clamp(min=0)[:, None]
            own = counts[block, None]
            total += logs.gather(-1, label).masked_fill(~own, 0.0).sum()
            if gradient is not None:
                # (softmax - one at the label) / number
                slopes = logs.exp_().scatter_add_(-1, label, -own.to(dtype))
                gradient[block] = slopes.mul_(own.to(dtype) / number).to(logits.dtype)
        ctx.save_for_backward(gradient)
        return -total / number

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Float[Tensor, ""]) -> tuple[Tensor | None, None]:
        (gradient,) = ctx.saved_tensors
        return (gradient * slope).to(gradient.dtype), None


def last_places(
    rows: Float[Tensor, "batch n vocabulary"], real: Bool[Tensor, "batch n"] | None
) -> Float[Tensor, "batch vocabulary"]:
    """Return the row of the last token of each sequence, padding left out."""
    if rows.ndim < 3:
        return rows
    if real is None:
        return rows[:, -1]
    real = real.to(rows.device)
    ends = real.shape[1] - 1 - real.flip(1).int().argmax(1)
    return rows[torch.arange(len(rows), device=rows.device), ends]


def check_rivals(tokens: Sequence[int], against: Sequence[int], measure: Any = "logits") -> None:
    """Raise a ValueError unless every token has a rival, or none, and logits are measured."""
    if against and len(against) != len(tokens):
        raise ValueError(
            f"against= names {len(against)} rivals and tokens= {len(tokens)}; give each token one"
        )
    if against and measure != "logits":
        raise ValueError(
            f"against={[*against]} compares logits; leave measure= out, or let it be "
            'measure="logits"'
        )


def mean_difference(
    logits: Float[Tensor, "batch vocabulary"], tokens: Sequence[int], against: Sequence[int]
) -> Float[Tensor, ""]:
    """Return the logit of each token less that of its rival, the mean over pairs and sequences.

    Raise a ValueError if a token is not in the vocabulary.
    """
    vocabulary = logits.shape[-1]
    for name, numbers in (("tokens", tokens), ("against", against)):
        wrong = [number for number in numbers if not 0 <= number < vocabulary]
        if wrong:
            raise ValueError(
                f"{name}: there is no token {wrong[0]}; the model has {vocabulary:,}, from 0 on"
            )
    return (logits[:, list(tokens)] - logits[:, list(against)]).mean()


class LikelyToken(NamedTuple):
    """A token that may come next, and its probability."""

    token: int
    probability: float


def divergence(
    before: Float[Tensor, "*place vocabulary"], after: Float[Tensor, "*place vocabulary"]
) -> Float[Tensor, "*place"]:
    """Return KL(before ‖ after) of the next token's distributions at each place, in nats.

    Both are log-probabilities. Rounding may leave a number below 0 where the two are equal.
    """
    return (before.exp() * (before - after)).sum(-1)


def likeliest(logs: Float[Tensor, " vocabulary"], count: int) -> list[LikelyToken]:
    """Return the likeliest tokens of one distribution of log-probabilities, the likeliest first."""
    found = logs.topk(count)
    pairs = zip(found.indices.tolist(), found.values.exp().tolist(), strict=True)
    return [LikelyToken(token, probability) for token, probability in pairs]


def log_probability(logs: Float[Tensor, "token vocabulary"], tokens: Sequence[int]) -> float:
    """Return the log-probability of tokens that follow each other, such as those of a word.

    Row k of `logs` has the log-probabilities of the whole vocabulary at the place of the k-th
    token.
    """
    chosen = torch.tensor(list(tokens), device=logs.device)
    return float(logs.gather(-1, chosen[:, None]).sum())
