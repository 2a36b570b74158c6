"""Position encodings: sinusoidal and rotary. (ALiBi and the learned relative bias are biases; see
biases.py.)
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .values import Value, require_int, require_positive, require_real

Pairing = Literal["halves", "neighbours"]


# Queries or keys, one vector for each position.
Features = Float[Tensor, "batch heads position d"]


# Radians per position, one for each pair of features.
Frequencies = Float[Tensor, " half"]


def sinusoidal(
    positions: int | Int[Tensor, "*batch position"],
    d_model: int,
    *,
    base: float = 10_000.0,
    pairs: Pairing = "neighbours",
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "*batch position d_model"]:
    """Return sinusoidal position encodings (Vaswani et al. 2017, section 3.5).

    PE(p, 2i) = sin(p / base^(2i/d)), PE(p, 2i+1) = cos(p / base^(2i/d))

    Args:
        positions: How many positions, from 0 on, or a tensor (..., position) of positions.
        d_model: How many features, an even number.
        base: Sets the longest wavelength, 2π · base positions.
        pairs: "neighbours" alternates sines and cosines; "halves" has all sines, then all cosines
            (tensor2tensor, Marian).
        dtype: Of the result; None is torch's default dtype. The angles are computed in float64.

    Returns:
        (..., position, d_model), on the device of `positions`.

    Raises:
        TypeError, ValueError: `d_model` is odd or no whole number, `base` is not positive, or
            `pairs` is unknown.

    Example:
        >>> import telescope as ts
        >>> ts.sinusoidal(2, 2)
        tensor([[0.0000, 1.0000],
                [0.8415, 0.5403]])
    """
    _check_pairs("sinusoidal", pairs)
    d_model = require_int("sinusoidal(d_model)", d_model)
    base = require_positive("sinusoidal(base)", base)
    if d_model % 2:
        raise ValueError(
            f"sinusoidal positions come in pairs of sine and cosine; "
            f"d_model={d_model} is odd, nearest: {d_model - 1} or {d_model + 1}"
        )
    # A number stands for the positions from 0 on.
    positions = torch.arange(positions) if isinstance(positions, int) else positions
    angles = _angles(positions, _frequencies(d_model, base, positions.device))
    # Rounded only now: the angles are in float64.
    parts = [angles.sin(), angles.cos()]
    # "halves" puts all sines before all cosines, "neighbours" alternates them.
    waves = (
        torch.cat(parts, dim=-1) if pairs == "halves" else torch.stack(parts, dim=-1).flatten(-2)
    )
    return waves.to(dtype or torch.get_default_dtype())


@dataclass(frozen=True)
class LinearScaling(Value):
    """Divide every frequency by `factor`: a text `factor` times as long has the same angles (Chen
    et al. 2023).

    Args:
        factor: how many times longer than in training a text may be.

    Example:
        >>> import telescope as ts
        >>> from telescope.attention import LinearScaling
        >>> ts.rotary(scaling=LinearScaling(4.0)).scaling.factor
        4.0
    """

    factor: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", require_positive("LinearScaling(factor)", self.factor))

    def __call__(self, frequencies: Frequencies) -> Frequencies:
        return frequencies / self.factor


@dataclass(frozen=True)
class Llama3Scaling(Value):
    """Scale rotary frequencies as Llama 3.1 does, by how many turns a frequency makes in `original`
    positions.

    Frequencies of fewer than `low` turns are divided by `factor`, those of more than `high` turns
    stay, and in between the divisor changes smoothly.

    Args:
        factor: what slow frequencies are divided by.
        low: turns below which a frequency is slow.
        high: turns above which a frequency stays as it is.
        original: the length of the texts in training, in tokens.

    Example:
        >>> import telescope as ts
        >>> from telescope.attention import Llama3Scaling
        >>> ts.rotary(
        ...     base=500_000.0, scaling=Llama3Scaling(factor=8.0)
        ... ).scaling.original
        8192
    """

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192

    def __post_init__(self) -> None:
        # Store plain floats, whatever kind of number was given.
        for name in ("factor", "low", "high"):
            object.__setattr__(
                self, name, require_positive(f"Llama3Scaling({name})", getattr(self, name))
            )
        object.__setattr__(self, "original", require_int("Llama3Scaling(original)", self.original))
        if self.low >= self.high or self.original < 1:
            raise ValueError(
                f"Llama3Scaling(low={self.low}, high={self.high}, original={self.original}) "
                "needs low below high, and at least one original position"
            )

    def __call__(self, frequencies: Frequencies) -> Frequencies:
        # How many turns each frequency makes within the original positions.
        turns = self.original * frequencies / (2 * torch.pi)
        # 1 keeps a frequency, 0 divides it by the factor.
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
        return frequencies * (kept + (1.0 - kept) / self.factor)


@dataclass(frozen=True, eq=False)
class Rotation:
    """Rotate features by precomputed sines and cosines, made once for all layers.

    Attributes:
        cos: (..., position, rotated), the cosine of each angle.
        sin: the sines, in the same shape.
        pairs: which features form a pair, "halves" or "neighbours".

    Example:
        >>> import torch, telescope as ts
        >>> rotation = ts.rotary().at(torch.arange(2), width=2)
        >>> rotation(torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]]))[0, 0, 1]
        tensor([0.5403, 0.8415])
    """

    cos: Float[Tensor, "*batch position half"]
    sin: Float[Tensor, "*batch position half"]
    pairs: Pairing

    def __call__(self, features: Features) -> Features:
        cos = self.cos.unsqueeze(-3)
        sin = self.sin.unsqueeze(-3)  # one axis for the heads, which share the angles
        turned = 2 * cos.shape[-1]
        # With fraction < 1 the last features are passed on as they are.
        active = features[..., :turned]
        rest = features[..., turned:]
        # (a, b) → (a cos - b sin, a sin + b cos), for pairs of features a and b.
        if self.pairs == "halves":
            a, b = active.to(cos.dtype).chunk(2, dim=-1)
            active = torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
        else:
            a = active[..., 0::2].to(cos.dtype)
            b = active[..., 1::2].to(cos.dtype)
            active = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
        # Rotate in the dtype of the angles, and round once.
        active = active.to(features.dtype)
        return torch.cat([active, rest], dim=-1) if rest.shape[-1] else active


@dataclass(frozen=True)
class Rotary(Value):
    """Rotate pairs of features by an angle that grows with position, so that q·k depends on
    distance (Su et al. 2021).

    Args:
        base: The slowest frequency is near 1/base radians per position.
        fraction: The part of the features that is rotated, above 0 and at most 1; the rest passes
            unchanged.
        pairs: Which features form a pair: "halves" takes features i and i + width/2 (Llama,
            GPT-NeoX), "neighbours" takes 2i and 2i + 1 (the paper, llama2.c).
        scaling: Changes the frequencies for texts longer than in training.

    Raises:
        TypeError, ValueError: A number is out of its range, or `pairs` is unknown.

    Example:
        >>> import telescope as ts, torch
        >>> ts.rotary()(torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]]))[0, 0]
        tensor([[1.0000, 0.0000],
                [0.5403, 0.8415]])
        >>> rotary = ts.rotary(fraction=0.5)
        >>> rotary.check(width=8)  # 4 of the 8 features are rotated
        4
        >>> rotation = rotary.at(torch.arange(3), width=8)
        >>> rotation(torch.ones(1, 1, 3, 8)).shape
        torch.Size([1, 1, 3, 8])
    """

    base: float = 10_000.0
    fraction: float = 1.0
    pairs: Pairing = "halves"
    scaling: LinearScaling | Llama3Scaling | None = None

    def __post_init__(self) -> None:
        # Store plain floats, whatever kind of number was given.
        object.__setattr__(self, "base", require_positive("rotary(base)", self.base))
        object.__setattr__(self, "fraction", require_real("rotary(fraction)", self.fraction))
        if not 0.0 < self.fraction <= 1.0:
            raise ValueError(
                f"rotary(fraction={self.fraction}) must turn a part of the features: above 0, at "
                "most 1"
            )
        _check_pairs("rotary", self.pairs)

    def __call__(self, features: Features, positions: int | Tensor | None = None) -> Features:
        """Return `features` rotated to their positions.

        `positions` is (position,) or (batch, position), or the number of the first position; None
        is 0.
        """
        count, width = features.shape[-2:]
        # A number is the position of the first token.
        if positions is None or isinstance(positions, int):
            positions = torch.arange(count, device=features.device) + (positions or 0)
        return self.at(positions.to(features.device), width, _angle_dtype(features))(features)

    def at(
        self,
        positions: Int[Tensor, "*batch position"],
        width: int,
        dtype: torch.dtype = torch.float32,
    ) -> Rotation:
        """Return the rotation of features of this width at these positions, to be used by several
        layers.

        Args:
            positions: (position,) or (batch, position), whole numbers.
            width: of the features that are rotated.
            dtype: of the sines and cosines.
        """
        # Frequencies fall from 1 to about 1/base radians per position.
        turned = self.check(width)
        frequencies = _frequencies(turned, self.base, positions.device)
        angles = _angles(
            positions, frequencies if self.scaling is None else self.scaling(frequencies)
        )
        return Rotation(angles.cos().to(dtype), angles.sin().to(dtype), self.pairs)

    def check(self, width: int) -> int:
        """Return how many of `width` features are rotated; raise a ValueError if that number is
        odd.

        Args:
            width: how many features a head has.

        Raises:
            ValueError: the number of rotated features is odd.
        """
        turned = round(width * self.fraction)
        if turned % 2:
            raise ValueError(
                f"rotary turns pairs of features, but {turned} of {width} is odd; "
                f"change fraction={self.fraction} or the head's width"
            )
        return turned


rotary = Rotary


def _frequencies(width: int, base: float, device: torch.device) -> Frequencies:
    """Return base^(-2i/width), in radians per position, in float64."""
    # One frequency for each pair of features, from fast to slow.
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)


def _angles(
    positions: Int[Tensor, "*batch position"], frequencies: Frequencies
) -> Float[Tensor, "*batch position half"]:
    """Return position · frequency in float64: at position 100,000 a float32 angle is off by up to
    0.004.

    Round only after taking sine and cosine, which would be off by as much.
    """
    return positions[..., None] * frequencies


def _check_pairs(what: str, pairs: str) -> None:
    if pairs not in ("halves", "neighbours"):
        raise ValueError(
            f'{what}(pairs={pairs!r}) is not a pairing; there are "halves" and "neighbours"'
        )


def _angle_dtype(features: Tensor) -> torch.dtype:
    """Return the dtype of sines and cosines: float64 for float64 features, else float32."""
    return torch.float64 if features.dtype == torch.float64 else torch.float32
