"""The measures of `ts.effect`: what of an output is tabulated, and what is differentiated."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxtyping import Bool
from torch import Tensor
from torch.nn.functional import log_softmax

from .measured import (
    divergence,
    find_logits,
    last_places,
    logits_of,
    mean_difference,
    token_loss,
)
from .model_inputs import ModelInputs

Measure = Callable[[Any], float | Mapping[str, float]]
"""From the output of the model, edited, to a number or several by name."""


def restored_column(measure: str | Measure, tokens: Sequence[int], against: Sequence[int]) -> str:
    """Return the name of the column from which "restored" is computed; "" for a function, whose
    columns all are.
    """
    if not isinstance(measure, str):
        return ""
    if measure == "loss":
        return "loss"
    if against:
        return "difference"
    return f"p({tokens[0]})" if tokens else "kl"


def measure_columns(
    measure: str | Measure,
    call: ModelInputs,
    tokens: Sequence[int],
    against: Sequence[int],
    labels: Tensor | None,
) -> Callable[..., dict[str, float]]:
    """Return the function (output, output of the model as it is, positions that count) ->
    columns.
    """

    def columns(output: Any, reference: Any, real: Tensor | None) -> dict[str, float]:
        if measure == "loss":
            return {"loss": float(_loss(logits_of(output), call, labels, real))}
        if isinstance(measure, str):
            before = None if reference is None else logits_of(reference)
            return _compare_logits(logits_of(output), before, tokens, against, real)
        value = measure(output)
        named = value if isinstance(value, Mapping) else {"value": value}
        return {str(name): float(number) for name, number in named.items()}

    return columns


def differentiable(
    measure: str | Measure,
    call: ModelInputs,
    tokens: Sequence[int],
    against: Sequence[int],
    labels: Tensor | None,
) -> tuple[str, Callable[..., Tensor]]:
    """Return the column of a measure that can be differentiated, and the function (output, which
    predictions count) -> its value.
    """
    if not isinstance(measure, str):
        of_output: Any = measure
        return "value", lambda output, real_predictions: of_output(output)
    if measure == "logits" and not against and len(tokens) != 1:
        known = (
            "several tokens have several probabilities"
            if tokens
            else ("the divergence of the model from itself is at its least, where it has no slope")
        )
        raise ValueError(
            f'measure="logits" with how="gradient": {known}; give tokens=[one] for its '
            'probability, tokens= with against= for a difference of logits, or measure="loss"'
        )

    def value(output: Any, real_predictions: Callable[[int, int], Tensor | None]) -> Tensor:
        logits = find_logits(output)
        real = None
        if logits is not None and logits.ndim == 3:
            real = real_predictions(*logits.shape[:2])
        if measure == "loss":
            return _loss(logits_of(output), call, labels, real)
        last = last_places(logits_of(output), real)
        if against:
            return mean_difference(last, tokens, against)
        return last.softmax(-1)[:, tokens[0]].mean()

    if measure == "loss":
        return "loss", value
    return ("difference" if against else f"p({tokens[0]})"), value


def _loss(logits: Tensor, call: ModelInputs, labels: Tensor | None, real: Tensor | None) -> Tensor:
    labels = call.labels if labels is None else labels
    if labels is None:
        if call.ids is None:
            raise ValueError(
                "the inputs hold no token ids; give labels=, what each position should predict"
            )
        labels = call.ids.roll(-1, 1).clone()  # each position predicts the token after it
        labels[:, -1] = -100  # the label that cross_entropy ignores
        if real is not None:  # neither the query nor the token that it predicts is padding
            own = real.to(labels.device)
            labels[~(own & own.roll(-1, 1))] = -100
    return token_loss(logits, labels)


def _compare_logits(
    logits: Tensor,
    reference: Tensor | None,
    tokens: Sequence[int],
    against: Sequence[int],
    real: Bool[Tensor, "batch n"] | None,
) -> dict[str, float]:
    now = log_softmax(logits, -1)
    columns: dict[str, float] = {}
    if reference is not None:
        divergences = divergence(log_softmax(reference, -1), now)
        # Only positions that are no padding count.
        if real is not None:
            divergences = divergences[real.to(divergences.device)]
        # Rounding may leave the divergence of equal distributions below 0.
        columns["kl"] = float(divergences.mean().clamp(min=0.0))
    last = last_places(now, real)
    for token in tokens:
        own = last[:, token]
        columns[f"p({token})"] = float(own.exp().mean())
        columns[f"rank({token})"] = float((last > own[:, None]).sum(-1).float().mean())
    if against:
        difference = mean_difference(last_places(logits, real), tokens, against)
        columns["difference"] = float(difference)
    return columns
