"""Luong attention: the states of one sequence look at those of another (Luong et al. 2015)."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..attention import Attention, Mask, Score, additive, dot, general
from . import check_sizes
from .attend import Attend, DefinedLayer


class LuongAttention(DefinedLayer):
    """c_i = Σ_j α_ij h_j, α_i = softmax(e_i), e_ij = similarity(s_i, h_j): h_j is both key and value.

    score     "dot" s·h, "general" s·W·h, "concat" v·tanh(s W_q + h W_k)
    d_memory  the width of h_j; d_query unless given
    d_attention  the width of v, of "concat" alone; d_memory unless given
    attention  the rest of the definition; its own score is not asked
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
        check_sizes.one_of("score", score, ("dot", "general", "concat"))
        check_sizes.sizes(d_query=d_query, d_memory=d_memory, d_attention=d_attention)
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
            raise ValueError(f'd_attention={d_attention} is of score="concat" alone; leave it out for score="{score}"')
        if score == "general":
            self.W = _weights(d_query, self.d_memory)
        if score == "concat":
            d_attention = self.d_memory if d_attention is None else d_attention
            self.W_q = _weights(d_query, d_attention)
            self.W_k = _weights(self.d_memory, d_attention)
            self.v = nn.Parameter(_weights(d_attention, 1)[:, 0].detach())

    def forward(
        self,
        states: Float[Tensor, "batch query d_query"],
        memory: Float[Tensor, "batch key d_memory"],
        mask: Mask | None = None,
    ) -> Float[Tensor, "batch query d_memory"]:
        check_sizes.features(self, "states", states, "d_query")
        check_sizes.features(self, "memory", memory, "d_memory")
        attention = replace(self.attention.seeing(mask), score=self.similarity())
        asking, asked = states[:, None], memory[:, None]
        context: Tensor = self.attend(asking, asked, asked, attention, across=memory is not states)
        return context[:, 0]

    def similarity(self) -> Score:
        if self.score == "general":
            return general(self.W)
        return additive(self.W_q, self.W_k, self.v) if self.score == "concat" else dot


def _weights(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(rows, columns)))
