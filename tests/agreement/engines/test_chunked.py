"""The chunked engine gives the result of `reference`, in little memory, with every gradient, compiled or not."""

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import telescope as ts
from support.strategies import Shape, assert_near, gradients, learnable, normal, tensors
from telescope.engines import chunked, reference
from telescope.engines import dispatch as choose


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setitem(chunked.SCORES, "cpu", 200)
    monkeypatch.setattr(chunked, "MIN_ROWS", 2)


class Largest(TorchDispatchMode):
    """Measure the most numbers that any tensor holds while this mode is on."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.numbers = max(self.numbers, *(some.untyped_storage().nbytes() // some.element_size() for some in made), 0)
        return result


LONG = {
    "causal, softcap": ts.Attention(mask=ts.causal, softcap=5.0),
    "alibi": ts.Attention(bias=ts.alibi(1)),
    "documents": ts.Attention(mask=ts.documents(torch.arange(4096) // 700)),
    "additive": ts.Attention(
        score=ts.additive(*(normal(4, 3, seed=i, dtype=torch.float32) for i in range(2)), torch.ones(3)),
        mask=ts.causal,
    ),
}


@pytest.mark.parametrize("attention", LONG.values(), ids=LONG)
def test_no_tensor_is_as_large_as_the_matrix(attention, monkeypatch):
    n = 4096
    monkeypatch.setitem(chunked.SCORES, "cpu", 2**20)
    inputs = learnable(*tensors(Shape(1, 1, 1, n, n, 4, 4), dtype=torch.float32))
    with Largest() as largest:
        gradients(chunked.attend(*inputs, attention), *inputs)
    assert 2**17 < largest.numbers <= 2 * 2**20 < n * n


def test_what_is_kept_for_the_backward_pass_is_no_larger_than_the_inputs(small_blocks):
    kept = []
    inputs = learnable(*tensors(Shape(1, 2, 2, 100, 100, 4, 4)))
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()) or tensor, lambda x: x):
        chunked.attend(*inputs, ts.Attention(mask=ts.causal, softcap=2.0))
    assert max(kept, default=0) <= inputs[0].numel()


def test_the_cost_of_a_window_is_that_of_its_visible_keys():
    n = 2048
    q, k, v = tensors(Shape(1, 1, 1, n, n, 4, 4), dtype=torch.float32)
    with Largest() as largest:
        chunked.attend(q, k, v, ts.Attention(mask=ts.causal & ts.window(128)))
    assert largest.numbers < 128 * n / 4


# -------------------------------------------------------------------------------------------------- what is learned


def test_every_learned_tensor_gets_its_gradient(small_blocks):
    shape = Shape(2, 4, 2, 13, 13, 4, 4)
    q, k, v = tensors(shape)
    learned = learnable(normal(4, 4, 4, seed=3), normal(4, 5, seed=4), normal(4, seed=5))

    def definition(W, table, sink):
        return ts.Attention(score=ts.general(W), bias=ts.relative(table), sink=sink, mask=ts.causal)

    attention = definition(*learned)
    mine, theirs = (gradients(engine.attend(q, k, v, attention), *learned) for engine in (chunked, reference))
    for gradient, slope in zip(mine, theirs, strict=True):
        assert slope.abs().max() > 0.01
        assert_near(gradient, slope, backward=True)


def test_an_additive_score_gets_its_gradient(small_blocks):
    q, k, v = tensors(Shape(1, 2, 2, 7, 9, 3, 2))
    learned = learnable(normal(2, 3, 4, seed=1), normal(2, 3, 4, seed=2), normal(2, 4, seed=3))
    assert torch.autograd.gradcheck(
        lambda *learned: chunked.attend(q, k, v, ts.Attention(score=ts.additive(*learned), mask=ts.causal)), learned
    )


def test_second_derivatives(small_blocks):
    inputs = learnable(*tensors(Shape(1, 2, 1, 5, 5, 2, 2)))
    attention = ts.Attention(mask=ts.causal & ts.window(3), softcap=2.0)
    assert torch.autograd.gradgradcheck(lambda *inputs: chunked.attend(*inputs, attention), inputs)


def test_backward_drops_the_weights_that_forward_dropped(small_blocks):
    """The context is linear in the values, so the gradient of the values is the weights that were not dropped."""
    q, k, _ = tensors(Shape(1, 1, 1, 23, 11))
    (v,) = learnable(torch.eye(11, dtype=torch.float64)[None, None])
    torch.manual_seed(0)
    context = chunked.attend(q, k, v, ts.Attention(), dropout=0.5)
    torch.rand(5)  # what others roll meanwhile
    weighing = normal(*context.shape, seed=1)
    (slope,) = torch.autograd.grad((context * weighing).sum(), v)
    assert (context == 0).double().mean().item() == pytest.approx(0.5, abs=0.15)
    assert_close(slope[0, 0], context[0, 0].detach().mT @ weighing[0, 0])


# --------------------------------------------------------------------------------------------------------- NaN


@pytest.mark.parametrize("junk", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("heads", [2, 4])
def test_a_nan_at_a_hidden_key_reaches_no_query(small_blocks, junk, heads):
    inputs = tensors(Shape(2, heads, 2, 9, 9))
    for tensor in inputs[1:]:
        tensor[0, :, 6:] = junk
    attention = ts.Attention(mask=ts.padding([6, 9]), softcap=3.0, sink=0.5)
    mine, theirs = learnable(*inputs), learnable(*inputs)
    context, truth = chunked.attend(*mine, attention), reference.attend(*theirs, attention)
    assert_near(context, truth)
    for gradient, slope in zip(gradients(context, *mine), gradients(truth, *theirs), strict=True):
        assert gradient.isfinite().all()
        assert_near(gradient, slope, backward=True)


@pytest.mark.parametrize("which", [0, 1, 2], ids=["queries", "keys", "values"])
def test_a_nan_reaches_the_queries_that_see_it(small_blocks, which):
    inputs = tensors(Shape(2, 4, 2, 9, 9))
    inputs[which][0, :, 6] = torch.nan
    attention = ts.Attention(mask=ts.causal, softcap=3.0)
    context = chunked.attend(*inputs, attention)
    assert context[0, :, :6].isfinite().all()
    assert context[0, :, 6].isnan().all()
    assert_close(context, reference.attend(*inputs, attention), equal_nan=True)


# ------------------------------------------------------------------------------------------------- out of memory


def limited_memory(monkeypatch, room):
    """Raise OutOfMemoryError for blocks of more than `room` rows; return the list of block sizes that were tried."""
    tried, real = [], chunked._block

    def block(queries, *rest):
        tried.append(queries.shape[2])
        if queries.shape[2] > room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return real(queries, *rest)

    monkeypatch.setattr(chunked, "_block", block)
    return tried


def test_blocks_get_smaller_where_memory_runs_out(monkeypatch):
    inputs = tensors(Shape(1, 2, 2, 60, 60))
    truth = reference.attend(*inputs, ts.Attention(softcap=2.0))
    tried = limited_memory(monkeypatch, room=10)
    assert_near(chunked.attend(*inputs, ts.Attention(softcap=2.0)), truth)
    assert tried[:4] == [60, 30, 15, 8]


def test_the_error_is_one_sentence_where_a_single_row_does_not_fit(monkeypatch):
    tried = limited_memory(monkeypatch, room=0)
    with pytest.raises(torch.OutOfMemoryError, match=r"queries \(1, 2, 6, 4\): .* 5 keys do not fit .* of the batch"):
        chunked.attend(*tensors(Shape(1, 2, 2, 6, 5)), ts.Attention())
    assert tried == [6, 3, 2, 1]


# ---------------------------------------------------------------------------------------------------- torch.compile


COMPILED = {
    "causal, softcap": ts.Attention(mask=ts.causal, softcap=2.0),
    "window, sink": ts.Attention(mask=ts.causal & ts.window(3), sink=0.5),
    "alibi": ts.Attention(bias=ts.alibi(2)),
}


@pytest.mark.parametrize("attention", COMPILED.values(), ids=COMPILED)
def test_chunked_compiles_without_graph_breaks(small_blocks, unchecked, attention):
    inputs = learnable(*tensors(Shape(1, 2, 1, 11, 11)))
    compiled = torch.compile(
        lambda q, k, v: ts.attend(q, k, v, attention, engine="chunked"), fullgraph=True, backend="aot_eager"
    )
    context, truth = compiled(*inputs), reference.attend(*inputs, attention)
    assert_near(context, truth)
    for gradient, slope in zip(gradients(context, *inputs), gradients(truth, *inputs), strict=True):
        assert_near(gradient, slope, backward=True)


@pytest.mark.parametrize(("engine", "softcap"), [("sdpa", None), ("chunked", 2.0)])
def test_attend_compiles_without_graph_breaks(small_blocks, unchecked, monkeypatch, engine, softcap):
    monkeypatch.setattr(choose, "SMALL", 0)
    attention = ts.Attention(mask=ts.causal & ts.window(3), softcap=softcap)
    q, k, v = tensors(Shape(1, 2, 1, 11, 11), dtype=torch.float32)
    assert ts.plan(q, k, v, attention).engine == engine
    compiled = torch.compile(ts.attend, fullgraph=True, backend="eager")
    assert_near(compiled(q, k, v, attention), reference.attend(q.double(), k.double(), v.double(), attention))
