"""A norm as it ran: with its denominator held, a LayerNorm or an RMSNorm is linear."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

# Models in float64, too, normalise and turn their queries in float32.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
"""Relative error of what a norm returned, beside its formula, by the dtype of the model."""


@dataclass(frozen=True, eq=False)
class NormFormula:
    """norm(x) = gain ⊙ centre(x) / σ(x) + bias, read from what a norm returns for known inputs."""

    gain: Float[Tensor, " features"]
    bias: Float[Tensor, " features"]
    is_centred: bool
    """Whether the mean is subtracted, as by a LayerNorm."""

    @classmethod
    def of(cls, module: nn.Module, width: int, dtype: torch.dtype) -> "NormFormula":
        """Return the formula by which a module seems to normalise `width` features; what it
        returned tells whether it does.
        """
        tensors: list[Any] = [*module.parameters(), *module.buffers()]
        device = tensors[0].device if tensors else torch.device("cpu")
        # Signs have a mean of about 0 and a mean square of 1; a second vector has another mean.
        signs = torch.ones(width, dtype=dtype, device=device)
        signs[1::2] = -1
        ones = signs + 1
        zeros = torch.zeros_like(signs)
        with torch.no_grad():
            bias, plain, moved = (
                module(row[None, None])[0, 0].double() for row in (zeros, signs, ones)
            )
        gain = plain - bias
        # For an even width the signs have a mean of 0, and a centred norm cannot see the shift.
        is_centred = bool((moved - plain).norm() <= 0.1 * gain.norm())
        if width % 2:
            centre = signs.double() - (signs.double().mean() if is_centred else 0)
            gain = gain * centre.square().mean().sqrt() / centre
        else:
            gain = gain * signs.double()
        return cls(_exact(module, gain), bias, is_centred)

    def scaled(self, x: Float[Tensor, "*row features"]) -> Float[Tensor, "*row features"]:
        """Return gain ⊙ centre(x): what the norm returns, but for its denominator and its bias."""
        return self.gain * (x - x.mean(-1, keepdim=True) if self.is_centred else x)

    def denominator(
        self,
        given: Float[Tensor, "*row features"],
        returned: Float[Tensor, "*row features"],
        tolerance: float,
    ) -> Float[Tensor, "*row 1"] | None:
        """Return 1 / σ of each row as the norm ran; None if it did not run by this formula."""
        scaled = self.scaled(given)
        moved = returned - self.bias
        squares = scaled.square().sum(-1, keepdim=True)
        inverse = (scaled * moved).sum(-1, keepdim=True) / squares.clamp(min=1e-300)
        error = (scaled * inverse - moved).norm(dim=-1)
        largest = moved.norm(dim=-1).clamp(min=1e-30)
        return inverse if bool((error <= tolerance * largest).all()) else None


def _exact(module: nn.Module, gain: Tensor) -> Tensor:
    """Return the weight that a measured gain is rounded from, or one more than the weight, as in
    Gemma; the gain itself if it is neither.
    """
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.shape != gain.shape:
        return gain
    own = weight.detach().double()
    near = [one for one in (own, 1 + own) if (one - gain).norm() <= 1e-2 * gain.norm()]
    return near[0] if near else gain
