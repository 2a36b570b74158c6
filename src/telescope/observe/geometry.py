"""Geometry: what attention does to vectors. Context moves each towards what it looks at."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity


class Nearness(NamedTuple):
    """How near two vectors are: the angle's cosine and the distance."""

    cosine: float
    distance: float


def nearness(a: Float[Tensor, " d"], b: Float[Tensor, " d"]) -> Nearness:
    return Nearness(cosine_similarity(a, b, dim=0).item(), (a - b).norm().item())
