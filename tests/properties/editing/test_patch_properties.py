"""What holds of every patch: of drawn definitions, batches, heads and positions; of a model patched with itself."""

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.testing import assert_close

import telescope as ts
from support.patching import PARTS, Swap, own_steps, same
from support.strategies import composite, position_masks, scales, scores, seeds, settings, shapes, tensors
from support.watching import filled
from telescope.anatomy import Modules
from telescope.engines.reference import steps
from telescope.interception.telescope_models import attentions
from telescope.models import GPT, GPTConfig

IDS = torch.tensor([[1, 5, 2, 8, 3, 9], [4, 4, 7, 0, 12, 6]])
OTHER = torch.tensor([[7, 2, 2, 0, 11, 3], [4, 9, 1, 0, 5, 8]])


def gpt(**options):
    sizes = {"vocabulary": 13, "max_positions": 16, "d_model": 8, "blocks": 2, "heads": 4, "key_heads": 2}
    return filled(GPT(GPTConfig(**sizes, positions="rotary", **options)), torch.float64)


class Attending(torch.nn.Module):
    """A module that attends by any definition."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, q, k, v):
        return ts.attend(q, k, v, self.attention)


# ------------------------------------------------------------------------------------------- drawn definitions


@composite
def unpadded(draw, shape, *, dot_products):
    """Draw definitions whose masks tell no padding: all positions count."""
    biases = [None, ts.alibi(shape.heads), ts.relative(torch.linspace(-1.0, 1.0, 5).double()[None])]
    return ts.Attention(
        score=draw(scores(shape, dot_products=dot_products)),
        scale=draw(scales),
        bias=draw(st.sampled_from(biases)),
        softcap=draw(st.sampled_from([None, 2.0])),
        sink=draw(st.sampled_from([None, 0.5])),
        mask=draw(position_masks()),
    )


@given(st.data(), shapes(square=True), seeds)
@settings(max_examples=80)
def test_any_definition(data, shape, seed):
    """Each part, of drawn heads at drawn positions, against the steps with the numbers put in one by one."""
    what = data.draw(st.sampled_from(PARTS))
    attention = data.draw(unpadded(shape, dot_products=False))
    one_text = data.draw(st.booleans())
    here, there = tensors(shape, seed), tensors(shape, seed + 7)
    if one_text:
        there = tuple(tensor[:1] for tensor in there)
    heads = sorted(data.draw(st.sets(st.integers(0, shape.heads - 1), min_size=1)))
    rows = sorted(data.draw(st.sets(st.integers(0, shape.keys - 1), min_size=1)))

    model = Attending(attention)
    with ts.watch(model, keep="steps") as recording:
        model(*there)
    (name,) = recording
    assume(all(bool(one.all()) for one in recording[name].call._real_tokens()))
    chosen = {"queries": rows} if what in ("output", "weights", "queries") else {"align": {i: i for i in rows}}
    partial = what == "weights" and len(rows) < shape.keys
    with ts.edit(model, ts.patch(recording, heads=heads, what=what, **chosen)):
        if partial and attention.score != ts.dot:
            with pytest.raises(ValueError, match="cannot be patched alone; leave queries= out"):
                model(*here)
            return
        found = model(*here)

    # The same by the reference, number by number.
    def formed(q, k, v):
        groups = shape.heads // shape.key_heads
        return steps(q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1), attention)

    def part(tensors, what):
        q, k, v = tensors
        groups = shape.heads // shape.key_heads
        return {"queries": q, "keys": k.repeat_interleave(groups, 1), "values": v.repeat_interleave(groups, 1)}[what]

    old = formed(*there)
    mine = {name: part(here, name).clone() for name in ("queries", "keys", "values")}
    batch, width = shape.batch, slice(0, 1) if one_text else slice(None)
    expand = lambda tensor: tensor[width].expand(batch, *tensor.shape[1:])  # noqa: E731
    if what in mine:
        other = expand(part(there, what))
        for head in heads:
            mine[what][:, head, rows] = other[:, head, rows]
    new = steps(mine["queries"], mine["keys"], mine["values"], attention)
    weights = new.weights.clone()
    if what == "weights":
        for head in heads:
            weights[:, head, rows] = expand(old.weights)[:, head, rows]
    truth = weights @ mine["values"]
    if what == "output":
        for head in heads:
            truth[:, head, rows] = expand(old.context)[:, head, rows]
    assert_close(found, truth)


# -------------------------------------------------------------------------------------------------- whole models


@pytest.mark.parametrize("what", PARTS)
def test_a_text_patched_with_itself_stays(what):
    model = gpt()
    with torch.no_grad(), ts.watch(model, keep="steps") as recording:
        expected = model(IDS)
    with torch.no_grad(), ts.edit(model, ts.patch(recording, what=what)):
        assert_close(model(IDS), expected, rtol=1e-12, atol=1e-12)


def test_all_outputs_of_all_layers_leave_the_own_tokens():
    """The residual stream still holds this text; queries, keys and values together are the output."""
    model = gpt()
    with torch.no_grad():
        with ts.watch(model, keep="steps") as recording:
            model(OTHER)
        with ts.edit(model, ts.patch(recording)):
            outputs = model(IDS)
        parts = [ts.patch(recording, what=what) for what in ("queries", "keys", "values")]
        with ts.edit(model, *parts):
            assert_close(model(IDS), outputs, rtol=1e-12, atol=1e-12)
        with ts.edit(model, parts[2], ts.patch(recording, what="weights")):
            assert_close(model(IDS), outputs, rtol=1e-12, atol=1e-12)


def test_gradients_flow_around_what_is_patched():
    """Nothing reaches a patched head's own values; an unpatched position still learns."""
    model = gpt()
    with torch.no_grad(), ts.watch(model, keep="steps") as recording:
        model(OTHER)
    for edit, learns in ((ts.patch(recording, 1), False), (ts.patch(recording, 1, queries=range(5)), True)):
        model.zero_grad()
        with ts.edit(model, edit):
            model(IDS)[:, -1].sum().backward()
        gradient = model.blocks[1].self_attention.W_qkv.weight.grad
        assert (gradient is not None and bool(gradient.abs().max() > 0)) is learns


def test_a_watch_records_what_is_patched():
    """Queries, keys and values as edited; and the edit, in its words."""
    model = gpt()
    with torch.no_grad():
        with ts.watch(model, keep="steps") as recording:
            model(OTHER)
        edit = ts.patch(recording, 0, what="values")
        with ts.edit(model, edit), ts.watch(model, keep="steps") as seen:
            model(IDS)
    assert seen.edits == (edit,)
    groups = recording["blocks.0.self"].call.values.repeat_interleave(2, 1)
    assert torch.equal(seen["blocks.0.self"].call.values, groups)
    assert {recording: 1}[recording] == 1  # edits hold recordings, and are looked up


@pytest.mark.parametrize("run", ["corrupted", "clean"])
@pytest.mark.parametrize("measure", ["difference", "p", "kl", "loss", "function"])
def test_restored(measure, run):
    """Every head, in batches, against runs by hand of which the measure is computed one by one."""
    model = gpt()
    names = {id(attend): name for name, attend in attentions(Modules.of(model)).items()}
    clean, corrupted = IDS, torch.where(torch.arange(6) == 1, OTHER, IDS)

    def by_hand(ids, *swaps):
        with torch.no_grad(), own_steps(names, *swaps) as kept:
            return model(ids), kept

    def value(logits):
        logs = logits.log_softmax(-1)
        if measure == "difference":
            return float((logits[:, -1, 3] - logits[:, -1, 5]).mean())
        if measure == "p":
            return float(logs[:, -1, 3].exp().mean())
        if measure == "kl":
            before = by_hand(clean)[0].log_softmax(-1)
            return float((before.exp() * (before - logs)).sum(-1).mean())
        if measure == "loss":  # of the words of the clean text, whatever runs
            return float(-logs[:, :-1].gather(-1, clean[:, 1:, None]).mean())
        return float(logits[0, 2, 1])

    source, ids = (clean, corrupted) if run == "corrupted" else (corrupted, clean)
    with torch.no_grad(), ts.watch(model, keep="steps") as recording:
        model(source)
    options = {
        "difference": {"tokens": [3], "against": 5},
        "p": {"tokens": [3]},
        "loss": {"measure": "loss"},
        "function": {"measure": lambda logits: logits[0, 2, 1]},
    }.get(measure, {})
    found = ts.effect(model, clean, ts.patch.each(model, recording), corrupted=corrupted, run=run, **options)
    assert len(found) == 10

    _, kept = by_hand(source)
    first, last = value(by_hand(clean)[0]), value(by_hand(corrupted)[0])
    truth = [1.0, 0.0]
    for layer in range(2):
        for head in range(4):
            swap = Swap(kept, "output", [head], f"blocks.{layer}", queries=same(2, 6))
            truth.append((value(by_hand(ids, swap)[0]) - last) / (first - last))
    assert found.columns["restored"] == pytest.approx(truth, rel=1e-8, abs=1e-8)


def test_several_values_of_a_function():
    model = gpt()
    found = ts.effect(model, IDS, [], lambda logits: {"one": logits[0, 0, 0], "two": logits.sum()}, corrupted=OTHER)
    assert list(found.columns) == ["edit", "one", "two", "restored(one)", "restored(two)"]
    assert found.columns["restored(two)"] == [1.0, 0.0]


def test_a_definition_of_some_heads():
    """A pattern of heads that no hidden key concerns is the recorded one, beside edits of other heads."""
    model = gpt()
    with torch.no_grad():
        with ts.watch(model, keep="steps") as recording:
            model(OTHER)
        weights = ts.patch(recording, heads=[0, 1], what="weights")
        with ts.edit(model, weights, ts.hide(1, heads=[2])):
            together = model(IDS)
        with ts.edit(model, ts.frozen(recording, heads=[0, 1]), ts.hide(1, heads=[2])):
            assert_close(model(IDS), together, rtol=1e-12, atol=1e-12)
        with (
            ts.edit(model, ts.redefine("*", lambda attention: replace(attention, scale=None))),
            ts.edit(model, weights),
        ):
            assert model(IDS).isfinite().all()


@pytest.mark.parametrize("what", PARTS)
def test_a_long_text_forms_no_matrix(what):
    """8,192 tokens of another text: no allocation comes near n x n."""
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
    texts = torch.randn(2, 1, 2, n, 8, generator=torch.Generator().manual_seed(0))
    model = Attending(ts.Attention(mask=ts.causal))
    with torch.no_grad():
        with ts.watch(model, keep="steps") as recording:
            model(*[texts[1]] * 3)
        with Largest() as seen, ts.edit(model, ts.patch(recording, heads=1, what=what)):
            model(*[texts[0]] * 3)
    assert seen.numbers < n * n / 16


# ---------------------------------------------------------------------------------------------------- recordings


def test_a_saved_recording(tmp_path):
    model = gpt()
    with torch.no_grad():
        with ts.watch(model, keep="steps") as recording:
            model(OTHER)
        recording.save(tmp_path / "run")
        opened = ts.open(tmp_path / "run")
        for make in (
            lambda one: ts.patch(one, heads=[1, 2]),
            lambda one: ts.patch(one, what="values"),
            lambda one: ts.mute(0, by=one),
            lambda one: ts.mute(0, by=ts.resample(one)),
        ):
            with ts.edit(model, make(recording)):
                expected = model(IDS)
            with ts.edit(model, make(opened)):
                assert torch.equal(model(IDS), expected)


def test_a_recording_of_some_heads():
    """The heads that were recorded are the ones that are patched; heads that were muted then are not."""
    model = gpt()
    with torch.no_grad():
        with ts.watch(model, keep="steps") as whole:
            model(OTHER)
        with ts.watch(model, keep="steps", heads=[1, 3], layers=1) as some, ts.edit(model, ts.mute(1, heads=2)):
            model(OTHER)
        for what in PARTS:
            with ts.edit(model, ts.patch(whole, 1, [1, 3], what=what)):
                expected = model(IDS)
            with ts.edit(model, ts.patch(some, heads=[1, 3], what=what)):
                assert_close(model(IDS), expected, rtol=1e-12, atol=1e-12)


def test_passes_through_one_layer():
    """ALBERT runs one attention three times: each pass is patched by its own call."""
    from support.huggingface import BERT, numbered, transformers

    model = numbered(transformers.AlbertModel(transformers.AlbertConfig(**{**BERT, "num_hidden_layers": 3}))).double()
    name = "encoder.albert_layer_groups.0.albert_layers.0.attention"
    with torch.no_grad():
        with ts.watch(model, keep="steps") as recording:
            expected = model(OTHER).last_hidden_state
        assert list(recording) == [name, f"{name}.2", f"{name}.3"]
        # The last pass alone, by hand: its context is that of the other text.
        patched = []
        for layers in (None, name, f"{name}.3", f"{name}.1"):
            with ts.edit(model, ts.patch(recording, layers)), ts.watch(model, keep="steps") as seen:
                patched.append(model(IDS).last_hidden_state)
            with ts.edit(model, ts.patch(recording, layers)):
                assert_close(model(OTHER).last_hidden_state, expected, rtol=1e-6, atol=1e-6)
        assert torch.equal(patched[0], patched[1])
        assert not torch.equal(patched[2], patched[3])
        with ts.edit(model, ts.patch(recording, f"{name}.3")), ts.watch(model, keep="steps") as seen:
            model(IDS)
        with ts.watch(model, keep="steps") as plain:
            model(IDS)
        # Before the third pass, nothing has changed.
        assert torch.equal(seen[f"{name}.3"].call.queries, plain[f"{name}.3"].call.queries)
