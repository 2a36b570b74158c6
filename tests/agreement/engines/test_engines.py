"""Every engine gives the result of `reference` in float64, and `reference` gives that of the formula, written out by
hand."""

import math
from collections import Counter
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
    definitions,
    dtypes,
    fused,
    gradients,
    layouts,
    learnable,
    masks,
    normal,
    scales,
    scores,
    seeds,
    shapes,
    tensors,
)
from telescope.engines import chunked, exact, reference, sdpa

ENGINES = ["sdpa", "chunked", "reference"]
on_every_engine = pytest.mark.parametrize("engine", ENGINES)


@pytest.fixture(autouse=True, scope="module")
def small_blocks():
    """Set blocks of a few rows, so that these small attentions are cut into many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(chunked.SCORES, "cpu", 200)
        patch.setattr(chunked, "MIN_ROWS", 2)
        yield


# --------------------------------------------------------------------------------------------- reference is the formula


def by_hand(q, k, v, attention):
    """Compute one query after the other as the definition says; only mask and bias are shared with the engines."""
    (batch, heads, queries, d_k), keys = q.shape, k.shape[-2]
    scale = 1 / math.sqrt(d_k) if attention.scale is None else attention.scale
    seen = attention.mask.block(queries, keys, batch=batch, heads=heads).expand(batch, heads, -1, -1)
    at = ts.Pairs.block(range(queries), range(keys), of=(queries, keys), batch=batch, heads=heads)
    added = torch.zeros(()) if attention.bias is None else attention.bias(at)
    added = added.expand(batch, heads, queries, keys)
    context = torch.zeros(batch, heads, queries, v.shape[-1], dtype=torch.float64)
    for b, h, i in product(range(batch), range(heads), range(queries)):
        key_head = h * k.shape[1] // heads
        powers = {}
        for j in seen[b, h, i].nonzero().flatten().tolist():
            score = scale * score_by_hand(attention.score, q[b, h, i], k[b, key_head, j], h)
            if attention.softcap is not None:
                score = attention.softcap * math.tanh(score / attention.softcap)
            powers[j] = math.exp(score + added[b, h, i, j].item())
        total = sum(powers.values())
        if attention.sink is not None:
            total += math.exp(attention.sink if isinstance(attention.sink, float) else attention.sink[h].item())
        for j, power in powers.items():
            if power > 0:
                context[b, h, i] += power / total * v[b, key_head, j]
    return context


def score_by_hand(score, q, k, head):
    own = {name: part[head] if part.ndim > (1 if name == "v" else 2) else part for name, part in vars(score).items()}
    if score == ts.dot:
        return sum(a * b for a, b in zip(q.tolist(), k.tolist(), strict=True))
    if isinstance(score, ts.general):
        return float(q @ own["W"] @ k)
    return float(own["v"] @ torch.tanh(q @ own["W_q"] + k @ own["W_k"]))


@given(st.data())
@settings(max_examples=150)
def test_reference_is_the_formula(data):
    shape = data.draw(shapes().filter(lambda shape: math.prod(shape.whole) < 300))
    attention = data.draw(definitions(shape))
    q, k, v = tensors(shape, data.draw(seeds))
    assert_close(reference.attend(q, k, v, attention), by_hand(q, k, v, attention), atol=1e-12, rtol=1e-12)


@given(st.data())
@settings(max_examples=25)
def test_gradients_of_reference_equal_finite_differences(data):
    shape = data.draw(shapes().filter(lambda shape: math.prod(shape.whole) < 20))
    attention = data.draw(definitions(shape))
    assert torch.autograd.gradcheck(
        lambda q, k, v: reference.attend(q, k, v, attention),
        learnable(*tensors(shape, data.draw(seeds))),
        fast_mode=True,
    )


# ----------------------------------------------------------------------------------------------------- engines agree


def agree(attend, inputs, attention):
    """Compare forward and backward with reference in float64."""
    mine, exact = learnable(*inputs), learnable(*inputs, dtype=torch.float64)
    context, truth = attend(*mine, attention), reference.attend(*exact, attention)
    assert context.dtype == inputs[0].dtype
    assert_near(context, truth)
    unit = max(1.0, attention.scale or 0.0)  # a score is rounded, then multiplied by the scale, and so is its gradient
    for gradient, slope in zip(gradients(context, *mine), gradients(truth, *exact), strict=True):
        assert_near(gradient, slope, backward=True, unit=unit)


def test_sdpa_agrees_wherever_it_can_run():
    ran = Counter()

    @given(st.data())
    @settings(max_examples=300)
    def compare(data):
        shape = data.draw(shapes())
        attention = data.draw(fused(shape))
        inputs = tensors(shape, data.draw(seeds), data.draw(dtypes), data.draw(layouts))
        if sdpa.cannot(*inputs, attention) is None:
            agree(sdpa.attend, inputs, attention)
            ran["all"] += 1
            ran[inputs[0].dtype] += 1
            ran["causal"] += attention.mask == ts.causal and shape.queries > 1
            ran["one query"] += shape.queries == 1
            ran["grouped heads"] += shape.heads != shape.key_heads
            ran["other width"] += shape.d_k != shape.d_v

    compare()
    assert ran["all"] >= 200, ran
    assert min(ran.values()) >= 15, ran


@given(st.data())
@settings(max_examples=150)
def test_sdpa_takes_one_query_with_any_mask(data):
    shape = Shape(**vars(data.draw(shapes())) | {"queries": 1})
    attention = data.draw(fused(shape))
    inputs = tensors(shape, data.draw(seeds), data.draw(dtypes))
    assert sdpa.cannot(*inputs, attention) is None
    agree(sdpa.attend, inputs, attention)


def test_sdpa_takes_any_mask_a_block_of_queries_at_a_time(monkeypatch):
    monkeypatch.setattr(sdpa, "ROWS", 3)
    ran = Counter()

    @given(st.data())
    @settings(max_examples=200)
    def compare(data):
        shape = data.draw(shapes())
        attention = ts.Attention(
            score=data.draw(scores(shape, dot_products=True)), scale=data.draw(scales), mask=data.draw(masks(shape))
        )
        inputs = tensors(shape, data.draw(seeds), data.draw(dtypes), data.draw(layouts))
        assert sdpa.cannot(*inputs, attention) is None
        agree(sdpa.attend, inputs, attention)
        ran["all"] += 1
        ran["many blocks"] += shape.queries > 3 and not sdpa._fits_one_call(*inputs[:2], attention)

    compare()
    assert ran["many blocks"] >= 30, ran


@given(st.data())
@settings(max_examples=300)
def test_attend_agrees_for_every_definition(data):
    shape = data.draw(shapes())
    attention = data.draw(st.one_of(definitions(shape), fused(shape)))
    inputs = tensors(shape, data.draw(seeds), data.draw(dtypes), data.draw(layouts))
    agree(ts.attend, inputs, attention)


def test_chunked_agrees_for_every_definition():
    ran = Counter()

    @given(st.data())
    @settings(max_examples=300)
    def compare(data):
        shape = data.draw(shapes())
        attention = data.draw(definitions(shape))
        inputs = tensors(shape, data.draw(seeds), data.draw(dtypes), data.draw(layouts))
        agree(chunked.attend, inputs, attention)
        looks = exact.find_key_ranges(*inputs[:2], attention)
        rows = chunked._choose_rows(*inputs[:2], attention, looks)
        ran["all"] += 1
        ran[inputs[0].dtype] += 1
        ran["many blocks"] += rows < shape.queries
        ran["keys skipped"] += looks is not None and exact.range_of_block(looks, range(rows), shape.keys) != range(
            shape.keys
        )
        ran["additive"] += not attention.score.is_dot_product
        ran["grouped heads"] += shape.heads != shape.key_heads

    compare()
    assert min(ran.values()) >= 20, ran


@given(st.data())
def test_chunked_divides_by_the_sum_as_reference_does(data):
    """The scores are above zero, so that they cannot cancel."""
    shape = data.draw(shapes())
    q, k, v = tensors(shape, data.draw(seeds))
    attention = ts.Attention(normalize=ts.by_sum, mask=data.draw(masks(shape)))
    agree(chunked.attend, (q.abs() + 0.1, k.abs() + 0.1, v), attention)


def test_the_error_about_scores_that_sum_to_zero_names_the_row_of_the_whole_matrix():
    q, k, v = torch.ones(1, 1, 9, 2), torch.ones(1, 1, 200, 2), torch.ones(1, 1, 200, 1)
    q[:, :, 7, 1] = 0.0
    k[:, :, 100:, 0] = -1.0  # query 7 looks at the first feature alone, 100 times 1 and 100 times -1
    for engine in ("reference", "chunked"):
        with pytest.raises(ValueError, match="batch 0, head 0, query 7 sum to zero"):
            ts.attend(q, k, v, ts.Attention(normalize=ts.by_sum), engine=engine)


def test_a_custom_normaliser_gets_whole_rows():
    """Whole rows even where most keys are hidden: a normaliser may count them."""

    def by_count(scores):
        return scores.masked_fill(scores == -torch.inf, 0.0) / scores.shape[-1]

    agree(chunked.attend, tensors(Shape(queries=17, keys=17)), ts.Attention(normalize=by_count, mask=ts.window(2)))


@on_every_engine
@pytest.mark.parametrize("mask", [ts.everyone, ts.causal, ts.padding([3, 5])], ids=repr)
@pytest.mark.parametrize("scale", [-0.5, 0.0, 1e-4, 30.0])
def test_any_finite_scale(engine, mask, scale):
    agree_on(engine, tensors(Shape()), ts.Attention(scale=scale, mask=mask))


@on_every_engine
@pytest.mark.parametrize("length", [64, 129, 513])
def test_longer_than_a_kernels_tile(engine, length):
    inputs = tensors(Shape(1, 4, 2, length, length, 32, 32), dtype=torch.float32)
    agree_on(engine, inputs, ts.Attention(mask=ts.causal))
    agree_on(engine, inputs, ts.Attention(mask=ts.padding([length // 2])))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("queries", [1, 5])
def test_a_bias_of_the_lowest_finite_number(dtype, queries):
    """Other libraries mask with the lowest finite number, not with -inf; a row of such scores is then an average."""
    lowest = torch.full((1, 1, 1, 5), torch.finfo(torch.float32).min)
    inputs = tensors(Shape(queries=queries), dtype=dtype)
    agree(ts.attend, inputs, ts.Attention(bias=ts.from_additive(lowest)))
    expected = inputs[2].double().mean(-2, keepdim=True).expand(-1, -1, queries, -1)
    assert_near(ts.attend(*inputs, ts.Attention(bias=ts.from_additive(lowest))), expected, dtype)


def agree_on(engine, inputs, attention):
    module = {"sdpa": sdpa, "chunked": chunked, "reference": reference}[engine]
    assert module.cannot(*inputs, attention) is None
    agree(module.attend, inputs, attention)


def test_a_learned_score_gets_the_same_gradient():
    q, k, v = tensors(Shape())
    (W,) = learnable(normal(2, 4, 4, seed=3))
    attention = ts.Attention(score=ts.general(W), mask=ts.padding([0, 5]))
    (fast,), (slow,) = (gradients(engine.attend(q, k, v, attention), W) for engine in (sdpa, reference))
    assert slow.abs().max() > 0.01
    assert_near(fast, slow, backward=True)


def test_learned_tensors_get_their_gradients():
    q, k, v = tensors(Shape())
    sink, table = learnable(normal(2, seed=3), normal(2, 5, seed=4))

    def attend(sink, table):
        return ts.attend(q, k, v, ts.Attention(sink=sink, bias=ts.relative(table), mask=ts.causal))

    assert torch.autograd.gradcheck(attend, (sink, table))


# ---------------------------------------------------------------------------------------------------- nothing to see


BLIND = [  # (mask, queries, which rows of (2, 2, queries, 4) see nothing)
    (ts.padding([0, 3]), 5, (0,)),
    (~ts.everyone, 5, ()),
    (ts.prefix(0), 5, ()),
    (ts.from_tensor(torch.tensor([True, False])[None, :, None, None].expand(1, 2, 1, 5)), 5, (slice(None), 1)),
    (ts.causal & ts.padding([0, 3]), 1, (0,)),
]


def assert_rows_without_keys_are_zero(context, inputs, blind):
    """Check that queries that see no key get zeros, and give no gradient."""
    assert torch.equal(context[blind], torch.zeros_like(context[blind]))
    of_q, of_k, of_v = gradients(context, *inputs)
    assert torch.equal(of_q[blind], torch.zeros_like(of_q[blind]))
    for gradient in (of_q, of_k, of_v):
        assert gradient.isfinite().all()
    if blind in ((), (0,)):
        assert not of_k[blind].any()
        assert not of_v[blind].any()


@on_every_engine
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("mask", "queries", "blind"), BLIND, ids=[repr(mask) for mask, *_ in BLIND])
def test_a_query_that_sees_no_key_gets_zeros_and_gives_no_gradient(engine, dtype, mask, queries, blind):
    inputs = learnable(*tensors(Shape(queries=queries), dtype=dtype))
    assert_rows_without_keys_are_zero(ts.attend(*inputs, ts.Attention(mask=mask), engine=engine), inputs, blind)


@pytest.mark.parametrize("queries", [1, 5])
def test_a_bias_can_hide_every_key(queries):
    inputs = learnable(*tensors(Shape(queries=queries)))
    nothing = ts.from_additive(torch.full((1, 1, 1, 5), -torch.inf))
    late = ts.from_additive(torch.tensor([[-torch.inf] * 3 + [0.0] * 2]))
    assert_rows_without_keys_are_zero(ts.attend(*inputs, ts.Attention(bias=nothing)), inputs, ())
    assert_rows_without_keys_are_zero(
        ts.attend(*inputs, ts.Attention(bias=late, mask=ts.padding([3, 5]))), inputs, (0,)
    )


def test_queries_before_the_first_key_see_nothing():
    q, k, v = learnable(*tensors(Shape(queries=5, keys=3)))
    context = ts.attend(q, k, v, ts.Attention(mask=ts.causal))
    assert not context[:, :, :2].any()
    assert context[:, :, 2:].ne(0).all()
    of_q, of_k, _ = gradients(context, q, k, v)
    assert not of_q[:, :, :2].any()
    assert of_k.isfinite().all()


@given(st.data())
@pytest.mark.parametrize("empty", ["batch", "queries", "keys", "d_v"])
@settings(max_examples=25)
def test_empty_sequences(empty, data):
    shape = Shape(**vars(data.draw(shapes())) | {empty: 0})
    attention = data.draw(definitions(shape))
    q, k, v = learnable(*tensors(shape))
    context = ts.attend(q, k, v, attention)
    assert torch.equal(context, torch.zeros(shape.batch, shape.heads, shape.queries, shape.d_v, dtype=torch.float64))
    for gradient in gradients(context, q, k, v):
        assert not gradient.any()


def test_without_features_all_weights_are_equal():
    q, k, v = tensors(Shape(d_k=0))
    assert_close(ts.attend(q, k, v), v.mean(-2, keepdim=True).expand(2, 2, 5, 4))


# ----------------------------------------------------------------------------------------------------------- dropout


@on_every_engine
def test_dropout_scales_the_survivors(engine):
    """Uniform weights 1/5 and identity values: what is not dropped at p = 0.2 is 1/5 · 1/(1 - 0.2) = 1/4."""
    torch.manual_seed(0)
    zeros, identity = torch.zeros(64, 2, 5, 4), torch.eye(5).expand(64, 2, 5, 5)
    weights = ts.attend(zeros, zeros, identity, dropout=0.2, engine=engine)
    survived = weights != 0
    assert_close(weights[survived], torch.full_like(weights[survived], 0.25))
    deviation = math.sqrt(0.2 * 0.8 / weights.numel())
    assert survived.float().mean().item() == pytest.approx(0.8, abs=5 * deviation)


@on_every_engine
def test_dropout_is_right_on_average(engine):
    torch.manual_seed(0)
    q, k, v = tensors(Shape(1, 2, 1, 5, 5))
    attention = ts.Attention(mask=ts.causal)
    many = [tensor.expand(4000, -1, -1, -1) for tensor in (q, k, v)]
    draws = ts.attend(*many, attention, dropout=0.3, engine=engine)
    error = 5 * draws.std(0) / math.sqrt(4000)
    assert ((draws.mean(0) - ts.attend(q, k, v, attention)[0]).abs() <= error).all()
    assert (error > 1e-4).all()


@on_every_engine
def test_dropout_of_every_weight_gives_zeros(engine):
    q, k, v = tensors(Shape())
    assert not ts.attend(q, k, v, dropout=1.0, engine=engine).any()


# ---------------------------------------------------------------------------------------------------------- autocast

MIXED = [
    (torch.float32, torch.float32, torch.float32),
    (torch.float32, torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.float32, torch.float32),
]
DEFINITIONS = [ts.Attention(), ts.Attention(mask=ts.causal), ts.Attention(mask=ts.causal & ts.window(2), sink=1.0)]


@pytest.mark.parametrize("kinds", MIXED, ids=lambda kinds: "-".join(str(kind)[6:] for kind in kinds))
@pytest.mark.parametrize("attention", DEFINITIONS, ids=repr)
def test_autocast_takes_mixed_dtypes(attention, kinds):
    inputs = tensors(Shape())
    mixed = [tensor.to(kind) for tensor, kind in zip(inputs, kinds, strict=True)]
    with torch.autocast("cpu", torch.bfloat16):
        contexts = [ts.attend(*mixed, attention), ts.attend(*mixed, attention, engine="reference")]
    for context in contexts:
        assert_near(context, reference.attend(*inputs, attention), torch.bfloat16)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_gives_one_dtype_whatever_the_engine(kind):
    inputs = tensors(Shape(), dtype=kind)
    with torch.autocast("cpu", torch.bfloat16):
        given_back = {engine: ts.attend(*inputs, engine=engine).dtype for engine in ENGINES}
    assert len(set(given_back.values())) == 1, given_back


def test_a_trace_under_autocast_shows_what_attend_computes():
    q, k, v = tensors(Shape(), dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        steps, context = ts.trace(q, k, v), ts.attend(q, k, v, engine="reference")
    assert steps.weights.dtype == torch.float32
    assert torch.equal(steps.context.bfloat16(), context)
