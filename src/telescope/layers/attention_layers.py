"""Attention layers besides multi-head attention: one head, Luong's between a decoder and an encoder
(Luong et al. 2015), and the Synthesizer, whose scores come from the query alone (Tay et al. 2020).
"""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad, relu

from ..attention import Attention, Mask, Score, additive, causal, dot, general
from .attend import (
    Attend,
    DefinedLayer,
    States,
    check_choice,
    check_features,
    check_sizes,
    head_width,
    join_heads,
    split_heads,
)
from .cache import CachePosition, LayerCache


class SelfAttention(DefinedLayer):
    """Z = softmax(Q Kᵀ / √d_k) V with Q = X W_q, K = X W_k, V = X W_v.

    Args:
        d_model: width of X.
        d_k, d_v: width of queries and keys, d_model unless given; of values, d_k unless given.
        bias: whether W_q, W_k and W_v have a bias.
        attention: the definition: scale, mask, bias, ...
        dropout: the probability with which an attention weight is dropped, in training only.

    Example:
        >>> import torch
        >>> from telescope.layers import SelfAttention
        >>> SelfAttention(4, d_v=2)(torch.zeros(1, 3, 4)).shape
        torch.Size([1, 3, 2])
        >>> SelfAttention(4).attention
        Attention()
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
        # Three matrices of their own, as the notes write them.
        self.W_q = nn.Linear(d_model, self.d_k, bias)
        self.W_k = nn.Linear(d_model, self.d_k, bias)
        self.W_v = nn.Linear(d_model, self.d_v, bias)
        self.attend = Attend(dropout)

    def forward(self, x: States, mask: Mask | None = None) -> Float[Tensor, "batch n d_v"]:
        """Return Z; `mask` is combined with the definition's by &.

        Args:
            x: (batch, n, d_model).
            mask: combined with the definition's by &.
        """
        check_features(self, "x", x, "d_model")
        queries = self.W_q(x)
        keys = self.W_k(x)
        values = self.W_v(x)
        # One head: an axis of size 1.
        heads = (queries[:, None], keys[:, None], values[:, None])
        context: Tensor = self.attend(*heads, self.attention.with_extra_mask(mask), across=False)
        return context[:, 0]


class LuongAttention(DefinedLayer):
    """c_i = Σ_j α_ij h_j, α_i = softmax(e_i), e_ij = similarity(s_i, h_j): h_j is both key and
    value.

    Args:
        score: "dot" s·h, "general" s·W·h, "concat" v·tanh(s W_q + h W_k).
        d_query: width of s_i.
        d_memory: width of h_j, d_query unless given.
        d_attention: width of v, for "concat" only; d_memory unless given.
        attention: the rest of the definition; its score is ignored.
        dropout: the probability with which an attention weight is dropped, in training only.

    Raises:
        ValueError: for an unknown score, or widths that do not fit the score.

    Example:
        >>> import torch
        >>> from telescope.layers import LuongAttention
        >>> LuongAttention("general", 4, 6)(
        ...     torch.zeros(1, 2, 4), torch.zeros(1, 5, 6)
        ... ).shape
        torch.Size([1, 2, 6])
        >>> layer = LuongAttention("dot", 4)
        >>> layer.attention.scale, layer.similarity()
        (1.0, dot)
    """

    def __init__(
        self,
        score: str,
        d_query: int,
        d_memory: int | None = None,
        d_attention: int | None = None,
        *,
        attention: Attention = Attention(scale=1.0),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_choice("score", score, ("dot", "general", "concat"))
        check_sizes(d_query=d_query, d_memory=d_memory, d_attention=d_attention)
        self.score = score
        self.d_query = d_query
        self.d_memory = d_query if d_memory is None else d_memory
        self.attention = attention
        self.attend = Attend(dropout)
        # Each score needs its own parameters, and no others.
        if score == "dot" and self.d_memory != d_query:
            raise ValueError(
                f'score="dot" needs one width, not d_query={d_query} and d_memory={d_memory}; '
                'score="general" and score="concat" take two'
            )
        if score != "concat" and d_attention is not None:
            raise ValueError(
                f'd_attention={d_attention} is for score="concat" only; leave it out for '
                f'score="{score}"'
            )
        if score == "general":
            self.W = _xavier_parameter(d_query, self.d_memory)
        if score == "concat":
            d_attention = self.d_memory if d_attention is None else d_attention
            self.W_q = _xavier_parameter(d_query, d_attention)
            self.W_k = _xavier_parameter(self.d_memory, d_attention)
            # Drawn as a matrix of one column.
            self.v = nn.Parameter(_xavier_parameter(d_attention, 1)[:, 0].detach())

    def forward(
        self,
        states: Float[Tensor, "batch query d_query"],
        memory: Float[Tensor, "batch key d_memory"],
        mask: Mask | None = None,
    ) -> Float[Tensor, "batch query d_memory"]:
        """Return the context c_i of each state; `mask` is combined with the definition's by &.

        Args:
            states: (batch, query, d_query), s of the decoder.
            memory: (batch, key, d_memory), h of the encoder.
            mask: combined with the definition's by &.
        """
        check_features(self, "states", states, "d_query")
        check_features(self, "memory", memory, "d_memory")
        # The weights are read now, so that training changes the score.
        attention = replace(self.attention.with_extra_mask(mask), score=self.similarity())
        queries = states[:, None]
        keys = memory[:, None]
        # The states of the encoder are keys and values at once.
        context: Tensor = self.attend(queries, keys, keys, attention, across=memory is not states)
        return context[:, 0]

    def similarity(self) -> Score:
        """Return the score function with the current weights."""
        if self.score == "general":
            return general(self.W)
        return additive(self.W_q, self.W_k, self.v) if self.score == "concat" else dot


def _xavier_parameter(rows: int, columns: int) -> nn.Parameter:
    """Return a matrix drawn from Xavier's uniform distribution."""
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(rows, columns)))


class SynthesizerAttention(DefinedLayer):
    """Y = [Y_1 … Y_T] W_O, Y_i = softmax(ReLU(X A_i + b1) B_i + b2) (X V_i), for sequences of at
    most `block` tokens.

    Fused kernels can compute these scores, because they are a dot product: the queries are ReLU(X A
    + b1) with a constant 1 as one more feature, the keys are the columns of B with b2 as that
    feature.

    Args:
        d_model: width of X and Y.
        heads: number of heads; divides d_model.
        block: number of columns of B, the length of the longest sequence.
        shared: whether all heads share one B and b2.
        bias: whether there are b1, b2 and the biases of V and W_O.
        attention: the definition: scale, mask, ...
        dropout: the probability with which an attention weight is dropped, in training only.

    Example:
        >>> import torch
        >>> from telescope.layers import SynthesizerAttention
        >>> SynthesizerAttention(8, heads=2, block=16)(torch.zeros(1, 5, 8)).shape
        torch.Size([1, 5, 8])
        >>> layer, x = SynthesizerAttention(8, heads=2, block=16), torch.zeros(1, 5, 8)
        >>> layer.queries(x).shape == layer.keys(x).shape, layer.attention.scale
        (True, 1.0)
        >>> layer.room(batch=1, room=16).values.shape
        torch.Size([1, 2, 16, 4])
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
        check_sizes(d_model=d_model, heads=heads, block=block)
        d_k = head_width(d_model, heads)
        # How many tables B there are: one for all heads, or one for each.
        tables = 1 if shared else heads
        self.d_model = d_model
        self.heads = heads
        self.block = block
        self.attention = attention
        self.A = nn.Linear(d_model, d_model, bias)
        # Near zero, so that every position begins with the same weight (CS224N, a5).
        self.B = nn.Parameter(torch.empty(tables, d_k, block).uniform_(-0.001, 0.001))
        self.b2 = nn.Parameter(torch.zeros(tables, 1, block)) if bias else None
        self.V = nn.Linear(d_model, d_model, bias)
        self.W_O = nn.Linear(d_model, d_model, bias)
        self.attend = Attend(dropout)

    def forward(
        self,
        x: States,
        mask: Mask | None = None,
        *,
        at: CachePosition = CachePosition(),
        cache: LayerCache | None = None,
    ) -> States:
        """Return Y.

        Args:
            mask: a mask for this call, combined with the definition's by &.
            at: the positions of x in the sequence and in the cache.
            cache: columns and values of earlier tokens: those of x are written behind them, and x
                sees them all.
            x: (batch, n, d_model).
        """
        check_features(self, "x", x, "d_model")
        attention = self.attention.with_extra_mask(mask)
        # A dot product of features, so that fused kernels run it.
        queries = self.queries(x)
        keys = self.keys(x, at)
        values = split_heads(self.V(x), self.heads)
        if cache is not None:
            keys, values = cache.append(keys, values, at.start)
            attention = cache._hide_unwritten(attention, at)
        context: Tensor = self.attend(queries, keys, values, attention, across=False)
        y: Tensor = self.W_O(join_heads(context))
        return y

    def queries(self, x: States) -> Float[Tensor, "batch heads n d_k"]:
        """Return ReLU(X A + b1), split into heads, with a constant 1 as last feature where there is
        a b2.

        Args:
            x: (batch, n, d_model).
        """
        queries = split_heads(relu(self.A(x)), self.heads)
        return queries if self.b2 is None else pad(queries, (0, 1), value=1.0)

    def keys(
        self, x: States, at: CachePosition = CachePosition()
    ) -> Float[Tensor, "batch heads n d_k"]:
        """Return the columns of B (and b2) at the positions of x; they do not depend on the
        contents of x.

        Args:
            x: (batch, n, d_model), of which only the shape is read.
            at: the positions of x in the sequence and in the cache.
        """
        # b2 is one more feature, which the constant 1 of the queries picks.
        columns = self.B if self.b2 is None else torch.cat([self.B, self.b2], dim=1)
        positions = at.start if at.positions is None else at.positions
        if isinstance(positions, int):
            # The table has no column for later positions.
            if positions + x.shape[1] > self.block:
                raise ValueError(
                    f"x has {positions + x.shape[1]} positions; "
                    f"a SynthesizerAttention with block={self.block} takes at most that many"
                )
            keys = columns[..., positions : positions + x.shape[1]].mT
        else:
            # Positions of each token: with padding they differ from sequence to sequence.
            keys = columns.mT[:, positions]  # (tables, n, d_k) or (tables, batch, n, d_k)
            keys = keys if positions.ndim == 1 else keys.transpose(0, 1)
        # A view: the table is copied neither for the batch nor for heads that share it.
        return keys.expand(x.shape[0], self.heads, -1, -1)

    def room(self, batch: int, room: int) -> LayerCache:
        """Return an empty cache for `room` tokens of `batch` sequences, in the weights' dtype and
        on their device.

        Args:
            batch: the number of sequences.
            room: the tokens that each of them may have.
        """
        check_sizes(batch=batch, room=room)
        d_k = self.d_model // self.heads
        front = (batch, self.heads, room)
        # The weights tell dtype and device.
        like = self.W_O.weight.detach()
        # Keys have one more feature where there is a b2.
        return LayerCache(
            like.new_empty(*front, d_k + (self.b2 is not None)), like.new_empty(*front, d_k)
        )
