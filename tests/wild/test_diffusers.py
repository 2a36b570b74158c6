"""Models of diffusers, small and with random weights: transformers, and a UNet that attends to words."""

import pytest
import torch

import telescope as ts
from support.foreign import assert_edited, assert_watched, numbered

diffusers = pytest.importorskip("diffusers")

RANDOM = torch.Generator().manual_seed(1)
NOISE = torch.randn(2, 4, 8, 8, generator=RANDOM)
WORDS = torch.randn(2, 7, 24, generator=RANDOM)
REAL_WORDS = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
HEADS = {"num_attention_heads": 3, "attention_head_dim": 8}
PATCHES = HEADS | {"in_channels": 4, "num_layers": 2, "sample_size": 8, "patch_size": 2}


def unet():
    return diffusers.UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(16, 32),
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=24,
        attention_head_dim=8,
    )


def stable_diffusion_3():
    return diffusers.SD3Transformer2DModel(
        **PATCHES, joint_attention_dim=24, caption_projection_dim=24, pooled_projection_dim=16, out_channels=4
    )


def pixart():
    return diffusers.PixArtTransformer2DModel(
        **PATCHES, cross_attention_dim=24, caption_channels=24, use_additional_conditions=False
    )


STEPS = torch.tensor([3, 5])
MODELS = {
    "dit": (
        lambda: diffusers.DiTTransformer2DModel(**PATCHES, num_embeds_ada_norm=10),
        {"hidden_states": NOISE, "timestep": STEPS, "class_labels": torch.tensor([1, 2])},
    ),
    "unet": (unet, {"sample": NOISE, "timestep": torch.tensor(3), "encoder_hidden_states": WORDS}),
    "unet, padded words": (
        unet,
        {"sample": NOISE, "timestep": STEPS, "encoder_hidden_states": WORDS, "encoder_attention_mask": REAL_WORDS},
    ),
    "stable diffusion 3": (
        stable_diffusion_3,
        {
            "hidden_states": NOISE,
            "timestep": STEPS,
            "encoder_hidden_states": WORDS,
            "pooled_projections": torch.randn(2, 16, generator=RANDOM),
        },
    ),
    "pixart": (
        pixart,
        {"hidden_states": NOISE, "timestep": STEPS, "encoder_hidden_states": WORDS}
        | {"encoder_attention_mask": REAL_WORDS},
    ),
}
CROSS = {"unet": 4, "unet, padded words": 4, "pixart": 2}


@pytest.mark.parametrize("name", MODELS)
def test_every_model(name):
    make, inputs = MODELS[name]
    recording = assert_watched(numbered(make()), inputs)
    across = [one.name for one in recording.values() if one.call.across]
    assert len(across) == CROSS.get(name, 0)
    assert all(one.endswith("attn2") for one in across)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_edited(name):
    make, inputs = MODELS[name]
    assert_edited(numbered(make()), inputs)


def test_words_that_are_padding_receive_nothing():
    make, inputs = MODELS["unet, padded words"]
    recording = assert_watched(numbered(make()), inputs)
    for one in recording.values():
        if one.call.across:
            assert float(one.received[1, :, 4:].max()) == 0.0
            assert float(one.received[1, :, :4].min()) > 0.0


def test_a_word_is_hidden_from_the_picture():
    make, inputs = MODELS["unet"]
    model = numbered(make())
    with torch.no_grad(), ts.edit(model, ts.hide([2], layers="*.attn2")), ts.watch(model) as recording:
        model(**inputs)
    across = [one for one in recording.values() if one.call.across]
    assert all(float(one.received[:, :, 2].max()) == 0.0 for one in across)
