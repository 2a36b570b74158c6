"""Luong attention: the states of a decoder attend to the states of an encoder (Luong et al.
2015).
"""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..attention import Attention, Mask, Score, additive, dot, general
from .attend import Attend, DefinedLayer
from .check_sizes import check_choice, check_features, check_sizes


class LuongAttention(DefinedLayer):
    """c_i = Σ_j α_ij h_j, α_i = softmax(e_i), e_ij = similarity(s_i, h_j): h_j is both key and
    value.

    score        "dot" s·h, "general" s·W·h, "concat" v·tanh(s W_q + h W_k)
    d_query      width of s_i
    d_memory     width of h_j, d_query unless given
    d_attention  width of v, for "concat" only; d_memory unless given
    attention    the rest of the definition; its score is ignored
    dropout      the probability with which an attention weight is dropped, in training only

    Raises a ValueError for an unknown score, or widths that do not fit the score.

    Example:
        >>> import torch
        >>> from telescope.layers import LuongAttention
        >>> LuongAttention("general", 4, 6)(torch.zeros(1, 2, 4), torch.zeros(1, 5, 6)).shape
        torch.Size([1, 2, 6])
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
            self.v = nn.Parameter(_xavier_parameter(d_attention, 1)[:, 0].detach())

    def forward(
        self,
        states: Float[Tensor, "batch query d_query"],
        memory: Float[Tensor, "batch key d_memory"],
        mask: Mask | None = None,
    ) -> Float[Tensor, "batch query d_memory"]:
        """Return the context c_i of each state; `mask` is combined with the definition's by &."""
        check_features(self, "states", states, "d_query")
        check_features(self, "memory", memory, "d_memory")
        attention = replace(self.attention.with_extra_mask(mask), score=self.similarity())
        queries = states[:, None]
        keys = memory[:, None]
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
