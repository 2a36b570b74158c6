"""The health of attention during training: the entropy and the largest logit of every head."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..interception.watch import watch
from ..models import Model
from ..surveys import Survey
from .batch import IGNORE, PairBatch
from .objectives import Objective

Heads = dict[str, tuple[float, ...]]  # one number for each head, by the name of the attention


@torch.no_grad()
def health(model: Model, batch: Any, objective: Objective) -> tuple[Heads, Heads]:
    """Return the mean entropy of each head's queries, in nats, and each head's largest logit, on
    one batch.

    A collapsed entropy and exploding logits are signs that a training fails. Queries that are
    padding, or whose target is IGNORE, are left out.
    """
    with watch(model, keep="summaries", top=1) as recording:
        objective(model, batch)
    entropy = {}
    logit = {}
    for name, watched in recording.items():
        if watched.calls:
            survey = watched.survey()
            counted = _counted_queries(name, batch)[:, None]
            entropy[name] = tuple(
                (survey.entropy * counted).sum((0, 2)).div(counted.sum()).tolist()
            )
            logit[name] = tuple(
                _largest_logits(survey).masked_fill(~counted, -torch.inf).amax((0, 2)).tolist()
            )
    return entropy, logit


def _largest_logits(survey: Survey) -> Float[Tensor, "batch heads query"]:
    """Return the largest logit of each query: its peak weight is exp(logit - lse). Without a
    softmax it is NaN.
    """
    if survey.lse is None:
        return survey.peak.weight.new_full(survey.peak.weight.shape, torch.nan)
    return survey.lse + survey.peak.weight.log()


def _counted_queries(name: str, batch: Any) -> Bool[Tensor, "batch query"]:
    """Return which queries count: an encoder's are the source's tokens, all others the positions
    with a target.
    """
    has_target: Tensor = batch.targets != IGNORE
    if isinstance(batch, PairBatch) and name.startswith("encoder"):
        place = torch.arange(batch.source.shape[1], device=has_target.device)
        return (place < batch.lengths[:, None]) & has_target.any(1, keepdim=True)
    return has_target
