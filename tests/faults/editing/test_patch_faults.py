"""Patches that cannot be: each is one sentence that says what would be right."""

import re

import pytest
import torch

import telescope as ts
from telescope.models import GPT, Encoder, EncoderConfig, GPTConfig, Transformer, TransformerConfig

pytestmark = pytest.mark.usefixtures("without_gradients")
IDS = torch.tensor([[1, 5, 2, 8, 3, 9]])


@pytest.fixture
def model():
    return GPT(GPTConfig(vocabulary=13, max_positions=16, d_model=8, blocks=2, heads=4)).eval()


def record(model, ids=IDS, **options):
    with ts.watch(model, **{"keep": "steps", **options}) as recording:
        model(ids)
    return recording


def edited(model, *edits, ids=IDS):
    with ts.edit(model, *edits):
        return model(ids)


WRONG = [
    ({"what": "value"}, ValueError, 'there is no what="value"; did you mean "values"?'),
    ({"align": 3}, TypeError, "align=3 is int; it takes {position here: position there}"),
    ({"align": "abc"}, TypeError, "it takes {position here: position there}"),
    ({"align": {}}, ValueError, "align= names no position"),
    ({"align": [None, None]}, ValueError, "align= names no position"),
    ({"align": {-1: 2}}, ValueError, "counts from the end; count from 0"),
    ({"align": {1: -2}}, ValueError, "counts from the end; count from 0"),
    ({"align": {1.5: 2}}, TypeError, "it takes a whole number"),
    ({"what": "weights", "align": {1: 2}}, ValueError, 'align= does not go with what="weights"'),
    ({"what": "values", "queries": 1}, ValueError, "choose keys by their positions, such as align={3: 3}"),
    ({"queries": -1}, ValueError, "counts from the end, which moves"),
    ({"heads": [1, 1]}, ValueError, "each once"),
]


@pytest.mark.parametrize(("options", "kind", "sentence"), WRONG)
def test_what_is_no_patch(model, options, kind, sentence):
    with pytest.raises(kind) as problem:
        ts.patch(record(model), **options)
    assert sentence in str(problem.value)
    assert "\n" not in str(problem.value)


def test_recordings_that_keep_too_little(model):
    summaries, pairs = record(model, keep="summaries"), record(model, keep="queries-keys")
    with pytest.raises(ValueError, match=r'what="output" needs more than keep="summaries" .* keep="steps"\)'):
        ts.patch(summaries)
    with pytest.raises(ValueError, match=r'what="keys" needs more than keep="summaries" .* keep="queries-keys"\)'):
        ts.patch(summaries, what="keys")
    with pytest.raises(ValueError, match=r'what="values" needs more than keep="queries-keys"'):
        ts.patch(pairs, what="values")
    edited(model, ts.patch(pairs, what="weights"), ts.patch(record(model), what="values"))
    with pytest.raises(ValueError, match=r'needs more than keep="queries-keys" has kept: record with ts.watch'):
        ts.mute(by=pairs)
    with pytest.raises(TypeError, match=r"patch takes a recording of ts\.watch or ts\.open, not dict"):
        ts.patch({})
    some = record(model, queries=-1)
    for edit in (ts.patch(some), ts.mute(by=some)):
        with pytest.raises(ValueError, match="keeps some queries only; record without queries="):
            edited(model, edit)


def test_what_was_not_recorded(model):
    recording = record(model, layers=0, heads=[0, 1])
    for make in (ts.patch(recording, 1), ts.mute(1, by=recording)):
        with pytest.raises(ValueError, match=r'the recording of GPT has no call of "blocks.1.self"; recorded are'):
            edited(model, make)
    for make in (ts.patch(recording, heads=3), ts.mute(heads=3, by=recording)):
        with pytest.raises(ValueError, match=r'head 3 of "blocks.0.self" was not recorded; recorded are 0, 1'):
            edited(model, make)
    with pytest.raises(ValueError, match=r"layers=7 is no layer of this model"):
        edited(model, ts.patch(recording, 7))
    sizes = {"encoder_blocks": 1, "decoder_blocks": 1, "heads": 2}
    other = Transformer(TransformerConfig(vocabulary=13, max_positions=16, d_model=8, **sizes))
    with pytest.raises(ValueError, match=r'patch: this model has no attention "blocks.0.self", which was recorded'):
        edited(other, ts.patch(recording))
    with ts.watch(model, keep="steps") as two:
        model(IDS)
        model(IDS.flip(1))
    with pytest.raises(ValueError, match="was called 2 times, for separate sequences"):
        edited(model, ts.patch(two))


def test_texts_that_do_not_fit(model):
    recording = record(model)
    longer = torch.tensor([[1, 2, 3, 4, 5, 6, 7]])
    for what in ("output", "weights", "queries", "keys", "values"):
        for ids in (longer, IDS[:, :4]):
            with pytest.raises(ValueError, match=rf"a text of {ids.shape[1]} tokens, and the recorded one has 6; give"):
                edited(model, ts.patch(recording, what=what), ids=ids)
    two = record(model, ids=IDS.repeat(2, 1))
    with pytest.raises(ValueError, match="has 2 sequences, and this run has 3; record one text for all, or one for"):
        edited(model, ts.patch(two), ids=IDS.repeat(3, 1))
    with pytest.raises(ValueError, match="names position 9 of the recorded text, which has positions 0 to 5"):
        edited(model, ts.patch(recording, align={1: 9}))
    with pytest.raises(
        ValueError, match="align= names position 8 of this run, and the longest text had positions 0 to 5"
    ):
        edited(model, ts.patch(recording, align={8: 1, 2: 2}))
    with pytest.raises(ValueError, match="there were no queries 9; the longest text had positions 0 to 5"):
        edited(model, ts.patch(recording, queries=9))
    with pytest.raises(ValueError, match="text is found through a tokenizer, and this model has none"):
        edited(model, ts.patch(recording, queries="a word"))


def test_models_of_another_shape(model):
    wide = GPT(GPTConfig(vocabulary=13, max_positions=16, d_model=16, blocks=2, heads=4)).eval()
    recording = record(wide)
    for edit in (ts.patch(recording), ts.patch(recording, what="keys"), ts.mute(by=recording)):
        with pytest.raises(ValueError, match="recorded with width 4, and this run has width 2"):
            edited(model, edit)


def test_patterns_of_another_definition(model):
    from dataclasses import replace

    with ts.edit(model, ts.redefine("*", lambda attention: replace(attention, scale=1.0))):
        recording = record(model)
    with pytest.raises(ValueError, match="a pattern is patched where both are one definition"):
        edited(model, ts.patch(recording, what="weights"))
    edited(model, ts.patch(recording))
    encoder = Encoder(EncoderConfig(vocabulary=13, max_positions=16, d_model=8, blocks=1, heads=2)).eval()
    with ts.watch(encoder, keep="steps") as padded:
        encoder(torch.cat([IDS, IDS[:, :2]], 1), ts.padding([6]))
    edited(encoder, ts.patch(padded, what="weights"))  # padding alone differs


def test_changed_contexts_are_not_kept(model):
    """What a mute changed is not in the queries, keys and values that a recording keeps."""
    with ts.edit(model, ts.mute(0, heads=1)):
        recording = record(model)
    for edit in (ts.patch(recording, 0), ts.mute(0, by=recording)):
        with pytest.raises(
            ValueError, match='recorded with "mute head 1 of layer 0", which changed what heads put out'
        ):
            edited(model, edit)
    edited(model, ts.patch(recording, 0, what="values"))
    edited(model, ts.patch(recording, 1))


def test_contradictions(model):
    recording = record(model)
    output, values = ts.patch(recording), ts.patch(recording, what="values")
    clashes = [
        (output, ts.hide(1)),
        (output, values),
        (output, ts.mute(heads=0)),
        (output, output),
        (ts.patch(recording, queries=[1, 2]), ts.patch(recording, queries=[2, 3])),
        (values, values),
        (ts.patch(recording, what="weights"), ts.patch(recording, what="keys")),
        (ts.patch(recording, what="weights"), ts.boost(1, by=2.0)),
        (ts.patch(recording, what="weights"), ts.frozen(recording)),
    ]
    for one, other in clashes:
        with pytest.raises(ValueError, match="contradict each other") as problem:
            edited(model, one, other)
        assert str(problem.value).count(". ") == 0
    for edits in (
        (ts.patch(recording, heads=0), ts.hide(1, heads=1)),
        (ts.patch(recording, queries=[1]), ts.hide(1), values),
        (values, ts.patch(recording, what="weights"), ts.mute(heads=1)),
        (ts.patch(recording, what="queries"), ts.patch(recording, what="keys"), ts.hide(1)),
        (ts.patch(recording, queries=[1]), ts.patch(recording, queries=[2])),
    ):
        edited(model, *edits)
    # Edits of an effect never meet: each has its own copy of the inputs.
    assert len(ts.effect(model, IDS, [*ts.patch.each(model, recording), *ts.mute.each(model)])) == 17


def test_recordings_that_mute(model):
    recording = record(model)
    with pytest.raises(TypeError, match=r"by takes .* not int; for the mean of a corpus watch its texts in one block"):
        ts.mute(by=3)
    with pytest.raises(TypeError, match=r"resample takes a recording of ts\.watch or ts\.open, not str"):
        ts.resample("a recording")
    with pytest.raises(TypeError, match="seed="):
        ts.resample(recording, seed=0.5)


def test_paths_that_lead_nowhere(model):
    recording = record(model)
    cases = [
        (((1, 0), (0, 1)), 'the receiver "blocks.0.self" does not run after the sender "blocks.1.self"'),
        (((0, 0), (0, 1)), "does not run after the sender"),
        (((0, 9), (1, 1)), r'heads=\[9\]: "blocks.0.self" has 4'),
        (((0, 0), (1, 9)), r'heads=\[9\]: "blocks.1.self" has 4'),
        (((7, 0), (1, 1)), "sender=7 is no layer of this model"),
        ((3, (1, 1)), r"sender=3 is no head; it takes \(layer, head\)"),
    ]
    for (sender, receiver), sentence in cases:
        with pytest.raises(ValueError, match=sentence):
            ts.patch.path(model, IDS, recording, sender, receiver)
    with pytest.raises(ValueError, match='there is no into="query"; did you mean "queries"'):
        ts.patch.path(model, IDS, recording, (0, 0), (1, 1), into="query")
    sizes = {"encoder_blocks": 1, "decoder_blocks": 1, "heads": 2}
    other = Transformer(TransformerConfig(vocabulary=13, max_positions=16, d_model=8, **sizes))
    with pytest.raises(ValueError, match=r"names 3 attentions, .*; name one"):
        ts.patch.path(other, (IDS, IDS), recording, (0, 0), (0, 1))
    with pytest.raises(ValueError, match='there is no by="token"'):
        ts.patch.each(model, recording, by="token")
    with pytest.raises(ValueError, match="leave queries= and align= out"):
        ts.patch.each(model, recording, by="position", queries=2)


def test_effects_between_two_inputs(model):
    other = IDS.flip(1)
    edits = ts.patch.each(model, record(model))
    wrong = [
        ({"run": "both"}, 'there is no run="both"; there are corrupted, clean'),
        ({"against": 3}, "against= names 1 rivals and tokens= 0; give each token one"),
        ({"against": 3, "tokens": [1], "measure": "loss"}, "against=[3] compares logits; leave measure= out"),
        ({"against": 13, "tokens": [1]}, "against: there is no token 13; the model has 13, from 0 on"),
        ({"against": 1, "tokens": [-1]}, "tokens: there is no token -1"),
        ({"corrupted": IDS}, '"kl" is 0 for the inputs as they are and 0 for corrupted=, so that nothing lies between'),
        ({"corrupted": other[:, :5]}, '"kl" compares the two inputs position by position, and they differ in size'),
        ({"corrupted": other[:, :5], "measure": "loss"}, '"loss" compares the two inputs position by position'),
    ]
    for options, sentence in wrong:
        with pytest.raises(ValueError, match=re.escape(sentence)):
            ts.effect(model, IDS, edits, **options)
    found = ts.effect(
        model, IDS, [ts.patch(record(model), align=range(5))], corrupted=other[:, :5], tokens=[3], against=5
    )
    assert list(found.columns) == ["edit", "p(3)", "rank(3)", "difference", "restored"]


def test_compiled_models(model):
    with pytest.raises(ValueError, match="is compiled, and compiled code runs past every hook"):
        edited(torch.compile(model), ts.patch(record(model)))
