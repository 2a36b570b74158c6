"""Why √d_k: a dot product of d features has d times the variance, and dividing by √d brings it back.

For independent components of mean 0, variance σ² and kurtosis κ, q·k has variance d·σ⁴ and kurtosis 3 + (κ² - 3)/d.
A variance estimated from n numbers of variance V and kurtosis K has the standard error V·√((K - 1)/n).
"""

import math

import pytest
import torch
from torch import Tensor

import telescope as ts
from support.strategies import normal

n = 4096


def components(kind: str, d: int, seed: int, sigma: float) -> Tensor:
    """Return n vectors in a batch of n, so that every score has a query and a key of its own."""
    if kind == "normal":
        return sigma * normal(n, 1, 1, d, seed=seed)
    uniform = torch.rand(n, 1, 1, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return sigma * math.sqrt(12) * (uniform - 0.5)


@pytest.mark.parametrize("d", [2**i for i in range(1, 11)])
@pytest.mark.parametrize(
    ("kind", "kurtosis", "sigma"), [("normal", 3.0, 1.0), ("normal", 3.0, 0.5), ("uniform", 1.8, 2.0)]
)
def test_a_dot_product_has_d_times_the_variance_and_scaling_brings_it_back(d, kind, kurtosis, sigma):
    q, k = components(kind, d, 1, sigma), components(kind, d, 2, sigma)
    before, after = ts.trace(q, k, k).score_variance
    error = math.sqrt((2 + (kurtosis**2 - 3) / d) / n)
    assert before == pytest.approx(d * sigma**4, rel=5 * error)
    assert after == pytest.approx(sigma**4, rel=5 * error)
    assert before / after == pytest.approx(d)


def test_without_the_scale_softmax_saturates():
    """At d = 1024 scores differ by about √1024 = 32, so that one key of eight takes nearly everything."""
    q, k = normal(n, 1, 1, 1024, seed=1), normal(n, 1, 8, 1024, seed=2)
    unscaled, scaled = (
        ts.trace(q, k, k, attention).weights.amax(-1).mean() for attention in (ts.Attention(scale=1.0), ts.Attention())
    )
    assert unscaled > 0.95
    assert scaled < 0.45


def test_without_the_scale_gradients_vanish():
    """The derivative of softmax, w·(1 - w), is nearly zero where it saturates."""
    slopes = {}
    for name, attention in {"unscaled": ts.Attention(scale=1.0), "scaled": ts.Attention()}.items():
        q, k = normal(n // 4, 1, 1, 512, seed=1), normal(n // 4, 1, 8, 512, seed=2)
        weights = ts.trace(q, k, k, attention).weights
        slopes[name] = (weights * (1 - weights)).mean().item()
    assert slopes["unscaled"] < slopes["scaled"] / 5
