"""Objectives: functions from a model and a batch to the summed loss, which a step divides by all
its targets. Validation: the mean loss over data, the criterion for the best weights, and averages
of weights.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..attention import padding
from ..health import health_of, record_health
from ..models import Model
from .batch import IGNORE, Batch, Data, PairBatch, TextBatch
from .settings import Training

# objective(model, batch, label_smoothing=0.0, agreement=0.0) returns the summed loss of the batch's
# targets, except those that are IGNORE.
Objective = Callable[..., Tensor]
"""What a training minimises: a function of a model and a batch that returns a summed loss, such as
`language` and `translation`.

Example:
    >>> from telescope.training import Objective, language
    >>> objective: Objective = language
"""


def language(
    model: Any, batch: TextBatch, *, label_smoothing: float = 0.0, agreement: float = 0.0
) -> Float[Tensor, ""]:
    """Return the summed cross-entropy of each next token, in nats: the objective of a GPT.

    Args:
        model: a GPT.
        batch: ids and targets, (batch, n) each; targets that are IGNORE add nothing.
        label_smoothing: share of each target's probability that is spread evenly over the
            vocabulary.
        agreement: weight of the R-Drop term (Liang et al. 2021), which runs every row twice; 0
            leaves the term out.

    Returns:
        A scalar tensor with a gradient.

    Example:
        >>> import torch
        >>> from telescope.models import GPT, GPTConfig
        >>> from telescope.training import TextBatch, language
        >>> model = GPT(
        ...     GPTConfig(vocabulary=4, max_positions=8, d_model=8, blocks=1, heads=2)
        ... )
        >>> text = torch.tensor([[0, 1, 2, 3]])
        >>> language(model, TextBatch(text[:, :-1], text[:, 1:])).shape
        torch.Size([])
    """
    if agreement:
        doubled = repeat_rows(batch)
        return agreement_loss(
            model(doubled.ids), doubled.targets, label_smoothing=label_smoothing, weight=agreement
        )
    options = {"ignore": IGNORE, "label_smoothing": label_smoothing, "reduction": "sum"}
    return cast(Tensor, model.loss(batch.ids, batch.targets, **options))


def translation(
    model: Any, batch: PairBatch, *, label_smoothing: float = 0.0, agreement: float = 0.0
) -> Float[Tensor, ""]:
    """Return the summed cross-entropy of each next target token given the source, in nats.

    The objective of a Transformer or a LuongTranslator. The options are those of `language`;
    returns a scalar tensor with a gradient.

    Args:
        model: a Transformer or a LuongTranslator.
        batch: sources and targets.
        label_smoothing, agreement: as in `language`.

    Returns:
        A scalar tensor with a gradient.

    Example:
        >>> from telescope.models import Transformer, TransformerConfig
        >>> from telescope.training import Examples, Training, translation
        >>> blocks = {"encoder_blocks": 1, "decoder_blocks": 1}
        >>> shape = {"d_model": 8, "heads": 2, "d_hidden": 16, **blocks}
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
    options = {"ignore": IGNORE, "label_smoothing": label_smoothing, "reduction": "sum"}
    mask = padding(batch.lengths)
    return cast(Tensor, model.loss(batch.source, batch.target, batch.targets, mask, **options))


def count_targets(targets: Int[Tensor, "batch n"]) -> Int[Tensor, ""]:
    """Return the number of targets that are not IGNORE, as a tensor on their device."""
    return (targets != IGNORE).sum()


def repeat_rows(batch: Batch) -> Batch:
    """Return the batch with all its rows twice: the first half equals the second."""
    return type(batch)(*(torch.cat([tensor, tensor]) for tensor in batch))


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
    # In float32 at least, as cross_entropy computes under autocast.
    z = logits if logits.dtype == torch.float64 else logits.float()
    losses = cross_entropy(
        z.flatten(0, 1),
        targets.flatten(),
        ignore_index=IGNORE,
        label_smoothing=label_smoothing,
        reduction="sum",
    )
    # Two passes over the same rows, which differ by their dropout.
    z_1, z_2 = z.chunk(2)
    p_1, p_2 = z.softmax(-1).chunk(2)
    divergence = 0.5 * ((p_1 - p_2) * (z_1 - z_2)).sum(-1)
    counted = divergence.masked_fill(targets.chunk(2)[0] == IGNORE, 0.0)
    return 0.5 * (losses + weight * counted.sum())


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
        # A sum in bfloat16 would lose what single targets add.
        return (total if total.dtype == torch.float64 else total.float()) / divisor


# ----------------------------------------------------------------------------------- head health

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


# --------------------------------------------------------------------------------------- validation

Validate = Callable[[Model], Mapping[str, float]]
"""What `train(validate=...)` takes: a function of the model that returns metrics by name.

Example:
    >>> from telescope.training import Validate
    >>> modules: Validate = lambda model: {"modules": len([*model.modules()])}
"""


@torch.no_grad()
def mean_loss(model: Model, data: Data, objective: Objective, settings: Training) -> float:
    """Return the mean loss over every target of the data once, in nats, without label smoothing.

    Args:
        model: evaluated in `eval` mode; its training mode is restored.
        data: moved to the model's device.
        objective: `language` or `translation`, as in training.
        settings: only the sizes of batches are used.

    Example:
        >>> import torch
        >>> from telescope.models import GPT, GPTConfig
        >>> from telescope.training import Training, Windows, language, mean_loss
        >>> _ = torch.manual_seed(0)
        >>> model = GPT(
        ...     GPTConfig(vocabulary=4, max_positions=8, d_model=8, blocks=1, heads=2)
        ... )
        >>> data = Windows([0, 1, 2, 3] * 8, block=8)
        >>> 1.0 < mean_loss(model, data, language, Training(steps=1, rows=2)) < 2.0
        True
    """
    data = data.to(next(model.parameters()).device)
    training = model.training
    model.eval()
    losses = []
    targets = []
    for spec in data.batches(settings, None):
        batch = data.take(spec)
        losses.append(objective(model, batch))
        targets.append(count_targets(batch.targets))
    model.train(training)
    # Read once at the end: reading each loss would wait for the GPU at every batch.
    return float(torch.stack(losses).cpu().double().sum() / torch.stack(targets).sum().cpu())


@dataclass(frozen=True)
class Criterion:
    """The metric that decides which validation is the best, and whether lower is better."""

    metric: str
    lower: bool

    @classmethod
    def parse(cls, text: str) -> "Criterion":
        """Return the criterion of a text such as "lowest loss" or "highest bleu"."""
        match text.split():
            case [("lowest" | "highest") as direction, metric]:
                return cls(metric, direction == "lowest")
        raise ValueError(
            f'better="{text}" names no direction and metric; "lowest loss" or "highest bleu" does'
        )

    def value(self, metrics: Mapping[str, float]) -> float:
        """Return this criterion's metric."""
        if self.metric not in metrics:
            raise ValueError(
                f'validation returns {", ".join(metrics) or "nothing"}, and not "{self.metric}"'
            )
        return metrics[self.metric]

    def is_better(self, new: float, old: float | None) -> bool:
        """Return whether the new value is better than the old one; any value is better than
        None.
        """
        return old is None or (new < old if self.lower else new > old)


Weights = Mapping[str, Tensor]


class WeightAverage:
    """Keep the last `count` snapshots of weights, in `last`, and average them."""

    def __init__(self, count: int) -> None:
        # The oldest snapshot is dropped when another one is appended.
        self.last: deque[Weights] = deque(maxlen=count)

    def mean(self) -> dict[str, Tensor]:
        """Return the mean of the snapshots, and the last of what is no floating-point tensor, such
        as counters.
        """
        means = dict(self.last[-1])
        for name, last in means.items():
            if last.is_floating_point():
                # In float64: the mean of equal weights is then exactly equal.
                total = torch.zeros_like(last, dtype=torch.float64)
                for weights in self.last:
                    total += weights[name]
                means[name] = (total / len(self.last)).to(last.dtype)
        return means

    def tensors(self) -> dict[str, Tensor]:
        """Return all snapshots' tensors in one dict, with names like 0/blocks.0.norm.weight."""
        return {
            f"{i}/{name}": tensor
            for i, weights in enumerate(self.last)
            for name, tensor in weights.items()
        }

    def restore(self, tensors: Weights) -> None:
        """Append the snapshots that `tensors` returned."""
        snapshots: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            # Snapshots may be stored in any order.
            i, _, name = key.partition("/")
            snapshots.setdefault(int(i), {})[name] = tensor
        self.last.extend(snapshots[i] for i in sorted(snapshots))
