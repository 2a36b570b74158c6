"""`recording[layer].weights`: the attention pattern of a short text as a tensor."""

import pytest
import torch

import telescope as ts
from support.huggingface import gpt
from telescope.recording import queries_keys_call


def watched(model, *inputs, **options):
    with ts.watch(model, **options) as recording, torch.no_grad():
        model(*inputs)
    return recording


def test_two_queries_of_a_layer_of_ones():
    """Keys that are all alike get the same weight: 1, then a half each."""
    layer = ts.layers.MultiHeadAttention(4, 2, attention=ts.Attention(mask=ts.causal))
    recording = watched(layer, torch.ones(1, 2, 4), keep="queries-keys")
    assert recording["attention"].weights.tolist() == [[[[1.0, 0.0], [0.5, 0.5]]] * 2]


@pytest.mark.parametrize("keep", ["queries-keys", "steps"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_they_are_those_of_eager_attention(name, keep):
    model = gpt(name)
    model.set_attn_implementation("sdpa")
    ids = torch.randint(1, 61, (2, 9), generator=torch.Generator().manual_seed(0))
    recording = watched(model, ids, keep=keep)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        truth = model(ids, output_attentions=True).attentions
    for layer, own in zip(recording.values(), truth, strict=True):
        assert (layer.weights - own).abs().max() < 1e-5
        assert torch.equal(layer.weights, layer.calls[0].weights)


def test_padding_gives_no_weight():
    model = gpt("llama")
    ids = torch.randint(1, 61, (2, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    with ts.watch(model, keep="queries-keys") as recording, torch.no_grad():
        model(ids, attention_mask=mask)
    weights = recording["model.layers.0"].weights
    assert not weights[0, :, :2].any()
    assert not weights[0, :, :, :2].any()
    assert (weights[0, :, 2:].sum(-1) - 1).abs().max() < 1e-5
    assert (weights[1].sum(-1) - 1).abs().max() < 1e-5


def test_chosen_heads_and_queries_alone():
    model = gpt("gpt2")
    ids = torch.arange(1, 8)[None]
    whole = watched(model, ids, keep="queries-keys")["transformer.h.1"].weights
    part = watched(model, ids, keep="queries-keys", heads=[2], queries=[-1, 3])["transformer.h.1"].weights
    assert part.shape == (1, 1, 2, 7)
    assert torch.allclose(part[0, 0], whole[0, 2, [3, 6]], atol=1e-6)


def test_what_is_not_kept_or_too_large_is_a_sentence(monkeypatch):
    model = ts.models.GPT(ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=1, heads=2)).eval()
    ids = torch.arange(7)[None]
    said = (
        r'"blocks.0.self" has no weights: keep="summaries" keeps no queries and keys.*keep="queries-keys" does\. \.top'
    )
    with pytest.raises(ValueError, match=said):
        _ = watched(model, ids)["blocks.0.self"].weights
    recording = watched(model, ids, keep="queries-keys")
    assert recording["blocks.0.self"].weights.shape == (1, 2, 7, 7)
    monkeypatch.setattr(queries_keys_call, "MOST_WEIGHTS", 97)
    said = r"are 1 x 2 x 7 x 7 numbers, and at most 97 are formed at once; \.head\(0\)\.rows\(i\) has those of some"
    with pytest.raises(ValueError, match=said):
        _ = recording["blocks.0.self"].weights
