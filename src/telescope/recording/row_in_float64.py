"""One query of one head, in float64: with every key of a sentence, or with those of a long text that it looks at."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import Pairs, softmax
from ..attention.restrict import of_queries
from ..engines.exact import weigh
from ..survey.exact_rows import KEYS, masked_rows
from ..tiles.head_scores import OneHead
from ..trace.trace import formulas

ALL, SOME = 512, 64  # up to so many keys all are looked at; of more, so many that get most


@dataclass(frozen=True, eq=False)
class RowInFloat64:
    """`terms`, products of the `factors`, sum to the scores. context = Σ weights · value + what comes from the rest."""

    keys: Int[Tensor, " key"]
    """Which keys these are."""
    formulas: dict[str, str]
    steps: dict[str, Float[Tensor, " key"]]
    """scores, scaled, capped, biased, masked and weights; a step that a definition lacks changes nothing."""
    query: Float[Tensor, " d_q"]
    key: Float[Tensor, "key d_k"]
    value: Float[Tensor, "key d_v"] | None
    factors: tuple[Float[Tensor, " term"], Float[Tensor, "key term"]] | None
    terms: Float[Tensor, "key term"]
    lse: float | None
    """ln Σ exp(score) over all keys, the sink included; None where the normaliser is not softmax."""
    sink: float | None
    context: Float[Tensor, " d_v"] | None
    rest: Float[Tensor, " d_v"] | None
    rest_weight: float


@torch.no_grad()
def closely(head: OneHead, i: int, keys: Int[Tensor, " key"] | None = None) -> RowInFloat64:
    """Query i; with these keys, unless it is left to it."""
    size, device = head.size, head.queries.device
    attention = of_queries(head.attention, torch.tensor([i]), size)
    query = head.queries[:, :, i : i + 1].double()
    one = range(1)
    first = torch.zeros(1, dtype=torch.long, device=device)
    masked = masked_rows(query, head.keys, attention, first, range(size[1]), one, one)
    weights = attention.weights(masked)
    if keys is None:
        few = size[1] > ALL
        keys = weights[0, 0, 0].topk(SOME).indices.sort().values if few else torch.arange(size[1], device=device)
    offered = head.keys[:, :, keys].double()
    at = Pairs.block(one, range(0), of=(1, size[1]), device=device)
    at = replace(at, key=keys[None, None, None])
    scores = attention.score(query, offered)
    scaled = attention.scaled(scores, offered)
    capped = attention.capped(scaled)
    biased = attention.biased(capped, at)
    steps = {
        "scores": scores,
        "scaled": scaled,
        "capped": capped,
        "biased": biased,
        "masked": attention.masked(biased, at),
        "weights": weights[..., keys],
    }
    others = weights.index_fill(-1, keys, 0.0)
    score = attention.score
    asks, offers = score.as_dot(query, offered) if score.is_dot_product else (None, None)
    sink = None if attention.sink is None else float(torch.as_tensor(attention.sink).reshape(-1)[0])
    return RowInFloat64(
        keys=keys,
        formulas=formulas(head.attention, offered.shape[-1]),
        steps={name: step[0, 0, 0] for name, step in steps.items()},
        query=query[0, 0, 0],
        key=offered[0, 0],
        value=None if head.values is None else head.values[0, 0, keys].double(),
        factors=None if asks is None or offers is None else (asks[0, 0, 0], offers[0, 0]),
        terms=score.terms(query, offered)[0, 0, 0],
        lse=_lse(masked, sink) if attention.normalize is softmax else None,
        sink=sink,
        context=_context(head, weights, masked),
        rest=_context(head, others, masked) if len(keys) < size[1] else None,
        rest_weight=float(others.sum()),
    )


def _lse(masked: Float[Tensor, "1 1 1 key"], sink: float | None) -> float:
    lse = torch.logsumexp(masked[0, 0, 0], -1)
    return float(lse if sink is None else torch.logaddexp(lse, lse.new_tensor(sink)))


def _context(
    head: OneHead, weights: Float[Tensor, "1 1 1 key"], masked: Float[Tensor, "1 1 1 key"]
) -> Float[Tensor, " d_v"] | None:
    """A stretch of keys at a time: all values in float64 would be a second copy of them, of twice the size."""
    if head.values is None:
        return None
    summed = weights.new_zeros(head.values.shape[-1])
    for start in range(0, weights.shape[-1], KEYS):
        part = slice(start, start + KEYS)
        summed += weigh(weights[..., part], head.values[:, :, part].double(), masked[..., part])[0, 0, 0]
    return summed
