"""Self-attention with one head and trainable weights, the simplest form."""

from jaxtyping import Float
from torch import Tensor, nn

from ..attention import Attention, Mask
from .attend import Attend, DefinedLayer
from .check_sizes import check_features, check_sizes


class SelfAttention(DefinedLayer):
    """Z = softmax(Q Kᵀ / √d_k) V with Q = X W_q, K = X W_k, V = X W_v.

    d_model    width of X
    d_k, d_v   width of queries and keys, d_model unless given; of values, d_k unless given
    bias       whether W_q, W_k and W_v have a bias
    attention  the definition: scale, mask, bias, ...
    dropout    the probability with which an attention weight is dropped, in training only

    Example:
        >>> import torch
        >>> from telescope.layers import SelfAttention
        >>> SelfAttention(4, d_v=2)(torch.zeros(1, 3, 4)).shape
        torch.Size([1, 3, 2])
    """

    def __init__(
        self,
        d_model: int,
        d_k: int | None = None,
        d_v: int | None = None,
        *,
        bias: bool = False,
        attention: Attention = Attention(),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_sizes(d_model=d_model, d_k=d_k, d_v=d_v)
        self.d_model = d_model
        self.d_k = d_model if d_k is None else d_k
        self.d_v = self.d_k if d_v is None else d_v
        self.attention = attention
        self.W_q = nn.Linear(d_model, self.d_k, bias)
        self.W_k = nn.Linear(d_model, self.d_k, bias)
        self.W_v = nn.Linear(d_model, self.d_v, bias)
        self.attend = Attend(dropout)

    def forward(
        self, x: Float[Tensor, "batch n d_model"], mask: Mask | None = None
    ) -> Float[Tensor, "batch n d_v"]:
        """Return Z; `mask` is combined with the definition's by &."""
        check_features(self, "x", x, "d_model")
        queries = self.W_q(x)
        keys = self.W_k(x)
        values = self.W_v(x)
        heads = (queries[:, None], keys[:, None], values[:, None])
        context: Tensor = self.attend(*heads, self.attention.with_extra_mask(mask), across=False)
        return context[:, 0]
