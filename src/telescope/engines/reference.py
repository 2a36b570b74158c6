"""The engine that defines the result: every step in plain PyTorch. Other engines are tested against
it in float64.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import dropout as drop

from ..attention import Attention, Pairs
from .exact import nan_safe_score, nan_safe_weigh, upcast_half


@dataclass(frozen=True, eq=False)
class AttentionSteps:
    """The inputs, every intermediate result and the context of an attention, in the order of
    computation.
    """

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


def cannot(
    queries: Tensor, keys: Tensor, values: Tensor, attention: Attention, dropout: float = 0.0
) -> str | None:
    """Return None: this engine runs every definition."""
    return None


def attend(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    values: Float[Tensor, "batch key_heads key d_v"],
    attention: Attention,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads query d_v"]:
    """Return the context in the dtype of `queries`; half precision is computed in float32."""
    return steps(queries, keys, values, attention, dropout).context.to(queries.dtype)


def steps(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    values: Float[Tensor, "batch key_heads key d_v"],
    attention: Attention,
    dropout: float = 0.0,
) -> AttentionSteps:
    """Return every step of normalise(mask(softcap(score(q, k) · scale) + bias)) v.

    Half-precision inputs are computed in float32. Dropout changes the context, not the weights that
    are returned.
    """
    q = upcast_half(queries)
    k = upcast_half(keys)
    v = upcast_half(values)
    scores = nan_safe_score(attention.score, q, k)
    scaled = attention.scaled(scores, k)
    capped = attention.capped(scaled)
    at = Pairs.all(scores)
    biased = attention.biased(capped, at)
    masked = attention.masked(biased, at)
    weights = attention.weights(masked)
    context = nan_safe_weigh(drop(weights, dropout), v, masked)
    return AttentionSteps(
        queries, keys, values, scores, scaled, capped, biased, masked, weights, context
    )
