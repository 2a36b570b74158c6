"""The Synthesizer: attention whose scores come from the query alone, without keys (Tay et al. 2020; CS224N, a5)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad, relu

from ..attention import Attention, Mask, causal
from . import check_sizes
from .attend import Attend, DefinedLayer, join_heads, split_heads
from .cache import CachePosition, LayerCache


class SynthesizerAttention(DefinedLayer):
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
        check_sizes.sizes(d_model=d_model, heads=heads, block=block)
        d_k, tables = check_sizes.per_head(d_model, heads), 1 if shared else heads
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
        self,
        x: Float[Tensor, "batch n d_model"],
        mask: Mask | None = None,
        *,
        at: CachePosition = CachePosition(),
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch n d_model"]:
        """`mask` is for this call, beside the definition's; x stands `at` its place, behind what is in the `cache`."""
        check_sizes.features(self, "x", x, "d_model")
        attention = self.attention.seeing(mask)
        queries, keys = self.queries(x), self.keys(x, at)
        values = split_heads(self.V(x), self.heads)
        if cache is not None:
            keys, values = cache.append(keys, values, at.start)
            attention = cache.seen(attention, at)
        context: Tensor = self.attend(queries, keys, values, attention, across=False)
        y: Tensor = self.W_O(join_heads(context))
        return y

    def queries(self, x: Float[Tensor, "batch n d_model"]) -> Float[Tensor, "batch heads n d_k"]:
        queries = split_heads(relu(self.A(x)), self.heads)
        return queries if self.b2 is None else pad(queries, (0, 1), value=1.0)

    def keys(
        self, x: Float[Tensor, "batch n d_model"], at: CachePosition = CachePosition()
    ) -> Float[Tensor, "batch heads n d_k"]:
        """The columns of the table where x stands: the same for every sequence that stands there."""
        columns = self.B if self.b2 is None else torch.cat([self.B, self.b2], dim=1)
        where = at.start if at.positions is None else at.positions
        if isinstance(where, int):
            if where + x.shape[1] > self.block:
                raise ValueError(
                    f"x has {where + x.shape[1]} positions; "
                    f"a SynthesizerAttention with block={self.block} takes at most that many"
                )
            mine = columns[..., where : where + x.shape[1]].mT
        else:
            mine = columns.mT[:, where]  # (tables, n, d_k) or (tables, batch, n, d_k)
            mine = mine if where.ndim == 1 else mine.transpose(0, 1)
        return mine.expand(x.shape[0], self.heads, -1, -1)

    def room(self, batch: int, room: int) -> LayerCache:
        """Room for the columns and values of so many tokens, in the dtype and on the device of the weights."""
        check_sizes.sizes(batch=batch, room=room)
        d_k = self.d_model // self.heads
        front, like = (batch, self.heads, room), self.W_O.weight.detach()
        return LayerCache(like.new_empty(*front, d_k + (self.b2 is not None)), like.new_empty(*front, d_k))
