"""Edited models of transformers, in float32 on sdpa, against eager attention in float64 that is changed by hand."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from support.editing import Boosted, ByHand, Hidden, Kept, Muted, Pasted, Rescaled, eager_by_hand
from support.huggingface import transformers
from support.watched import FAMILIES, IDS, PADDED_LEFT, TRANSLATORS, WRITERS
from telescope.anatomy import Modules
from telescope.interception.huggingface.attention_modules import attentions

OTHER = IDS.flip(1)
pytestmark = pytest.mark.usefixtures("without_gradients")


def by_hand(family, edit, inputs, padding=None):
    """Return the logits of the family's model in float64, changed by hand."""
    model = in_float64(family)
    with eager_by_hand(model, names_of(model), edit, padding):
        return model(**doubled(inputs, next(model.parameters()).dtype)).logits


@cache
def model_of(family):
    """Return the family's model; one for all tests, since edits leave a model as it was."""
    return FAMILIES[family].model()


@cache
def in_float64(family):
    """Return the eager model in float64; gpt-oss has no experts in float64, and only its attention is computed so."""
    model = FAMILIES[family].model("eager")
    return model if family == "gpt-oss" else model.double()


def names_of(model):
    return {id(module): name for name, module in attentions(Modules.of(model)).items()}


def doubled(inputs, dtype):
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}


def assert_equal(logits, truth):
    assert float((logits.double() - truth).norm() / truth.norm()) < 1e-5


def padding_of(inputs):
    return inputs.get("attention_mask")


EDITS = {
    "mute": (ts.mute("*.1.*", heads=[0, 2]), Muted(".1.", [0, 2])),
    "half": (ts.mute("*.1.*", heads=0, times=0.5), Muted(".1.", [0], times=0.5)),
    "hide": (ts.hide(range(2, 4)), Hidden(keys=range(2, 4))),
    "hide from some": (ts.hide(range(1, 3), slice(3, None)), Hidden(keys=range(1, 3), queries=range(3, 99))),
    "hide, one head": (ts.hide(range(0, 3), heads=-1), Hidden(heads=[-1], keys=range(3))),
    "boost": (ts.boost(range(2, 5), by=4.0), Boosted(keys=range(2, 5), by=4.0)),
    "redefine": (ts.redefine(None, lambda attention: replace(attention, scale=0.7)), Rescaled(to=0.7)),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family, edit):
    made, hand = EDITS[edit]
    inputs, model = FAMILIES[family].inputs, model_of(family)
    expected = model(**inputs).logits
    truth = by_hand(family, hand, inputs, padding_of(inputs))
    with ts.edit(model, made):
        logits = model(**inputs).logits
    keep = padding_of(inputs).bool() if family == "bert" else slice(None)
    assert_equal(logits[keep], truth[keep])
    assert float((logits - expected).abs().max()) > 1e-3  # the edit changed something
    assert torch.equal(model(**inputs).logits, expected)
    if edit == "mute":
        assert_equal(expected, by_hand(family, ByHand(), inputs))


def another(family):
    """Return inputs of the same shape with another content."""
    swapped = {}
    for name, value in FAMILIES[family].inputs.items():
        swapped[name] = value if name.endswith("mask") else value.flip(1)
    return swapped


@pytest.mark.parametrize("heads", [None, [1]], ids=["all", "one head"])
@pytest.mark.parametrize("family", FAMILIES)
def test_frozen(family, heads):
    inputs, model, kept = FAMILIES[family].inputs, model_of(family), Kept()
    by_hand(family, kept, inputs)
    truth = by_hand(family, Pasted(kept.kept, heads), another(family))
    with ts.watch(model, keep="queries-keys") as recording:
        expected = model(**inputs).logits
    with ts.edit(model, ts.frozen(recording, heads=heads)):
        assert_equal(model(**another(family)).logits, truth)
    with ts.edit(model, ts.frozen(recording)):
        assert torch.equal(model(**inputs).logits, expected)  # its own pattern: nothing, bit by bit


@pytest.mark.parametrize("edit", ["hide", "hide from some", "boost", "mean"])
@pytest.mark.parametrize("family", WRITERS)
def test_padding_on_the_left(family, edit):
    """Positions count from the first token that is no padding, of each text."""
    made, hand = EDITS.get(edit) or (ts.mute(0, heads=1, by="mean"), Muted(".0.", [1], mean=True))
    hand = hand if edit != "mean" else Muted("h.0" if family == "gpt2" else "layers.0", [1], mean=True)
    inputs, model = {"input_ids": IDS, "attention_mask": PADDED_LEFT}, model_of(family)
    with ts.edit(model, made):
        logits = model(**inputs).logits
    truth = by_hand(family, hand, inputs, PADDED_LEFT)
    keep = PADDED_LEFT.bool()
    assert_equal(logits[keep], truth[keep])


CACHES = {
    "llama": [None, "static"],
    "mistral": [None, "static"],
    "gpt-oss": [None],
    "gpt2": [None],
    "gemma2": [None],
    "qwen2": [None],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("family", "cache"), [(f, c) for f, cs in CACHES.items() for c in cs])
@pytest.mark.parametrize("edit", ["hide", "hide from some", "boost", "mute"])
def test_generate(family, cache, edit):
    """Greedy generation with a cache equals greedy generation by hand that reads everything anew for each token."""
    made, hand = EDITS[edit]
    model = model_of(family)
    options = {} if cache is None else {"cache_implementation": cache}
    with ts.edit(model, made), ts.watch(model) as recording:
        written = model.generate(IDS, max_new_tokens=5, do_sample=False, pad_token_id=0, eos_token_id=None, **options)
    assert recording.edits == (made,)
    assert all(len(watched.calls) == 1 for watched in recording.values())  # one text that grows
    ids = IDS
    for _ in range(5):
        logits = by_hand(family, hand, {"input_ids": ids})
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
    assert written.tolist() == ids.tolist()


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("family", TRANSLATORS)
def test_translators_generate(family, beams):
    """With beams, cross-attention has the rows of all beams: hidden keys are those of each source."""
    model, inputs = (
        model_of(family),
        {name: FAMILIES[family].inputs[name] for name in ("input_ids", "attention_mask")},
    )
    options = {"max_new_tokens": 4, "num_beams": beams, "do_sample": False, "min_new_tokens": 4}
    names = [name for name in attentions(Modules.of(model)) if name.endswith(("encoder_attn", "EncDecAttention"))]
    with ts.edit(model, ts.hide(range(2, 4), layers=names)):
        written = model.generate(**inputs, **options)
    eager = in_float64(family)
    part = "EncDec" if family == "t5" else "encoder_attn"
    with eager_by_hand(eager, names_of(eager), Hidden(part, keys=range(2, 4))):
        assert written.tolist() == eager.generate(**inputs, **options).tolist()


def test_some_queries_of_a_cross_attention():
    """Queries of a decoder count from its first token, also step by step."""
    model = model_of("marian")
    made = ts.hide(range(0, 3), range(2, 4), layers="*.encoder_attn")
    inputs = FAMILIES["marian"].inputs
    hand = Hidden("encoder_attn", keys=range(3), queries=range(2, 4))
    truth = by_hand("marian", hand, inputs)
    with ts.edit(model, made):
        assert_equal(model(**inputs).logits, truth)
        past, parts = None, []
        encoded = model.get_encoder()(inputs["input_ids"], inputs["attention_mask"])
        for i in range(inputs["decoder_input_ids"].shape[1]):
            output = model(
                encoder_outputs=encoded,
                attention_mask=inputs["attention_mask"],
                decoder_input_ids=inputs["decoder_input_ids"][:, i : i + 1],
                past_key_values=past,
                use_cache=True,
            )
            past = output.past_key_values
            parts.append(output.logits)
    assert_equal(torch.cat(parts, 1), truth)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_gradients_flow(implementation):
    """To the inputs and the weights, through every kind of edit at once."""
    edits = [ts.mute(0, heads=1, times=0.5), ts.hide(1, slice(3, None)), ts.boost(2, by=2.0)]
    model, eager = FAMILIES["llama"].model(implementation).double(), FAMILIES["llama"].model("eager").double()
    hands = [
        Muted("layers.0", [1], 0.5),
        Hidden(keys=range(1, 2), queries=range(3, 99)),
        Boosted(keys=range(2, 3), by=2.0),
    ]

    class All(ByHand):
        def scores(self, name, scores, at):
            return hands[2].scores(name, hands[1].scores(name, scores, at), at)

        def context(self, name, context, at):
            return hands[0].context(name, context, at)

    with torch.enable_grad():
        with ts.edit(model, *edits):
            model(IDS).logits.square().sum().backward()
        with eager_by_hand(eager, names_of(eager), All()):
            eager(IDS).logits.square().sum().backward()
    truth = dict(eager.named_parameters())
    for name, parameter in model.named_parameters():
        assert_equal(parameter.grad, truth[name].grad)  # norms and rotations are computed in float32


def test_gradients_of_a_learned_bias():
    """T5 adds a learned bias to the scores, which is learned through an edit too."""
    inputs, models = FAMILIES["t5"].inputs, [FAMILIES["t5"].model(how).double() for how in ("sdpa", "eager")]
    with torch.enable_grad():
        with ts.edit(models[0], ts.hide(range(1, 3))):
            models[0](**inputs).logits.square().sum().backward()
        with eager_by_hand(models[1], names_of(models[1]), Hidden(keys=range(1, 3))):
            models[1](**inputs).logits.square().sum().backward()
    for (name, one), two in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        if one.grad is not None:
            assert_close(one.grad, two.grad, rtol=1e-6, atol=1e-6, msg=name)
    assert any("relative_attention_bias" in name for name, one in models[0].named_parameters() if one.grad is not None)


def test_output_attentions_are_the_edited_weights():
    model = FAMILIES["llama"].model("eager")
    with ts.edit(model, ts.hide(range(2, 4))):
        weights = model(IDS, output_attentions=True).attentions
    for one in weights:
        assert float(one[..., 2:4].abs().max()) == 0.0
        assert_close(one.sum(-1)[:, :, 4:], torch.ones_like(one.sum(-1)[:, :, 4:]))


def test_a_block_inside_another():
    """It edits what the outer one made: two blocks are one block with both edits, and a frozen pattern holds."""
    model = model_of("qwen2")
    edits = [ts.hide(range(2, 4)), ts.boost(5, by=3.0, layers=1)]
    with ts.edit(model, *edits):
        expected = model(IDS).logits
    with ts.edit(model, edits[0]), ts.edit(model, edits[1]):
        assert_close(model(IDS).logits, expected)
    with ts.watch(model, keep="queries-keys") as recording:
        model(OTHER)
    with ts.edit(model, ts.frozen(recording, heads=[0, 1])), ts.edit(model, ts.hide(1, heads=[2])):
        one = model(IDS).logits
    with ts.edit(model, ts.hide(1, heads=[2])), ts.edit(model, ts.frozen(recording, heads=[0, 1])):
        two = model(IDS).logits
    with ts.edit(model, ts.frozen(recording, heads=[0, 1]), ts.hide(1, heads=[2])):
        assert_close(model(IDS).logits, one)
    assert_close(one, two)


def test_the_recording_holds_the_edited_call():
    model = model_of("mistral")
    first, second = ts.hide(range(2, 4), layers=0), ts.mute(1, heads=3)
    with ts.edit(model, first, second), ts.watch(model, keep="steps") as recording:
        logits = model(IDS).logits
    with ts.watch(model, keep="steps") as other, ts.edit(model, first, second):
        assert torch.equal(model(IDS).logits, logits)
    for seen in (recording, other):
        assert set(seen.edits) == {first, second}
        assert float(seen["model.layers.0"].trace().weights[..., 2:4].abs().max()) == 0.0
        assert "rectangle" in str(seen["model.layers.0"].call.attention)
        assert "rectangle" not in str(seen["model.layers.1"].call.attention)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt-oss"])
def test_frozen_while_generating(family, cache):
    """A generation with its own pattern frozen is the same, bit by bit; with that of another prompt it is not."""
    model = model_of(family)
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    options |= {"output_scores": True, "return_dict_in_generate": True}
    options |= {} if cache is None else {"cache_implementation": cache}
    with ts.watch(model, keep="queries-keys") as recording:
        expected = model.generate(IDS, **options)
    with ts.edit(model, ts.frozen(recording)):
        again = model.generate(IDS, **options)
        other = model.generate(OTHER, **options)
    assert torch.equal(again.sequences, expected.sequences)
    assert all(torch.equal(one, two) for one, two in zip(again.scores, expected.scores, strict=True))
    plain = model.generate(OTHER, **options)
    assert not torch.equal(other.scores[0], plain.scores[0])


class Words:
    """A tokenizer of whole words, "w5" for the id 5."""

    def decode(self, ids):
        return " ".join(f"w{number}" for number in ids)


@pytest.mark.parametrize("beams", [1, 2])
def test_text_in_a_padded_batch(beams):
    """A word stands at another place in each text, or nowhere; padding, here w4 w4 w7, is not searched."""
    model = model_of("llama")
    inputs = {"input_ids": IDS, "attention_mask": PADDED_LEFT}
    options = {"max_new_tokens": 4, "num_beams": beams, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with ts.edit(model, ts.hide(["w9", "w12"]), tokenizer=Words()):
        together = model.generate(**inputs, **options)[:, 8:]
    with ts.edit(model, ts.hide([5, 6])):  # w9 w9 of the first text
        assert together[:1].tolist() == model.generate(IDS[:1], **options)[:, 8:].tolist()
    with ts.edit(model, ts.hide(1)):  # w12 of the second, which begins behind its padding
        assert together[1:].tolist() == model.generate(IDS[1:, 3:], **options)[:, 5:].tolist()
    with pytest.raises(ValueError, match='no text that was read holds "w4"'):
        hide_in_padding(model, inputs)


def hide_in_padding(model, inputs):
    with ts.edit(model, ts.hide("w4"), tokenizer=Words()):
        model(**inputs)


@pytest.mark.parametrize("family", ["llama", "t5", "bert"])
def test_effects_in_one_batch(family):
    model, inputs = model_of(family), FAMILIES[family].inputs
    edits = [*ts.mute.each(model)[:5], ts.hide(range(1, 3)), ts.boost(2, by=3.0), ts.mute(0, heads=0, by="mean")]
    together = ts.effect(model, inputs, edits, tokens=[7])
    for row, edit in zip(together.rows[1:], edits, strict=True):
        alone = ts.effect(model, inputs, [edit], tokens=[7]).rows[1]
        assert row["kl"] == pytest.approx(alone["kl"], rel=1e-3, abs=1e-6)
        assert row["p(7)"] == pytest.approx(alone["p(7)"], rel=1e-4)
    assert max(together.columns["kl"]) > 1e-4


def test_the_model_is_as_it_was():
    """After an exception, and in other threads while the block runs."""
    from threading import Thread

    from support.watching import hooks_of
    from telescope.interception import interceptor
    from telescope.interception.huggingface import implementation_switch

    model, results = FAMILIES["gpt2"].model(), {}
    hooks, expected = hooks_of(model), model(IDS).logits

    def run_elsewhere():
        with torch.no_grad():
            results["other thread"] = model(IDS).logits

    with ts.edit(model, ts.mute()):
        thread = Thread(target=run_elsewhere)
        thread.start()
        thread.join()
        assert not torch.equal(model(IDS).logits, expected)
    assert torch.equal(results["other thread"], expected)
    with pytest.raises(KeyError, match="on purpose"), ts.edit(model, ts.hide(1)), ts.edit(model, ts.mute(0)):
        raise KeyError("on purpose")
    assert hooks_of(model) == hooks
    assert not interceptor.interceptors
    assert not implementation_switch._switched
    assert str(model.config._attn_implementation) == "sdpa"
    assert torch.equal(model(IDS).logits, expected)


def test_a_model_that_computes_something_else_is_not_edited():
    """The definition that an edit changes is compared with what the model's own function computes."""
    model = FAMILIES["llama"].model()
    own = transformers.AttentionInterface._global_mapping["sdpa"]

    def twice(module, query, key, value, attention_mask, **options):
        output, weights = own(module, query, key, value, attention_mask, **options)
        return 2 * output, weights

    transformers.AttentionInterface._global_mapping["sdpa"] = twice
    try:
        with pytest.raises(ValueError, match=r"computes something other than"), ts.edit(model, ts.hide(1)):
            model(IDS)
    finally:
        transformers.AttentionInterface._global_mapping["sdpa"] = own


def test_loss_is_that_of_the_tokens_before_a_mask():
    """Arguments that are given without names: the mask is of whole numbers too."""
    model = FAMILIES["llama"].model()
    logits = model(IDS).logits.double()
    truth = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())
    found = ts.effect(model, (IDS, torch.ones_like(IDS)), [], "loss").columns["loss"]
    assert found == pytest.approx([float(truth)], rel=1e-5)
