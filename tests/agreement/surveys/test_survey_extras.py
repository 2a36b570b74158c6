"""What `survey` is asked for besides its summary, compared with plain formulas over all weights in float64."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_survey import all_scores, block_sizes, blocks_of, whole

import telescope as ts
from support.strategies import Shape, assert_near, definitions, dtypes, layouts, masks, normal, seeds, shapes, tensors
from telescope.surveys import ENGINES, shares

on_all = pytest.mark.parametrize("engine", ["reference", "chunked", "fused"])


@on_all
@given(st.data())
def test_every_statistic_is_its_formula(engine, data):
    shape = data.draw(shapes())
    attention, mask = data.draw(definitions(shape)), data.draw(masks(shape))
    q, k, _ = tensors(shape, data.draw(seeds), data.draw(dtypes), data.draw(layouts))
    if ENGINES[engine].cannot(q, k, attention) is not None:
        return
    batch, heads, sets = (data.draw(st.sampled_from(some)) for some in ((1, shape.batch), (1, shape.heads), (1, 3)))
    weights = normal(batch, heads, sets, shape.queries, seed=data.draw(seeds))
    norms = normal(shape.batch, data.draw(st.sampled_from([shape.heads, shape.key_heads])), shape.keys, seed=7).abs()
    ids = normal(data.draw(st.sampled_from([1, shape.batch])), shape.keys, seed=3).round().long().abs()
    with blocks_of(data.draw(block_sizes)):
        seen = ts.survey(
            q, k, attention, query_weights=weights, norms=norms, largest=True, within=mask, segments=ids, engine=engine
        )
    exact, kind = whole(q.double(), k.double(), attention), seen.entropy.dtype
    unit = 4.0 * max([1.0, *(abs(x) for x in all_scores(q, k, attention) if math.isfinite(x))])
    inside = mask.block(shape.queries, shape.keys, batch=shape.batch, heads=shape.heads)
    own = norms.repeat_interleave(shape.heads // norms.shape[1], 1)
    assert_near(seen.weighted, weights @ exact, kind, unit=unit * shape.queries)
    assert_near(seen.weigh(weights), weights @ exact, kind, unit=unit * shape.queries)
    assert_near(seen.carried, (exact * own[:, :, None]).sum(-1), kind, unit=unit * shape.keys)
    assert_near(seen.within, (exact * inside).sum(-1), kind, unit=unit * shape.keys)
    assert_near(seen.largest.weight, exact.amax(-2), kind, unit=unit)
    there = exact.gather(-2, seen.largest.query.clamp(min=0)[..., None, :])[..., 0, :]
    assert_near(there, exact.amax(-2), kind, unit=unit)
    assert torch.equal(seen.largest.query < 0, seen.largest.weight == 0.0)
    by_segment = torch.stack([(exact * (ids == i)[:, None, None]).sum(-1) for i in range(int(ids.max()) + 1)], -1)
    assert_near(seen.shares, by_segment, kind, unit=unit * shape.keys)
    sees = exact.amax(-1) > 1e-30
    assert_near(seen.largest_logit[sees], (seen.lse + exact.amax(-1).log())[sees], kind, unit=8 * unit)


@on_all
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_longer_than_strips_and_tiles(engine, dtype):
    """Rows and keys of several strips and tiles, with padding, grouped heads and a sink."""
    q, k, _ = tensors(Shape(2, 4, 2, 150, 170, 8), 1, dtype)
    attention = ts.Attention(mask=ts.causal & ts.padding([60, 170]), sink=0.5)
    weights, norms = normal(2, 1, 5, 150, seed=2), normal(2, 4, 170, seed=3).abs()
    seen = ts.survey(q, k, attention, query_weights=weights, norms=norms, largest=True, engine=engine)
    exact = whole(q.double(), k.double(), attention)
    assert_near(seen.weighted, weights @ exact, dtype, unit=100.0)
    assert_near(seen.carried, (exact * norms[:, :, None]).sum(-1), dtype, unit=100.0)
    assert_near(seen.largest.weight, exact.amax(-2), dtype, unit=10.0)
    assert torch.equal(seen.largest.query, exact.argmax(-2).masked_fill(exact.amax(-2) == 0.0, -1))


@on_all
def test_equal_weights_belong_to_the_first_query(engine):
    zeros = torch.zeros(1, 2, 70, 4)
    query = ts.survey(zeros, zeros, ts.Attention(mask=ts.causal), largest=True, engine=engine).largest.query
    assert query[0, 0].tolist() == list(range(70))
    assert ts.survey(zeros, zeros, largest=True, engine=engine).largest.query.unique().tolist() == [0]


# ------------------------------------------------------------------------------------------------------ within a mask


def test_a_union_of_spans_is_computed_span_by_span(monkeypatch):
    """The share inside of window | prefix costs the area of both, and no pair is counted twice."""
    q, k, _ = tensors(Shape(1, 2, 1, 64, 64, 8), 0, torch.float32)
    parts = shares.disjoint_parts(ts.causal & (ts.window(8) | ts.prefix(4)), q, k)
    seen = torch.stack([part.block(64, 64)[0, 0] for part in parts])
    assert torch.equal(seen.any(0), (ts.causal & (ts.window(8) | ts.prefix(4))).block(64, 64)[0, 0])
    assert int(seen.sum(0).max()) == 1
    assert all(part.spans(ts.Pairs.block(64, 0, of=(64, 64)), 64).whole for part in parts)
    computed = []
    monkeypatch.setattr(
        shares,
        "log_sum_exp",
        lambda engine, q, k, attention: computed.append(attention.mask) or torch.zeros(1, 2, 64),
    )
    ts.survey(q, k, ts.Attention(mask=ts.causal), within=ts.window(8) | ts.prefix(4))
    assert sum(int(mask.block(64, 64)[0, 0].sum()) for mask in computed) == int(seen.sum())


def test_what_is_lost_is_the_distance_of_the_contexts():
    q, k, v = tensors(Shape(2, 4, 2, 33, 33, 8), 0)
    attention, mask = ts.Attention(mask=ts.causal), ts.window(5)
    seen = ts.survey(q, k, attention, values=v, within=mask)
    inside = ts.attend(q, k, v, replace(attention, mask=ts.causal & mask))
    assert_near(seen.lost, (ts.attend(q, k, v, attention) - inside).norm(dim=-1))
    assert float(seen.lost[:, :, :5].abs().max()) < 1e-12
    assert float(seen.lost[:, :, 6:].min()) > 0.0


def test_norms_of_the_values():
    q, k, v = tensors(Shape(1, 4, 2, 9, 9, 8), 0)
    seen = ts.survey(q, k, values=v, norms=True)
    exact = whole(q, k, ts.Attention()) * v.norm(dim=-1).repeat_interleave(2, 1)[:, :, None]
    assert_near(seen.carried, exact.sum(-1))


def test_by_sum_has_them_too():
    q, k, _ = tensors(Shape(1, 2, 1, 9, 9, 8), 0)
    q, k = q.abs(), k.abs()
    attention = ts.Attention(normalize=ts.by_sum)
    exact, weights = whole(q, k, attention), normal(9, seed=1)
    for engine in ("reference", "chunked"):
        seen = ts.survey(q, k, attention, query_weights=weights, largest=True, engine=engine)
        assert_near(seen.weighted[:, :, 0], weights @ exact)
        assert_near(seen.largest.weight, exact.amax(-2))


def test_one_head_has_its_own():
    q, k, v = tensors(Shape(1, 4, 2, 9, 9, 8), 0)
    seen = ts.survey(q, k, query_weights=torch.ones(9), largest=True, within=ts.window(2), values=v, segments=[0] * 9)
    head = seen.head(2)
    assert torch.equal(head.weighted, seen.weighted[:, 2:3])
    assert torch.equal(head.largest.query, seen.largest.query[:, 2:3])
    assert torch.equal(head.lost, seen.lost[:, 2:3])
    assert head.shares.shape == (1, 1, 9, 1)


# -------------------------------------------------------------------------------------------------------- bad input

Q = torch.zeros(2, 4, 5, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"query_weights": torch.ones(4)}, r"query_weights has shape \(4,\); it takes a weight for each of the 5"),
        ({"query_weights": torch.ones(3, 4, 1, 5)}, "with batch 2 and heads 4"),
        ({"norms": True}, "norms=True takes the norms of the values; give values= too"),
        ({"norms": torch.ones(2, 3, 5)}, r"norms has shape \(2, 3, 5\); it takes \(batch, heads, key\) = \(2, 4, 5\)"),
        ({"segments": [0, 1]}, "segments number keys by a tensor of shape"),
        ({"within": ts.window(2), "attention": ts.Attention(normalize=ts.by_sum)}, "within is defined for softmax"),
        ({"within": ts.padding([1, 2, 3])}, "padding"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ts.survey(Q, Q, **options)


def test_a_mask_is_a_mask():
    with pytest.raises(TypeError, match=r"within takes a mask, such as ts.window\(4096\) \| ts.prefix\(4\), not int"):
        ts.survey(Q, Q, within=4)


@pytest.mark.parametrize(
    ("name", "option"),
    [("weighted", "query_weights"), ("carried", "norms"), ("largest", "largest=True"), ("within", "within"),
     ("lost", "values"), ("shares", "segments")],
)  # fmt: skip
def test_what_was_not_asked_for_names_the_option(name, option):
    seen = ts.survey(Q, Q)
    with pytest.raises(ValueError, match=f"this survey has no {name}; survey.*{option}"):
        getattr(seen, name)
