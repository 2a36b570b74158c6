"""Geometry: what attention does to vectors. Context moves each towards what it looks at."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize


class Nearness(NamedTuple):
    """How near two vectors are: the angle's cosine and the distance."""

    cosine: float
    distance: float


class Plane(NamedTuple):
    """Vectors before and after in one plane, that in which all of them together differ most (PCA of both).

    `explained` is how much of all their variance each of its two axes has. Near in the plane is not near in space:
    `moved`, the cosine between a vector before and after, and `cosines` are measured there.
    """

    before: Float[Tensor, "n 2"]
    after: Float[Tensor, "n 2"]
    explained: tuple[float, float]
    moved: Float[Tensor, " n"]


def nearness(a: Float[Tensor, " d"], b: Float[Tensor, " d"]) -> Nearness:
    return Nearness(cosine_similarity(a, b, dim=0).item(), (a - b).norm().item())


def plane(before: Float[Tensor, "n d"], after: Float[Tensor, "n d"]) -> Plane:
    both = torch.cat([before, after]).double()
    centred = both - both.mean(0)
    _, lengths, axes = torch.linalg.svd(centred, full_matrices=False)
    missing = max(0, 2 - len(axes))  # one vector, or vectors of one feature, span no plane
    axes = torch.cat([axes, axes.new_zeros(missing, axes.shape[1])])[:2]
    variance = torch.cat([lengths, lengths.new_zeros(missing)]) ** 2
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))  # either sign would do; the same one every time
    flat = centred @ (axes * torch.where(largest < 0, -1.0, 1.0)).mT
    x, y = (variance[:2] / variance.sum().clamp(min=1e-300)).tolist()
    moved = cosine_similarity(before.double(), after.double(), dim=1)
    return Plane(flat[: len(before)], flat[len(before) :], (x, y), moved)


def cosines(vectors: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """Between every two of them."""
    straight = normalize(vectors.double(), dim=-1)
    return straight @ straight.mT
