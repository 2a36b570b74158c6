"""Quantised models, as transformers loads them on a CPU, are watched, edited and mapped as they compute.

Each library that quantises is optional: pip install optimum-quanto torchao bitsandbytes.
"""

from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import telescope as ts
from support import mapping
from support.huggingface import LLAMA, transformers

IDS = torch.arange(24).remainder(22).view(2, 12) + 1
SIZES = {"hidden_size": 64, "intermediate_size": 128}


def quantisation(kind):
    """Return the quantization_config of a kind; skip where its library is missing."""
    if kind.startswith("quanto"):
        pytest.importorskip("optimum.quanto")
        return transformers.QuantoConfig(weights=kind[-4:])
    if kind == "torchao int8":
        weights = pytest.importorskip("torchao.quantization").Int8WeightOnlyConfig()
        return transformers.TorchAoConfig(weights)
    if find_spec("bitsandbytes") is None:
        pytest.skip("bitsandbytes is missing")
    options = {"load_in_8bit": True} if kind == "bitsandbytes int8" else {"load_in_4bit": True}
    return transformers.BitsAndBytesConfig(**options)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["quanto int8", "quanto int4", "torchao int8", "bitsandbytes int8", "bitsandbytes 4"])
@torch.no_grad()
def test_quantised_models_are_watched_edited_and_mapped(kind, tmp_path):
    config = quantisation(kind)
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA | SIZES)).save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=config).eval()
    layer = model.model.layers[0].self_attn
    with ts.watch(model, keep="steps", also="norms") as recording:
        plain = model(IDS).logits
    model.set_attn_implementation("eager")
    for (name, watched), weights in zip(recording.items(), model(IDS, output_attentions=True).attentions, strict=True):
        assert_close(watched.received, weights.sum(2), atol=1e-5, rtol=1e-5, msg=name)
    model.set_attn_implementation("sdpa")
    call = next(iter(recording.values())).call
    for head in range(4):  # what the projection makes of the values of one head alone
        alone = torch.zeros(2, 12, 4, 16)
        alone[:, :, head] = call._kept["values"].tensor[:, head // 2]
        carried = layer.o_proj(alone.flatten(2)).norm(dim=-1)
        slack = 1e-2 if kind == "bitsandbytes int8" else 1e-5  # this one rounds its inputs to int8 as well
        assert_close(call._kept["norms"].tensor[:, head], carried, atol=1e-6, rtol=slack)
    with ts.edit(model, ts.mute(0, times=1.0), ts.boost(3, by=1.0)):
        assert torch.equal(model(IDS).logits, plain)
    with ts.edit(model, ts.mute(heads=1)):
        assert not torch.allclose(model(IDS).logits, plain, atol=1e-3)
    atlas = ts.atlas(model, mapping.corpus(4), tokenizer=mapping.Letters())
    assert atlas.texts == 4
    assert not atlas.skipped_count


class Squashed(nn.Module):
    """A projection that is not linear."""

    in_features = 32

    def forward(self, x):
        return x.tanh() + x**2


class Unknown(nn.Module):
    in_features = 32

    def forward(self, x, adapter):
        return x * adapter


@pytest.mark.parametrize(("part", "sentence"), [(Squashed, "is linear"), (Unknown, "cannot read the output")])
def test_norms_of_a_projection_that_is_no_matrix_are_refused(part, sentence):
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    own, module = model.model.layers[1].self_attn, part()
    own.o_proj = module
    module.weight = nn.Parameter(torch.zeros(32, 32))
    raised = pytest.raises(ValueError, match=f"{sentence}.*{part.__name__}")
    with raised as caught, torch.no_grad(), ts.watch(model, also="norms"):
        model(IDS)
    assert "\n" not in str(caught.value)
