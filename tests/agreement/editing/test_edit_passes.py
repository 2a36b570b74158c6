"""Layers that run several times in one forward pass: edits of all passes, and of one, against float64 by hand."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from support.editing import ByHand, Hidden, Muted, eager_by_hand
from support.huggingface import BERT, numbered, transformers
from support.watched import IDS
from telescope.anatomy import Modules
from telescope.interception.huggingface.attention_modules import attentions

OTHER = IDS.flip(1)
SHARED = "encoder.albert_layer_groups.0.albert_layers.0.attention"
pytestmark = pytest.mark.usefixtures("without_gradients")


def names_of(model):
    return {id(module): name for name, module in attentions(Modules.of(model)).items()}


def assert_equal(hidden, truth):
    assert float((hidden.double() - truth).norm() / truth.norm()) < 1e-5


def albert(how="sdpa"):
    """Return an ALBERT whose one layer runs three times."""
    config = transformers.AlbertConfig(**{**BERT, "num_hidden_layers": 3}, embedding_size=12)
    model = numbered(transformers.AlbertModel(config))
    model.set_attn_implementation(how)
    return model


class OfPass(ByHand):
    """Apply an edit by hand to one of the passes through ALBERT's attention, counted from 1."""

    def __init__(self, edit, number):
        super().__init__()
        self.edit, self.number = edit, number
        self.count = {"scores": 0, "context": 0}

    def changed(self, what, name, numbers, at):
        self.count[what] += 1
        return getattr(self.edit, what)(name, numbers, at) if self.count[what] == self.number else numbers

    def scores(self, name, scores, at):
        return self.changed("scores", name, scores, at)

    def context(self, name, context, at):
        return self.changed("context", name, context, at)


def albert_by_hand(edit):
    eager = albert("eager").double()
    with eager_by_hand(eager, names_of(eager), edit):
        return eager(IDS).last_hidden_state


def test_layers_that_share_one_module():
    """ALBERT runs one attention several times: an edit holds for each pass, and a frozen pass is that pass."""
    model = albert()
    expected = model(IDS).last_hidden_state
    truth = albert_by_hand(Hidden(keys=range(1, 3)))
    for layers in (None, SHARED, "*.attention", 0):
        with ts.edit(model, ts.hide(range(1, 3), layers=layers)):
            assert_equal(model(IDS).last_hidden_state, truth)
    with ts.watch(model, keep="queries-keys") as recording:
        model(IDS)
    assert recording.names == (SHARED, f"{SHARED}.2", f"{SHARED}.3")
    with ts.edit(model, ts.frozen(recording)):
        assert torch.equal(model(IDS).last_hidden_state, expected)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize(
    ("make", "hand"),
    [
        (lambda name: ts.mute(name, heads=1), Muted(heads=[1])),
        (lambda name: ts.mute(name, heads=[0, 2], by="mean"), Muted(heads=[0, 2], mean=True)),
        (lambda name: ts.hide(range(1, 3), layers=name), Hidden(keys=range(1, 3))),
    ],
    ids=["mute", "mean", "hide"],
)
def test_one_pass_through_a_shared_layer(make, hand, number):
    """name.2 edits the second pass alone, name.1 the first; each forward pass counts anew."""
    model = albert()
    truth = albert_by_hand(OfPass(hand, number))
    with ts.edit(model, make(f"{SHARED}.{number}")):
        assert_equal(model(IDS).last_hidden_state, truth)
        assert_equal(model(IDS).last_hidden_state, truth)


def test_edits_of_one_pass_and_of_all_passes():
    """Both hold in that pass, in the order of the list."""
    model = albert()
    by_half = ts.redefine(SHARED, lambda attention: replace(attention, scale=0.5))
    scale = 8**-0.5
    back = ts.redefine(f"{SHARED}.2", lambda attention: replace(attention, scale=scale))
    others = [ts.redefine(f"{SHARED}.{k}", lambda attention: replace(attention, scale=0.5)) for k in (1, 3)]
    with ts.edit(model, *others):
        truth = model(IDS).last_hidden_state
    with ts.edit(model, by_half, back):
        assert_close(model(IDS).last_hidden_state, truth)
    with ts.edit(model, back, by_half):
        assert float((model(IDS).last_hidden_state - truth).abs().max()) > 1e-4


def test_one_frozen_pass():
    """The pattern of another text in one pass alone; name.1 is the first pass in a recording too."""
    model = albert()
    eager = albert("eager").double()
    with ts.watch(model, keep="queries-keys") as recording:
        model(OTHER)
    for number, name in ((1, f"{SHARED}.1"), (2, f"{SHARED}.2")):
        weights = eager(OTHER, output_attentions=True).attentions[number - 1]
        with ts.edit(model, ts.frozen(recording, layers=name)):
            frozen = model(IDS).last_hidden_state
        assert_equal(frozen, albert_by_hand(PastedInPass(weights, number)))


class PastedInPass(ByHand):
    def __init__(self, given, number):
        super().__init__()
        self.given, self.number, self.count = given, number, 0

    def weights(self, name, weights, at):
        self.count += 1
        return self.given if self.count == self.number else weights


def test_mute_each_has_one_edit_for_each_head_of_a_shared_layer():
    """Each switches the head off in all passes."""
    model = albert()
    edits = ts.mute.each(model)
    assert [(one.layers, one.heads) for one in edits] == [((SHARED,), (head,)) for head in range(3)]
    with ts.edit(model, edits[1]):
        assert_equal(model(IDS).last_hidden_state, albert_by_hand(Muted(heads=[1])))
