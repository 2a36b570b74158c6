"""Score the keys of a cache by the weight that they get, to choose which keys to drop."""

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import Attention
from ..words import hint
from .extras import Extras
from .survey import survey_unchecked

SCORES = ("received", "largest", "carried")
REDUCE = ("mean", "max", "sum")


def check_rules(score: str, reduce: str) -> None:
    """Raise a ValueError if one of the two is unknown."""
    if score not in SCORES:
        raise ValueError(f'there is no score="{score}"; {hint(str(score), SCORES)}')
    if reduce not in REDUCE:
        raise ValueError(f'there is no reduce="{reduce}"; {hint(str(reduce), REDUCE)}')


def key_scores(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    *,
    score: str = "received",
    reduce: str = "mean",
    norms: Float[Tensor, "batch heads key"] | None = None,
) -> Float[Tensor, "batch key_heads key"]:
    """Return a score for each key of each key head, in memory that grows with n and not with n².

    score    "received": the weight the key gets, the mean of the queries that may see it;
             "largest": the largest weight it gets;
             "carried": "received" times `norms`, such as ‖W_O v‖
    reduce   how the query heads that share a key head are reduced: "mean", "max" or "sum"

    Example:
        >>> import telescope as ts, torch
        >>> from telescope.surveys.key_scores import key_scores
        >>> zeros = torch.zeros(1, 2, 4, 8)
        >>> key_scores(zeros, zeros[:, :1], ts.Attention(), score="largest").tolist()
        [[[0.25, 0.25, 0.25, 0.25]]]
    """
    check_rules(score, reduce)
    if score == "carried" and norms is None:
        raise ValueError('score="carried" needs norms, one for each head and key')
    with torch.no_grad():
        seen = survey_unchecked(
            queries, keys, attention, top=0, extras=Extras(largest=score == "largest")
        ).summary
        if seen.largest_weight is not None:
            found = seen.largest_weight
        else:
            rows = queries.shape[-2]
            columns = keys.shape[-2]
            first = torch.arange(columns, device=keys.device) - (
                columns - rows
            )  # the first row that may see each key
            found = seen.received / (rows - first.clamp(min=0)).clamp(min=1)
            found = found if norms is None else found * norms.to(found.dtype)
        grouped = found.view(len(found), keys.shape[1], -1, keys.shape[-2])
        if reduce == "max":
            return grouped.amax(2)
        return grouped.mean(2) if reduce == "mean" else grouped.sum(2)
