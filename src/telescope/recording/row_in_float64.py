"""Compute every step of one query of one head in float64, for all keys or for those with the
largest weights; and weight times gradient of each key.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import Pairs, key_heads_of, restrict_to_queries, softmax
from ..engines import nan_safe_weigh
from ..surveys import KEYS, compute_dtype, masked_rows, weigh
from ..tiles import OneHead
from ..traces import PAIR_STEPS, formulas, score_products
from .attention_call import AttentionCall

# Up to the first number, all keys are returned; of more keys, those with the largest weights.
ALL = 512
SOME = 64


@dataclass(frozen=True, eq=False)
class RowInFloat64:
    """Every step of one query of one head, for some of its keys.

    Summed over the last axis, `terms` are the scores; they are the products of the `factors`.
    context = Σ weights · value + rest.
    """

    keys: Int[Tensor, " key"]
    """The numbers of the keys."""
    formulas: dict[str, str]
    steps: dict[str, Float[Tensor, " key"]]
    """Each of `PAIR_STEPS`, from scores to weights; a step that the definition lacks repeats the
    step before.
    """
    query: Float[Tensor, " d_q"]
    key: Float[Tensor, "key d_k"]
    value: Float[Tensor, "key d_v"] | None
    factors: tuple[Float[Tensor, " term"], Float[Tensor, "key term"]] | None
    terms: Float[Tensor, "key term"]
    lse: float | None
    """ln Σ exp(score) over all keys, the sink included; None where the normaliser is not softmax.
    """
    sink: float | None
    context: Float[Tensor, " d_v"] | None
    """The output of the query; None without values."""
    rest: Float[Tensor, " d_v"] | None
    """The part of `context` that comes from keys not in `keys`; None if there are none."""
    rest_weight: float
    """The sum of the weights of the keys not in `keys`."""


@torch.no_grad()
def row_in_float64(head: OneHead, i: int, keys: Int[Tensor, " key"] | None = None) -> RowInFloat64:
    """Return every step of query `i`, for the given keys.

    Without `keys`, for all keys of a text of at most ALL tokens, and of a longer one for the SOME
    largest weights.
    """
    size = head.size
    device = head.queries.device
    # Compute the query's weights over all keys, which the choice of keys needs.
    attention = restrict_to_queries(head.attention, torch.tensor([i]), size)
    query = head.queries[:, :, i : i + 1].double()
    one = range(1)
    first = torch.zeros(1, dtype=torch.long, device=device)
    masked = masked_rows(query, head.keys, attention, first, range(size[1]), one, one)
    weights = attention.weights(masked)

    # Choose all keys of a short text, and of a long one those with the largest weights.
    if keys is None:
        many = size[1] > ALL
        keys = (
            weights[0, 0, 0].topk(SOME).indices.sort().values
            if many
            else torch.arange(size[1], device=device)
        )

    # Repeat every step for the chosen keys alone.
    chosen = head.keys[:, :, keys].double()
    # Mask and bias are asked at these keys' positions.
    at = Pairs.block(one, range(0), of=(1, size[1]), device=device)
    at = replace(at, key=keys[None, None, None])
    scores = attention.score(query, chosen)
    scaled = attention.scaled(scores, chosen)
    capped = attention.capped(scaled)
    biased = attention.biased(capped, at)
    computed = (scores, scaled, capped, biased, attention.masked(biased, at), weights[..., keys])

    # The weights of all other keys make up the rest of the context.
    others = weights.index_fill(-1, keys, 0.0)
    factors, terms = score_products(attention.score, query, chosen)
    sink = None if attention.sink is None else float(torch.as_tensor(attention.sink).reshape(-1)[0])
    return RowInFloat64(
        keys=keys,
        formulas=formulas(head.attention, chosen.shape[-1]),
        steps={name: step[0, 0, 0] for name, step in zip(PAIR_STEPS, computed, strict=True)},
        query=query[0, 0, 0],
        key=chosen[0, 0],
        value=None if head.values is None else head.values[0, 0, keys].double(),
        factors=factors,
        terms=terms,
        lse=_lse(masked, sink) if attention.normalize is softmax else None,
        sink=sink,
        context=_context(head, weights, masked),
        rest=_context(head, others, masked) if len(keys) < size[1] else None,
        rest_weight=float(others.sum()),
    )


def _lse(masked: Float[Tensor, "1 1 1 key"], sink: float | None) -> float:
    lse = torch.logsumexp(masked[0, 0, 0], -1)
    # A sink is one more summand of the normaliser.
    return float(lse if sink is None else torch.logaddexp(lse, lse.new_tensor(sink)))


def _context(
    head: OneHead, weights: Float[Tensor, "1 1 1 key"], masked: Float[Tensor, "1 1 1 key"]
) -> Float[Tensor, " d_v"] | None:
    """Return Σ weights · value, summed over blocks of keys: all values in float64 would take twice
    their memory.
    """
    if head.values is None:
        return None
    summed = weights.new_zeros(head.values.shape[-1])
    for start in range(0, weights.shape[-1], KEYS):
        part = slice(start, start + KEYS)
        # A hidden value adds nothing, not even if it is NaN.
        summed += nan_safe_weigh(
            weights[..., part], head.values[:, :, part].double(), masked[..., part]
        )[0, 0, 0]
    return summed


def shares_with_unrecorded(heads: Sequence[int], call: AttentionCall) -> bool:
    """Return whether some of these heads of a call share their values with heads that are not among
    them.
    """
    count = call.queries.shape[1]
    key_heads = call.values.shape[1]
    kept = key_heads_of(torch.tensor(heads), count, key_heads)
    # Each key head serves count / key_heads heads: compare with how many are recorded.
    return len(kept) * count > len(heads) * key_heads


def check_dropout(name: str, heads: Sequence[int], call: AttentionCall) -> None:
    """Raise a ValueError if the gradients of these heads cannot be told from those of the others.

    They are computed with the weights of each head, and which weights were dropped is not known.
    """
    if call.dropout and call.values.requires_grad and shares_with_unrecorded(heads, call):
        raise ValueError(
            f'heads={[*heads]} with also="gradients": heads of "{name}" share their values, and '
            f"dropout={call.dropout:g} hides the part of each; call model.eval(), or leave heads= "
            "out"
        )


def weight_times_gradient(
    call: AttentionCall, gradient: Float[Tensor, "batch heads query d_v"]
) -> Float[Tensor, "batch key_heads key"]:
    """Return Σ weight · dweight over the queries, and over the heads of `call` that share a key.

    `gradient` is that of the context. dweight_ij = dcontext_i · v_j, so that the sum over the
    queries i is v_j · Σ weight_ij dcontext_i. Memory grows with n.
    """
    dtype = compute_dtype(call.queries)
    attention = call.attention_over_present_keys
    # This engine runs every definition on every device; the log-sum-exp is computed again.
    sums = weigh("chunked", call.queries, call.keys, attention, None, gradient.to(dtype).mT)
    # Add up the heads that share a key head, and multiply each key's sum by its value.
    batch, key_heads, keys, d_v = call.values.shape
    of_values = sums.reshape(batch, key_heads, -1, d_v, keys).sum(2).mT
    return (of_values * call.values).sum(-1).to(dtype)
