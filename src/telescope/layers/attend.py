"""The one place where a layer attends: a module, so that PyTorch's own forward hooks can look on."""

from jaxtyping import Float
from torch import Tensor, nn

from ..attention import Attention
from ..engines import attend
from ..engines.check import check_dropout


class Attend(nn.Module):
    """`attend` as a module. Its hooks see (queries, keys, values, attention) and the context.

    `across` says whether the keys are another sequence than the queries, for hooks that look on; it changes no number.
    `dropout` is the probability with which a weight is dropped, in training only.
    """

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = check_dropout(dropout)

    def forward(
        self,
        queries: Float[Tensor, "batch heads query d_q"],
        keys: Float[Tensor, "batch key_heads key d_k"],
        values: Float[Tensor, "batch key_heads key d_v"],
        attention: Attention,
        *,
        across: bool | None = None,
    ) -> Float[Tensor, "batch heads query d_v"]:
        return attend(queries, keys, values, attention, dropout=self.dropout if self.training else 0.0)


def split_heads(features: Float[Tensor, "batch n heads_d"], heads: int) -> Float[Tensor, "batch heads n d"]:
    batch, n, width = features.shape
    return features.reshape(batch, n, heads, width // heads).transpose(1, 2)


def join_heads(context: Float[Tensor, "batch heads n d"]) -> Float[Tensor, "batch n heads_d"]:
    return context.transpose(1, 2).flatten(-2)
