"""An atlas of each kind of model: its shares are those of recordings of single texts, padding and batches aside."""

import pytest
import torch

import telescope as ts
from support import mapping
from support.huggingface import BERT, GPT2, LLAMA, MARIAN, transformers
from telescope.atlases import reading
from telescope.atlases.fingerprint import differences, fingerprint, tokenizer_checksum, weights_checksum
from telescope.atlases.reading import ModelReader
from telescope.atlases.texts import TokenBatch
from telescope.measures import OF_TEXTS


class Words:
    """A tokenizer of words to ids from 2 on, by their length and first letter."""

    def encode(self, text):
        return [2 + (7 * len(word) + ord(word[0])) % 58 for word in text.split()]

    def decode(self, ids):
        return " ".join(f"w{token}" if token % 5 else "," for token in ids)


TEXTS = [text for text in mapping.corpus(6, seed=4) if len(text.split()) > 3]


def model_of(kind, options, name):
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, f"{kind}Config")(**options))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model.eval()


def translator():
    torch.manual_seed(0)
    config = ts.models.TransformerConfig(vocabulary=61, d_model=16, heads=2, encoder_blocks=1, decoder_blocks=2)
    model = ts.models.Transformer(config).eval()
    model.special = ts.models.Special(start=1, end=(0,), pad=None)
    return model


MODELS = {
    "gpt2": lambda: model_of("GPT2", GPT2, "GPT2LMHeadModel"),
    "llama": lambda: model_of("Llama", LLAMA, "LlamaForCausalLM"),
    "bert": lambda: model_of("Bert", BERT, "BertModel"),
    "marian": lambda: model_of("Marian", MARIAN, "MarianMTModel"),
    "translator": translator,
}


@pytest.fixture(autouse=True)
def few_written(monkeypatch):
    monkeypatch.setattr(reading, "MAX_WRITTEN", 6)


@torch.no_grad()
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_an_atlas_is_the_sum_of_recordings(make):
    model, tokenizer = make(), Words()
    atlas = ts.atlas(model, TEXTS, tokenizer=tokenizer, batch=4)
    assert not atlas.skipped
    reader, tokens = ModelReader(model), 0
    parts = []
    for text in TEXTS:
        ids = torch.tensor([tokenizer.encode(text)])
        tokens += ids.shape[1]
        forward = reader.prepare(TokenBatch(ids, [ids.shape[1]], torch.zeros(1, 2)))
        with ts.watch(model, tokenizer=tokenizer) as recording:
            forward()
        parts.append(recording)
    assert atlas.tokens == tokens
    assert set(atlas.layers) == {name for name in parts[0] if parts[0][name].calls}
    joined = parts[0]
    for other in parts[1:]:
        for name in joined:
            joined[name].calls.extend(other[name].calls)
    expected = {(head.layer, head.number): head for head in joined.heads()}
    for head in atlas.heads():
        twin = expected[head.layer, head.number]
        for name in OF_TEXTS:
            assert getattr(head, name) == pytest.approx(getattr(twin, name), rel=1e-4, abs=1e-5, nan_ok=True), name


@torch.no_grad()
def test_an_encoder_decoder_is_mapped_in_all_of_its_attentions():
    atlas = ts.atlas(translator(), TEXTS, tokenizer=Words())
    assert [*atlas.layers] == [
        "encoder.0.self",
        "decoder.0.self",
        "decoder.0.cross",
        "decoder.1.self",
        "decoder.1.cross",
    ]
    cross = atlas.profile("decoder.0.cross", 0, "distance")
    assert all(share != share for share in cross.shares)  # queries and keys are two sequences
    assert atlas.profile("decoder.0.cross", 0, "position").shares[0] > 0


def fingerprint_of(model, tokenizer=None):
    """Return what tells the runs of two models apart."""
    return fingerprint(model, tokenizer or Words()) | dict.fromkeys(("layers", "texts"))


def test_settings_of_transformers_that_change_numbers_are_told_apart():
    """And a model that was loaded anew, run or edited before is the same."""
    llama = lambda **more: model_of("Llama", LLAMA | more, "LlamaForCausalLM")  # noqa: E731
    first = llama()
    known = fingerprint_of(first)
    with torch.no_grad():
        first(torch.tensor([[1, 2, 3]]))
    with ts.edit(first, ts.mute(0)):
        assert differences(known, fingerprint_of(first)) == ["other edits"]
    first.config.name_or_path = "elsewhere"
    assert differences(known, fingerprint_of(first)) == []
    assert differences(known, fingerprint_of(llama())) == []

    attentive = llama()
    attentive.set_attn_implementation("eager")
    assert differences(known, fingerprint_of(attentive)) == ["another model config"]
    assert differences(known, fingerprint_of(llama(rms_norm_eps=1e-3))) == ["another model config"]
    turning = llama(rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    assert differences(known, fingerprint_of(turning)) == ["other model weights", "another model config"]
    written = llama()
    written.model.rotary_emb.inv_freq[0] = 0.5  # a buffer that is not saved with the model
    assert differences(known, fingerprint_of(written)) == ["other model weights"]
    rounded = fingerprint_of(llama().to(torch.bfloat16))
    assert differences(known, rounded) == ["other model weights"]
    definition = ts.models.GPTConfig(vocabulary=9, d_model=8, heads=2, blocks=1)
    masks = (ts.causal, ts.causal & ts.window(4))
    one, other = (ts.models.GPT(definition, attention=ts.Attention(mask=mask)) for mask in masks)
    other.load_state_dict(one.state_dict())
    assert differences(fingerprint_of(one), fingerprint_of(other)) == ["another model config"]


class Quantised(torch.nn.Parameter):
    """A parameter with its scales as an attribute, as bitsandbytes has it."""


def test_scales_of_quantised_weights_are_part_of_them():
    layer = torch.nn.Linear(4, 4)
    layer.weight = Quantised(layer.weight.detach().clone())
    layer.weight.scales = torch.ones(4)
    first = weights_checksum(layer)
    assert weights_checksum(layer) == first
    layer.weight.scales[3] = 2.0
    assert weights_checksum(layer) != first


def test_tokenizers_are_told_apart_by_what_they_do():
    """By vocabulary, rules and options; not by where they were loaded from, or what they have read."""
    tokenizers = pytest.importorskip("tokenizers")

    def fast(words, **options):
        vocabulary = {word: i for i, word in enumerate(("<unk>", *words))}
        own = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
        own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        return own, transformers.PreTrainedTokenizerFast(tokenizer_object=own, unk_token="<unk>", **options)

    own, wrapped = fast(["a", "b"])
    before = tokenizer_checksum(own), tokenizer_checksum(wrapped)
    wrapped(["a b", "a"], padding=False, truncation=True, max_length=1)  # leaves its truncation behind
    wrapped.name_or_path = "elsewhere"
    again, wrapped_again = fast(["a", "b"])
    assert (tokenizer_checksum(again), tokenizer_checksum(wrapped)) == before
    assert tokenizer_checksum(wrapped_again) == before[1]
    swapped, wrapped_swapped = fast(["b", "a"])
    assert tokenizer_checksum(swapped) != before[0]
    assert tokenizer_checksum(wrapped_swapped) != before[1]
    again.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    assert tokenizer_checksum(again) != before[0]
    assert tokenizer_checksum(fast(["a", "b"], split_special_tokens=True)[1]) != before[1]
    mine, other = mapping.Letters(), mapping.Letters()
    assert tokenizer_checksum(mine) == tokenizer_checksum(other)
    other.lower = True
    assert tokenizer_checksum(mine) != tokenizer_checksum(other)
