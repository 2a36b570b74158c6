"""Cross-attention is recognised by the module, also where queries and keys are equally many."""

import json
from math import isnan

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn

import telescope as ts
from support.huggingface import GPT2, MARIAN, VOCABULARY, numbered, transformers
from support.watched import CROSS, FAMILIES, IDS, SOUND, WHISPER, Family
from telescope import decoding
from telescope.explorer.library import Library
from telescope.explorer.run import run_of_recording
from telescope.layers import LuongAttention, MultiHeadAttention
from telescope.recording import Recording
from telescope.recording.attention_call import AttentionCall
from telescope.recording.recorded_call import KeepOptions

TARGET = torch.tensor([[0, 8, 21, 4, 5, 9, 11, 2], [0, 3, 3, 40, 11, 17, 17, 5]])  # as many as IDS
M2M = MARIAN | {"bos_token_id": 2}
TRANSLATORS = {
    "bart": FAMILIES["bart"],
    "t5": FAMILIES["t5"],
    "marian": FAMILIES["marian"],
    "mbart": Family("MBartForConditionalGeneration", "MBartConfig", M2M),
    "m2m100": Family("M2M100ForConditionalGeneration", "M2M100Config", M2M),
}
KINDS = ("itself", "previous", "far", "same", "induction")
pytestmark = pytest.mark.usefixtures("without_gradients")


def assert_recognised(recording, source, target, is_across):
    """Check for every attention whose tokens its keys are, what heads() knows, and what the page calls it."""
    kinds = {looked.name: looked.kind for looked in run_of_recording(recording, "r1", "1").views}
    across = [name for name in recording if is_across(name)]
    assert across
    for name, watched in recording.items():
        call = watched.call
        assert call.across == (name in across)
        assert (kinds[name] == "cross") == (name in across)
        decodes = "encoder" not in name.split(".") and name not in across
        if name in across or decodes:
            assert torch.equal(call.query_ids, target)
        assert torch.equal(call.key_ids, target if decodes else source)
    for head in recording.heads():
        unknown = {kind for kind in KINDS if isnan(getattr(head, kind))}
        assert unknown == ({*KINDS} if head.layer in across else set())


@pytest.mark.parametrize("keep", ["summaries", "steps"])
@pytest.mark.parametrize("family", TRANSLATORS)
def test_as_many_source_as_target_tokens(family, keep, tmp_path):
    model = TRANSLATORS[family].model()
    with ts.watch(model, keep=keep) as recording:
        model(input_ids=IDS, decoder_input_ids=TARGET)
    recording.save(tmp_path / "run.telescope")
    for shown in (recording, ts.open(tmp_path / "run.telescope")):
        assert_recognised(shown, IDS, TARGET, lambda name: name.endswith(CROSS))


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_while_a_model_generates(family):
    """A source of one token, and as many generated tokens as the source has."""
    model = TRANSLATORS[family].model()
    for source in (IDS[:, :1], IDS):
        with ts.watch(model) as recording:
            model.generate(source, max_new_tokens=8, min_new_tokens=8, do_sample=False, num_beams=1)
        for name, watched in recording.items():
            assert watched.call.across == name.endswith(CROSS)
            if watched.call.across:
                assert watched.call.size == (8, source.shape[1])
                assert torch.equal(watched.call.key_ids, source)


def test_gpt2_with_cross_attention():
    model = numbered(transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2, add_cross_attention=True)))
    with ts.watch(model) as recording:
        model(IDS, encoder_hidden_states=torch.randn(2, 8, 24))
    for name, watched in recording.items():
        assert watched.call.across == name.endswith("crossattention")
        assert (watched.call.key_ids is None) == watched.call.across


def test_sound_has_no_tokens():
    """Also where the call before read as many tokens as this one has frames."""
    model = Family("WhisperForConditionalGeneration", "WhisperConfig", WHISPER).model()
    with ts.watch(model) as recording:
        for tokens in (IDS, TARGET):
            ids = torch.cat([tokens, tokens[:, :2]], 1)  # 10, as there are frames
            model(input_features=SOUND, decoder_input_ids=ids)
    for name, watched in recording.items():
        for call in watched.calls:
            assert call.across == name.endswith(CROSS)
            if call.across:
                assert call.key_ids is None


# --------------------------------------------------------------------------------------------------------- our models


@pytest.mark.parametrize("keep", ["summaries", "steps"])
def test_our_transformer(keep, tmp_path):
    torch.manual_seed(0)
    config = ts.models.TransformerConfig(vocabulary=VOCABULARY, d_model=24, heads=3, encoder_blocks=2, decoder_blocks=2)
    model = ts.models.Transformer(config).eval()
    with ts.watch(model, keep=keep) as recording:
        model(IDS, TARGET)
    recording.save(tmp_path / "run.telescope")
    for shown in (recording, ts.open(tmp_path / "run.telescope")):
        assert_recognised(shown, IDS, TARGET, lambda name: name.endswith("cross"))


@pytest.mark.parametrize("input_feeding", [True, False])
def test_our_luong_translator(input_feeding):
    config = ts.models.LuongConfig(vocabulary=VOCABULARY, d_embedding=8, d_model=8, input_feeding=input_feeding)
    model = ts.models.LuongTranslator(config).eval()
    with ts.watch(model) as recording:
        model(IDS, TARGET)
    call = recording["cross"].call
    assert call.size == (8, 8)
    assert call.across
    assert torch.equal(call.key_ids, IDS)
    assert all(isnan(head.itself) and isnan(head.previous) for head in recording.heads())


class Alone(nn.Module):
    """One layer, called with two sequences, of which the second may be the first."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, memory):
        return self.layer(x, memory)


@pytest.mark.parametrize("layer", [lambda: MultiHeadAttention(8, 2), lambda: LuongAttention("dot", 8)])
def test_a_single_layer_is_recognised_by_its_arguments(layer):
    model, x, y = Alone(layer()), *torch.randn(2, 1, 5, 8)
    for memory in (x, y):
        with ts.watch(model) as recording:
            model(x, memory)
        (watched,) = recording.values()
        assert watched.call.across == (memory is y)


# ------------------------------------------------------------------------------------ recordings that were saved before


def test_an_old_recording_without_the_field_opens(tmp_path):
    model = FAMILIES["bart"].model()
    with ts.watch(model) as recording:
        model(**FAMILIES["bart"].inputs)
    recording.save(tmp_path / "run.telescope")
    file = tmp_path / "run.telescope" / "recording.json"
    contents = json.loads(file.read_text())
    del contents["crc32"]
    for attention in contents["attentions"]:
        for call in attention["calls"]:
            del call["across"]
    file.write_text(json.dumps(contents))
    opened = ts.open(tmp_path / "run.telescope")
    assert [watched.call.across for watched in opened.values()] == [name.endswith(CROSS) for name in opened]


def test_a_recording_with_a_wrong_value_is_refused(tmp_path):
    model = FAMILIES["llama"].model()
    with ts.watch(model) as recording:
        model(IDS)
    recording.save(tmp_path / "run.telescope")
    file = tmp_path / "run.telescope" / "recording.json"
    contents = json.loads(file.read_text().replace('"across": false', '"across": "no"'))
    del contents["crc32"]
    file.write_text(json.dumps(contents))
    with pytest.raises(ValueError, match="is no complete description of a call"):
        ts.open(tmp_path / "run.telescope")


# ------------------------------------------------------------------------------------------- words, saved and opened


@pytest.mark.parametrize("keep", ["summaries", "queries-keys", "steps"])
def test_a_saved_translation_has_the_words_of_the_live_run(keep, tmp_path):
    """The shipped tokenizer drops the space before the first token of a text, and so before a token by itself."""
    model = ts.load("translator-en-de", dtype=torch.float32).eval()
    text = "The man saw the astronomer with a telescope."
    with ts.watch(model, keep=keep) as recording:
        decoding.generate(model, [text], max_new_tokens=40, temperature=0)
    recording.save(tmp_path / "run.telescope")
    library = Library({"translator-en-de": model})
    live = {view.name: view for view in library.read(text).views}
    opened = library.open(tmp_path / "run.telescope").views

    assert {view.name for view in opened} == {*live}
    for view in opened:
        wanted = live[view.name]
        assert view.columns == wanted.columns
        if view.kind != "cross":
            assert view.rows == wanted.rows
        else:  # the last token was written, but never read
            assert view.rows.names == (*wanted.rows.names[:-1], "…")
            assert view.rows.pieces == (*wanted.rows.pieces[:-1], "…")
    assert opened[0].columns.names == ("The", "man", "saw", "the", "astronomer", "with", "a", "telescope", ".", "</s>")
    (written,) = (view.rows.names for view in opened if view.name == "decoder.0.self")
    assert written == ("<s>", "Der", "Mann", "sah", "den", "Astronomen", "mit", "einem", "Teleskop", ".")


TOKENIZED = "the telescopes saw telescope the café € 世界"
VOCABULARIES = {
    "Ġ": (models.BPE(), pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel(), trainers.BpeTrainer),
    "▁": (models.BPE(unk_token="?"), pre_tokenizers.Metaspace(), decoders.Metaspace(), trainers.BpeTrainer),
    "##": (
        models.WordPiece(unk_token="?"),
        pre_tokenizers.BertPreTokenizer(),
        decoders.WordPiece(),
        trainers.WordPieceTrainer,
    ),
}


@pytest.mark.parametrize("by", ["tokenizers", "transformers"])
@pytest.mark.parametrize("mark", VOCABULARIES)
def test_saved_words_of_other_tokenizers(mark, by, tmp_path):
    """Byte-level BPE, sentencepiece and wordpiece: every word, and its pieces, as in the recording that was saved."""
    model, splits, joins, trainer = VOCABULARIES[mark]
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = splits
    tokenizer.decoder = joins
    alphabet = pre_tokenizers.ByteLevel.alphabet() if mark == "Ġ" else [*TOKENIZED]
    size = len({*alphabet}) + 20
    learner = trainer(vocab_size=size, special_tokens=["?"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TOKENIZED] * 3, learner)
    ids = tokenizer.encode(TOKENIZED).ids
    own = tokenizer if by == "tokenizers" else transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)

    n = len(ids)
    q, k, v = torch.randn(3, 1, 1, n, 4)
    recording = Recording("Made", ["blocks.0.self"], "queries-keys", KeepOptions(), own.decode)
    call = AttentionCall(q, k, v, ts.Attention(), (0,), 0.0, query_ids=torch.tensor([ids]))
    recording._record("blocks.0.self", call)
    recording.save(tmp_path / "run.telescope")
    library = Library({})
    (saved,) = library.open(tmp_path / "run.telescope").views
    (live,) = library.add(recording, "live", "1").views

    assert saved.columns == live.columns == saved.rows
    assert len(ids) > len(saved.columns.names)  # some words have several pieces
    assert saved.columns.names == ("the", "telescopes", "saw", "telescope", "the", "café", "€", "世界")
    assert ts.open(tmp_path / "run.telescope").decode(ids) == own.decode(ids)
