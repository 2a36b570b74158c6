"""Positions: telling a token where it stands. (ALiBi and the learned relative bias are biases; see biases.)"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .values import Value


def sinusoidal(
    positions: int | Int[Tensor, "*batch position"],
    d_model: int,
    *,
    base: float = 10_000.0,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "*batch position d_model"]:
    """PE(p, 2i) = sin(p / base^(2i/d)), PE(p, 2i+1) = cos(p / base^(2i/d))  (Vaswani et al. 2017, section 3.5)."""
    if d_model % 2:
        raise ValueError(
            f"sinusoidal positions come in pairs of sine and cosine; "
            f"d_model={d_model} is odd, nearest: {d_model - 1} or {d_model + 1}"
        )
    angles = _angles(positions, d_model, base)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2).to(dtype or torch.get_default_dtype())


@dataclass(frozen=True)
class Rotary(Value):
    """Turn pairs of features by an angle that grows with position, so that q·k depends on distance (Su et al. 2021).

    `fraction` of the features is turned, the rest passes. A pair is a feature and the one half a width on ("halves":
    Llama, GPT-NeoX) or the one beside it ("neighbours": the paper, llama2.c).
    """

    base: float = 10_000.0
    fraction: float = 1.0
    pairs: Literal["halves", "neighbours"] = "halves"

    def __post_init__(self) -> None:
        if not 0.0 < self.fraction <= 1.0:
            raise ValueError(f"rotary(fraction={self.fraction}) must turn a part of the features: above 0, at most 1")
        if self.pairs not in ("halves", "neighbours"):
            raise ValueError(f'rotary(pairs={self.pairs!r}) is not a pairing; there are "halves" and "neighbours"')

    def __call__(
        self, features: Float[Tensor, "batch heads position d"], positions: int | Tensor | None = None
    ) -> Float[Tensor, "batch heads position d"]:
        """Turn `features` at these positions, (position,) or (batch, position); a number says where the first is."""
        count, width = features.shape[-2:]
        turned = round(width * self.fraction)
        if turned % 2:
            raise ValueError(
                f"rotary turns pairs of features, but {turned} of {width} is odd; "
                f"change fraction={self.fraction} or the head's width"
            )
        if positions is None or isinstance(positions, int):
            positions = torch.arange(count, device=features.device) + (positions or 0)
        angles = _angles(positions.to(features.device), turned, self.base).unsqueeze(-3)  # the same for all heads
        cos, sin = angles.cos().to(_precise(features)), angles.sin().to(_precise(features))

        active, rest = features[..., :turned], features[..., turned:]
        if self.pairs == "halves":
            a, b = active.to(cos.dtype).chunk(2, dim=-1)
            active = torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
        else:
            a, b = active[..., 0::2].to(cos.dtype), active[..., 1::2].to(cos.dtype)
            active = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
        return torch.cat([active.to(features.dtype), rest], dim=-1)


rotary = Rotary


def _angles(positions: int | Tensor, width: int, base: float) -> Float[Tensor, "*batch position half"]:
    """Position times frequency, in float64: at position 100,000 a float32 angle is off by up to 0.004.

    So are its sine and cosine: take them first, then round.
    """
    steps = torch.arange(positions) if isinstance(positions, int) else positions
    frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float64, device=steps.device) / width)
    return steps[..., None] * frequencies


def _precise(features: Tensor) -> torch.dtype:
    return torch.float64 if features.dtype == torch.float64 else torch.float32
