"""Positions added to embeddings: learned, or sines and cosines. (Rotary positions are MultiHeadAttention's.)"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding

from ..attention import sinusoidal
from ..attention.positions import Pairing
from . import check_sizes


class LearnedPositions(nn.Module):
    """x_i + P_(start + i), with a learned P (max_positions, d_model)."""

    def __init__(self, max_positions: int, d_model: int) -> None:
        super().__init__()
        check_sizes.sizes(max_positions=max_positions, d_model=d_model)
        self.max_positions = max_positions
        self.d_model = d_model
        self.P = nn.Parameter(torch.empty(max_positions, d_model).normal_(std=0.02))

    def forward(
        self, x: Float[Tensor, "batch n d_model"], start: int | Int[Tensor, "*batch n"] = 0
    ) -> Float[Tensor, "batch n d_model"]:
        """`start` is the position of the first, or a tensor with the position of each."""
        check_sizes.features(self, "x", x, "d_model")
        if not isinstance(start, int):
            return x + embedding(start, self.P)
        stop = start + x.shape[1]
        if start < 0 or stop > self.max_positions:
            raise ValueError(
                f"x has {x.shape[1]} positions from start={start}; LearnedPositions with "
                f"max_positions={self.max_positions} has the positions 0 to {self.max_positions - 1}"
            )
        return x + self.P[start:stop]


class SinusoidalPositions(nn.Module):
    """x_i + PE(start + i); see `sinusoidal`. Nothing is learned, and no position is too far."""

    def __init__(self, d_model: int, *, pairs: Pairing = "neighbours") -> None:
        super().__init__()
        check_sizes.sizes(d_model=d_model)
        # An odd width is said now, not at the first sentence; on the CPU, since meta would import torch's compiler.
        sinusoidal(torch.zeros(1, dtype=torch.int64, device="cpu"), d_model, pairs=pairs)
        self.d_model = d_model
        self.pairs = pairs

    def forward(
        self, x: Float[Tensor, "batch n d_model"], start: int | Int[Tensor, "*batch n"] = 0
    ) -> Float[Tensor, "batch n d_model"]:
        """`start` is the position of the first, or a tensor with the position of each."""
        check_sizes.features(self, "x", x, "d_model")
        positions = torch.arange(start, start + x.shape[1], device=x.device) if isinstance(start, int) else start
        return x + sinusoidal(positions, self.d_model, pairs=self.pairs, dtype=x.dtype)
