"""The blocks of the Transformer, made of the layers given to them."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu

from ..attention import Mask
from . import check_sizes
from .multi_head import KeysAndValues

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
    "silu": silu,
}


class FeedForward(nn.Module):
    """FFN(x) = activation(x W_1 + b_1) W_2 + b_2  (Vaswani et al. 2017, section 3.3).

    `dropout` is on the hidden layer.
    """

    def __init__(
        self, d_model: int, d_hidden: int, *, activation: str = "relu", bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_sizes.sizes(d_model=d_model, d_hidden=d_hidden)
        check_sizes.one_of("activation", activation, ACTIVATIONS)
        self.d_model = d_model
        self.activation = activation
        self.W_1 = nn.Linear(d_model, d_hidden, bias)
        self.W_2 = nn.Linear(d_hidden, d_model, bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "batch n d_model"]) -> Float[Tensor, "batch n d_model"]:
        check_sizes.features(self, "x", x, "d_model")
        hidden = self.hidden(x)
        y: Tensor = self.W_2(self.dropout(hidden) if self.training else hidden)
        return y

    def hidden(self, x: Float[Tensor, "batch n d_model"]) -> Float[Tensor, "batch n d_hidden"]:
        return ACTIVATIONS[self.activation](self.W_1(x))


class GatedFeedForward(FeedForward):
    """FFN(x) = (activation(x W_1) ⊙ x W_3) W_2, Llama's with SiLU  (Shazeer 2020)."""

    def __init__(
        self, d_model: int, d_hidden: int, *, activation: str = "silu", bias: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(d_model, d_hidden, activation=activation, bias=bias, dropout=dropout)
        self.W_3 = nn.Linear(d_model, d_hidden, bias)

    def hidden(self, x: Float[Tensor, "batch n d_model"]) -> Float[Tensor, "batch n d_hidden"]:
        gated: Tensor = super().hidden(x) * self.W_3(x)
        return gated


class AddNorm(nn.Module):
    """norm(x + sublayer(x)) (Vaswani et al. 2017), or x + sublayer(norm(x)) with pre_norm=True (Xiong et al. 2020).

    `norm` makes the normaliser of a width: nn.LayerNorm, nn.RMSNorm. `dropout` is on what the sublayer gives.
    """

    def __init__(
        self,
        d_model: int,
        *,
        pre_norm: bool = False,
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_sizes.sizes(d_model=d_model)
        self.d_model = d_model
        self.pre_norm = pre_norm
        self.norm = norm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "batch n d_model"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "batch n d_model"]:
        check_sizes.features(self, "x", x, "d_model")
        found = sublayer(self.norm(x) if self.pre_norm else x)
        if found.shape != x.shape:
            raise ValueError(
                f"sublayer gives shape {tuple(found.shape)}; to be added to x it must be {tuple(x.shape)} again"
            )
        y: Tensor = x + (self.dropout(found) if self.training else found)
        return y if self.pre_norm else self.norm(y)


class EncoderBlock(nn.Module):
    """self-attention → add & norm → feed forward → add & norm. With a causal mask it is GPT's block.

    EncoderBlock(512, MultiHeadAttention(512, 8), FeedForward(512, 2048))
    """

    def __init__(
        self,
        d_model: int,
        self_attention: nn.Module,
        feed_forward: nn.Module,
        *,
        pre_norm: bool = False,
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.add_norm_1 = AddNorm(d_model, pre_norm=pre_norm, norm=norm, dropout=dropout)
        self.feed_forward = feed_forward
        self.add_norm_2 = AddNorm(d_model, pre_norm=pre_norm, norm=norm, dropout=dropout)

    def forward(
        self, x: Float[Tensor, "batch n d_model"], mask: Mask | None = None, **how: Any
    ) -> Float[Tensor, "batch n d_model"]:
        """`how` goes on to the self-attention: its cache, and where x stands."""
        x = self.add_norm_1(x, lambda x: self.self_attention(x, mask=mask, **how))
        y: Tensor = self.add_norm_2(x, self.feed_forward)
        return y


class DecoderBlock(nn.Module):
    """masked self-attention → add & norm → encoder-decoder attention → add & norm → feed forward → add & norm.

    DecoderBlock(
        512,
        MultiHeadAttention(512, 8, attention=Attention(mask=causal)),
        MultiHeadAttention(512, 8),
        FeedForward(512, 2048),
    )
    """

    def __init__(
        self,
        d_model: int,
        self_attention: nn.Module,
        cross_attention: nn.Module,
        feed_forward: nn.Module,
        *,
        pre_norm: bool = False,
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.add_norm_1 = AddNorm(d_model, pre_norm=pre_norm, norm=norm, dropout=dropout)
        self.cross_attention = cross_attention
        self.add_norm_2 = AddNorm(d_model, pre_norm=pre_norm, norm=norm, dropout=dropout)
        self.feed_forward = feed_forward
        self.add_norm_3 = AddNorm(d_model, pre_norm=pre_norm, norm=norm, dropout=dropout)

    def forward(
        self,
        x: Float[Tensor, "batch n d_model"],
        memory: Float[Tensor, "batch key d_memory"] | KeysAndValues,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        **how: Any,
    ) -> Float[Tensor, "batch n d_model"]:
        """`mask` is for the self-attention, `memory_mask` for what is seen of the encoder's z, the memory.

        `how` goes on to the self-attention: its cache, and where x stands.
        """
        x = self.add_norm_1(x, lambda x: self.self_attention(x, mask=mask, **how))
        x = self.add_norm_2(x, lambda x: self.cross_attention(x, memory, mask=memory_mask))
        y: Tensor = self.add_norm_3(x, self.feed_forward)
        return y
