"""Properties of every attention, whatever its size, its numbers and the engine that runs it."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import telescope as ts
from support.strategies import (
    assert_near,
    biases,
    composite,
    definitions,
    fused,
    key_masks,
    normal,
    position_masks,
    scales,
    scores,
    seeds,
    shapes,
    tensors,
)
from telescope.attention import tensors as parts_of


@composite
def cases(draw):
    """Draw a definition, and queries, keys and values that fit it."""
    shape = draw(shapes())
    attention = draw(st.one_of(definitions(shape), fused(shape)))
    return attention, *tensors(shape, draw(seeds))


@composite
def alike(draw, *, square=False, masked=True):
    """Draw as `cases` does, with a definition that is the same for every sequence and head."""
    shape = draw(shapes(square=square))
    one = replace(shape, batch=1, heads=1, key_heads=1)
    attention = ts.Attention(
        score=draw(scores(one).filter(has_no_heads)),
        scale=draw(scales),
        bias=draw(st.sampled_from([None, lambda query, key: -0.1 * (query - key).abs().double()])) if masked else None,
        softcap=draw(st.sampled_from([None, None, 2.0])),
        sink=draw(st.sampled_from([None, None, 0.5])),
        mask=draw(position_masks()) if masked else ts.everyone,
    )
    return attention, *tensors(shape, draw(seeds))


def has_no_heads(score):
    return all(part.ndim < 3 for part in vars(score).values())


# ------------------------------------------------------------------------------------------------------------ weights


@given(cases())
def test_weights_of_a_row_sum_to_one(case):
    """Less with a sink: e^s / (e^s + e^sink) for s = log Σ exp(scores). Zero where nothing is visible."""
    attention, q, k, v = case
    steps = ts.trace(q, k, v, attention)
    seen = steps.masked.logsumexp(-1)  # -inf where nothing is seen
    if attention.sink is None:
        expected = (seen > -torch.inf).double()
    else:
        expected = torch.sigmoid(seen - torch.as_tensor(attention.sink, dtype=torch.float64).reshape(-1, 1))
        assert (steps.weights.sum(-1) < 1).all()
    assert_close(steps.weights.sum(-1), expected)
    assert (steps.weights >= 0).all()
    assert not steps.weights[steps.masked == -torch.inf].any()


@given(cases())
def test_the_context_lies_within_the_range_of_the_visible_values(case):
    attention, q, k, v = case
    steps = ts.trace(q, k, v, replace(attention, sink=None))
    context = ts.attend(q, k, v, replace(attention, sink=None))
    values = v.repeat_interleave(q.shape[1] // k.shape[1], dim=1).unsqueeze(2)
    hidden = (steps.masked == -torch.inf).unsqueeze(-1)
    sighted = ~hidden.all(-2)
    lowest, highest = (values + hidden * 1e9).amin(-2), (values - hidden * 1e9).amax(-2)
    assert ((context >= lowest - 1e-9) & (context <= highest + 1e-9) | ~sighted).all()
    assert not context.masked_select(~sighted).any()


@given(cases(), st.floats(-3, 3), seeds)
def test_the_context_is_linear_in_the_values(case, factor, seed):
    attention, q, k, v = case
    other = normal(*v.shape, seed=seed)
    together = ts.attend(q, k, factor * v + other, attention)
    apart = factor * ts.attend(q, k, v, attention) + ts.attend(q, k, other, attention)
    assert_close(together, apart, atol=1e-12, rtol=1e-12)


@given(seeds, st.floats(-1e4, 1e4), st.booleans())
def test_softmax_is_invariant_to_a_shift(seed, shift, hide):
    numbers, sink = 3 * normal(2, 3, 5, seed=seed), normal(3, 1, seed=seed + 1)
    numbers = numbers.masked_fill(numbers > 2.0, -torch.inf) if hide else numbers
    assert_close(ts.softmax(numbers + shift), ts.softmax(numbers), atol=1e-10, rtol=0)
    assert_close(ts.softmax(numbers + shift, sink + shift), ts.softmax(numbers, sink), atol=1e-10, rtol=0)


@given(cases())
def test_a_clone_of_a_definition_owns_its_tensors(case):
    attention, q, k, v = case
    before, copy = ts.attend(q, k, v, attention), attention._clone()
    parts = list(parts_of(attention))
    assert copy == attention
    assert attention._has_no_tensors == (not parts)
    for part in parts:
        part.copy_(~part if part.dtype == torch.bool else part + 1)
    assert torch.equal(ts.attend(q, k, v, copy), before)


@given(alike(), st.floats(-100, 100))
def test_a_constant_bias_changes_nothing(case, shift):
    attention, q, k, v = case
    attention = replace(attention, bias=None, sink=None)
    shifted = replace(attention, bias=lambda query, key: torch.full((1, 1, 1, 1), shift))
    assert_close(ts.attend(q, k, v, shifted), ts.attend(q, k, v, attention), atol=1e-10, rtol=0)


@given(shapes(), seeds, st.data())
def test_by_sum_divides_the_visible_scores_by_their_sum(shape, seed, data):
    q, k, v = (tensor.abs() for tensor in tensors(shape, seed))
    mask = data.draw(st.one_of(key_masks(shape), position_masks()))
    steps = ts.trace(q, k, v, ts.Attention(normalize=ts.by_sum, mask=mask))
    seen = mask.block(shape.queries, shape.keys, batch=shape.batch, heads=shape.heads).expand(shape.whole)
    shares = torch.where(seen, steps.scaled, 0.0)
    assert_close(steps.weights * shares.sum(-1, keepdim=True), shares)
    assert_close(steps.weights.sum(-1), seen.any(-1).double())


# ------------------------------------------------------------------------------------------------------------- scores


@given(cases(), st.floats(-2, 2).filter(lambda scale: scale != 0))
def test_a_scale_multiplies_the_queries(case, scale):
    attention, q, k, v = case
    plain = replace(attention, score=ts.dot)
    assert_near(ts.attend(q, k, v, replace(plain, scale=scale)), ts.attend(scale * q, k, v, replace(plain, scale=1.0)))
    assert torch.equal(
        ts.attend(q, k, v, replace(plain, scale=None)),
        ts.attend(q, k, v, replace(plain, scale=1 / q.shape[-1] ** 0.5)),
    )


@given(cases(), seeds)
def test_general_projects_the_queries(case, seed):
    attention, q, k, v = case
    W = normal(3, q.shape[-1], seed=seed)
    queries = normal(*q.shape[:-1], 3, seed=seed + 1)
    luong, dot = replace(attention, score=ts.general(W)), replace(attention, score=ts.dot)
    assert_near(ts.attend(queries, k, v, luong), ts.attend(queries @ W, k, v, dot))


@given(cases())
def test_every_score_is_the_sum_of_its_terms_and_every_context_of_its_parts(case):
    attention, q, k, v = case
    steps = ts.trace(q, k, v, attention)
    batch, heads, queries, _ = q.shape
    for b, h, i in {(0, 0, 0), (batch - 1, heads - 1, queries - 1), (0, heads - 1, 0)}:
        row = steps.row(i, head=h, batch=b)
        assert_close(row.terms.sum(-1), steps.scores[b, h, i])
        assert_close(row.parts.sum(-2), steps.context[b, h, i])


# ------------------------------------------------------------------------------------- what does not change the context


@given(alike(masked=False, square=True), seeds)
def test_without_positions_the_order_of_keys_does_not_matter(case, seed):
    attention, q, k, v = case
    order = torch.randperm(q.shape[-2], generator=torch.Generator().manual_seed(seed))
    shuffled = ts.attend(q[:, :, order], k[:, :, order], v[:, :, order], attention)
    assert_near(shuffled, ts.attend(q, k, v, attention)[:, :, order])


JUNK = [1e4, torch.nan, torch.inf, -torch.inf, "other numbers"]


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@given(st.data())
@settings(max_examples=40)
def test_later_keys_do_not_change_a_causal_context(junk, dtype, data):
    shape = data.draw(shapes(square=True).filter(lambda shape: shape.queries > 1))
    mask = data.draw(st.sampled_from([ts.causal, ts.causal & ts.window(3), ts.causal & ts.padding([2] * shape.batch)]))
    bias = data.draw(st.sampled_from([None, ts.alibi(shape.heads)]))
    attention = ts.Attention(mask=mask, bias=bias, sink=data.draw(st.sampled_from([None, 0.0])))
    before = tensors(shape, data.draw(seeds), dtype)
    now = data.draw(st.integers(1, shape.queries - 1))
    after = [tensor.clone() for tensor in before]
    for tensor in after:
        tensor[:, :, now:] = normal(*tensor[:, :, now:].shape, seed=7) if isinstance(junk, str) else junk
    past = slice(None), slice(None), slice(0, now)
    assert_near(ts.attend(*after, attention)[past], ts.attend(*before, attention)[past])


@given(alike(), st.sampled_from([1e4, torch.nan, torch.inf]))
def test_other_sequences_do_not_change_a_context(case, junk):
    attention, *inputs = case
    batch = inputs[0].shape[0]
    together = ts.attend(*inputs, attention)
    for b in range(batch):
        assert_near(together[b : b + 1], ts.attend(*(tensor[b : b + 1] for tensor in inputs), attention))
        broken = [tensor.clone() for tensor in inputs]
        for tensor in broken:
            tensor[torch.arange(batch) != b] = junk
        assert_near(ts.attend(*broken, attention)[b], together[b])


@given(alike())
def test_heads_are_independent_and_use_the_key_head_of_their_group(case):
    attention, q, k, v = case
    heads, key_heads = q.shape[1], k.shape[1]
    together = ts.attend(q, k, v, attention)
    for h in range(heads):
        own = slice(h * key_heads // heads, h * key_heads // heads + 1)
        assert_near(together[:, h : h + 1], ts.attend(q[:, h : h + 1], k[:, own], v[:, own], attention))


@given(cases())
def test_grouped_heads_equal_repeated_key_heads(case):
    attention, q, k, v = case
    group = q.shape[1] // k.shape[1]
    repeated = ts.attend(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), attention)
    assert_near(ts.attend(q, k, v, attention), repeated)


@given(shapes(), seeds, st.sampled_from([1e4, torch.nan]), st.data())
def test_hidden_keys_equal_absent_keys(shape, seed, junk, data):
    count = data.draw(st.integers(1, shape.keys))
    q, k, v = tensors(shape, seed)
    short = ts.attend(q, k[:, :, :count], v[:, :, :count])
    k[:, :, count:] = v[:, :, count:] = junk
    assert_near(ts.attend(q, k, v, ts.Attention(mask=ts.padding([count] * shape.batch))), short)
    assert_near(ts.attend(q, k, v, ts.Attention(mask=ts.prefix(count))), short)


@given(st.data())
def test_a_decoding_step_equals_the_last_row(data):
    """With a cache the queries are the last ones, so masks and biases by position count from the end."""
    shape = data.draw(shapes(square=True))
    texts = normal(shape.batch, shape.keys, seed=data.draw(seeds)).round().long()
    mask = data.draw(
        st.sampled_from(
            [
                ts.causal,
                ts.causal & ts.window(3),
                ts.causal & ts.documents(texts),
                ts.causal | ts.prefix(2),
                ts.window(2),
                ts.causal & data.draw(key_masks(shape)),
                data.draw(position_masks()),
            ]
        )
    )
    bias = data.draw(biases(shape).filter(lambda bias: not isinstance(bias, type(ts.from_additive(torch.zeros(1, 1))))))
    attention = ts.Attention(mask=mask, bias=bias, sink=data.draw(st.sampled_from([None, 0.5])))
    q, k, v = tensors(shape, data.draw(seeds))
    whole = ts.attend(q, k, v, attention)
    for last in {1, min(2, shape.queries), shape.queries}:
        assert_near(ts.attend(q[:, :, -last:], k, v, attention), whole[:, :, -last:])


# ------------------------------------------------------------------------------------------------------------- extremes


@pytest.mark.parametrize("engine", ["sdpa", "reference"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_extreme_scores_choose_one_key(engine, dtype):
    q = torch.full((1, 1, 1, 1), 100.0, dtype=dtype)
    k = torch.tensor([-100.0, 100.0, 0.0], dtype=dtype)[None, None, :, None]
    v = torch.tensor([5.0, 7.0, 9.0], dtype=dtype)[None, None, :, None]
    assert ts.attend(q, k, v, ts.Attention(scale=1.0), engine=engine).item() == 7.0  # scores of ±10,000
    assert ts.attend(q, k, v, ts.Attention(scale=-1.0), engine=engine).item() == 5.0
