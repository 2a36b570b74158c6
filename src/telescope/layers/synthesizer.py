"""The Synthesizer: attention whose scores come from the query alone, without keys (Tay et al. 2020; CS224N, a5)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad, relu

from ..attention import Attention, Mask, causal
from . import check
from .attend import Attend
from .heads import join_heads, split_heads


class SynthesizerAttention(nn.Module):
    """Y = [Y_1 … Y_T] W_O, Y_i = softmax(ReLU(X A_i + b1) B_i + b2) (X V_i), for sequences of at most `block` tokens.

    It is a dot product all the same, so fused kernels run it: the queries are ReLU(X A + b1) with a 1 as one more
    feature, the keys the columns of B with b2 as that feature. shared=True has one B and b2 for all heads.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        block: int,
        *,
        shared: bool = False,
        bias: bool = True,
        attention: Attention = Attention(scale=1.0, mask=causal),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check.sizes(d_model=d_model, heads=heads, block=block)
        d_k, tables = check.per_head(d_model, heads), 1 if shared else heads
        self.d_model = d_model
        self.heads = heads
        self.block = block
        self.attention = attention
        self.A = nn.Linear(d_model, d_model, bias)
        self.B = nn.Parameter(torch.empty(tables, d_k, block).uniform_(-0.001, 0.001))
        self.b2 = nn.Parameter(torch.zeros(tables, 1, block)) if bias else None
        self.V = nn.Linear(d_model, d_model, bias)
        self.W_O = nn.Linear(d_model, d_model, bias)
        self.attend = Attend(dropout)

    def forward(
        self, x: Float[Tensor, "batch n d_model"], mask: Mask | None = None
    ) -> Float[Tensor, "batch n d_model"]:
        check.features(self, "x", x, "d_model")
        if x.shape[1] > self.block:
            raise ValueError(
                f"x has {x.shape[1]} positions; a SynthesizerAttention with block={self.block} takes at most that many"
            )
        queries, keys = self.queries(x), self.keys(x)
        values = split_heads(self.V(x), self.heads)
        context: Tensor = self.attend(queries, keys, values, self.attention.seeing(mask))
        y: Tensor = self.W_O(join_heads(context))
        return y

    def queries(self, x: Float[Tensor, "batch n d_model"]) -> Float[Tensor, "batch heads n d_k"]:
        queries = split_heads(relu(self.A(x)), self.heads)
        return queries if self.b2 is None else pad(queries, (0, 1), value=1.0)

    def keys(self, x: Float[Tensor, "batch n d_model"]) -> Float[Tensor, "batch heads n d_k"]:
        """The same for every sequence, as long as x."""
        columns = self.B if self.b2 is None else torch.cat([self.B, self.b2], dim=1)
        return columns[..., : x.shape[1]].mT.expand(x.shape[0], self.heads, -1, -1)
