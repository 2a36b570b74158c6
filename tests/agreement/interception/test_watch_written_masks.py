"""Masks that are overwritten while a model is watched: every call is recorded with the mask that it ran with."""

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from support.huggingface import LLAMA
from support.watched import FAMILIES, Family
from telescope.interception import interceptor

N = 10
IDS = torch.randint(1, 60, (1, N), generator=torch.Generator().manual_seed(0))
GEMMA3 = Family(
    "Gemma3ForCausalLM",
    "Gemma3TextConfig",
    LLAMA | {"head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8},
)
MODELS = {"llama": FAMILIES["llama"], "gpt2": FAMILIES["gpt2"], "gemma3": GEMMA3}
LOWEST = torch.finfo(torch.float32).min


def causal(implementation):
    """Return a causal mask as each implementation takes it: True may attend, or numbers that are added."""
    seen = torch.ones(1, 1, N, N, dtype=torch.bool).tril()
    return seen if implementation == "sdpa" else torch.zeros(seen.shape).masked_fill(~seen, LOWEST)


def hide(mask):
    """Overwrite the mask so that the last token sees itself alone."""
    mask[..., N - 1, : N - 1] = False if mask.dtype == torch.bool else LOWEST


def past_its_version(mask):
    """Overwrite the mask through NumPy, which does not change the tensor's version."""
    hide(torch.from_numpy(mask.numpy()))


def truth(family, masks):
    """Return received and entropy of every layer for each mask, from the model's eager attention."""
    with torch.no_grad():
        model = MODELS[family].model("eager")
        answers = [model(IDS, attention_mask=mask, output_attentions=True).attentions for mask in masks]
    return [[(weights.sum(-2), -torch.xlogy(weights, weights).sum(-1)) for weights in layers] for layers in answers]


def assert_recorded(recording, expected):
    for layer, watched in enumerate(recording.values()):
        assert len(watched.calls) == len(expected)
        for call, layers in zip(watched.calls, expected, strict=True):
            assert_close(call.survey().received, layers[layer][0], atol=1e-4, rtol=0.0)
            assert_close(call.survey().entropy, layers[layer][1], atol=1e-4, rtol=0.0)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("write", [hide, past_its_version])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("family", MODELS)
def test_a_mask_overwritten_between_two_calls(family, implementation, write, mode):
    second = causal("eager")
    hide(second)
    expected = truth(family, [causal("eager"), second])
    model = MODELS[family].model(implementation)
    with mode(), ts.watch(model) as recording:
        mask = causal(implementation)
        model(IDS, attention_mask=mask)
        write(mask)
        model(IDS, attention_mask=mask)
    assert_recorded(recording, expected)
    assert all(watched.calls[1].survey().entropy[..., N - 1].abs().max() < 1e-6 for watched in recording.values())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("given", [True, False], ids=["of the caller", "of the model"])
@pytest.mark.parametrize("copied", [True, False], ids=["copied", "in place"])
def test_a_mask_overwritten_between_two_layers(copied, given, mode):
    """A hook masks some pairs from the second layer on, as in an ablation."""
    model = FAMILIES["llama"].model("sdpa")

    def knock_out(module, args, kwargs):
        mask = kwargs["attention_mask"]
        mask = mask.clone() if copied else mask
        hide(mask)
        return args, kwargs | {"attention_mask": mask}

    model.model.layers[1].register_forward_pre_hook(knock_out, with_kwargs=True)
    padding = torch.tensor([[0] + [1] * (N - 1)])  # where nothing is padding, the model would make no mask
    with mode():
        expected = model(IDS, attention_mask=causal("sdpa") if given else padding).logits
        with ts.watch(model) as recording:
            assert torch.equal(model(IDS, attention_mask=causal("sdpa") if given else padding).logits, expected)
    before, after = (watched.survey().entropy[..., N - 1].abs().max() for watched in recording.values())
    assert before > 0.1
    assert after < 1e-6


def test_overwriting_a_copy_of_a_mask_leaves_the_mask():
    model, seen = FAMILIES["llama"].model("sdpa"), []
    model.model.layers[0].register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["attention_mask"]), with_kwargs=True
    )
    with torch.no_grad(), ts.watch(model):
        model(IDS, attention_mask=torch.tensor([[0] + [1] * (N - 1)]))
    (mask,) = seen
    copy, flipped = mask.clone(), mask.mT
    hide(copy)
    assert not torch.equal(copy | False, mask | False)
    assert torch.equal(flipped, (mask | False).mT)
    assert not mask.overwritten
    hide(mask)
    assert mask.overwritten


def test_translations_of_masks_are_freed_with_their_masks():
    """A model that is called with one mask after another keeps none of them."""
    model = FAMILIES["llama"].model("sdpa")
    with torch.no_grad(), ts.watch(model, layers=0):
        for _ in range(5):
            model(IDS, attention_mask=causal("sdpa"))
        (looking,) = {one for interceptors in interceptor.interceptors.values() for one in interceptors}
        assert len(looking.reader._translations) <= 1
