"""The blocks of the Transformer: positions added to embeddings, feed-forward networks, residual
connections, encoder and decoder blocks.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import embedding, gelu, relu, silu

from ..attention import Mask, Pairing, sinusoidal
from .attend import Positions, States, check_choice, check_features, check_sizes
from .multi_head import KeysAndValues


class LearnedPositions(nn.Module):
    """x_i + P_(start + i), with a learned table P of shape (max_positions, d_model).

    Args:
        max_positions: the longest text.
        d_model: width of x.

    Example:
        >>> import torch
        >>> from telescope.layers import LearnedPositions
        >>> LearnedPositions(16, 4)(torch.zeros(1, 3, 4), start=2).shape
        torch.Size([1, 3, 4])
    """

    def __init__(self, max_positions: int, d_model: int) -> None:
        super().__init__()
        check_sizes(max_positions=max_positions, d_model=d_model)
        self.max_positions = max_positions
        self.d_model = d_model
        # N(0, 0.02), as `GPT` draws its other weights.
        self.P = nn.Parameter(torch.empty(max_positions, d_model).normal_(std=0.02))

    def forward(self, x: States, start: int | Positions = 0) -> States:
        """Return x plus the embedding of each position.

        Args:
            start: the position of the first token, or a tensor (n,) or (batch, n) with the position
                of each.
            x: (batch, n, d_model).

        Raises:
            ValueError: where `start` is a number and a position is outside the table.
        """
        check_features(self, "x", x, "d_model")
        # A tensor may be on a GPU: `embedding` checks it there.
        if not isinstance(start, int):
            return x + embedding(start, self.P)
        stop = start + x.shape[1]
        if start < 0 or stop > self.max_positions:
            raise ValueError(
                f"x has {x.shape[1]} positions from start={start}; LearnedPositions with "
                f"max_positions={self.max_positions} has the positions 0 to "
                f"{self.max_positions - 1}"
            )
        # Neighbouring positions are a view of the table.
        return x + self.P[start:stop]


class SinusoidalPositions(nn.Module):
    """x_i + PE(start + i), see `telescope.sinusoidal`. Nothing is learned, and positions are not
    limited.

    Args:
        d_model: width of x, an even number.
        pairs: "neighbours": sines and cosines alternate; "halves": sines first, then cosines.

    Example:
        >>> import torch
        >>> from telescope.layers import SinusoidalPositions
        >>> SinusoidalPositions(4)(torch.zeros(1, 1, 4))[0, 0].tolist()
        [0.0, 1.0, 0.0, 1.0]
    """

    def __init__(self, d_model: int, *, pairs: Pairing = "neighbours") -> None:
        super().__init__()
        check_sizes(d_model=d_model)
        # Raises now, not at the first call, where d_model is odd. On the CPU: "meta" would import
        # PyTorch's compiler.
        sinusoidal(torch.zeros(1, dtype=torch.int64, device="cpu"), d_model, pairs=pairs)
        self.d_model = d_model
        self.pairs = pairs

    def forward(self, x: States, start: int | Positions = 0) -> States:
        """Return x plus the sines and cosines of each position.

        Args:
            start: the position of the first token, or a tensor (n,) or (batch, n) with the position
                of each.
            x: (batch, n, d_model).
        """
        check_features(self, "x", x, "d_model")
        if isinstance(start, int):
            start = torch.arange(start, start + x.shape[1], device=x.device)
        return x + sinusoidal(start, self.d_model, pairs=self.pairs, dtype=x.dtype)


Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]

# By the names that a config holds.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
    "silu": silu,
}


class FeedForward(nn.Module):
    """FFN(x) = activation(x W_1 + b_1) W_2 + b_2  (Vaswani et al. 2017, section 3.3).

    Args:
        d_model, d_hidden: width of input and output; width of the hidden layer.
        activation: "relu", "gelu", "gelu_tanh" or "silu".
        bias: whether the linear layers have a bias.
        dropout: the probability with which a hidden feature is dropped, in training only.

    Raises:
        ValueError: for a size below 1 or an unknown activation.

    Example:
        >>> import torch
        >>> from telescope.layers import FeedForward
        >>> FeedForward(4, 16)(torch.zeros(1, 3, 4)).shape
        torch.Size([1, 3, 4])
        >>> FeedForward(4, 16).hidden(torch.zeros(1, 3, 4)).shape
        torch.Size([1, 3, 16])
    """

    def __init__(
        self,
        d_model: int,
        d_hidden: int,
        *,
        activation: str = "relu",
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_sizes(d_model=d_model, d_hidden=d_hidden)
        check_choice("activation", activation, ACTIVATIONS)
        self.d_model = d_model
        self.activation = activation
        # Wide in the middle, narrow at both ends.
        self.W_1 = nn.Linear(d_model, d_hidden, bias)
        self.W_2 = nn.Linear(d_hidden, d_model, bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: States) -> States:
        """Return FFN(x).

        Args:
            x: (batch, n, d_model).
        """
        check_features(self, "x", x, "d_model")
        hidden = self.hidden(x)
        # A module call costs microseconds even where dropout does nothing.
        y: Tensor = self.W_2(self.dropout(hidden) if self.training else hidden)
        return y

    def hidden(self, x: States) -> Float[Tensor, "batch n d_hidden"]:
        """Return activation(x W_1 + b_1).

        Args:
            x: (batch, n, d_model).

        Returns:
            (batch, n, d_hidden).
        """
        return ACTIVATIONS[self.activation](self.W_1(x))


class GatedFeedForward(FeedForward):
    """FFN(x) = (activation(x W_1) ⊙ x W_3) W_2, as in Llama, where the activation is SiLU  (Shazeer
    2020).

    Args:
        d_model, d_hidden, activation, bias, dropout: as in `FeedForward`.

    Example:
        >>> import torch
        >>> from telescope.layers import GatedFeedForward
        >>> GatedFeedForward(4, 16)(torch.zeros(1, 3, 4)).shape
        torch.Size([1, 3, 4])
    """

    def __init__(
        self,
        d_model: int,
        d_hidden: int,
        *,
        activation: str = "silu",
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(d_model, d_hidden, activation=activation, bias=bias, dropout=dropout)
        # A second product of the same input, with which the first is multiplied.
        self.W_3 = nn.Linear(d_model, d_hidden, bias)

    def hidden(self, x: States) -> Float[Tensor, "batch n d_hidden"]:
        """Return activation(x W_1) ⊙ x W_3.

        Args:
            x: (batch, n, d_model).

        Returns:
            (batch, n, d_hidden).
        """
        # The gate opens or closes each hidden feature.
        gated: Tensor = super().hidden(x) * self.W_3(x)
        return gated


class AddNorm(nn.Module):
    """norm(x + sublayer(x)) (Vaswani et al. 2017), or x + sublayer(norm(x)) with pre_norm=True
    (Xiong et al. 2020).

    Args:
        d_model: width of x.
        pre_norm: whether the norm comes before the sublayer instead of after the sum.
        norm: called with d_model to construct the norm: nn.LayerNorm, nn.RMSNorm.
        dropout: the probability with which a feature of the sublayer's output is dropped, in
            training only.

    Example:
        >>> import torch
        >>> from telescope.layers import AddNorm
        >>> AddNorm(4)(torch.ones(1, 3, 4), lambda x: 2 * x).shape
        torch.Size([1, 3, 4])
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
        check_sizes(d_model=d_model)
        self.d_model = d_model
        self.pre_norm = pre_norm
        self.norm = norm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: States, sublayer: Callable[[Tensor], Tensor]) -> States:
        """Return x plus the sublayer's output, normalised; a ValueError where the sublayer changes
        the shape.

        Args:
            x: (batch, n, d_model).
            sublayer: a function of x, or of norm(x), that keeps its shape.
        """
        check_features(self, "x", x, "d_model")
        # Before the sublayer or after the sum: the only difference of the two.
        output = sublayer(self.norm(x) if self.pre_norm else x)
        # Broadcasting would add another shape without an error.
        if output.shape != x.shape:
            raise ValueError(
                f"sublayer gives shape {tuple(output.shape)}; to be added to x it must be "
                f"{tuple(x.shape)} again"
            )
        y: Tensor = x + (self.dropout(output) if self.training else output)
        return y if self.pre_norm else self.norm(y)


class EncoderBlock(nn.Module):
    """self-attention → add & norm → feed forward → add & norm. With a causal mask this is GPT's
    block.

    Args:
        d_model: width of x.
        self_attention: a layer called as self_attention(x, mask=mask, ...).
        feed_forward: a layer called as feed_forward(x).
        pre_norm, norm, dropout: as in `AddNorm`.

    Example:
        >>> import torch
        >>> from telescope.layers import EncoderBlock, FeedForward, MultiHeadAttention
        >>> block = EncoderBlock(8, MultiHeadAttention(8, heads=2), FeedForward(8, 32))
        >>> block(torch.zeros(1, 5, 8)).shape
        torch.Size([1, 5, 8])
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
        # Each sublayer has its own norm.
        add_norm = partial(AddNorm, d_model, pre_norm=pre_norm, norm=norm, dropout=dropout)
        self.add_norm_1 = add_norm()
        self.feed_forward = feed_forward
        self.add_norm_2 = add_norm()

    def forward(self, x: States, mask: Mask | None = None, **how: Any) -> States:
        """Return the block's output; `how` is passed to the self-attention: `cache` and `at`.

        Args:
            x: (batch, n, d_model).
            mask: for the self-attention; combined with the definition's by &.
            how: passed to the self-attention: `cache` and `at`.
        """
        x = self.add_norm_1(x, lambda x: self.self_attention(x, mask=mask, **how))
        y: Tensor = self.add_norm_2(x, self.feed_forward)
        return y


class DecoderBlock(nn.Module):
    """masked self-attention → add & norm → encoder-decoder attention → add & norm → feed forward →
    add & norm.

    Args:
        d_model: width of x.
        self_attention: a layer called as self_attention(x, mask=mask, ...), with a causal mask.
        cross_attention: a layer called as cross_attention(x, memory, mask=memory_mask).
        feed_forward: a layer called as feed_forward(x).
        pre_norm, norm, dropout: as in `AddNorm`.

    Example:
        >>> import torch, telescope as ts
        >>> from telescope.layers import DecoderBlock, FeedForward, MultiHeadAttention
        >>> causal = MultiHeadAttention(
        ...     8, heads=2, attention=ts.Attention(mask=ts.causal)
        ... )
        >>> block = DecoderBlock(
        ...     8, causal, MultiHeadAttention(8, heads=2), FeedForward(8, 32)
        ... )
        >>> block(torch.zeros(1, 3, 8), torch.zeros(1, 5, 8)).shape
        torch.Size([1, 3, 8])
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
        add_norm = partial(AddNorm, d_model, pre_norm=pre_norm, norm=norm, dropout=dropout)
        self.add_norm_1 = add_norm()
        self.cross_attention = cross_attention
        self.add_norm_2 = add_norm()
        self.feed_forward = feed_forward
        self.add_norm_3 = add_norm()

    def forward(
        self,
        x: States,
        memory: Float[Tensor, "batch key d_memory"] | KeysAndValues,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        **how: Any,
    ) -> States:
        """Return the block's output for x, given the encoder's output, the memory.

        `mask` is for the self-attention, `memory_mask` for the cross-attention; `how` is passed to
        the self-attention: `cache` and `at`.

        Args:
            x: (batch, n, d_model).
            memory: (batch, key, d_memory), the encoder's output, or its keys and values.
            mask: for the self-attention.
            memory_mask: for the cross-attention.
            how: passed to the self-attention: `cache` and `at`.
        """
        x = self.add_norm_1(x, lambda x: self.self_attention(x, mask=mask, **how))
        # The decoder asks, the encoder's output answers.
        x = self.add_norm_2(x, lambda x: self.cross_attention(x, memory, mask=memory_mask))
        y: Tensor = self.add_norm_3(x, self.feed_forward)
        return y
