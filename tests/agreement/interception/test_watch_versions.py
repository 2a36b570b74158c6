"""Watching with the oldest transformers that is supported: `make test-oldest` runs this file.

Models that use the attention interface are watched, and those that call torch's attention by themselves, as BERT did;
models whose softmax is written by hand are refused by name before anything runs.
"""

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from support.huggingface import transformers
from support.watched import FAMILIES, IDS, PADDED_LEFT, weights_by_name

if int(transformers.__version__.split(".")[0]) >= 5:
    pytest.skip("the newest is in test_watch_huggingface", allow_module_level=True)
BY_HAND = {"t5"}  # until 5.15


@pytest.mark.parametrize("family", FAMILIES)
def test_family(family):
    inputs, model = FAMILIES[family].inputs, FAMILIES[family].model()
    if family in BY_HAND:
        with pytest.raises(ValueError, match=f"{type(model).__name__} does not go through"), ts.watch(model):
            pytest.fail("the block was entered")
        return
    with torch.no_grad():
        expected = model(**inputs).logits
        with ts.watch(model, keep="steps") as recording:
            assert torch.equal(model(**inputs).logits, expected)
        eager = FAMILIES[family].model("eager")(**inputs, output_attentions=True)
    if model.config._attn_implementation == "sdpa" and family == "gemma2":
        return  # which leaves its softcap out, and then it is another model
    for name, truth in weights_by_name(eager, recording.names).items():
        assert_close(recording[name].trace().weights, truth, atol=1e-4, rtol=0.0)
        if "encoder.layer" in name and "attention_mask" in inputs:
            truth = truth * inputs["attention_mask"][:, None, :, None]  # padding asks nothing
        assert_close(recording[name].survey().received, truth.sum(-2), atol=1e-4, rtol=0.0)


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt-oss"])
def test_generation(family):
    model = FAMILIES[family].model()
    options = {"attention_mask": PADDED_LEFT, "max_new_tokens": 6, "do_sample": False}
    expected = model.generate(IDS, **options)
    with ts.watch(model) as recording:
        assert torch.equal(model.generate(IDS, **options), expected)
    assert {watched.call.size for watched in recording.values()} == {(13, 13)}
