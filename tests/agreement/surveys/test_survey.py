"""Every engine of `survey` gives the numbers of `reference` in float64, and `reference` gives those of the formulas."""

import math
from collections import Counter
from contextlib import contextmanager
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import telescope as ts
from support.strategies import (
    Shape,
    assert_near,
    composite,
    definitions,
    dtypes,
    layouts,
    normal,
    seeds,
    shapes,
    tensors,
)
from telescope.surveys import ENGINES, blocks, chunked, reference
from telescope.surveys import blocks as scores
from telescope.surveys.dispatch import pool
from telescope.surveys.requests import grid, segments

FAST = ["chunked", "fused"]
on_every_engine = pytest.mark.parametrize("engine", FAST)
on_all = pytest.mark.parametrize("engine", [*FAST, "reference"])
on_general = pytest.mark.parametrize("engine", ["chunked", "reference"])  # those that run every normaliser and size


@contextmanager
def blocks_of(most, group=2):
    """Set blocks of one or a few rows, of several heads, or of everything, and groups of two keys."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(chunked.SCORES, "cpu", most)
        patch.setattr(blocks, "ROWS", 3 if most < 2**20 else blocks.ROWS)
        for module in (blocks, chunked, scores):
            patch.setattr(module, "GROUP", group)
        yield


block_sizes = st.sampled_from([60, 300, 2**20])


@composite
def ids(draw, shape):
    """Draw ids of segments for queries and keys, in any order, for all sequences or for each; some may be missing."""
    return tuple(
        normal(draw(st.sampled_from([1, shape.batch])), size, seed=draw(seeds)).mul(1.5).round().long().abs()
        for size in (shape.queries, shape.keys)
    )


@composite
def maps(draw, shape):
    how, size = draw(st.sampled_from(["share", "max"])), (shape.queries, shape.keys)
    if draw(st.booleans()):
        return segments(draw(ids(shape)), how, of=size, batch=shape.batch, device=torch.device("cpu"))
    rows, columns = draw(st.integers(1, shape.queries)), draw(st.integers(1, shape.keys))
    return grid(rows, columns, how, of=size, device=torch.device("cpu"))


def agree(engine, inputs, attention, *, top=3, cells=None, lse=False):
    """Compare with reference in float64, in units of the dtype's rounding, scaled by a large lse or score."""
    q, k = inputs
    truth = reference.summarize(q.double(), k.double(), attention, None, top, cells)
    known = None if not lse or truth.lse is None else truth.lse.to(torch.promote_types(q.dtype, torch.float32))
    got = ENGINES[engine].summarize(q, k, attention, known, top, cells)
    kind = torch.float64 if q.dtype == torch.float64 else torch.float32
    unit = 4.0 * max([1.0, *(abs(x) for x in all_scores(q, k, attention) if math.isfinite(x))])
    for name in ("lse", "entropy", "received", "top_weights", "map"):
        mine, exact = getattr(got, name), getattr(truth, name)
        assert (mine is None) == (exact is None), name
        if mine is not None:
            assert (mine.dtype, mine.shape) == (kind, exact.shape), name
            more = q.shape[-2] if name == "received" else k.shape[-2] if name == "entropy" else 1
            assert_near(mine, exact, kind, unit=unit * more)
    assert got.top_keys.dtype == torch.int32
    assert got.top_keys.shape == truth.top_keys.shape
    assert torch.equal(got.top_keys < 0, truth.top_keys < 0)
    weights = whole(q.double(), k.double(), attention)
    there = weights.gather(-1, got.top_keys.clamp(min=0).long()) if k.shape[-2] else torch.zeros_like(truth.top_weights)
    assert_near(got.top_weights, there.masked_fill(got.top_keys < 0, 0.0), kind, unit=unit)
    for row in got.top_keys.flatten(0, 2).tolist():
        found = [key for key in row if key >= 0]
        assert len(set(found)) == len(found)
    if cells is not None:
        assert_near(pool(engine, q, k, attention, known, cells), truth.map, kind, unit=unit)


def all_scores(q, k, attention):
    return reference._masked_scores(q.double(), k.double(), attention).flatten().tolist()


def whole(q, k, attention):
    return ts.trace(q, k, torch.zeros_like(k), attention).weights


# --------------------------------------------------------------------------------------------- reference is the formula


def by_hand(weights, masked, top):
    """Compute one row after the other as the documentation says."""
    received = [sum(row[j] for row in weights) for j in range(len(weights[0]))] if weights else []
    entropy = [-sum((w * math.log(w) for w in row if w > 0), 0.0) for row in weights]
    tops = []
    for row, score in zip(weights, masked, strict=True):
        order = sorted((j for j in range(len(row)) if score[j] > -math.inf), key=lambda j, s=score: (-s[j], j))[:top]
        order = [(row[j], j) for j in order]
        tops.append(order + [(0.0, -1)] * (top - len(order)))
    return received, entropy, tops


@given(st.data())
@settings(max_examples=100)
def test_reference_is_the_formula(data):
    shape = data.draw(shapes().filter(lambda shape: math.prod(shape.whole) < 300))
    attention = data.draw(definitions(shape))
    q, k, v = tensors(shape, data.draw(seeds))
    steps, cells = ts.trace(q, k, v, attention), data.draw(maps(shape))
    got = reference.summarize(q, k, attention, None, 3, cells)
    for b, h in product(range(shape.batch), range(shape.heads)):
        weights, masked = steps.weights[b, h].tolist(), steps.masked[b, h].tolist()
        received, entropy, tops = by_hand(weights, masked, 3)
        exact = {"atol": 1e-12, "rtol": 1e-12}
        assert_close(got.received[b, h].tolist(), received, **exact)
        assert_close(got.entropy[b, h].tolist(), entropy, **exact)
        assert_close(got.top_weights[b, h].tolist(), [[w for w, _ in row] for row in tops], **exact)
        assert got.top_keys[b, h].tolist() == [[j for _, j in row] for row in tops]
        assert_close(torch.exp(steps.masked[b, h] - got.lse[b, h, :, None]).nan_to_num(0.0), steps.weights[b, h])
        assert_close(got.map[b, h], map_by_hand(steps.weights[b, h], cells, b), **exact)


def map_by_hand(weights, cells, b):
    of_queries, of_keys = (part[b % len(part)] for part in (cells.row_of_query, cells.column_of_key))
    pooled = torch.zeros(cells.rows, cells.columns, dtype=torch.float64)
    for r, c in product(range(cells.rows), range(cells.columns)):
        cell = weights[of_queries == r][:, of_keys == c]
        if cell.numel():
            pooled[r, c] = cell.sum(-1).mean() if cells.how == "share" else cell.max()
    return pooled


# ----------------------------------------------------------------------------------------------------- engines agree


@on_every_engine
@given(st.data())
@settings(max_examples=150)
def test_engines_agree(engine, data):
    shape = data.draw(shapes())
    attention = data.draw(definitions(shape))
    q, k, _ = tensors(shape, data.draw(seeds), data.draw(dtypes), data.draw(layouts))
    if ENGINES[engine].cannot(q, k, attention) is None:
        cells = data.draw(st.none() | maps(shape))
        options = {"top": data.draw(st.integers(0, 9)), "cells": cells, "lse": data.draw(st.booleans())}
        with blocks_of(data.draw(block_sizes)):
            agree(engine, (q, k), attention, **options)


@on_general
def test_by_sum(engine):
    """Weights of both signs, in rows whose sums are far from zero: every second key counts a negative tenth."""
    ran = Counter()

    @given(st.data())
    @settings(max_examples=40)
    def compare(data):
        shape = data.draw(shapes())
        mask = data.draw(st.sampled_from([ts.everyone, ts.causal, ts.causal & ts.window(4)]))
        attention = ts.Attention(scale=1.0, normalize=ts.by_sum, mask=mask)
        q, k, _ = (tensor.abs().clamp(0.5, 1.0) for tensor in tensors(shape, data.draw(seeds)))
        k[..., 1::2, :] *= -0.1
        size = data.draw(block_sizes)
        with blocks_of(size):
            assert ENGINES[engine].summarize(q, k, attention, None, 2, None).lse is None
            agree(engine, (q, k), attention, cells=data.draw(maps(shape)))
            agree(engine, (q, k), attention, cells=by_sign(shape))
            first_rows = {block.rows.start for block in blocks.blocks(q, k, attention, size)}
        ran["several blocks feed a row of the map"] += len(first_rows) > 1

    compare()
    assert min(ran.values()) >= 8, ran


def by_sign(shape):
    """Return segments: one row for all queries, a column for keys with positive weights and one for negative."""
    ids, size = (torch.arange(shape.queries) * 0, torch.arange(shape.keys) % 2), (shape.queries, shape.keys)
    return segments(ids, "share", of=size, batch=shape.batch, device=torch.device("cpu"))


@on_general
def test_a_map_of_negative_weights_sums_over_blocks(engine):
    """By hand: scores 1, 2 and -1 sum to 2, so each of 600 queries gives its keys 1/2, 1 and -1/2."""
    q, k = torch.ones(1, 2, 600, 1), torch.tensor([1.0, 2.0, -1.0])[None, None, :, None].expand(1, 2, 3, 1)
    got = ts.survey(q, k, ts.Attention(scale=1.0, normalize=ts.by_sum), engine=engine, map=(1, 3))
    weights = torch.tensor([0.5, 1.0, -0.5]).expand(1, 2, 1, 3)
    assert_close(got.map(1, 3), weights)  # the recorded one
    assert_close(got.map(2, 3), weights.expand(1, 2, 2, 3))
    assert_close(got.map(segments=([0] * 600, [0, 1, 1])), torch.tensor([0.5, 0.5]).expand(1, 2, 1, 2))
    assert_close(got.head(1).map(2, 3), weights[:, :1].expand(1, 1, 2, 3))
    assert_close(got.map(1, 3, how="max"), weights)


@on_general
def test_the_entropy_of_a_row_with_negative_weights_is_nan(engine):
    q, k = torch.ones(1, 1, 2, 1), torch.tensor([-1.0, 3.0])[None, None, :, None]
    got = ts.survey(q, k, ts.Attention(scale=1.0, normalize=ts.by_sum), engine=engine, top=2)
    assert got.entropy.isnan().all()
    assert_close(got.top.weights[0, 0, 0], torch.tensor([1.5, -0.5]))
    assert got.top.keys[0, 0, 0].tolist() == [1, 0]


@on_every_engine
@pytest.mark.parametrize("length", [63, 64, 129, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_longer_than_a_group_of_keys(engine, length, dtype):
    q, k, _ = tensors(Shape(1, 4, 2, length, length, 32, 32), dtype=dtype)
    cells = grid(7, 9, "share", of=(length, length), device=q.device)
    for mask in (ts.causal, ts.causal & ts.window(40), ts.everyone, ts.padding([length // 2])):
        with blocks_of(5000, group=32):
            agree(engine, (q, k), ts.Attention(mask=mask), top=3, cells=cells)


@on_every_engine
@pytest.mark.parametrize("size", [1e4, -1e4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_scores_of_ten_thousand(engine, size, dtype):
    q, k, _ = tensors(Shape(1, 2, 1, 9, 9), dtype=dtype)
    agree(engine, (q, k), ts.Attention(scale=size / 5.0, mask=ts.causal))
    agree(engine, (q, k), ts.Attention(scale=size / 5.0, sink=0.5))
    agree(engine, (torch.ones_like(q), torch.ones_like(k)), ts.Attention(scale=size))


@on_every_engine
@pytest.mark.parametrize("sink", [-200.0, 200.0])
def test_a_sink_far_from_the_scores(engine, sink):
    q, k, _ = tensors(Shape(), dtype=torch.float32)
    agree(engine, (q, k), ts.Attention(sink=sink, mask=ts.causal & ts.padding([0, 4])))


@on_general
@pytest.mark.parametrize("empty", ["batch", "queries", "keys"])
def test_empty_sequences(engine, empty):
    shape = Shape(**vars(Shape()) | {empty: 0})
    q, k, _ = tensors(shape)
    for mask in every_mask(shape):
        got = ts.survey(q, k, ts.Attention(mask=mask), engine=engine, top=2)
        assert got.received.shape == (shape.batch, 2, shape.keys)
        assert not got.received.any()
        assert got.top.keys.shape == (shape.batch, 2, shape.queries, 2)
        assert (got.top.keys == -1).all()
        assert not got.entropy.any()


def every_mask(shape):
    """Yield a mask of each kind, alone and combined."""
    keep, seen = (torch.ones(size, dtype=torch.bool) for size in ((shape.batch, shape.keys), shape.whole))
    texts = [torch.zeros(shape.batch, size, dtype=torch.long) for size in (shape.keys, shape.queries)]
    few = [min(1, shape.keys)] * shape.batch
    masks = [ts.everyone, ts.causal, ts.window(2), ts.prefix(1), ts.padding(few), ts.padding(left=few)]
    masks += [ts.padding(keep=keep), ts.documents(texts[0], queries=texts[1]), ts.from_tensor(seen)]
    return [*masks, *(~mask for mask in masks), *(ts.causal & mask for mask in masks), *(m | ts.causal for m in masks)]


@on_general
def test_without_features_all_weights_are_equal(engine):
    q, k, _ = tensors(Shape(d_k=0))
    got = ts.survey(q, k, engine=engine)
    assert_close(got.received, torch.ones(2, 2, 5, dtype=torch.float64))
    assert_close(got.rows(0), torch.full((2, 2, 1, 5), 0.2, dtype=torch.float64))


# -------------------------------------------------------------------------------------------------------------- ties


@on_all
@given(st.data())
@settings(max_examples=150)
def test_of_equal_scores_the_lower_key_comes_first(engine, data):
    """Scores of small whole numbers: many are equal, and every engine computes them without rounding."""
    shape = Shape(**vars(data.draw(shapes())) | {"d_k": data.draw(st.sampled_from([1, 4, 16]))})
    dtype = data.draw(dtypes)
    q, k, _ = ((2.0 * tensor).round() for tensor in tensors(shape, data.draw(seeds), dtype))
    attention = ts.Attention(scale=data.draw(st.sampled_from([None, 1.0, -0.5, 0.3])), mask=data.draw(masks(shape)))
    if ENGINES[engine].cannot(q, k, attention) is None:
        truth = reference.summarize(q.double(), k.double(), attention, None, 5, None)
        with blocks_of(data.draw(block_sizes)):
            assert torch.equal(ENGINES[engine].summarize(q, k, attention, None, 5, None).top_keys, truth.top_keys)


def masks(shape):
    rules = [ts.everyone, ts.causal, ts.causal & ts.window(3), ts.causal & ts.padding([1] * shape.batch)]
    return st.sampled_from(rules)


@on_all
def test_weights_that_round_to_zero_are_ranked_by_their_scores(engine):
    k = torch.tensor([0.0, -300.0, -200.0, -400.0])[None, None, :, None]
    got = ts.survey(torch.ones(1, 1, 1, 1), k, ts.Attention(scale=1.0), engine=engine, top=4)
    assert got.top.weights[0, 0, 0].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert got.top.keys[0, 0, 0].tolist() == [0, 2, 1, 3]


@on_all
def test_minus_zero_equals_zero(engine):
    """Scores that underflow become 0.0 from above and -0.0 from below."""
    k = torch.tensor([-1e-30, 1e-30, -1e-30, 1e-30])[None, None, :, None]
    got = ts.survey(torch.ones(1, 1, 1, 1), k, ts.Attention(scale=1e-30), engine=engine, top=3)
    assert got.top.keys[0, 0, 0].tolist() == [0, 1, 2]


# ---------------------------------------------------------------------------------------------------------- autocast


@on_all
def test_under_autocast_survey_has_the_weights_of_attend(engine):
    q, k, v = tensors(Shape(), dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        got = ts.survey(q, k, values=v, engine=engine)
    truth = reference.summarize(q.bfloat16().double(), k.bfloat16().double(), ts.Attention(), None, 8, None)
    assert got.received.dtype == torch.float32
    assert_near(got.received, truth.received, torch.float32)
    assert got.context.dtype == torch.bfloat16
