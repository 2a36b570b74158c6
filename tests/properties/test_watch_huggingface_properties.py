"""Watching a model of transformers changes nothing, and nothing is left behind."""

import threading
import weakref
from contextlib import nullcontext

import pytest
import torch

import telescope as ts
from huggingface import transformers
from telescope.observe.huggingface import interface
from watched import FAMILIES, IDS, PADDED_LEFT
from watching import hooks_of


def state(model):
    configs = [part.config for part in model.modules() if hasattr(part, "config")]
    told = [(id(config), config._attn_implementation, type(config._attn_implementation)) for config in configs]
    return told, hooks_of(model), getattr(model.generation_config, "disable_compile", None)


@pytest.mark.parametrize("family", ["llama", "t5", "gpt-oss", "whisper"])
@pytest.mark.parametrize("fails", [False, True], ids=["", "fails"])
def test_the_model_is_as_it_was(family, fails):
    model = FAMILIES[family].model()
    before = state(model)
    with pytest.raises(ZeroDivisionError) if fails else nullcontext(), ts.watch(model), torch.no_grad():
        model(**FAMILIES[family].inputs)
        assert type(model.config._attn_implementation) is not str
        if fails:
            _ = 1 / 0
    assert state(model) == before
    assert not interface._watched
    assert not interface._switched


@pytest.mark.parametrize("family", ["llama", "t5", "gpt-oss", "whisper"])
def test_a_recording_that_is_dropped_is_gone(family, no_collector):
    model = FAMILIES[family].model()
    with ts.watch(model) as recording, torch.no_grad():
        model(**FAMILIES[family].inputs)
    left = [weakref.ref(recording), *(weakref.ref(watched.call) for watched in recording.values())]
    del recording
    assert [thing() for thing in left] == [None] * len(left)


@pytest.mark.parametrize(
    "context", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)]
)
@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # of a CPU without bfloat16
def test_the_same_bits_in_every_mode(family, context):
    model = FAMILIES[family].model()
    with context():
        expected = model(IDS, attention_mask=PADDED_LEFT).logits
        with ts.watch(model) as recording:
            assert torch.equal(model(IDS, attention_mask=PADDED_LEFT).logits, expected)
    assert all(watched.survey().entropy.isfinite().all() for watched in recording.values())


def test_gradients_and_dice_are_the_same_bits():
    model = FAMILIES["gpt2"].model().train()
    results = []
    for context in (nullcontext(), ts.watch(model)):
        torch.manual_seed(0)
        model.zero_grad()
        with context:
            model(IDS, labels=IDS).loss.backward()
        results.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(map(torch.equal, *results))


def test_two_models_at_once_also_of_one_config():
    config = transformers.LlamaConfig(**FAMILIES["llama"].options)
    one, two, three = (transformers.LlamaForCausalLM(config).eval() for _ in range(3))
    other = FAMILIES["bert"].model()
    with torch.no_grad():
        expected = [model(IDS).logits for model in (one, two, three)]
        with ts.watch(one) as first, ts.watch(other) as second:
            with ts.watch(two) as third:
                got = [model(IDS).logits for model in (one, two, three)]
                other(IDS)
            assert torch.equal(two(IDS).logits, expected[1])
    assert all(map(torch.equal, got, expected))
    assert [len(recording[recording.names[0]].calls) for recording in (first, second, third)] == [1, 1, 1]
    assert config._attn_implementation == "sdpa"
    assert type(config._attn_implementation) is str


def test_two_on_one_model_are_refused():
    model = FAMILIES["llama"].model()
    with ts.watch(model) as recording, torch.no_grad():
        with pytest.raises(ValueError, match="LlamaForCausalLM is being watched already"), ts.watch(model):
            pytest.fail("the block was entered")
        model(IDS)
    assert all(len(watched.calls) == 1 for watched in recording.values())
    assert type(model.config._attn_implementation) is str


def test_another_thread_is_not_watched():
    model = FAMILIES["mistral"].model()
    expected, got = model(IDS).logits, []
    with ts.watch(model) as recording:
        thread = threading.Thread(target=lambda: got.append(model(IDS).logits))
        thread.start()
        thread.join()
    assert torch.equal(got[0], expected)
    assert not any(watched.calls for watched in recording.values())


def test_a_model_that_asks_for_its_implementation_by_name_is_told():
    """Some branch by it; watched, they take the same way."""
    for implementation in ("sdpa", "eager"):
        model = FAMILIES["llama"].model(implementation)
        with ts.watch(model):
            assert model.config._attn_implementation == implementation
            assert model.config._attn_implementation in ("eager", "sdpa")
            assert model.config._attn_implementation != "flash_attention_2"


def test_generate_does_not_compile_what_is_watched():
    model = FAMILIES["llama"].model()
    with ts.watch(model):
        assert model.generation_config.disable_compile
    assert not model.generation_config.disable_compile
