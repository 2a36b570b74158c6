"""Positions: telling a token where it stands. (ALiBi and the learned relative bias are biases; see biases.)"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .check_numbers import positive, real, whole
from .values import Value

Pairing = Literal["halves", "neighbours"]


def sinusoidal(
    positions: int | Int[Tensor, "*batch position"],
    d_model: int,
    *,
    base: float = 10_000.0,
    pairs: Pairing = "neighbours",
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "*batch position d_model"]:
    """PE(p, 2i) = sin(p / base^(2i/d)), PE(p, 2i+1) = cos(p / base^(2i/d))  (Vaswani et al. 2017, section 3.5).

    pairs="halves" has all the sines first, then all the cosines (tensor2tensor, Marian).
    """
    _check_pairs("sinusoidal", pairs)
    d_model, base = whole("sinusoidal(d_model)", d_model), positive("sinusoidal(base)", base)
    if d_model % 2:
        raise ValueError(
            f"sinusoidal positions come in pairs of sine and cosine; "
            f"d_model={d_model} is odd, nearest: {d_model - 1} or {d_model + 1}"
        )
    positions = torch.arange(positions) if isinstance(positions, int) else positions
    angles = _angles(positions, _frequencies(d_model, base, positions.device))
    together = [angles.sin(), angles.cos()]
    waves = torch.cat(together, dim=-1) if pairs == "halves" else torch.stack(together, dim=-1).flatten(-2)
    return waves.to(dtype or torch.get_default_dtype())


@dataclass(frozen=True)
class LinearScaling(Value):
    """A position counts as position / factor: a long text has the angles of a short one (Chen et al. 2023)."""

    factor: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", positive("LinearScaling(factor)", self.factor))

    def __call__(self, frequencies: Float[Tensor, " half"]) -> Float[Tensor, " half"]:
        return frequencies / self.factor


@dataclass(frozen=True)
class Llama3Scaling(Value):
    """Slow turns, which `original` positions hardly complete, slow down by `factor`; fast ones stay; between `low` and
    `high` turns it goes over smoothly (Llama 3.1)."""

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192

    def __post_init__(self) -> None:
        for name in ("factor", "low", "high"):
            object.__setattr__(self, name, positive(f"Llama3Scaling({name})", getattr(self, name)))
        object.__setattr__(self, "original", whole("Llama3Scaling(original)", self.original))
        if self.low >= self.high or self.original < 1:
            raise ValueError(
                f"Llama3Scaling(low={self.low}, high={self.high}, original={self.original}) "
                "needs low below high, and at least one original position"
            )

    def __call__(self, frequencies: Float[Tensor, " half"]) -> Float[Tensor, " half"]:
        turns = self.original * frequencies / (2 * torch.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
        return frequencies * (kept + (1.0 - kept) / self.factor)


@dataclass(frozen=True, eq=False)
class Rotation:
    """Sines and cosines at certain positions, ready to turn features: made once, used by every layer."""

    cos: Float[Tensor, "*batch position half"]
    sin: Float[Tensor, "*batch position half"]
    pairs: Pairing

    def __call__(self, features: Float[Tensor, "batch heads position d"]) -> Float[Tensor, "batch heads position d"]:
        cos, sin = self.cos.unsqueeze(-3), self.sin.unsqueeze(-3)  # the same for all heads
        turned = 2 * cos.shape[-1]
        active, rest = features[..., :turned], features[..., turned:]
        if self.pairs == "halves":
            a, b = active.to(cos.dtype).chunk(2, dim=-1)
            active = torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
        else:
            a, b = active[..., 0::2].to(cos.dtype), active[..., 1::2].to(cos.dtype)
            active = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
        active = active.to(features.dtype)
        return torch.cat([active, rest], dim=-1) if rest.shape[-1] else active


@dataclass(frozen=True)
class Rotary(Value):
    """Turn pairs of features by an angle that grows with position, so that q·k depends on distance (Su et al. 2021).

    `fraction` of the features is turned, the rest passes. A pair is a feature and the one half a width on ("halves":
    Llama, GPT-NeoX) or the one beside it ("neighbours": the paper, llama2.c). `scaling` changes how fast pairs turn.
    """

    base: float = 10_000.0
    fraction: float = 1.0
    pairs: Pairing = "halves"
    scaling: LinearScaling | Llama3Scaling | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", positive("rotary(base)", self.base))
        object.__setattr__(self, "fraction", real("rotary(fraction)", self.fraction))
        if not 0.0 < self.fraction <= 1.0:
            raise ValueError(f"rotary(fraction={self.fraction}) must turn a part of the features: above 0, at most 1")
        _check_pairs("rotary", self.pairs)

    def __call__(
        self, features: Float[Tensor, "batch heads position d"], positions: int | Tensor | None = None
    ) -> Float[Tensor, "batch heads position d"]:
        """Turn `features` at these positions, (position,) or (batch, position); a number says where the first is."""
        count, width = features.shape[-2:]
        if positions is None or isinstance(positions, int):
            positions = torch.arange(count, device=features.device) + (positions or 0)
        return self.at(positions.to(features.device), width, _precise(features))(features)

    def at(self, positions: Int[Tensor, "*batch position"], width: int, dtype: torch.dtype = torch.float32) -> Rotation:
        """The rotation of features of this width at these positions."""
        turned = self.check(width)
        frequencies = _frequencies(turned, self.base, positions.device)
        angles = _angles(positions, frequencies if self.scaling is None else self.scaling(frequencies))
        return Rotation(angles.cos().to(dtype), angles.sin().to(dtype), self.pairs)

    def check(self, width: int) -> int:
        """How many of `width` features are turned; a ValueError where these make no pairs."""
        turned = round(width * self.fraction)
        if turned % 2:
            raise ValueError(
                f"rotary turns pairs of features, but {turned} of {width} is odd; "
                f"change fraction={self.fraction} or the head's width"
            )
        return turned


rotary = Rotary


def _frequencies(width: int, base: float, device: torch.device) -> Float[Tensor, " half"]:
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)


def _angles(
    positions: Int[Tensor, "*batch position"], frequencies: Float[Tensor, " half"]
) -> Float[Tensor, "*batch position half"]:
    """Position times frequency, in float64: at position 100,000 a float32 angle is off by up to 0.004.

    So are its sine and cosine: take them first, then round.
    """
    return positions[..., None] * frequencies


def _check_pairs(what: str, pairs: str) -> None:
    if pairs not in ("halves", "neighbours"):
        raise ValueError(f'{what}(pairs={pairs!r}) is not a pairing; there are "halves" and "neighbours"')


def _precise(features: Tensor) -> torch.dtype:
    return torch.float64 if features.dtype == torch.float64 else torch.float32
