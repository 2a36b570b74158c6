"""A matrix of d_model x d_model by its two thin factors: singular values, directions, products."""

from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

LARGEST = 2**26  # numbers of a matrix that is formed: half a GiB


class Directions(NamedTuple):
    """The singular vectors of a matrix, as rows, the largest singular value first.

    Example:
        >>> import torch
        >>> from telescope.circuitry import Factors
        >>> Factors(
        ...     torch.eye(1, 3), 2.0 * torch.eye(1, 3)
        ... ).directions.left.abs().tolist()
        [[1.0, 0.0, 0.0]]
    """

    left: Float[Tensor, "rank d_left"]
    """Of QK: what a query looks for. Of OV: what the head writes."""
    right: Float[Tensor, "rank d_right"]
    """Of QK: what a key is found by. Of OV: what the head reads."""


@dataclass(frozen=True, eq=False)
class Factors:
    """The matrix leftᵀ right, which is never formed unless `matrix` is called.

    Of QK, x · leftᵀ right · y is the score of a query at x with a key at y, before it is scaled. Of
    OV, leftᵀ right · y is what a key at y adds to the stream, for each unit of weight.

    Attributes:
        left: the rows that a query reads (QK), or that the head writes (OV).
        right: the rows that a key reads (QK), or a value (OV).

    Example:
        >>> import torch
        >>> from telescope.circuitry import Factors
        >>> Factors(torch.eye(1, 3), 2.0 * torch.eye(1, 3)).singular_values.tolist()
        [2.0]
        >>> factors = Factors(torch.eye(1, 3), 2.0 * torch.eye(1, 3))
        >>> factors.matrix()[0].tolist(), factors.norm
        ([2.0, 0.0, 0.0], 2.0)
        >>> (
        ...     factors.times(factors.transposed).matrix()[0, 0].item(),
        ...     factors.directions.right.shape,
        ... )
        (4.0, torch.Size([1, 3]))
    """

    left: Float[Tensor, "rank d_left"]
    right: Float[Tensor, "rank d_right"]

    @cached_property
    def singular_values(self) -> Float[Tensor, " rank"]:
        """The singular values, the largest first; as many as a head is wide."""
        _, _, core = self._triangles
        found: Tensor = torch.linalg.svdvals(core)
        return found

    @cached_property
    def directions(self) -> Directions:
        """The singular vectors, in the order of the singular values."""
        own_left, own_right, core = self._triangles
        u, _, vh = torch.linalg.svd(core, full_matrices=False)
        return Directions((own_left @ u).mT, vh @ own_right.mT)

    @property
    def norm(self) -> float:
        """The Frobenius norm of the matrix."""
        return float(self.singular_values.norm())

    def matrix(self) -> Float[Tensor, "d_left d_right"]:
        """Return the whole matrix.

        Raises:
            ValueError: where it has more than 2**26 numbers: it is the factors that are small.
        """
        rows = self.left.shape[1]
        columns = self.right.shape[1]
        if rows * columns > LARGEST:
            raise ValueError(
                f"the matrix has {rows:,} x {columns:,} numbers, and at most {LARGEST:,} are "
                "formed; .left and .right are its factors, and .singular_values and .directions "
                "need no more"
            )
        return self.left.mT @ self.right

    @property
    def transposed(self) -> "Factors":
        """The factors of the transposed matrix."""
        return Factors(self.right, self.left)

    def times(self, other: "Factors") -> "Factors":
        """Return the factors of the product of this matrix with another.

        Args:
            other: its rows have the width of this matrix's columns.
        """
        return Factors(self.left, (self.right @ other.left.mT) @ other.right)

    @cached_property
    def _triangles(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return orthonormal columns for both factors, and the small matrix between them."""
        own_left, upper_left = torch.linalg.qr(self.left.mT)
        own_right, upper_right = torch.linalg.qr(self.right.mT)
        return own_left, own_right, upper_left @ upper_right.mT


class Composition(NamedTuple):
    """How much of one matrix another one reads: ‖A B‖ / (‖A‖ ‖B‖), in Frobenius norms.

    Attributes:
        ratio: ‖A B‖ / (‖A‖ ‖B‖).

    Example:
        >>> import telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2)
        >>> found = ts.circuits(ts.models.GPT(config)).composition((0, 1), (1, 0), "k")
        >>> 0 <= found.ratio <= found.at_most, found.share <= 1
        (True, True)
    """

    ratio: float
    by_chance: float
    """The root mean square of the ratio over all rotations of one of the two: 1 / √d_model."""
    at_most: float
    """The ratio of the best rotation, in which the largest singular directions meet."""

    @property
    def share(self) -> float:
        """How far the squared ratio is from chance, 0, to the best rotation, 1."""
        chance = self.by_chance**2
        room = self.at_most**2 - chance
        return (self.ratio**2 - chance) / room if room > 0 else 0.0


def compose(first: Factors, second: Factors) -> Composition:
    """Return how much of what `second` writes is read by `first`.

    Over all rotations R the mean of ‖A R B‖² is ‖A‖² ‖B‖² / d, whatever the singular values are,
    and the largest value is Σ σ_i(A)² σ_i(B)², both in falling order.
    """
    d_model = first.right.shape[1]
    product = first.times(second).norm
    count = min(len(first.singular_values), len(second.singular_values))
    met = first.singular_values[:count] * second.singular_values[:count]
    both = first.norm * second.norm
    if not both:
        return Composition(0.0, 1 / sqrt(d_model), 0.0)
    return Composition(product / both, 1 / sqrt(d_model), float(met.norm()) / both)


def positive_share(matrix: Float[Tensor, "n n"]) -> float:
    """Return Σ Re λ / Σ |λ| over the eigenvalues of a matrix: 1 if all are positive, -1 if all are
    negative.

    Elhage et al. (2021) call a head copying whose eigenvalues are positive.
    """
    eigenvalues = torch.linalg.eigvals(matrix)
    size = float(eigenvalues.abs().sum())
    return float(eigenvalues.real.sum()) / size if size else 0.0
