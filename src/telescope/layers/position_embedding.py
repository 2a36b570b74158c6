"""Positions added to embeddings: learned, or sines and cosines. (Rotary positions: see
MultiHeadAttention.)
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding

from ..attention import sinusoidal
from ..attention.positions import Pairing
from .check_sizes import check_features, check_sizes


class LearnedPositions(nn.Module):
    """x_i + P_(start + i), with a learned table P of shape (max_positions, d_model).

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
        self.P = nn.Parameter(torch.empty(max_positions, d_model).normal_(std=0.02))

    def forward(
        self, x: Float[Tensor, "batch n d_model"], start: int | Int[Tensor, "*batch n"] = 0
    ) -> Float[Tensor, "batch n d_model"]:
        """Return x plus the embedding of each position.

        start  the position of the first token, or a tensor (n,) or (batch, n) with the position of
        each

        Raises a ValueError where `start` is a number and a position is outside the table.
        """
        check_features(self, "x", x, "d_model")
        if not isinstance(start, int):
            return x + embedding(start, self.P)
        stop = start + x.shape[1]
        if start < 0 or stop > self.max_positions:
            raise ValueError(
                f"x has {x.shape[1]} positions from start={start}; LearnedPositions with "
                f"max_positions={self.max_positions} has the positions 0 to "
                f"{self.max_positions - 1}"
            )
        return x + self.P[start:stop]


class SinusoidalPositions(nn.Module):
    """x_i + PE(start + i), see `telescope.sinusoidal`. Nothing is learned, and positions are not
    limited.

    d_model  width of x, an even number
    pairs    "neighbours": sines and cosines alternate; "halves": sines first, then cosines

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

    def forward(
        self, x: Float[Tensor, "batch n d_model"], start: int | Int[Tensor, "*batch n"] = 0
    ) -> Float[Tensor, "batch n d_model"]:
        """Return x plus the sines and cosines of each position.

        start  the position of the first token, or a tensor (n,) or (batch, n) with the position of
        each
        """
        check_features(self, "x", x, "d_model")
        positions = (
            torch.arange(start, start + x.shape[1], device=x.device)
            if isinstance(start, int)
            else start
        )
        return x + sinusoidal(positions, self.d_model, pairs=self.pairs, dtype=x.dtype)
