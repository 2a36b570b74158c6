"""Add & normalise: what a sublayer finds is added to what came in."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from . import check


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
        check.sizes(d_model=d_model)
        self.d_model = d_model
        self.pre_norm = pre_norm
        self.norm = norm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "batch n d_model"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "batch n d_model"]:
        check.features(self, "x", x, "d_model")
        found = sublayer(self.norm(x) if self.pre_norm else x)
        if found.shape != x.shape:
            raise ValueError(
                f"sublayer gives shape {tuple(found.shape)}; to be added to x it must be {tuple(x.shape)} again"
            )
        y: Tensor = x + (self.dropout(found) if self.training else found)
        return y if self.pre_norm else self.norm(y)
