"""What holds of every edit: of drawn rectangles on every engine, of edits that change nothing, and of what is left."""

import threading
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import telescope as ts
from support.strategies import composite, seeds, settings, shapes, tensors
from support.watching import filled, hooks_of
from telescope.attention import Raised, Rectangle, table_of
from telescope.engines import sdpa
from telescope.engines.dispatch import ENGINES
from telescope.models import GPT, GPTConfig

IDS = torch.tensor([[1, 5, 2, 8, 3, 9], [4, 4, 7, 0, 12, 6]])


def gpt(dtype=torch.float32):
    sizes = {"vocabulary": 13, "max_positions": 16, "d_model": 8, "blocks": 2, "heads": 4, "key_heads": 2}
    return filled(GPT(GPTConfig(**sizes, positions="rotary")), dtype)


# -------------------------------------------------------------------------------------------------------- rectangles


@composite
def ranges(draw, size):
    start = draw(st.integers(0, size))
    return start, draw(st.one_of(st.none(), st.integers(start, size + 2)))


@composite
def rectangles(draw, shape, *, shared=False):
    """Draw a rectangle for this shape; `shared` means one for all sequences."""
    batch = 1 if shared else draw(st.sampled_from([1, shape.batch]))
    keys = [[draw(ranges(shape.keys)) for _ in range(draw(st.integers(0, 2)))] for _ in range(batch)]
    queries = None
    if draw(st.booleans()):
        queries = table_of([[draw(ranges(shape.keys))] for _ in range(batch)])
    heads = None
    if draw(st.booleans()):
        heads = torch.tensor([draw(st.booleans()) for _ in range(shape.heads)])
    return Rectangle(table_of(keys), queries, heads)


def dense(rectangle, shape):
    """Return the rectangle written out pair by pair, (batch, heads, query, key)."""
    seen = torch.zeros(*shape.whole, dtype=torch.bool)
    for b, h, i, j in torch.cartesian_prod(*map(torch.arange, seen.shape)).tolist():
        tables = [(rectangle.keys, j), (rectangle.queries, max(i + shape.keys - shape.queries, 0))]
        inside = all(table is None or bool(table[b % len(table), min(at, table.shape[1] - 1)]) for table, at in tables)
        seen[b, h, i, j] = inside and (rectangle.heads is None or bool(rectangle.heads[h]))
    return seen


@given(st.data(), shapes(), seeds, st.booleans())
@settings(max_examples=25)
def test_hidden_and_raised_on_every_engine(data, shape, seed, causal):
    """Against a mask and a bias written out as tensors."""
    hidden, raised = data.draw(rectangles(shape)), data.draw(rectangles(shape))
    mask = ts.causal if causal else ts.everyone
    attention = ts.Attention(mask=mask & ~hidden, bias=Raised(raised, 1.5))
    truth = ts.Attention(
        mask=mask & ts.from_forbidden(dense(hidden, shape)), bias=ts.from_additive(1.5 * dense(raised, shape).double())
    )
    q, k, v = tensors(shape, seed)
    expected = ts.attend(q, k, v, truth, engine="reference")
    for engine in ("reference", "chunked", "sdpa"):
        if ENGINES[engine].cannot(q, k, v, attention) is None:
            assert_close(ts.attend(q, k, v, attention, engine=engine), expected)
    assert_close(ts.survey(q, k, attention, top=0).received, ts.survey(q, k, truth, top=0).received)


@given(st.data(), shapes(), seeds, st.booleans())
@settings(max_examples=40)
def test_hidden_keys_without_a_mask(data, shape, seed, causal):
    """The calls over the keys that are left give the same as a mask, forward and backward."""
    mask = ts.causal if causal and shape.queries <= shape.keys else ts.everyone
    for _ in range(data.draw(st.integers(1, 2))):
        mask = mask & ~data.draw(rectangles(shape, shared=True))
    attention = ts.Attention(mask=mask)
    q, k, v = (tensor.requires_grad_() for tensor in tensors(shape, seed))
    small, sdpa.SMALL = sdpa.SMALL, 0
    try:
        groups = sdpa.without_hidden_keys(q, k, attention)
        assert groups is not None or shape.queries == 1
        context = ts.attend(q, k, v, attention, engine="sdpa")
    finally:
        sdpa.SMALL = small
    truth = ts.attend(q, k, v, attention, engine="reference")
    assert_close(context, truth)
    upstream = torch.randn(truth.shape, dtype=truth.dtype, generator=torch.Generator().manual_seed(seed))
    options = {"allow_unused": True, "materialize_grads": True}
    one = torch.autograd.grad(context, (q, k, v), upstream, **options)
    assert_close(one, torch.autograd.grad(truth, (q, k, v), upstream, **options))


def test_the_plan_tells_the_calls():
    x = torch.zeros(1, 2, 200, 8)
    attention = ts.Attention(mask=ts.causal & ~Rectangle(table_of([[(20, 40)]]), table_of([[(40, None)]])))
    assert str(ts.plan(x, x, x, attention)).endswith("in 2 calls over the keys that are not hidden")
    scattered = ts.Attention(mask=ts.causal & ~Rectangle(table_of([[(i, i + 1) for i in range(0, 200, 2)]])))
    assert "calls over" not in str(ts.plan(x, x, x, scattered))
    context = ts.attend(x + 1, x + 1, x + 1, scattered)
    assert_close(context, ts.attend(x + 1, x + 1, x + 1, scattered, engine="reference"))


def test_a_long_text_forms_no_matrix():
    """8,192 tokens, of which 1,000 are hidden from later ones: no allocation comes near n x n."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, tuple) else (result,):
                if isinstance(tensor, torch.Tensor):
                    self.numbers = max(self.numbers, tensor.numel())
            return result

    n = 8192
    x = torch.randn(1, 1, n, 8, generator=torch.Generator().manual_seed(0))
    rectangle = Rectangle(table_of([[(2000, 3000)]]), table_of([[(3000, None)]]))
    with torch.no_grad(), Largest() as seen:
        ts.attend(x, x, x, ts.Attention(mask=ts.causal & ~rectangle), engine="sdpa")
    assert seen.numbers < n * n / 16


# ----------------------------------------------------------------------------------------------- edits of nothing


def test_edits_that_change_nothing_change_no_bit():
    model = gpt()
    with torch.no_grad():
        expected = model(IDS)
        with ts.watch(model, keep="steps") as recording:
            model(IDS)
        nothing = [
            ts.boost(range(2, 4), by=1.0),
            ts.frozen(recording),
            ts.mute(times=1.0),
            ts.redefine(None, lambda attention: attention),
        ]
        for edit in nothing:
            with ts.edit(model, edit):
                assert torch.equal(model(IDS), expected)
        with ts.edit(model):
            assert torch.equal(model(IDS), expected)


def test_muted_twice_is_muted_once():
    model, once = gpt(), ts.mute(0, heads=[1, 2])
    with torch.no_grad():
        with ts.edit(model, once):
            expected = model(IDS)
        with ts.edit(model, once, once):
            assert torch.equal(model(IDS), expected)
        with ts.edit(model, once), ts.edit(model, once):
            assert torch.equal(model(IDS), expected)
        with ts.edit(model, ts.mute(0, heads=1), ts.mute(0, heads=2)):
            assert torch.equal(model(IDS), expected)


def test_hiding_everything_is_zeros_and_told():
    """Zeros, as if every head were muted; the recording tells which queries saw no key."""
    model = gpt()
    with torch.no_grad():
        with ts.edit(model, ts.mute()):
            expected = model(IDS)
        with ts.edit(model, ts.hide(slice(0, None))), ts.watch(model) as recording:
            assert torch.equal(model(IDS), expected)
        blind = recording.queries_without_keys()
        assert list(blind) == ["blocks.0.self", "blocks.1.self"]
        assert bool(blind["blocks.0.self"].all())
        with ts.edit(model, ts.hide(0, heads=1)), ts.watch(model, keep="queries-keys") as recording:
            model(IDS)
        blind = recording.queries_without_keys()["blocks.0.self"]
        assert blind.nonzero().tolist() == [[0, 1, 0], [1, 1, 0]]  # the first token of each text, in head 1
        with ts.watch(model) as recording:
            model(IDS)
        assert recording.queries_without_keys() == {}


def test_the_order_of_the_list_does_not_matter():
    model = gpt()
    edits = [
        ts.mute(0, heads=1, times=0.5),
        ts.hide(1, slice(3, None)),
        ts.boost(2, by=2.0),
        ts.redefine(1, lambda attention: replace(attention, scale=0.9)),
    ]
    with torch.no_grad():
        with ts.edit(model, *edits):
            expected = model(IDS)
        with ts.edit(model, *reversed(edits)):
            assert_close(model(IDS), expected)


# ---------------------------------------------------------------------------------------------------- what is left


def test_the_model_is_as_it_was():
    model = gpt()
    before = hooks_of(model)
    with torch.no_grad():
        expected = model(IDS)
        with pytest.raises(KeyError, match="on purpose"), ts.edit(model, ts.mute(), ts.hide(1)):
            raise KeyError("on purpose")
        assert hooks_of(model) == before
        assert torch.equal(model(IDS), expected)


def test_a_copy_made_inside_the_block_is_not_edited():
    from copy import deepcopy

    model = gpt()
    with torch.no_grad():
        expected = model(IDS)
        with ts.edit(model, ts.mute()):
            copied = deepcopy(model)
        assert torch.equal(copied(IDS), expected)


def test_other_threads_run_the_model_as_it_is():
    model, results = gpt(), {}
    with torch.no_grad():
        expected = model(IDS)

    def run(name, edit=None):
        with torch.no_grad():
            if edit is None:
                results[name] = model(IDS)
                return
            with ts.edit(model, edit):
                barrier.wait(10)
                results[name] = model(IDS)
                barrier.wait(10)

    with torch.no_grad(), ts.edit(model, ts.mute()):
        thread = threading.Thread(target=run, args=("plain",))
        thread.start()
        thread.join()
    assert torch.equal(results["plain"], expected)
    barrier = threading.Barrier(2)
    threads = [threading.Thread(target=run, args=(head, ts.mute(heads=head))) for head in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for head in (0, 1):
        with torch.no_grad(), ts.edit(model, ts.mute(heads=head)):
            assert torch.equal(results[head], model(IDS))
    with torch.no_grad():
        assert torch.equal(model(IDS), expected)


# ----------------------------------------------------------------------------------------------------------- effect


@pytest.mark.parametrize("measure", ["logits", "loss", "function"])
def test_edits_in_one_batch_have_the_effect_they_have_alone(measure):
    model = gpt(torch.float64)
    edits = [
        *ts.mute.each(model),
        *ts.hide.each([0, 0, 1, 1, 2, 2]),
        ts.boost(1, by=3.0),
        [ts.mute(0, heads=1), ts.hide(2)],
        ts.redefine(0, lambda attention: replace(attention, scale=1.0)),
        ts.mute(1, heads=0, by="mean"),
    ]
    how = {"function": lambda output: {"sum": output.sum(), "first": output[0, 0, 0]}}.get(measure, measure)
    together = ts.effect(model, IDS, edits, how, tokens=[3] if measure == "logits" else ())
    assert len(together) == len(edits) + 1
    for row, edit in zip(together.rows[1:], edits, strict=True):
        alone = ts.effect(model, IDS, [edit], how, tokens=[3] if measure == "logits" else ()).rows[1]
        for name, number in alone.items():
            if name != "edit":
                assert row[name] == pytest.approx(number, rel=1e-9, abs=1e-12)
    if measure == "logits":
        assert together.rows[0] == {"edit": None, "kl": 0.0} | {k: v for k, v in together.rows[0].items() if "3" in k}
        assert list(together.columns) == ["edit", "kl", "p(3)", "rank(3)"]
    column = list(together.columns)[1]
    assert together.sort(column).columns[column][1] == max(together.columns[column][1:])


def test_loss_is_that_of_the_next_token():
    model = gpt(torch.float64)
    with torch.no_grad():
        logits = model(IDS)
    truth = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())
    assert ts.effect(model, IDS, [], "loss").columns["loss"] == pytest.approx([float(truth)])


def test_loss_reads_tokens_by_the_name_of_the_argument():
    """Positions and masks are whole numbers too, and stand behind the tokens."""
    model = gpt(torch.float64)
    expected = ts.effect(model, IDS, [], "loss").columns["loss"]
    positions = torch.arange(IDS.shape[1]).expand_as(IDS)
    assert ts.effect(model, (IDS, None, positions), [], "loss").columns["loss"] == pytest.approx(expected)
    assert ts.effect(model, {"ids": IDS, "positions": positions}, [], "loss").columns["loss"] == expected
