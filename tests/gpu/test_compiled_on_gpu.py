"""Compiled code that replays CUDA graphs is watched and edited: the same tokens, and the numbers of the same model run
uncompiled.
"""

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from support.huggingface import LLAMA, numbered, transformers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.filterwarnings("ignore"),  # of torch's compiler
    # Other files compile the same code for other models, and Dynamo stops after a few versions of one code.
    pytest.mark.usefixtures("own_compiler"),
]
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


def made(family):
    kind, config, options = {
        "llama": ("LlamaForCausalLM", "LlamaConfig", {}),
        "mistral": ("MistralForCausalLM", "MistralConfig", {"sliding_window": 20}),
    }[family]
    wide = LLAMA | {"hidden_size": 256, "head_dim": 64, "max_position_embeddings": 512}
    return numbered(getattr(transformers, kind)(getattr(transformers, config)(**(wide | options)))).cuda()


def generated(model, ids, **options):
    torch.manual_seed(0)
    options = {"max_new_tokens": 150, "min_new_tokens": 150, "cache_implementation": "static"} | options
    return model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **options)


def assert_same(one, other):
    for name, watched in other.items():
        assert one[name].call.size == watched.call.size
        assert_close(one[name].survey().received, watched.survey().received, **CLOSE)
        assert_close(one[name].survey().entropy, watched.survey().entropy, **CLOSE)


@pytest.mark.parametrize("family", ["llama", "mistral"])
@torch.no_grad()
def test_cuda_graphs_are_watched(family):
    """150 steps: the buffers of 128 are recorded once while the model writes."""
    model = made(family)
    ids = torch.randint(1, 60, (2, 30), device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    expected = generated(model, ids)
    for _ in range(2):
        with ts.watch(model) as recording:
            assert torch.equal(generated(model, ids), expected)
    with ts.watch(model) as plain:
        assert torch.equal(generated(model, ids, disable_compile=True), expected)
    assert_same(recording, plain)
    with ts.edit(model, ts.mute(0, [1])):
        muted = generated(model, ids)
        assert torch.equal(generated(model, ids, disable_compile=True), muted)
    assert torch.equal(generated(model, ids), expected)


@torch.no_grad()
def test_prompts_of_cuda_graphs_are_copied():
    """The next run of a CUDA graph writes to what the last one returned."""
    model = made("llama")
    texts = [torch.randint(1, 60, (1, 64), device="cuda") for _ in range(3)]
    code = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    with ts.watch(model) as recording:
        for ids in texts:
            code(ids, use_cache=False)
    with ts.watch(model) as plain:
        for ids in texts:
            model(ids, use_cache=False)
    for name, watched in plain.items():
        for mine, theirs in zip(recording[name].calls, watched.calls, strict=True):
            assert_close(mine.survey().received, theirs.survey().received, **CLOSE)
