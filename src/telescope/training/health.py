"""Attention health: what people look for when training goes wrong, collapsed entropy and exploding logits."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..models import Model
from ..survey import Survey
from ..watch.watch import watch
from .batch import IGNORE, PairBatch
from .objectives import Objective

Heads = dict[str, tuple[float, ...]]


@torch.no_grad()
def health(model: Model, batch: Any, objective: Objective) -> tuple[Heads, Heads]:
    """For each head of each attention, by name: the mean entropy of its queries, in nats, and its largest logit.

    Queries that are padding, or whose guess does not count, are left out.
    """
    with watch(model, keep="summaries", top=1) as recording:
        objective(model, batch)
    entropy, logit = {}, {}
    for name, watched in recording.items():
        if watched.calls:
            seen = watched.survey()
            mine = _queries(name, batch)[:, None]
            entropy[name] = tuple((seen.entropy * mine).sum((0, 2)).div(mine.sum()).tolist())
            logit[name] = tuple(_logits(seen).masked_fill(~mine, -torch.inf).amax((0, 2)).tolist())
    return entropy, logit


def _logits(seen: Survey) -> Float[Tensor, "batch heads query"]:
    """The largest of each query: its weight is exp(logit - lse)."""
    if seen.lse is None:
        return seen.peak.weight.new_full(seen.peak.weight.shape, torch.nan)  # not a softmax: it has no logits
    return seen.lse + seen.peak.weight.log()


def _queries(name: str, batch: Any) -> Bool[Tensor, "batch query"]:
    """Which queries are looked at: an encoder's are the source's, all others' are what is guessed from."""
    real: Tensor = batch.targets != IGNORE
    if isinstance(batch, PairBatch) and name.startswith("encoder"):
        place = torch.arange(batch.source.shape[1], device=real.device)
        return (place < batch.lengths[:, None]) & real.any(1, keepdim=True)
    return real
