"""The law: every step formed, in plain PyTorch. All other engines mean this, and are tested against it in float64."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import dropout as drop

from ..attention import Attention, Pairs
from .exact import precise, score, weigh


@dataclass(frozen=True, eq=False)
class AttentionSteps:
    """Everything an attention computes on its way, in order."""

    queries: Float[Tensor, "batch heads query d_q"]
    keys: Float[Tensor, "batch key_heads key d_k"]
    values: Float[Tensor, "batch key_heads key d_v"]
    scores: Float[Tensor, "batch heads query key"]
    scaled: Float[Tensor, "batch heads query key"]
    capped: Float[Tensor, "batch heads query key"]
    biased: Float[Tensor, "batch heads query key"]
    masked: Float[Tensor, "batch heads query key"]
    weights: Float[Tensor, "batch heads query key"]
    context: Float[Tensor, "batch heads query d_v"]


def cannot(queries: Tensor, keys: Tensor, values: Tensor, attention: Attention, dropout: float = 0.0) -> str | None:
    """Why this engine cannot run it: there is nothing that it cannot."""
    return None


def attend(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    values: Float[Tensor, "batch key_heads key d_v"],
    attention: Attention,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads query d_v"]:
    return steps(queries, keys, values, attention, dropout).context.to(queries.dtype)


def steps(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    values: Float[Tensor, "batch key_heads key d_v"],
    attention: Attention,
    dropout: float = 0.0,
) -> AttentionSteps:
    """normalise(mask(softcap(score(q, k) · scale) + bias)) v. Half-precision inputs are computed in float32."""
    q, k, v = precise(queries), precise(keys), precise(values)
    scores = score(attention.score, q, k)
    scaled = attention.scaled(scores, k)
    capped = attention.capped(scaled)
    at = Pairs.all(scores)
    biased = attention.biased(capped, at)
    masked = attention.masked(biased, at)
    weights = attention.weights(masked)
    context = weigh(drop(weights, dropout), v, masked)
    return AttentionSteps(queries, keys, values, scores, scaled, capped, biased, masked, weights, context)
