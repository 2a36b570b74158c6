"""Properties of rotary, sinusoidal and relative positions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import telescope as ts
from support.strategies import assert_near, composite, normal, seeds


@composite
def rotaries(draw):
    """Draw a rotation and a width that it fits."""
    fraction = draw(st.sampled_from([0.25, 0.5, 0.75, 1.0]))
    turning = ts.rotary(
        base=draw(st.sampled_from([100.0, 10_000.0, 500_000.0])),
        fraction=fraction,
        pairs=draw(st.sampled_from(["halves", "neighbours"])),
    )
    return turning, draw(st.sampled_from([8, 16, 24]))


positions = st.integers(0, 5000)


@given(rotaries(), seeds, positions, positions, st.integers(0, 5000))
def test_rotary_scores_depend_on_the_distance_alone(drawn, seed, i, j, shift):
    rotary, width = drawn
    q, k = normal(2, 3, 1, width, seed=seed), normal(2, 3, 1, width, seed=seed + 1)
    here = (rotary(q, i) * rotary(k, j)).sum(-1)
    there = (rotary(q, i + shift) * rotary(k, j + shift)).sum(-1)
    assert_close(here, there, atol=1e-9, rtol=0)


@given(rotaries(), seeds, positions)
def test_rotary_keeps_norms_and_leaves_the_other_features(drawn, seed, position):
    rotary, width = drawn
    x = normal(2, 3, 5, width, seed=seed)
    turned = rotary(x, position)
    assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    passes = int(width * rotary.fraction)
    assert torch.equal(turned[..., passes:], x[..., passes:])
    assert not torch.equal(turned[..., :passes], x[..., :passes])


@given(rotaries(), seeds, positions)
def test_rotary_rotates_every_token_by_its_own_position(drawn, seed, first):
    rotary, width = drawn
    x = normal(2, 3, 4, width, seed=seed)
    whole = rotary(x, first)
    for t in range(4):
        assert_close(whole[:, :, t : t + 1], rotary(x[:, :, t : t + 1], first + t))
    assert torch.equal(whole, rotary(x, torch.arange(first, first + 4)))
    each = torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])
    batched = rotary(x, each)
    for b in range(2):
        assert torch.equal(batched[b : b + 1], rotary(x[b : b + 1], each[b]))


@given(seeds, positions, st.sampled_from([2, 8, 14]))
def test_the_two_pairings_are_one_rotation_of_reordered_features(seed, position, width):
    x = normal(1, 1, 3, width, seed=seed)
    order = torch.arange(width).reshape(2, -1).T.flatten()  # 0, w/2, 1, w/2 + 1, …
    neighbours = ts.rotary(pairs="neighbours")(x[..., order], position)
    assert_close(ts.rotary()(x, position)[..., order], neighbours)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("position", [7, 4_097, 100_000, 1_000_000])
def test_rotary_is_precise_at_large_positions(dtype, position):
    x = normal(1, 2, 3, 64, seed=1, dtype=dtype)
    assert_near(ts.rotary()(x, position), ts.rotary()(x.double(), position))


@given(st.sampled_from([2, 6, 64]), positions, positions)
def test_sinusoidal_similarity_depends_on_the_distance_alone(width, i, distance):
    here, there, start, away = ts.sinusoidal(torch.tensor([i, i + distance, 0, distance]), width).double()
    assert_close(here @ there, start @ away, atol=1e-5 * width, rtol=0)
    assert_close(here @ here, torch.tensor(width / 2).double(), atol=1e-5 * width, rtol=0)


@pytest.mark.parametrize("position", [7, 100_000, 1_000_000])
def test_sinusoidal_is_precise_at_large_positions(position):
    angles = position * 10_000.0 ** (-torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    waves = ts.sinusoidal(torch.tensor([position]), 64)[0]
    assert_close(waves[0::2].double(), angles.sin(), atol=1e-7, rtol=0)
    assert_close(waves[1::2].double(), angles.cos(), atol=1e-7, rtol=0)


@given(seeds, st.integers(1, 3), st.integers(0, 3), st.integers(0, 4))
def test_relative_bias_is_the_same_along_every_diagonal(seed, heads, reach, shift):
    bias = ts.relative(normal(heads, 2 * reach + 1, seed=seed))
    at = ts.Pairs.block(range(6), range(6), of=(6, 6), heads=heads)
    cached = ts.Pairs.block(range(6), range(6 + shift), of=(6, 6 + shift), heads=heads)
    table = bias(at)
    assert torch.equal(table[..., 1:, 1:], table[..., :-1, :-1])
    assert torch.equal(bias(cached)[..., shift:], table)
    assert torch.equal(table[0, :, 0, reach:], bias.table[:, -1:].expand(-1, 6 - reach))


@given(st.integers(1, 24), st.integers(0, 4))
def test_alibi_is_linear_on_both_sides(heads, shift):
    bias = ts.alibi(heads)
    row = bias(ts.Pairs.block(range(5), range(5 + shift), of=(5, 5 + shift), heads=heads))[0, :, 2]
    distance = torch.arange(5 + shift) - (2 + shift)
    assert_close(row, -bias.slopes[:, None] * distance.abs())
    assert len(set(bias.slopes.tolist())) == heads
    assert (bias.slopes > 0).all()
    assert (bias.slopes < 1).all()
