"""A norm as it ran: with its denominator held, a LayerNorm or an RMSNorm is linear."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..anatomy import read_norm

# Relative error that rounding may explain, by the dtype of the model. Models in float64, too,
# normalise and turn their queries in float32.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}


class LostError(ValueError):
    """The residual stream cannot be followed."""


@dataclass(frozen=True, eq=False)
class NormFormula:
    """norm(x) = gain ⊙ centre(x) / σ(x) + bias."""

    gain: Float[Tensor, " features"]
    bias: Float[Tensor, " features"]
    is_centred: bool
    """Whether the mean is subtracted, as by a LayerNorm."""

    @classmethod
    def of(cls, path: str, module: nn.Module) -> "NormFormula":
        """Return the formula of a norm; raise a LostError if it is no LayerNorm and no RMSNorm."""
        try:
            found = read_norm(module)
        except ValueError as problem:
            raise LostError(
                f'"{path}": {problem}, so that its output is no sum of parts; LayerNorm and '
                "RMSNorm are known"
            ) from None
        assert found is not None
        gain = found.gain.double()
        bias = torch.zeros_like(gain) if found.bias is None else found.bias.double()
        return cls(gain, bias, found.centres)

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
