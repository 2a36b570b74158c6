"""Objectives: functions from a model and a batch to the summed loss. A step divides the sum by all
its targets.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..attention import padding
from ..health import health_of, record_health
from ..models import Model
from .batch import IGNORE, Batch, PairBatch, TextBatch
from .settings import Training

# objective(model, batch, label_smoothing=0.0, agreement=0.0) returns the summed loss of the batch's
# targets, except those that are IGNORE.
Objective = Callable[..., Tensor]


def language(
    model: Any, batch: TextBatch, *, label_smoothing: float = 0.0, agreement: float = 0.0
) -> Float[Tensor, ""]:
    """Return the summed cross-entropy of each next token, in nats: the objective of a GPT.

    model            a GPT
    batch            ids and targets, (batch, n) each; targets that are IGNORE add nothing
    label_smoothing  share of each target's probability that is spread evenly over the vocabulary
    agreement        weight of the R-Drop term (Liang et al. 2021), which runs every row twice; 0
                     leaves the term out

    Returns a scalar tensor with a gradient.

    Example:
        >>> import torch
        >>> from telescope.models import GPT, GPTConfig
        >>> from telescope.training import TextBatch, language
        >>> model = GPT(GPTConfig(vocabulary=4, max_positions=8, d_model=8, blocks=1, heads=2))
        >>> text = torch.tensor([[0, 1, 2, 3]])
        >>> language(model, TextBatch(text[:, :-1], text[:, 1:])).shape
        torch.Size([])
    """
    if agreement:
        doubled = repeat_rows(batch)
        return agreement_loss(
            model(doubled.ids), doubled.targets, label_smoothing=label_smoothing, weight=agreement
        )
    loss: Tensor = model.loss(
        batch.ids, batch.targets, ignore=IGNORE, label_smoothing=label_smoothing, reduction="sum"
    )
    return loss


def translation(
    model: Any, batch: PairBatch, *, label_smoothing: float = 0.0, agreement: float = 0.0
) -> Float[Tensor, ""]:
    """Return the summed cross-entropy of each next target token given the source, in nats.

    The objective of a Transformer or a LuongTranslator. The options are those of `language`;
    returns a scalar tensor with a gradient.

    Example:
        >>> from telescope.models import Transformer, TransformerConfig
        >>> from telescope.training import Examples, Training, translation
        >>> shape = {"d_model": 8, "heads": 2, "encoder_blocks": 1, "decoder_blocks": 1, "d_hidden": 16}
        >>> model = Transformer(TransformerConfig(vocabulary=8, **shape))
        >>> data = Examples([[5, 6, 7]], [[1, 7, 6, 5, 2]])
        >>> batch = data.take(data.batches(Training(steps=1, rows=1), epoch=None)[0])
        >>> translation(model, batch).shape
        torch.Size([])
    """
    if agreement:
        doubled = repeat_rows(batch)
        logits = model(doubled.source, doubled.target, padding(doubled.lengths))
        return agreement_loss(
            logits, doubled.targets, label_smoothing=label_smoothing, weight=agreement
        )
    loss: Tensor = model.loss(
        batch.source,
        batch.target,
        batch.targets,
        padding(batch.lengths),
        ignore=IGNORE,
        label_smoothing=label_smoothing,
        reduction="sum",
    )
    return loss


def count_targets(targets: Int[Tensor, "batch n"]) -> Int[Tensor, ""]:
    """Return the number of targets that are not IGNORE, as a tensor on their device."""
    return (targets != IGNORE).sum()


def repeat_rows(batch: Batch) -> Batch:
    """Return the batch with all its rows twice: the first half equals the second."""
    doubled: Batch = type(batch)(*(torch.cat([tensor, tensor]) for tensor in batch))
    return doubled


def agreement_loss(
    logits: Float[Tensor, "twice n vocabulary"],
    targets: Int[Tensor, "twice n"],
    *,
    label_smoothing: float,
    weight: float,
) -> Float[Tensor, ""]:
    """Return ½ (L₁ + L₂ + weight · D), summed over the targets of a batch whose second half repeats
    the first (R-Drop).

    D = ½ KL(p₁‖p₂) + ½ KL(p₂‖p₁) = ½ Σ (p₁ - p₂)(z₁ - z₂): the normalising constants of the logits
    z cancel.
    """
    z = logits if logits.dtype == torch.float64 else logits.float()
    losses = cross_entropy(
        z.flatten(0, 1),
        targets.flatten(),
        ignore_index=IGNORE,
        label_smoothing=label_smoothing,
        reduction="sum",
    )
    z_1, z_2 = z.chunk(2)
    p_1, p_2 = z.softmax(-1).chunk(2)
    divergence = 0.5 * ((p_1 - p_2) * (z_1 - z_2)).sum(-1)
    return 0.5 * (
        losses + weight * divergence.masked_fill(targets.chunk(2)[0] == IGNORE, 0.0).sum()
    )


class Learner(nn.Module):
    """A model with its objective as one module, so that DDP, FSDP and torch.compile wrap the loss
    as well.
    """

    def __init__(self, model: Model, objective: Objective, settings: Training) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        self.options = {
            "label_smoothing": settings.label_smoothing,
            "agreement": settings.agreement,
        }
        self.bf16 = settings.precision == "bf16"

    def forward(
        self, batch: Any, divisor: Int[Tensor, ""] | Float[Tensor, ""]
    ) -> Float[Tensor, ""]:
        """Return the batch's summed loss divided by the targets of the whole step: its part of the
        step's mean.
        """
        device = batch.targets.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self.bf16 and device != "cpu"):
            total = self.objective(self.model, batch, **self.options)
        return total.float() / divisor if total.dtype != torch.float64 else total / divisor


HeadNumbers = dict[str, tuple[float, ...]]  # one number for each head, by the name of the attention


@torch.no_grad()
def head_health(model: Model, batch: Any, objective: Objective) -> tuple[HeadNumbers, HeadNumbers]:
    """Return the mean entropy of each head's queries, in nats, and each head's largest logit, on
    one batch.

    A collapsed entropy and exploding logits are signs that a training fails. Queries that are
    padding, or whose target is IGNORE, are left out.
    """
    has_target: Tensor = batch.targets != IGNORE

    def counted(name: str) -> Tensor:
        """Return the tokens of the source for an encoder, else the positions with a target."""
        if not (isinstance(batch, PairBatch) and name.startswith("encoder")):
            return has_target
        place = torch.arange(batch.source.shape[1], device=has_target.device)
        return (place < batch.lengths[:, None]) & has_target.any(1, keepdim=True)

    with record_health(model) as recording:
        objective(model, batch)
    found = health_of(recording, counted)
    entropy = {name: layer.entropy for name, layer in found.items()}
    return entropy, {name: layer.logit for name, layer in found.items()}
