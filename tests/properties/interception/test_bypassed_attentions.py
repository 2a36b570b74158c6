"""An attention whose forward runs past the interception is never edited or left out in silence."""

from re import escape

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import telescope as ts
from support.bypassing import FORWARDS, WAYS, bypassed, telescope, without_head
from support.strategies import settings
from support.watched import FAMILIES, IDS
from support.watching import filled
from telescope.interception.found import find_attentions
from telescope.models import GPT, GPTConfig

CLOSE = {"atol": 2e-5, "rtol": 1e-4}
pytestmark = pytest.mark.usefixtures("without_gradients")


def case(kind):
    """Return a model, its inputs, and a function from the name of an attention to the path of the module that runs."""
    if kind == "telescope":
        sizes = {"vocabulary": 61, "max_positions": 16, "d_model": 8, "blocks": 3, "heads": 4, "key_heads": 2}
        model = filled(GPT(GPTConfig(**sizes, positions="rotary")), torch.float32)
        return model, {"tokens": IDS}, lambda name: f"{name}_attention", telescope
    return FAMILIES[kind].model(), FAMILIES[kind].inputs, lambda name: name, FORWARDS[kind]


def logits(model, inputs):
    output = model(*inputs.values()) if isinstance(model, GPT) else model(**inputs)
    return output if isinstance(output, torch.Tensor) else output.logits


@pytest.mark.parametrize("kind", ["telescope", *FORWARDS])
@given(way=st.sampled_from(WAYS), number=st.integers(0, 99), other=st.integers(0, 99), head=st.integers(0, 2))
@settings(max_examples=6)
def test_a_random_attention_that_bypasses_is_named(kind, way, number, other, head):
    model, inputs, path, forward = case(kind)
    names = [*find_attentions(model, "edit").attentions]
    name = names.pop(number % len(names))
    other = names[other % len(names)]
    plain = logits(model, inputs)
    with ts.watch(model) as whole:
        logits(model, inputs)
    with bypassed(model.get_submodule(path(name)), forward, way):
        assert_close(logits(model, inputs), plain, **CLOSE)  # the forward by hand is right

        # The attention itself is refused by name, however it is edited.
        for edit in (ts.mute(layers=name), ts.hide(1, layers=name), ts.mute(), ts.boost(0, by=2.0)):
            with pytest.raises(ValueError, match=escape(f'"{name}" ran, and ts.edit cannot change it')):
                run_edited(model, inputs, edit)
        with pytest.raises(ValueError, match=escape(f'"{name}" ran, and ts.edit cannot change it')):
            ts.effect(model, inputs if kind != "telescope" else IDS, ts.mute.each(model))

        # Another attention is edited, with the numbers of a head muted by hand.
        with without_head(model, path(other), head):
            expected = logits(model, inputs)
        assert_close(run_edited(model, inputs, ts.mute(other, head)), expected, **CLOSE)
        assert (expected - plain).abs().max() > 1e-3

        # A watch names it, in a warning and in every table, and records the others as ever.
        with pytest.warns(UserWarning, match=escape(f"ran and cannot be recorded, {name}: the forward ")) as shown:
            recording = watched(model, inputs)
        assert len(shown) == 1
    assert recording.left_out == (name,)
    assert f"{name}" in repr(recording)
    assert repr(recording).count("not watched: the forward ") == 1
    assert f"not watched: {name}" in repr(recording.heads())
    for each in names:
        assert_close(recording[each].entropy, whole[each].entropy, **CLOSE)
    assert {head.layer for head in recording.heads()} == {*names}
    with pytest.raises(ValueError, match=escape(f'"{name}" ran and was not watched: the forward ')):
        recording[name].survey()

    # With its own forward, everything is edited and watched again.
    assert not watched(model, inputs).left_out
    assert len(ts.effect(model, inputs if kind != "telescope" else IDS, ts.mute.each(model, layers=name))) > 1


def run_edited(model, inputs, edit):
    with ts.edit(model, edit):
        return logits(model, inputs)


def watched(model, inputs):
    with ts.watch(model) as recording:
        logits(model, inputs)
    return recording
