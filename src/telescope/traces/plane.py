"""Vectors in a plane: before and after an attention, and how near they are."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize


class Nearness(NamedTuple):
    """How near two vectors are: the cosine of their angle, and their Euclidean distance."""

    cosine: float
    distance: float


class Plane(NamedTuple):
    """Vectors before and after an attention, projected onto the plane of their two largest
    principal components.

    The PCA is that of both sets together. Vectors that are near in the plane may be far apart in
    space; `moved` and `cosines` are measured in space.

    before, after  coordinates in the plane, float64
    explained      share of the total variance along each of the two axes, from 0 to 1
    moved          cosine between each vector before and after
    axes, centre   a vector is drawn at (vector - centre) @ axes.mT
    """

    before: Float[Tensor, "n 2"]
    after: Float[Tensor, "n 2"]
    explained: tuple[float, float]
    moved: Float[Tensor, " n"]
    axes: Float[Tensor, "2 d"]
    centre: Float[Tensor, " d"]


def nearness(a: Float[Tensor, " d"], b: Float[Tensor, " d"]) -> Nearness:
    """Return the cosine and the distance between two vectors."""
    return Nearness(cosine_similarity(a, b, dim=0).item(), (a - b).norm().item())


def plane(before: Float[Tensor, "n d"], after: Float[Tensor, "n d"]) -> Plane:
    """Project vectors before and after an attention onto the plane in which they vary most."""
    # One plane for both sets, so that movements can be seen.
    both = torch.cat([before, after]).double()
    centre = both.mean(0)
    centred = both - centre
    _, lengths, axes = torch.linalg.svd(centred, full_matrices=False)
    missing = max(0, 2 - len(axes))  # one vector, or vectors of one feature, span no plane
    axes = torch.cat([axes, axes.new_zeros(missing, axes.shape[1])])[:2]
    variance = torch.cat([lengths, lengths.new_zeros(missing)]) ** 2
    # An axis may point either way: make its largest feature positive, of equal ones the first.
    sizes = axes.abs()
    is_largest = sizes >= sizes.amax(1, keepdim=True) * (1 - 1e-9)
    largest = axes.gather(1, is_largest.int().argmax(1, keepdim=True))
    axes = axes * torch.where(largest < 0, -1.0, 1.0)
    projected = centred @ axes.mT
    # Vectors that are all equal have no variance to explain.
    x, y = (variance[:2] / variance.sum().clamp(min=1e-300)).tolist()
    moved = cosine_similarity(before.double(), after.double(), dim=1)
    return Plane(projected[: len(before)], projected[len(before) :], (x, y), moved, axes, centre)


def cosines(vectors: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """Return the cosine between every two vectors, in float64."""
    units = normalize(vectors.double(), dim=-1)
    return units @ units.mT
