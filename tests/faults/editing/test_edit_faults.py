"""Edits that cannot be: each is one sentence that says what would be right."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import telescope as ts
from telescope.models import GPT, GPTConfig, Transformer, TransformerConfig

IDS = torch.tensor([[1, 5, 2, 8, 3, 9]])


@pytest.fixture
def model():
    return GPT(GPTConfig(vocabulary=13, max_positions=16, d_model=8, blocks=2, heads=4)).eval()


def edited(model, *edits, run=True, ids=IDS):
    with torch.no_grad(), ts.edit(model, *edits):
        if run:
            model(ids)


UNKNOWN = [
    (
        lambda: ts.mute("block.0.self"),
        r'layers="block.0.self" is no attention of this model; did you mean "blocks.0.self"\?',
    ),
    (lambda: ts.mute(7), r"layers=7 is no layer of this model; they count from 0 to 1"),
    (lambda: ts.mute(heads=9), r'heads=\[9\]: "blocks.0.self" has 4, numbered from 0 to 3'),
    (lambda: ts.hide(1, heads=[0, -4]), r'heads=\[0, -4\] names a head of "blocks.0.self" twice'),
    (lambda: ts.hide(range(20, 30)), r"there were no keys 20 to 29; the longest text had positions 0 to 5"),
    (lambda: ts.hide(1, range(9, 12)), r"there were no queries 9 to 11"),
    (lambda: ts.hide("a word"), r"text is found through a tokenizer, and this model has none"),
    (lambda: ts.hide(ts.tokens(11)), r"there were no keys token 11"),
]


@pytest.mark.parametrize(("edit", "sentence"), UNKNOWN)
def test_what_is_not_there(model, edit, sentence):
    with pytest.raises(ValueError, match=sentence):
        edited(model, edit())


WRONG = [
    (lambda: ts.mute(times=float("nan")), ValueError, "times=nan is not a finite number"),
    (lambda: ts.mute(by="median"), ValueError, 'there is no by="median"; did you mean "mean"?'),
    (lambda: ts.mute(heads=[1, 1]), ValueError, "each once"),
    (lambda: ts.mute(layers=[]), ValueError, "layers=[] edits nothing"),
    (lambda: ts.mute(layers=1.5), TypeError, "not float"),
    (lambda: ts.hide(-1), ValueError, "counts from the end, which moves while a model generates"),
    (lambda: ts.hide(range(4, 4)), ValueError, "is empty"),
    (lambda: ts.hide([]), ValueError, "is empty"),
    (lambda: ts.hide("  "), ValueError, "holds no text"),
    (lambda: ts.hide(2.5), TypeError, "it takes positions (a number, range or slice), text"),
    (lambda: ts.hide(slice(0, 9, 2)), ValueError, "leaves tokens out"),
    (lambda: ts.boost(1, by=0.0), ValueError, "ts.hide hides keys altogether"),
    (lambda: ts.boost(1, by="4"), TypeError, "by"),
    (lambda: ts.tokens(), ValueError, "names no token"),
    (lambda: ts.frozen({}), TypeError, "frozen takes a recording of ts.watch or ts.open, not dict"),
    (lambda: ts.redefine("*", 3), TypeError, "redefine takes a function from Attention to Attention, not int"),
    (lambda: ts.hide.each(["text"]), ValueError, "has no known end"),
]


@pytest.mark.parametrize(("make", "kind", "sentence"), WRONG)
def test_what_is_no_edit(make, kind, sentence):
    with pytest.raises(kind) as problem:
        make()
    assert sentence in str(problem.value)


def test_what_edit_does_not_take(model):
    with pytest.raises(TypeError, match=r'is no edit; did you mean "mute"'):
        edited(model, "muted")
    with pytest.raises(TypeError, match=r"edit takes a model, a torch.nn.Module, not str"):
        edited("model", ts.mute(), run=False)
    with pytest.raises(ValueError, match="Linear holds no attention: no module calls"):
        edited(torch.nn.Linear(3, 3), ts.mute(), run=False)
    with pytest.raises(TypeError, match="the function returned int, not an Attention"):
        edited(model, ts.redefine("*", lambda attention: 3))
    with pytest.raises(ValueError, match='there is no measure "los"; did you mean "loss"'):
        ts.effect(model, IDS, [], "los")
    with pytest.raises(ValueError, match='there is no column "k"'):
        ts.effect(model, IDS, []).sort("k")


def test_contradictions(model):
    with ts.watch(model, keep="queries-keys") as recording:
        model(IDS)
    frozen = ts.frozen(recording)
    for other in (ts.hide(1), ts.boost(1, by=2.0), ts.redefine(0, lambda attention: attention), frozen):
        with pytest.raises(ValueError, match="contradict each other") as problem:
            edited(model, frozen, other)
        assert str(problem.value).count(". ") == 0  # one sentence
    edited(model, ts.frozen(recording, heads=[0, 1]), ts.hide(1, heads=[2]), ts.mute(heads=0))


def test_frozen_recordings_that_do_not_fit(model):
    with ts.watch(model) as summaries:
        model(IDS)
    with pytest.raises(ValueError, match=r'record with ts.watch\(model, keep="queries-keys"\)'):
        ts.frozen(summaries)
    with ts.watch(model, keep="queries-keys", heads=[0, 1], layers=0) as recording:
        model(IDS)
    with pytest.raises(ValueError, match=r'head 3 of "blocks.0.self" was not recorded; recorded are 0, 1'):
        edited(model, ts.frozen(recording, heads=3))
    with pytest.raises(ValueError, match=r"layers=1 is no layer"):
        edited(model, ts.frozen(recording, layers=1))
    with pytest.raises(ValueError, match=r"of 1 sequences of width 2, and this run of 2"):
        edited(model, ts.frozen(recording), ids=IDS.repeat(2, 1))
    with pytest.raises(ValueError, match=r"has 6 queries and 6 keys, and this run has reached 7 and 7"):
        edited(model, ts.frozen(recording), ids=torch.tensor([[1, 2, 3, 4, 5, 6, 7]]))
    encoder = ts.models.Encoder(ts.models.EncoderConfig(vocabulary=13, max_positions=16, d_model=8, blocks=1, heads=2))
    with ts.watch(encoder, keep="queries-keys") as both_ways:
        encoder(IDS)
    with pytest.raises(ValueError, match=r"saw up to 6 keys when they were recorded, and this run has 5"):
        edited(encoder, ts.frozen(both_ways), ids=IDS[:, :5])
    with ts.watch(model, keep="queries-keys", queries=-1) as some:
        model(IDS)
    with pytest.raises(ValueError, match="keeps some queries only"):
        edited(model, ts.frozen(some))
    sizes = {"encoder_blocks": 1, "decoder_blocks": 1, "heads": 2}
    other = Transformer(TransformerConfig(vocabulary=13, max_positions=16, d_model=8, **sizes))
    with pytest.raises(ValueError, match=r'no attention "blocks.0.self", which was recorded'):
        edited(other, ts.frozen(recording), run=False)


def test_a_compiled_model_is_refused_by_name(model):
    with pytest.raises(
        ValueError, match="is compiled, and compiled code runs past every hook; edit the model as it was"
    ):
        edited(torch.compile(model), ts.mute(), run=False)


SHARED = "encoder.albert_layer_groups.0.albert_layers.0.attention"


@pytest.fixture
def albert():
    """A model that runs one attention three times."""
    from support.huggingface import BERT, numbered, transformers

    return numbered(transformers.AlbertModel(transformers.AlbertConfig(**{**BERT, "num_hidden_layers": 3})))


def test_a_pass_that_never_ran(albert):
    """Known when the block is left; a block in which nothing ran has nothing to say."""
    with pytest.raises(ValueError, match=r"no pass 4 through .*; passes count from 1, the last was 3") as found:
        edited(albert, ts.mute(f"{SHARED}.4"))
    assert f'layers="{SHARED}.4"' in str(found.value)
    assert "\n" not in str(found.value)
    edited(albert, ts.mute(f"{SHARED}.4"), run=False)
    with torch.no_grad(), ts.watch(albert, keep="queries-keys") as recording:
        albert(IDS)
    for edit in (ts.mute(f"{SHARED}.0"), ts.mute(f"{SHARED}.02"), ts.frozen(recording, layers=f"{SHARED}.4")):
        with pytest.raises(ValueError, match=r"is no attention of this model"):
            edited(albert, edit, run=False)


def test_passes_through_telescopes_own_layers_have_no_names(model):
    with pytest.raises(ValueError, match=r'layers="blocks.0.self.2" is no attention of this model'):
        edited(model, ts.mute("blocks.0.self.2"), run=False)


def test_contradictions_in_one_pass(albert):
    with torch.no_grad(), ts.watch(albert, keep="queries-keys") as recording:
        albert(IDS)
    frozen = ts.frozen(recording, layers=f"{SHARED}.2")
    with pytest.raises(ValueError, match=r'contradict each other in ".*attention\.2"'):
        edited(albert, frozen, ts.hide(1), run=False)
    edited(albert, frozen, ts.hide(1, layers=f"{SHARED}.3"))


def test_checkpointed_passes_that_are_edited_differently(albert):
    """A backward pass runs the three passes again, and does not say which; edits of all passes hold for each."""
    group = albert.encoder.albert_layer_groups[0]
    own = group.forward
    group.forward = lambda *args, **options: checkpoint(own, *args, use_reentrant=False, **options)
    albert.train()
    with ts.edit(albert, ts.mute(SHARED, heads=1)):
        albert(IDS).last_hidden_state.sum().backward()
    with ts.edit(albert, ts.mute(f"{SHARED}.2", heads=1)):
        loss = albert(IDS).last_hidden_state.sum()
        with pytest.raises(RuntimeError, match=r"gradient checkpointing runs the passes .* again"):
            loss.backward()


def test_a_block_that_fails_reports_its_own_error(model):
    """Not that a span was never found."""

    def fail(attention):
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        edited(model, ts.hide(range(20, 30)), ts.redefine("*", fail))


def test_a_text_that_is_not_there_in_a_translation():
    """In a translator the source and the target are searched; the nearest word is of what was read."""
    model = ts.load("translator-en-de")
    sentence = r'no text that was read holds "telescop"; did you mean "telescope"\?'
    with pytest.raises(ValueError, match=sentence), ts.edit(model, ts.hide("telescop")):
        ts.decoding.generate(model, ["The man saw the astronomer with a telescope"], max_new_tokens=4)


def test_saved_edits_of_another_kind(tmp_path, model):
    import json

    from telescope.files.safetensors import manifest_checksum

    with ts.edit(model, ts.hide(1)), ts.watch(model) as recording:
        model(IDS)
    recording.save(tmp_path / "run")
    opened = ts.open(tmp_path / "run")
    assert str(opened.edits[0]) == str(recording.edits[0])
    assert "edited" in repr(opened)
    with ts.edit(model, *opened.edits), ts.watch(model) as again:
        model(IDS)
    assert again.edits == recording.edits
    file = tmp_path / "run" / "recording.json"
    for wrong in ([{"sentence": 3}], "hide", [{"sentence": "", "edit": []}]):
        manifest = json.loads(file.read_text())
        manifest["edits"] = wrong
        manifest.pop("crc32")
        file.write_text(json.dumps(manifest | {"crc32": manifest_checksum(manifest)}))
        with pytest.raises(ts.LoadError, match=r'"edits" holds .* which is no edit'):
            ts.open(tmp_path / "run")
    for wrong in (
        {"is": "mute"},
        {"is": "shout"},
        ts.mute().to_json() | {"times": "x"},
        ts.hide(1).to_json() | {"keys": 3},
    ):
        from telescope.recording.edits import SavedEdit

        with pytest.raises(ValueError, match="is no"):
            edited(model, SavedEdit("an edit", wrong))


def test_an_old_transformers_is_refused(monkeypatch):
    from support.watched import FAMILIES
    from telescope.interception import huggingface

    monkeypatch.setattr(huggingface, "OLDEST", 99)
    with (
        pytest.raises(ValueError, match=r"ts\.edit needs transformers 99 or newer, and [\d.]+ is installed: pip"),
        ts.edit(FAMILIES["gpt2"].model(), ts.mute(heads=0)),
    ):
        pass
