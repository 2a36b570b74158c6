"""Models of transformers that mix attention with other layers, attend by latents, or read images, against float64."""

import pytest
import torch

from support.foreign import assert_edited, assert_watched, numbered
from support.huggingface import transformers

IDS = torch.randint(3, 60, (2, 12), generator=torch.Generator().manual_seed(1))
SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
# Keys of 12 numbers, of which 4 turn with the position, and values of 6: all from a latent of 16.
LATENT = SMALL | EXPERTS
LATENT |= {"num_hidden_layers": 2, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 6}
LATENT |= {"q_lora_rank": 16, "first_k_dense_replace": 1, "n_shared_experts": 1}
MIXED = SMALL | {"num_hidden_layers": 4, "num_key_value_heads": 2}
MAMBA = {"mamba_d_state": 8, "mamba_dt_rank": 4, "use_mamba_kernels": False}
ZAMBA = {"attention_hidden_size": 64, "attention_head_dim": 16, "n_mamba_heads": 8, "mamba_headdim": 8}
ZAMBA |= {"mamba_ngroups": 1, "use_mamba_kernels": False, "mamba_d_state": 8, "num_key_value_heads": 4}
LINEAR = {f"linear_{name}_head_dim": 8 for name in ("key", "value")}
LINEAR |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "head_dim": 8}
MODELS = {
    "deepseek v2": ("DeepseekV2", LATENT | {"topk_method": "greedy"}, []),
    "deepseek v3": ("DeepseekV3", LATENT, []),
    "jamba": (
        "Jamba",
        MIXED | MAMBA | {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "num_experts_per_tok": 1},
        [0, 2],
    ),
    "bamba": (
        "Bamba",
        MIXED | {"attn_layer_indices": [1, 3], "mamba_n_heads": 8, "mamba_d_state": 8, "mamba_d_head": 8},
        [0, 2],
    ),
    "zamba 2": ("Zamba2", MIXED | ZAMBA | {"layers_block_type": ["mamba", "hybrid"] * 2}, [0, 2]),
    "qwen 3 next": (
        "Qwen3Next",
        MIXED
        | LINEAR
        | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
        | {"shared_expert_intermediate_size": 16, "layer_types": ["linear_attention", "full_attention"] * 2},
        [0, 2],
    ),
}


def model_of(name):
    kind, options, _ = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**options))
    return numbered(model.eval())


@pytest.mark.parametrize("name", MODELS)
def test_every_attention_and_the_layers_without_one(name):
    """Layers beside the attentions cast to float32, so the weights alone are computed in float64."""
    recording = assert_watched(model_of(name), {"input_ids": IDS, "use_cache": False}, doubles=False)
    without = [f"model.layers.{number}" for number in MODELS[name][2]]
    assert recording.other_layers == tuple(without)
    assert ("without softmax attention, and not recorded" in repr(recording)) == bool(without)


@pytest.mark.parametrize("name", MODELS)
def test_every_attention_is_edited(name):
    assert_edited(model_of(name), {"input_ids": IDS, "use_cache": False}, doubles=False)


def falcon():
    options = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "alibi": False}
    return transformers.FalconForCausalLM(transformers.FalconConfig(**options)), {"input_ids": IDS}


def sam():
    options = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 16, "patch_size": 4}
    config = transformers.SamVisionConfig(**options, output_channels=8, window_size=2, global_attn_indexes=[1])
    return transformers.SamVisionModel(config), {"pixel_values": torch.randn(2, 3, 16, 16)}


@pytest.mark.parametrize("make", [falcon, sam])
def test_a_family_that_passes_the_interface_by_and_calls_torch(make):
    torch.manual_seed(0)
    model, inputs = make()
    recording = assert_watched(numbered(model), inputs, doubles=False)
    assert len(recording) == 2
    assert_edited(numbered(model), inputs, doubles=False)


VISION = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 3}
TEXT = SMALL | {"num_hidden_layers": 2, "num_key_value_heads": 2}


def llava():
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**VISION, image_size=16, patch_size=4, projection_dim=24),
        text_config=transformers.LlamaConfig(**TEXT),
        image_token_index=60,
        image_seq_length=16,
    )
    ids = torch.cat([IDS[:, :3], torch.full((2, 16), 60), IDS[:, 3:]], 1)
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    return transformers.LlavaForConditionalGeneration(config), {"input_ids": ids, "pixel_values": pixels}


def qwen2_vl():
    text = TEXT | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
    vision = {"depth": 2, "embed_dim": 24, "hidden_size": 32, "num_heads": 3, "mlp_ratio": 2, "patch_size": 4}
    special = {"image_token_id": 60, "video_token_id": 59, "vision_start_token_id": 58, "vision_end_token_id": 57}
    config = transformers.Qwen2VLConfig(text_config=text, vision_config=vision, **special)
    # Two images of 4 x 4 and 4 x 8 patches, of which 2 x 2 make one token.
    grid = torch.tensor([[1, 4, 4], [1, 4, 8]])
    sizes = (grid.prod(1) // 4).tolist()
    start, end = torch.tensor([58]), torch.tensor([57])
    images = [torch.cat([start, torch.full((size,), 60), end]) for size in sizes]
    words = IDS[0].clamp(max=50)
    ids = torch.cat([words[:3], images[0], words[3:6], images[1], words[6:]])[None]
    patches = torch.randn(int(grid.prod(1).sum()), 3 * 2 * 4 * 4, generator=torch.Generator().manual_seed(2))
    inputs = {"input_ids": ids, "pixel_values": patches, "image_grid_thw": grid}
    kinds = torch.zeros_like(ids).masked_fill(ids == 60, 1)
    return transformers.Qwen2VLForConditionalGeneration(config), inputs | {"mm_token_type_ids": kinds}


@pytest.mark.parametrize("make", [llava, qwen2_vl])
def test_a_model_that_reads_images(make):
    torch.manual_seed(0)
    model, inputs = make()
    recording = assert_watched(numbered(model), inputs | {"use_cache": False}, doubles=False)
    assert sum("vision" in name or "visual" in name for name in recording) >= 2
    assert sum("language_model" in name for name in recording) == 2
    assert_edited(numbered(model), inputs | {"use_cache": False}, doubles=False)
