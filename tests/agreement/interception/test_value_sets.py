"""DiffLlama multiplies each softmax by two halves of its values, in two calls: one softmax is recorded, once.

The truth is attention written out by hand in float64, without anything of Telescope.
"""

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from support.editing import Boosted, ByHand, Hidden, Muted, eager_by_hand
from support.huggingface import LLAMA, numbered, transformers
from support.watched import IDS
from telescope.anatomy import Modules
from telescope.interception.huggingface.attention_modules import attentions
from telescope.interception.huggingface.interface_call import InterfaceCall, SoftmaxInputs

KEEPS = ("summaries", "queries-keys", "steps")
NAMES = tuple(f"model.layers.{layer}.self_attn" for layer in range(2))
CLOSE = {"rtol": 0.0, "atol": 2e-5}


def model_in(dtype=torch.float32, how="sdpa"):
    model = numbered(transformers.DiffLlamaForCausalLM(transformers.DiffLlamaConfig(**LLAMA))).to(dtype)
    model.set_attn_implementation(how)
    return model.eval()


class Kept(ByHand):
    """Keep the weights and the contexts of each attention, in the order of the calls."""

    def __init__(self):
        super().__init__()
        self.all_weights = {name: [] for name in NAMES}
        self.all_contexts = {name: [] for name in NAMES}

    def weights(self, name, weights, at):
        self.all_weights[name].append(weights)
        return weights

    def context(self, name, context, at):
        self.all_contexts[name].append(context)
        return context


def by_hand(edit, ids=IDS):
    """Return the logits of the model in float64, changed by hand."""
    model = model_in(torch.float64, "eager")
    names = {id(module): name for name, module in attentions(Modules.of(model)).items()}
    with torch.no_grad(), eager_by_hand(model, names, edit):
        return model(ids).logits


def assert_recorded(recording, ids, keep):
    """Check each attention of a recording of these tokens against the model by hand."""
    kept = Kept()
    by_hand(kept, ids)
    assert recording.names == NAMES
    for name, watched in recording.items():
        first, second = kept.all_weights[name]
        assert torch.equal(first, second)  # one softmax
        (call,) = watched.calls
        assert call.size == (ids.shape[1], ids.shape[1])
        assert_close(watched.received.double(), first.sum(2), **CLOSE)
        assert_close(watched.entropy.double(), -torch.xlogy(first, first).sum(-1), **CLOSE)
        if keep != "summaries":
            assert_close(watched.survey().rows(range(ids.shape[1])).double(), first, **CLOSE)
        if keep == "steps":
            assert_close(watched.trace().context.double(), torch.cat(kept.all_contexts[name], -1), **CLOSE)


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("how", ["sdpa", "eager"])
def test_each_softmax_is_recorded_once(how, keep, tmp_path):
    model = model_in(how=how)
    with torch.no_grad():
        expected = model(IDS).logits
        with ts.watch(model, keep=keep) as recording:
            assert torch.equal(model(IDS).logits, expected)
    assert_recorded(recording, IDS, keep)
    recording.save(tmp_path / "saved")
    assert_recorded(ts.open(tmp_path / "saved"), IDS, keep)


@pytest.mark.parametrize("store", ["device", "ram", "disk"])
@pytest.mark.parametrize("keep", KEEPS)
@torch.no_grad()
def test_token_by_token(keep, store):
    """Also where the recording is read between two steps."""
    model = model_in()
    with ts.watch(model, keep=keep, store=store) as recording:
        cache = model(IDS[:, :5], use_cache=True).past_key_values
        for i in range(5, IDS.shape[1]):
            if i % 2:
                assert_recorded(recording, IDS[:, :i], keep)
            model(IDS[:, i : i + 1], past_key_values=cache, use_cache=True)
    assert_recorded(recording, IDS, keep)


@torch.no_grad()
def test_generation_and_several_texts():
    model = model_in()
    with ts.watch(model, keep="steps") as recording:
        tokens = model.generate(IDS, max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0)
    assert_recorded(recording, tokens[:, :-1], "steps")
    with ts.watch(model, keep="steps", heads=[1, 2]) as recording:
        model(IDS)
        model(IDS.flip(1))
    kept = Kept()
    by_hand(kept, IDS.flip(1))
    for name, watched in recording.items():
        _, second = watched.calls
        assert_close(second.trace().context.double(), torch.cat(kept.all_contexts[name], -1)[:, [1, 2]], **CLOSE)


EDITS = {
    "mute": (ts.mute(0, heads=[1]), Muted("layers.0", [1])),
    "mean": (ts.mute(1, heads=[0, 3], by="mean"), Muted("layers.1", [0, 3], mean=True)),
    "hide": (ts.hide(range(1, 3)), Hidden(keys=range(1, 3))),
    "boost": (ts.boost(range(2, 4), by=3.0), Boosted(keys=range(2, 4), by=3.0)),
}


@pytest.mark.parametrize("edit", EDITS)
@torch.no_grad()
def test_edits_change_both_halves(edit):
    made, hand = EDITS[edit]
    model = model_in()
    truth = by_hand(hand)
    with ts.edit(model, made), ts.watch(model) as recording:
        logits = model(IDS).logits
    assert float((logits.double() - truth).norm() / truth.norm()) < 1e-5
    assert float((logits - model(IDS).logits).abs().max()) > 1e-3  # the edit changed something
    assert [len(watched.calls) for watched in recording.values()] == [1, 1]


class MeanOfPrompt(ByHand):
    """Replace the context of one head by its mean over the first queries."""

    def __init__(self, prompt):
        super().__init__(heads=[1])
        self.prompt = prompt

    def context(self, name, context, at):
        mean = context[:, :, : self.prompt].mean(2, keepdim=True).expand_as(context)
        return torch.where(self.chosen(context), mean, context)


@torch.no_grad()
def test_each_half_has_its_own_mean_while_a_model_writes():
    model = model_in()
    prompt = IDS.shape[1] - 1
    truth = by_hand(MeanOfPrompt(prompt))
    with ts.edit(model, ts.mute(heads=1, by="mean")):
        cache = model(IDS[:, :prompt], use_cache=True).past_key_values
        logits = model(IDS[:, prompt:], past_key_values=cache, use_cache=True).logits
    assert float((logits.double() - truth[:, -1:]).norm() / truth[:, -1:].norm()) < 1e-5


@torch.no_grad()
def test_a_frozen_pattern_holds_for_both_halves():
    model = model_in()
    with ts.watch(model, keep="queries-keys") as recording:
        expected = model(IDS).logits
    kept = Kept()
    by_hand(kept)
    with ts.edit(model, ts.frozen(recording)):
        assert_close(model(IDS).logits, expected)
        logits = model(IDS.flip(1)).logits
    truth = by_hand(Pasted({name: weights[0] for name, weights in kept.all_weights.items()}), IDS.flip(1))
    assert float((logits.double() - truth).norm() / truth.norm()) < 1e-5


class Pasted(ByHand):
    def __init__(self, given):
        super().__init__()
        self.given = given

    def weights(self, name, weights, at):
        return self.given[name]


def test_gradients_are_those_of_both_halves():
    """Summed over the key heads, weight times gradient is v · dv of the value projection, which both calls use."""
    model = model_in(torch.float64)
    outputs = []
    for layer in model.model.layers:
        layer.self_attn.v_proj.register_forward_hook(lambda module, args, output: outputs.append(output))
    with ts.watch(model, keep="queries-keys", also="gradients") as recording:
        loss = model(IDS).logits.square().sum()
        for output in outputs:
            output.retain_grad()
        loss.backward()
    for watched, output in zip(recording.values(), outputs, strict=True):
        product = (output * output.grad).sum(-1)
        assert_close(watched.call._kept["gradients"].tensor.double().sum(1), product.detach(), rtol=1e-4, atol=1e-4)


def test_calls_with_other_weights_are_other_calls():
    """Other values share the weights; another mask, scale, module, query or key does not, nor a key written to."""
    queries, keys, values, others = torch.randn(4, 1, 2, 3, 4)
    module, mask = torch.nn.Identity(), torch.ones(1, 1, 3, 3)

    def call(queries=queries, keys=keys, values=values, mask=mask, module=module, scaling=0.5):
        options = {"scaling": scaling, "position_ids": None}
        return InterfaceCall("sdpa", module, (queries, keys, values), mask, options)

    known = SoftmaxInputs.of(call())
    assert known.are_those_of(call(values=others))
    for other in (
        call(queries=queries.clone()),
        call(keys=others),
        call(mask=mask.clone()),
        call(mask=None),
        call(module=torch.nn.Identity()),
        call(scaling=1.0),
    ):
        assert not known.are_those_of(other)
    keys.add_(1.0)
    assert not known.are_those_of(call(values=others))


def test_norms_are_refused():
    """Which rows of W_O a half meets depends on what DiffLlama does between, which is not known here."""
    model = model_in()
    with (
        pytest.raises(ValueError, match=r'also="norms": .* multiplies its weights by 2 sets of values.*leave it out'),
        ts.watch(model, also="norms"),
    ):
        model(IDS)


def test_a_patched_pattern_holds_for_both_halves():
    """As a frozen one; values and contexts, which a recording joins, are refused."""
    model = model_in(torch.float64)
    with torch.no_grad():
        with ts.watch(model, keep="steps") as recording:
            model(IDS.flip(1))
        with ts.edit(model, ts.frozen(recording, heads=[1, 2])):
            expected = model(IDS).logits
        with ts.edit(model, ts.patch(recording, heads=[1, 2], what="weights")):
            assert_close(model(IDS).logits, expected, rtol=1e-9, atol=1e-9)
        parts = [ts.patch(recording, heads=[1, 2], what=what) for what in ("queries", "keys")]
        with ts.edit(model, *parts):
            assert_close(model(IDS).logits, expected, rtol=1e-9, atol=1e-9)
        for edit in (ts.patch(recording), ts.patch(recording, what="values"), ts.mute(by=recording)):
            with pytest.raises(ValueError, match="multiplies its weights by 2 sets of values"), ts.edit(model, edit):
                model(IDS)
