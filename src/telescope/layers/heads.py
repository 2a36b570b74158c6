"""Between features side by side, as a projection makes them, and heads apart, as attention takes them."""

from jaxtyping import Float
from torch import Tensor


def split_heads(features: Float[Tensor, "batch n heads_d"], heads: int) -> Float[Tensor, "batch heads n d"]:
    batch, n, width = features.shape
    return features.reshape(batch, n, heads, width // heads).transpose(1, 2)


def join_heads(context: Float[Tensor, "batch heads n d"]) -> Float[Tensor, "batch n heads_d"]:
    return context.transpose(1, 2).flatten(-2)
