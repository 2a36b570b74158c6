"""Learning rates with numbers that a hand can check."""

import pytest

from telescope.training import Training, learning_rate

FLOOR = {"warmup": 10, "decay": 70, "floor": 0.25}


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        # climbs, and falls as the root of the step; to its floor and not below
        ({"schedule": "inverse-sqrt", "warmup": 4}, {1: 2.0, 2: 4.0, 4: 8.0, 16: 4.0, 64: 2.0}),
        ({"schedule": "inverse-sqrt", "floor": 0.5}, {100: 4.0}),
        # a cosine falls to its floor and stays, half-way it is the mean of 8 and 2; or it ends with the run
        (FLOOR, {5: 4.0, 10: 8.0, 40: 5.0, 70: 2.0, 71: 2.0, 100: 2.0}),
        ({}, {50: 4.0, 100: 0.0}),
        ({"schedule": "constant", "warmup": 2}, {1: 4.0, 2: 8.0, 3: 8.0, 99: 8.0}),
    ],
)
def test_rates(settings, rates):
    training = Training(steps=100, rows=1, lr=8.0, **settings)
    assert {step: learning_rate(step, training, 100) for step in rates} == pytest.approx(rates)


def test_inverse_sqrt_is_noam():
    """d_model^-½ · min(step^-½, step · warmup^-1½), Vaswani et al. 2017, equation 3."""
    d_model, warmup = 512, 40
    training = Training(steps=100, rows=1, lr=(d_model * warmup) ** -0.5, schedule="inverse-sqrt", warmup=warmup)
    for step in (1, 7, 39, 40, 41, 100):
        noam = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert learning_rate(step, training, 100) == pytest.approx(noam)
