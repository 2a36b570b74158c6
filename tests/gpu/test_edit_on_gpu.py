"""Edits on a GPU: the numbers of the same edits on a CPU in float64, read at once and written with a cache."""

from dataclasses import replace

import pytest
import torch

import telescope as ts
from support.huggingface import LLAMA, numbered, transformers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
WIDE = LLAMA | {"hidden_size": 256, "head_dim": 64, "max_position_embeddings": 4096}
FAMILIES = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {"sliding_window": 100}),
}
EDITS = {
    "mute": ts.mute(heads=[0, 2]),
    "mute to the mean": ts.mute("model.layers.1.self_attn", heads=1, by="mean"),
    "hide from later": ts.hide(range(40, 170), slice(170, None)),
    "hide from all": ts.hide(range(3, 90)),
    "hide in one head": ts.hide(range(40, 170), heads=1),
    "boost": ts.boost(range(10, 60), by=4.0),
    "redefine": ts.redefine(None, lambda attention: replace(attention, scale=0.3)),
}


def made(family):
    kind, config, options = FAMILIES[family]
    return numbered(getattr(transformers, kind)(getattr(transformers, config)(**(WIDE | options))))


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_numbers_of_a_cpu_in_float64(family, padded, edit):
    model, ids = made(family).double(), torch.randint(1, 60, (2, 300), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, : 70 if padded else 0] = 0
    with ts.edit(model, EDITS[edit]):
        truth = model(ids, attention_mask=mask).logits
    plain = model(ids, attention_mask=mask).logits
    model, ids, mask = model.float().cuda(), ids.cuda(), mask.cuda()
    real = mask.bool().cpu()
    with ts.edit(model, EDITS[edit]):
        edited = model(ids, attention_mask=mask).logits.cpu().double()
        first = model(ids[:, :-3], attention_mask=mask[:, :-3], use_cache=True)
        more = {"attention_mask": mask, "past_key_values": first.past_key_values}
        if edit.endswith("mean"):  # of the whole prompt, which was not read at once
            with pytest.raises(ValueError, match="needs the mean of the whole prompt"):
                model(ids[:, -3:], **more)
        else:
            rest = model(ids[:, -3:], **more).logits.cpu().double()
            assert (rest - truth[:, -3:]).norm() / truth[:, -3:].norm() < 1e-5
    error = (edited - truth)[real].norm() / (plain - truth)[real].norm()
    assert error < 1e-4  # of what the edit changes
