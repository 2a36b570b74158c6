"""Patches of an attention whose numbers a hand can check: scores of zero, so that every weight is one over the keys."""

import json

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from telescope.editing.edits import from_json


class Mean(torch.nn.Module):
    """One head whose context is the mean of the values up to each token."""

    def forward(self, values):
        values = torch.as_tensor(values, dtype=torch.float64).view(1, 1, -1, 1)
        return ts.attend(values * 0, values * 0, values, ts.Attention(mask=ts.causal))[0, 0, :, 0]


def record(*texts):
    model = Mean()
    with ts.watch(model, keep="steps") as recording:
        for text in texts:
            model(text)
    return recording


def run(*edits, values=(1, 2, 3)):
    model = Mean()
    with ts.edit(model, *edits):
        return model(values).tolist()


def test_as_it_is():
    assert run() == [1.0, 1.5, 2.0]
    assert run(values=(10, 20, 30)) == [10.0, 15.0, 20.0]


def test_outputs_of_another_text():
    recording = record((10, 20, 30))
    assert run(ts.patch(recording)) == [10.0, 15.0, 20.0]
    assert run(ts.patch(recording, queries=1)) == [1.0, 15.0, 2.0]
    assert run(ts.patch(recording, align={0: 2})) == [20.0, 1.5, 2.0]
    assert run(ts.patch(recording, align=[None, 0])) == [1.0, 10.0, 2.0]


def test_values_of_another_text():
    recording = record((10, 20, 30))
    assert run(ts.patch(recording, what="values")) == [10.0, 15.0, 20.0]
    # 30, (30 + 2) / 2, (30 + 2 + 3) / 3
    assert_close(run(ts.patch(recording, what="values", align={0: 2})), [30.0, 16.0, 35 / 3])
    # A value of this run, a pattern of the other: all weights are alike.
    assert run(ts.patch(recording, what="weights")) == [1.0, 1.5, 2.0]


def test_a_shorter_text_by_a_map():
    recording = record((10, 20))
    assert run(ts.patch(recording, align=range(2))) == [10.0, 15.0, 2.0]


def test_what_was_generated_later_stays():
    """A recorded text of three tokens; the fourth and the fifth of this run have no counterpart."""

    class Writer(Mean):
        def forward(self, values, before=()):
            whole = torch.tensor([*before, *values], dtype=torch.float64).view(1, 1, -1, 1)
            queries = whole[:, :, len(before) :] * 0
            return ts.attend(queries, whole * 0, whole, ts.Attention(mask=ts.causal))[0, 0, :, 0]

    model = Writer()
    with ts.watch(model, keep="steps") as recording:
        model((10, 20))
        model((30,), before=(10, 20))
    with ts.edit(model, ts.patch(recording)):
        steps = [model((1, 2)), model((3,), (1, 2)), model((4,), (1, 2, 3)), model((5,), (1, 2, 3, 4))]
    assert torch.cat(steps).tolist() == [10.0, 15.0, 20.0, 2.5, 3.0]


def test_the_mean_of_a_corpus():
    """Contexts 10, 15, 20 and 4: their mean is 12.25."""
    recording = record((10, 20, 30), (4,))
    assert run(ts.mute(by=recording)) == [12.25] * 3
    assert run(ts.mute(by=recording, times=0.5)) == [6.625, 6.875, 7.125]


def test_random_positions_of_a_corpus():
    recording = record((10, 20, 30), (4,))
    drawn = run(ts.mute(by=ts.resample(recording)), values=range(1, 41))
    assert set(drawn) == {10.0, 15.0, 20.0, 4.0}
    assert drawn == run(ts.mute(by=ts.resample(recording)), values=range(1, 41))
    assert drawn != run(ts.mute(by=ts.resample(recording, seed=1)), values=range(1, 41))
    # A draw depends on the position, not on the length of the text.
    assert drawn[:5] == run(ts.mute(by=ts.resample(recording)), values=range(1, 6))


def test_how_much_is_restored():
    """The sum of the contexts: 4.5 as it is, 45 corrupted; with the first query patched back, 36, or 9 of 40.5."""
    effects = ts.effect(
        Mean(),
        torch.tensor([1.0, 2.0, 3.0]),
        [ts.patch(record((1, 2, 3)), queries=i) for i in range(3)],
        lambda output: output.sum(),
        corrupted=torch.tensor([10.0, 20.0, 30.0]),
    )
    assert effects.columns["value"] == [4.5, 45.0, 36.0, 31.5, 27.0]
    assert_close(effects.columns["restored"], [1.0, 0.0, 9 / 40.5, 13.5 / 40.5, 18 / 40.5])
    assert effects.columns["edit"][:2] == [None, "corrupted"]
    assert [str(row["edit"]) for row in effects.sort("restored").rows][1:3] == [
        "corrupted",
        "patch the output of every head in every layer at query 2 from a recording of Mean",
    ]
    assert "as it is" in repr(effects)
    # The other way round: the clean inputs run, and are corrupted query by query.
    noising = ts.effect(
        Mean(),
        torch.tensor([1.0, 2.0, 3.0]),
        [ts.patch(record((10, 20, 30)), queries=0)],
        lambda output: output.sum(),
        corrupted=torch.tensor([10.0, 20.0, 30.0]),
        run="clean",
    )
    assert noising.columns["value"] == [4.5, 45.0, 13.5]
    assert_close(noising.columns["restored"][2], 1 - 9 / 40.5)


class Embedded(torch.nn.Module):
    """A model of three words whose logits after each token are 1, 2 and 4 times the mean of the ids so far."""

    def forward(self, ids):
        values = ids[:, None, :, None].double()
        context = ts.attend(values * 0, values * 0, values, ts.Attention(mask=ts.causal))[:, 0]
        return context * torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)


def test_a_difference_of_logits():
    """Means 2 and 3 after the last token: the third word's logit is 8 and 12, the first word's 2 and 3."""
    model = Embedded()
    clean, corrupted = torch.tensor([[1, 3]]), torch.tensor([[5, 1]])
    with ts.watch(model, keep="steps") as recording:
        model(clean)
    found = ts.effect(
        model,
        clean,
        [
            ts.patch(recording, queries=1),
            ts.patch(recording, queries=0),
            ts.patch(recording, what="values", align={0: 0}),
        ],
        tokens=[2],
        against=0,
        corrupted=corrupted,
    )
    assert list(found.columns) == ["edit", "kl", "p(2)", "rank(2)", "difference", "restored"]
    # With the clean value of the first key alone, the mean is 1: a difference of 3.
    assert found.columns["difference"] == [6.0, 9.0, 6.0, 9.0, 3.0]
    assert found.columns["restored"] == [1.0, 0.0, 1.0, 0.0, 2.0]


SENTENCES = {
    "patch the output of head 1 of blocks.0.self from a recording of Mean": {"layers": "blocks.0.self", "heads": 1},
    "patch the weights of every head in every layer at queries 2 to 3 from a recording of Mean": {
        "what": "weights",
        "queries": [2, 3],
    },
    "patch the values of heads 0 and 2 of layer 1 at key 4 from a recording of Mean": {
        "what": "values",
        "layers": 1,
        "heads": [0, 2],
        "align": {4: 5},
    },
    "patch the queries of every head in every layer at tokens 0, 1, … 4 from a recording of Mean": {
        "what": "queries",
        "align": range(5),
    },
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_patch_is_a_sentence(sentence):
    """In JSON it has the name of the recorded model, and cannot be applied again."""
    edit = ts.patch(record((1, 2)), **SENTENCES[sentence])
    assert str(edit) == sentence
    saved = from_json(json.loads(json.dumps(edit.to_json())))
    assert str(saved) == sentence
    assert saved.align == edit.align
    assert hash(saved) != hash(edit)
    with pytest.raises(ValueError, match="was read from a file, which holds only the name of its recording"):
        run(saved)


def test_recorded_mutes_are_saved_by_name():
    recording = record((1, 2))
    for edit in (ts.mute(by=recording, times=0.5), ts.mute(heads=0, by=ts.resample(recording, seed=3))):
        saved = from_json(json.loads(json.dumps(edit.to_json())))
        assert str(saved) == str(edit)
        with pytest.raises(ValueError, match="was read from a file"):
            run(saved)


def test_families_of_patches():
    model = ts.models.GPT(ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2)).eval()
    with torch.no_grad(), ts.watch(model, keep="steps") as recording:
        model(torch.tensor([[1, 2, 3]]))
    heads = ts.patch.each(model, recording)
    assert [(edit.layers, edit.heads) for edit in heads] == [
        ((f"blocks.{block}.self",), (head,)) for block in (0, 1) for head in (0, 1)
    ]
    assert [edit.layers for edit in ts.patch.each(model, recording, by="layer")] == [
        ("blocks.0.self",),
        ("blocks.1.self",),
    ]
    positions = ts.patch.each(model, recording, 1, by="position")
    assert [str(edit) for edit in positions][-1] == (
        "patch the output of every head of blocks.1.self at query 2 from a recording of GPT"
    )
    assert [edit.align for edit in ts.patch.each(model, recording, 1, what="keys", by="position")] == [
        (0,),
        (-1, 1),
        (-1, -1, 2),
    ]
