"""Weight times gradient of each key, where the recorded heads share their values with heads that
are not recorded.

The gradient of a value is summed over all heads that share the value. The gradient of the context
is not: there each head has its own part.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import key_heads_of
from ..surveys import compute_dtype, weigh
from .attention_call import AttentionCall


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
