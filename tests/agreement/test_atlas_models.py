"""An atlas of each kind of model: its shares are those of recordings of single texts, padding and batches aside."""

import pytest
import torch

import mapping
import telescope as ts
from huggingface import BERT, GPT2, LLAMA, MARIAN, transformers
from telescope.atlas import reading
from telescope.atlas.batches import TokenBatch
from telescope.atlas.measure import MEASURES
from telescope.atlas.reading import ModelReader


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
        for name in MEASURES:
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
