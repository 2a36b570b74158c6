"""Learning rates with numbers that a hand can check."""

import pytest

from telescope.training import Training, learning_rate


def rates(steps, **settings):
    training = Training(steps=100, rows=1, lr=8.0, **settings)
    return [learning_rate(step, training, 100) for step in steps]


def test_inverse_sqrt_climbs_and_falls_as_the_root_of_the_step():
    actual = rates([1, 2, 4, 16, 64], schedule="inverse-sqrt", warmup=4)
    assert actual == pytest.approx([2.0, 4.0, 8.0, 4.0, 2.0])


def test_inverse_sqrt_is_noam():
    """d_model^-½ · min(step^-½, step · warmup^-1½), Vaswani et al. 2017, equation 3."""
    d_model, warmup = 512, 40
    training = Training(steps=100, rows=1, lr=(d_model * warmup) ** -0.5, schedule="inverse-sqrt", warmup=warmup)
    for step in (1, 7, 39, 40, 41, 100):
        noam = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert learning_rate(step, training, 100) == pytest.approx(noam)


def test_cosine_falls_to_its_floor_and_stays():
    actual = rates([5, 10, 40, 70, 71, 100], warmup=10, decay=70, floor=0.25)
    assert actual == pytest.approx([4.0, 8.0, 5.0, 2.0, 2.0, 2.0])  # half-way: the mean of 8 and 2


def test_cosine_ends_with_the_run():
    assert rates([50, 100]) == pytest.approx([4.0, 0.0], abs=1e-12)


def test_constant_stays():
    assert rates([1, 2, 3, 99], schedule="constant", warmup=2) == pytest.approx([4.0, 8.0, 8.0, 8.0])


def test_no_schedule_falls_below_its_floor():
    assert rates([100], schedule="inverse-sqrt", floor=0.5) == pytest.approx([4.0])
