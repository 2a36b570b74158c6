"""The engine that defines the result: every step in plain PyTorch. Other engines are tested against
it in float64.
"""

from dataclasses import dataclass, fields

from torch import Tensor
from torch.nn.functional import dropout as drop

from ..attention import Attention, Context, Keys, Pairs, Queries, Scores, Values, everyone
from .exact import nan_safe_score, nan_safe_weigh, upcast_half


@dataclass(frozen=True, eq=False)
class AttentionSteps:
    """The inputs, every intermediate result and the context of an attention, in the order of
    computation.
    """

    queries: Queries
    keys: Keys
    values: Values
    scores: Scores
    scaled: Scores
    capped: Scores
    biased: Scores
    masked: Scores
    weights: Scores
    context: Context


# The steps in the order they are computed. Tables, HTML, JSON, formulas and rows follow this list.
STEPS = tuple(field.name for field in fields(AttentionSteps))


def cannot(
    queries: Tensor, keys: Tensor, values: Tensor, attention: Attention, dropout: float = 0.0
) -> str | None:
    """Return None: this engine runs every definition."""
    return None


def attend(
    queries: Queries, keys: Keys, values: Values, attention: Attention, dropout: float = 0.0
) -> Context:
    """Return the context in the dtype of `queries`; half precision is computed in float32."""
    return steps(queries, keys, values, attention, dropout).context.to(queries.dtype)


def steps(
    queries: Queries, keys: Keys, values: Values, attention: Attention, dropout: float = 0.0
) -> AttentionSteps:
    """Return every step of normalise(mask(softcap(score(q, k) · scale) + bias)) v.

    Half-precision inputs are computed in float32. Dropout changes the context, not the weights that
    are returned.
    """
    # Half precision is computed in float32, as fused kernels accumulate it.
    q, k, v = map(upcast_half, (queries, keys, values))
    # score → scale → softcap → bias → mask → normalise → weigh the values.
    scores = nan_safe_score(attention.score, q, k)
    scaled = attention.scaled(scores, k)
    capped = attention.capped(scaled)
    at = Pairs.all(scores)
    biased = attention.biased(capped, at)
    masked = attention.masked(biased, at)
    weights = attention.weights(masked)
    # A row that sees nothing has weights of zero, and so its context.
    context = nan_safe_weigh(drop(weights, dropout), v, masked)
    return AttentionSteps(
        queries, keys, values, scores, scaled, capped, biased, masked, weights, context
    )


def formulas(attention: Attention, d_k: int) -> dict[str, str]:
    """Return the formula of each step that the definition takes, in the order of `STEPS`."""
    taken: dict[str, str] = {}
    # A step that is not taken equals the one before it, which its successor then names.
    for name in STEPS:
        formula = _formula(name, next(reversed(taken), ""), attention, d_k)
        if formula is not None:
            taken[name] = formula
    return taken


def _formula(step: str, previous: str, attention: Attention, d_k: int) -> str | None:
    """Return how a step follows from the previous one; None if it is not taken."""
    match step:
        case "queries" | "keys" | "values":
            return step[0]
        case "scores":
            return attention.score.formula
        case "scaled":
            if attention.scale_for(d_k) == 1.0:
                return None
            factor = f"/ √{d_k}" if attention.scale is None else f"· {attention.scale:g}"
            return f"{previous} {factor}"
        case "capped":
            cap = attention.softcap
            return None if cap is None else f"{cap:g}·tanh({previous} / {cap:g})"
        case "biased":
            return None if attention.bias is None else f"{previous} + {attention.bias!r}"
        case "masked":
            seen = f"{previous} where {attention.mask!r}, else -inf"
            return None if attention.mask == everyone else seen
        case "weights":
            sink = "" if attention.sink is None else "; sink"
            return f"{getattr(attention.normalize, '__name__', 'normalize')}({previous}{sink})"
        case "context":
            return f"{previous} · v"
        case _:
            raise KeyError(f"the step {step!r} has no formula")
