"""The score and mask functions that FlexAttention gets compute what the definition says.

The kernels are not compiled here: torch then runs FlexAttention step by step, in float64 and with gradients. The
kernels themselves are tested on a GPU.
"""

import shutil
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import flex_attention as torch_flex

import telescope as ts
from support.strategies import Shape, assert_near, gradients, learnable, masks, normal, shapes, tensors
from telescope.attention import IdentityCache
from telescope.engines import flex, reference


@pytest.fixture
def uncompiled(unchecked, monkeypatch):
    monkeypatch.setattr(flex, "_compiled", lambda: torch_flex.flex_attention)
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *_: None)  # which forbids gradients on a CPU
    monkeypatch.setattr(torch_flex, "_warn_once", lambda *_, **__: None)
    monkeypatch.setattr(flex, "_block_masks", IdentityCache(flex.MAX_BLOCK_MASKS))


LEARNED = learnable(normal(4, 9, seed=1), normal(4, seed=2), normal(4, 8, 8, seed=3) / 3)
TABLE, SINK, W = LEARNED
N = 300  # more than two blocks of 128
DEFINITIONS = {
    "softcap, causal": ts.Attention(softcap=5.0, mask=ts.causal),
    "window": ts.Attention(mask=ts.causal & ts.window(5), scale=-0.4),
    "documents": ts.Attention(mask=ts.documents(torch.arange(N) // 70)),
    "padding": ts.Attention(mask=ts.padding(keep=normal(2, N, seed=4) > 0)),
    "a sequence of nothing, sink": ts.Attention(sink=SINK, mask=ts.padding([0, 200]) & ts.causal),
    "a learned bias, prefix": ts.Attention(bias=ts.relative(TABLE), mask=ts.causal | ts.prefix(3)),
    "a learned score": ts.Attention(score=ts.general(W), sink=0.5),
    "alibi": ts.Attention(bias=ts.alibi(4)),
    "any function": ts.Attention(bias=lambda query, key: -0.1 * (query - key).abs()),
    "a tensor that forbids": ts.Attention(
        bias=ts.from_additive(normal(N, N, seed=5).masked_fill(torch.eye(N) > 0, -torch.inf))
    ),
}


@pytest.mark.parametrize("attention", DEFINITIONS.values(), ids=DEFINITIONS)
def test_flex_agrees_with_reference(uncompiled, attention):
    inputs = learnable(*tensors(Shape(2, 4, 2, N, N, 8, 8)))
    context, truth = flex.attend(*inputs, attention), reference.attend(*inputs, attention)
    assert_near(context, truth)
    learned = [
        part for part in LEARNED if any(part is own for own in (attention.sink, *vars(attention.score).values()))
    ]
    learned += [TABLE] if attention.bias == ts.relative(TABLE) else []
    for gradient, slope in zip(gradients(context, *inputs, *learned), gradients(truth, *inputs, *learned), strict=True):
        assert_near(gradient, slope, backward=True, unit=10.0)


def test_fewer_queries_than_keys_are_the_last_positions(uncompiled):
    inputs = tensors(Shape(1, 2, 2, 5, 9))
    for attention in (ts.Attention(mask=ts.causal), ts.Attention(bias=ts.alibi(2), mask=ts.window(3))):
        assert_near(flex.attend(*inputs, attention), reference.attend(*inputs, attention))


@given(st.data())
def test_the_block_mask_lists_the_visible_blocks(data):
    """A block is listed if any of its pairs is visible, and as full if all are."""
    shape = data.draw(shapes())
    mask = data.draw(masks(shape))
    q, k, _ = tensors(shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex, "TILE", 4)
        blocks = flex._make_block_mask(mask, q, k)
    seen = mask.block(shape.queries, shape.keys, batch=shape.batch, heads=shape.heads)
    seen = torch.nn.functional.pad(seen, (0, -shape.keys % 4, 0, -shape.queries % 4)).unfold(2, 4, 4).unfold(3, 4, 4)
    some, every = seen.flatten(-2).any(-1), seen.flatten(-2).all(-1)
    assert torch.equal(dense(blocks.full_kv_num_blocks, blocks.full_kv_indices), every)
    assert torch.equal(dense(blocks.kv_num_blocks, blocks.kv_indices), some & ~every)


def dense(counts, indices):
    listed = torch.arange(indices.shape[-1]) < counts[..., None]
    return torch.zeros(indices.shape, dtype=torch.bool).scatter(-1, indices.long(), listed)


def test_block_masks_are_cached_until_the_mask_is_written_to(monkeypatch):
    monkeypatch.setattr(flex, "_block_masks", IdentityCache(flex.MAX_BLOCK_MASKS))
    q, k, _ = tensors(Shape())
    lengths = torch.tensor([2, 5])
    first = flex._block_mask(ts.causal & ts.padding(lengths), q, k)
    assert flex._block_mask(ts.causal & ts.padding(lengths), q, k) is first
    assert flex._block_mask(ts.causal & ts.padding(lengths.clone()), q, k) is not first
    lengths[0] = 4
    assert flex._block_mask(ts.causal & ts.padding(lengths), q, k) is not first
    for size in range(1, 50):
        flex._block_mask(ts.window(size), q, k)
    assert len(flex._block_masks) == flex.MAX_BLOCK_MASKS


X = torch.zeros(1, 1, 4, 16)
REASONS = [
    (lambda: ts.Attention(score=ts.additive(*[torch.zeros(16, 2)] * 2, torch.zeros(2))), X, {}, "no dot product"),
    (lambda: ts.Attention(normalize=ts.by_sum), X, {}, "by_sum"),
    (ts.Attention, X, {"dropout": 0.1}, "no dropout"),
    (ts.Attention, X.double(), {}, "no float64"),
    (ts.Attention, X[:, :, :0], {}, "nothing to compute"),
    (ts.Attention, X.clone().requires_grad_(), {}, "no gradients"),
    (lambda: ts.Attention(bias=ts.relative(torch.zeros(1, 3).requires_grad_())), X, {}, "no gradients"),
    (lambda: ts.Attention(sink=1.0), X, {}, "log-sum-exp"),
    (ts.Attention, X.to("meta"), {}, "meta devices"),
]


@pytest.mark.parametrize(("attention", "x", "how", "reason"), REASONS, ids=[reason for *_, reason in REASONS])
def test_cannot_returns_the_reason(monkeypatch, attention, x, how, reason):
    monkeypatch.setitem(flex.MISSING_REQUIREMENTS, "cpu", None)
    assert reason in flex.cannot(x, x, x, attention(), **how)
    if not x.is_meta:
        with pytest.raises(ValueError, match=r'engine="flex" cannot run .*; leave engine out, or use "reference"'):
            ts.attend(x, x, x, attention(), engine="flex", **how)


def test_missing_requirements_are_named(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert flex._missing_requirement("cpu") == "on a CPU it needs AVX2"
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setenv("CXX", "clang++")
    assert flex._missing_requirement("cpu") == "on a CPU it needs the C++ compiler clang++"
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert flex._missing_requirement("cpu") is None
    monkeypatch.setattr(flex, "find_spec", lambda _: None)
    assert "pip install triton" in flex._missing_requirement("cuda")


@pytest.mark.skipif(flex.cannot(X, X, X, ts.Attention()) is not None, reason="needs AVX2 and a C++ compiler")
def test_compiled_on_a_cpu(unchecked):
    """One compilation, which takes half a minute."""
    q, k, v = tensors(Shape(1, 2, 1, 150, 150, 16, 16), dtype=torch.float32)
    attention = ts.Attention(softcap=5.0, bias=ts.alibi(2), mask=ts.causal & ts.window(40))
    truth = reference.attend(q.double(), k.double(), v.double(), attention)
    assert_near(ts.attend(q, k, v, attention, engine="flex"), truth, torch.float32)


@pytest.mark.skipif(flex.cannot(X, X, X, ts.Attention()) is not None, reason="needs AVX2 and a C++ compiler")
def test_other_lengths_inside_torch_compile(unchecked):
    """After the second length torch.compile passes symbolic lengths, which the kernel cannot take."""
    compiled = torch.compile(partial(ts.attend, engine="flex"), fullgraph=True)
    attention = ts.Attention(mask=ts.causal & ts.window(40))
    for queries, keys in ((64, 64), (50, 131)):
        q, k, v = tensors(Shape(1, 2, 1, queries, keys, 16, 16), dtype=torch.float32)
        truth = reference.attend(q.double(), k.double(), v.double(), attention)
        assert_near(compiled(q, k, v, attention), truth, torch.float32)
