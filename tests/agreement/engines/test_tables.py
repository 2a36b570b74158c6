"""Cached tables of masks and biases for the fused kernel: few operations, never stale, of bounded memory."""

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.testing import assert_close

import telescope as ts
from support.strategies import Shape, assert_near, gradients, learnable, normal, tensors
from telescope.engines import exact, reference, sdpa

pytestmark = pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")  # torch 2.11's profiler, of itself

HEADS = 4


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch):
    monkeypatch.setattr(exact, "_table_cache", exact._TableCache())


def assert_agrees_with_reference(inputs, attention):
    """Compare forward and backward with reference twice: with a new table, and with the cached one."""
    for _ in range(2):
        mine, theirs = learnable(*inputs), learnable(*inputs)
        context, truth = sdpa.attend(*mine, attention), reference.attend(*theirs, attention)
        assert_near(context, truth)
        for gradient, slope in zip(gradients(context, *mine), gradients(truth, *theirs), strict=True):
            assert_near(gradient, slope, backward=True)


# ------------------------------------------------------------------------------------------------- how much it takes


def operations(run):
    """Return the outermost operations that torch ran."""
    run()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        run()
    return [event.name for event in seen.events() if event.cpu_parent is None and event.name.startswith("aten::")]


REMEMBERED = {
    "plain": ts.Attention(),
    "causal": ts.Attention(mask=ts.causal),
    "causal & window": ts.Attention(mask=ts.causal & ts.window(8)),
    "padding": ts.Attention(mask=ts.padding([40])),
    "alibi": ts.Attention(bias=ts.alibi(HEADS)),
    "causal & padding, alibi": ts.Attention(mask=ts.causal & ts.padding([40]), bias=ts.alibi(HEADS)),
    "relative": ts.Attention(bias=ts.relative(normal(HEADS, 9, seed=1))),
}
ANEW = {
    "keep": ts.Attention(mask=ts.padding(keep=torch.arange(64)[None] < 40)),
    "documents": ts.Attention(mask=ts.documents(torch.arange(64) // 8)),
    "additive": ts.Attention(bias=ts.from_additive(normal(1, HEADS, 1, 64, seed=1))),
    "function": ts.Attention(bias=lambda query, key: -0.1 * (query - key).abs()),
}


@pytest.mark.parametrize("queries", [1, 64])
@pytest.mark.parametrize(
    ("attention", "most"),
    [*((attention, 20) for attention in REMEMBERED.values()), *((attention, 26) for attention in ANEW.values())],
    ids=[*REMEMBERED, *ANEW],
)
def test_a_call_runs_few_operations(attention, most, queries):
    inputs = tensors(Shape(1, HEADS, 2, queries, 64), dtype=torch.float32)
    names = operations(lambda: ts.attend(*inputs, attention))
    assert "aten::scaled_dot_product_attention" in names
    assert len(names) <= most, names


def test_a_mask_of_keys_goes_to_the_kernel_as_one_row(monkeypatch):
    given, real = [], sdpa.scaled_dot_product_attention
    monkeypatch.setattr(
        sdpa, "scaled_dot_product_attention", lambda *inputs, **how: given.append(how) or real(*inputs, **how)
    )
    inputs = tensors(Shape(2, HEADS, 2, 50, 60))
    for mask in (ts.padding([20, 60]), ts.padding(keep=normal(2, 60, seed=1) < 0.5), ts.prefix(30)):
        assert_agrees_with_reference(inputs, ts.Attention(mask=mask))
    stored = {how["attn_mask"].untyped_storage().nbytes() // how["attn_mask"].element_size() for how in given}
    assert stored <= {60, 2 * 60}


# ----------------------------------------------------------------------------------------------- never a stale number


def test_a_mask_that_was_written_to_gets_a_new_table():
    inputs = tensors(Shape(2, HEADS, 2, 7, 7))
    shared = np.array([3, 7])  # writes to it do not change the version of a tensor
    lengths, slopes = torch.from_numpy(shared), ts.alibi(HEADS).slopes
    attention = ts.Attention(mask=ts.padding(lengths), bias=type(ts.alibi(1))(slopes))
    assert_agrees_with_reference(inputs, attention)
    shared[0] = 5
    assert_agrees_with_reference(inputs, attention)
    slopes.data[1] = 3.0
    assert_agrees_with_reference(inputs, attention)
    with torch.inference_mode():
        slopes[2] = 7.0
    assert_agrees_with_reference(inputs, attention)


def test_tables_of_other_dtypes_are_cached_apart():
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float64):
        inputs = tensors(Shape(2, HEADS, 2, 5, 5), dtype=dtype)
        exact = reference.attend(*(tensor.double() for tensor in inputs), REMEMBERED["relative"])
        assert_near(ts.attend(*inputs, REMEMBERED["relative"]), exact, dtype)


@pytest.mark.parametrize("attention", [REMEMBERED["alibi"], REMEMBERED["causal & window"]], ids=repr)
def test_a_table_made_in_inference_mode_works_in_training(attention):
    inputs = tensors(Shape(1, HEADS, 2, 9, 9))
    with torch.inference_mode():
        ts.attend(*inputs, attention)
    assert_agrees_with_reference(inputs, attention)


def test_a_learned_table_is_not_cached():
    q, k, v = tensors(Shape(1, HEADS, 2, 9, 9))
    (table,) = learnable(normal(HEADS, 5, seed=3))
    attention = ts.Attention(bias=ts.relative(table), mask=ts.causal)
    for _ in range(2):
        (fast,), (slow,) = (gradients(engine.attend(q, k, v, attention), table) for engine in (sdpa, reference))
        assert slow.abs().max() > 0.01
        assert_near(fast, slow, backward=True)
        table.data += 1.0
    assert not exact._table_cache.tables


def test_a_learned_table_gets_its_gradient_block_by_block(monkeypatch):
    for name, few in (("ROWS", 3), ("SMALL", 0), ("WHOLE", 0)):
        monkeypatch.setattr(sdpa, name, few)
    q, k, v = tensors(Shape(2, HEADS, 2, 11, 11))
    (table,) = learnable(normal(HEADS, 5, seed=3))
    attention = ts.Attention(bias=ts.relative(table), mask=ts.causal & ts.padding([4, 11]))
    (fast,), (slow,) = (gradients(engine.attend(q, k, v, attention), table) for engine in (sdpa, reference))
    assert_near(fast, slow, backward=True)
    assert_agrees_with_reference(
        (q, k, v), ts.Attention(bias=ts.relative(table.detach()), mask=ts.causal & ts.padding([4, 11]))
    )


def test_writing_to_positions_does_not_change_the_cache():
    def greedy(query, key):
        return query.sub_(key).abs().neg().double()

    inputs = tensors(Shape(1, HEADS, 2, 9, 9))
    expected = ts.attend(*inputs, ts.Attention(bias=lambda query, key: -(query - key).abs().double()))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="output with shape"):
            ts.attend(*inputs, ts.Attention(bias=greedy))
        moved = ts.attend(*inputs, ts.Attention(bias=lambda query, key: -(query.add_(1) - key - 1).abs().double()))
        assert_near(moved, expected)
    assert_near(ts.attend(*inputs, REMEMBERED["causal"]), reference.attend(*inputs, REMEMBERED["causal"]))


# ------------------------------------------------------------------------------------------------------ little memory


def test_the_memory_of_the_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(exact, "CACHE_BYTES", 4000)
    for n in range(2, 40):
        inputs = tensors(Shape(1, HEADS, 2, n, n))
        assert_agrees_with_reference(inputs, ts.Attention(bias=ts.alibi(HEADS)))
        assert exact._table_cache.bytes <= 4000
        held = [made.added.untyped_storage().nbytes() for made, _ in exact._table_cache.tables.values()]
        assert sum(held) == exact._table_cache.bytes


def test_a_large_table_is_not_cached(monkeypatch):
    monkeypatch.setattr(exact, "MAX_CACHED_NUMBERS", 100)
    assert_agrees_with_reference(tensors(Shape(1, HEADS, 2, 9, 9)), REMEMBERED["alibi"])
    assert not exact._table_cache.tables


# ---------------------------------------------------------------------------------------------- what kernels get wrong


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("queries", [1, 4])
def test_a_nan_in_a_bias_reaches_the_queries_that_see_it(broken, everywhere, queries):
    inputs = tensors(Shape(2, HEADS, 2, queries, 5))
    added = torch.zeros(2, 1, 1, 5, dtype=torch.float64)
    added[0, ..., slice(None) if everywhere else 3] = broken
    for mask in (ts.everyone, ts.prefix(3)):
        attention = ts.Attention(bias=ts.from_additive(added), mask=mask)
        assert_close(ts.attend(*inputs, attention), reference.attend(*inputs, attention), equal_nan=True)


@pytest.mark.parametrize("height", [-3e38, -1e9, -300.0, 40.0, 1e5])
def test_gradients_under_a_bias_far_from_zero(height):
    """The kernel keeps a row's largest score and the logarithm of its sum as one number, which float32 rounds."""
    inputs = tensors(Shape(2, HEADS, 2, 6, 6), dtype=torch.float32)
    added = torch.full((1, 1, 6, 6), height).where(torch.arange(6)[:, None] > 2, 0.0)
    attention = ts.Attention(bias=ts.from_additive(added))
    mine, exact = learnable(*inputs), learnable(*inputs, dtype=torch.float64 if abs(height) < 1e8 else torch.float32)
    context, truth = ts.attend(*mine, attention), reference.attend(*exact, attention)
    assert_near(context, truth)
    for gradient, slope in zip(gradients(context, *mine), gradients(truth, *exact), strict=True):
        assert_near(gradient, slope, backward=True)
