"""Several weight matrices below each other in one: one product makes what they all make."""

from itertools import accumulate
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear


class Affine(NamedTuple):
    """The part of a stack that is one matrix: views, so whoever writes into them writes into the stack."""

    weight: Float[Tensor, "d_out d_in"]
    bias: Float[Tensor, " d_out"] | None


class Stack(nn.Linear):
    """x W for every W of a stack: Stack(64, {"W_q": 64, "W_k": 16, "W_v": 16}) has 96 rows, W_q's first."""

    def __init__(self, d_in: int, widths: dict[str, int], bias: bool = True) -> None:
        super().__init__(d_in, sum(widths.values()), bias)
        self.widths = widths

    def __getitem__(self, name: str) -> Affine:
        return self.rows(name)

    def rows(self, *names: str) -> Affine:
        """The rows of these matrices, which stand below each other."""
        ends = dict(zip(self.widths, accumulate(self.widths.values()), strict=True))
        stop = ends[names[-1]]
        start = ends[names[0]] - self.widths[names[0]]
        return Affine(self.weight[start:stop], None if self.bias is None else self.bias[start:stop])

    def only(self, x: Float[Tensor, "batch n d_in"], *names: str) -> Float[Tensor, "batch n d_some"]:
        """x W for some of the stack."""
        return self(x) if len(names) == len(self.widths) else linear(x, *self.rows(*names))
