"""The blocks of the Transformer, made of the layers given to them."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from ..attention import Mask
from .add_norm import AddNorm
from .multi_head import KeysAndValues


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
