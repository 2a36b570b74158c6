"""Models that call their attention function with keywords, such as attention_mask=, are watched like all others."""

import ast
import re
import sys
from collections import defaultdict
from functools import partial
from inspect import signature
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from support.huggingface import BERT, LLAMA, numbered, transformers
from support.watched import IDS, PADDED_RIGHT, PIXELS

CLOSE = {"atol": 1e-4, "rtol": 0.0}
VISION = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
RANDOM = torch.Generator().manual_seed(1)


def qwen2_vl():
    """Two images of different sizes: the vision tower calls its attention once for each."""
    config = transformers.Qwen2VLConfig(
        vision_config={"depth": 2, "embed_dim": 32, "num_heads": 4, "hidden_size": 32, "patch_size": 4, "mlp_ratio": 2},
        text_config=LLAMA
        | {"vocab_size": 70, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
        | {"bos_token_id": 1, "eos_token_id": 2},
        image_token_id=65,
        video_token_id=66,
        vision_start_token_id=67,
        vision_end_token_id=68,
    )
    ids = torch.tensor([[1, 67, *[65] * 4, 68, 5, 67, *[65] * 6, 68, 9, 10]])
    return transformers.Qwen2VLForConditionalGeneration(config), {
        "input_ids": ids,
        "mm_token_type_ids": (ids == 65).long(),
        "pixel_values": torch.randn(16 + 24, 3 * 2 * 4 * 4, generator=RANDOM),
        "image_grid_thw": torch.tensor([[1, 4, 4], [1, 4, 6]]),
    }


def blip_2():
    config = transformers.Blip2Config(
        vision_config=VISION | {"intermediate_size": 40, "image_size": 12, "patch_size": 4},
        qformer_config=BERT | {"encoder_hidden_size": 24, "cross_attention_frequency": 1},
        text_config={"model_type": "opt", "ffn_dim": 40, "word_embed_proj_dim": 24} | BERT,
        num_query_tokens=3,
        image_token_index=60,
    )
    ids = torch.tensor([[60, 60, 60, 1, 5, 7], [60, 60, 60, 2, 3, 4]])
    return transformers.Blip2Model(config), {"input_ids": ids, "pixel_values": PIXELS}


def doge():
    config = transformers.DogeConfig(**LLAMA, keep_window_size=4)
    padded = {"input_ids": IDS, "attention_mask": PADDED_RIGHT}  # without padding, Doge's sdpa is given no causal mask
    return transformers.DogeForCausalLM(config), padded


def afmoe():
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "num_shared_experts": 1, "moe_intermediate_size": 20}
    config = transformers.AfmoeConfig(**LLAMA, **experts, head_dim=8, num_dense_layers=1, sliding_window=4)
    return transformers.AfmoeForCausalLM(config), {"input_ids": IDS}


def parakeet():
    """An encoder that passes query=, key= and value= by keyword too."""
    options = {
        "intermediate_size": 40,
        "num_mel_bins": 16,
        "subsampling_conv_channels": 8,
        "max_position_embeddings": 64,
    }
    config = transformers.ParakeetEncoderConfig(**VISION, **options)
    sound = torch.randn(2, 64, 16, generator=RANDOM)
    return transformers.ParakeetEncoder(config), {"input_features": sound}


MODELS = {"Qwen2VL": qwen2_vl, "Blip2": blip_2, "Doge": doge, "Afmoe": afmoe, "ParakeetEncoder": parakeet}


def weights_of_eager(model, inputs, monkeypatch):
    """Return name of an attention → the weights of each call, as the model's own eager functions return them."""
    names, found = {id(module): name for name, module in model.named_modules()}, defaultdict(list)

    def keep(own, module, *args, **options):
        output, weights = own(module, *args, **options)
        found[names[id(module)]].append(weights)
        return output, weights

    model.set_attn_implementation("eager")
    with monkeypatch.context() as patch:
        for module in {sys.modules[type(part).__module__] for part in model.modules()}:
            if hasattr(module, "eager_attention_forward"):
                patch.setattr(module, "eager_attention_forward", partial(keep, module.eager_attention_forward))
        model(**inputs)
    return found


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("family", MODELS)
@torch.no_grad()
def test_keywords(family, implementation, monkeypatch):
    if not hasattr(transformers, f"{family}Config"):
        pytest.skip(f"transformers {transformers.__version__} has no {family}")
    torch.manual_seed(0)
    model, inputs = MODELS[family]()
    model = numbered(model).eval()
    truth = weights_of_eager(model, inputs, monkeypatch)
    model.set_attn_implementation(implementation)
    expected = model(**inputs)[0]
    recordings = {}
    for keep in ("summaries", "steps"):
        with ts.watch(model, keep=keep) as recordings[keep]:
            assert torch.equal(model(**inputs)[0], expected)
    assert set(truth) == set(recordings["steps"].names)
    for name, weights in truth.items():
        for recording in recordings.values():
            for call, matrix in zip(recording[name].calls, weights, strict=True):
                if "attention_mask" in inputs and family != "Doge":  # padding asks nothing, where heads see the same
                    matrix = matrix * inputs["attention_mask"][:, None, :, None]
                assert_close(call.survey().received, matrix.sum(-2), **CLOSE)
                assert_close(call.survey().entropy, -torch.xlogy(matrix, matrix).sum(-1), **CLOSE)
        for call, matrix in zip(recordings["steps"][name].calls, weights, strict=True):
            assert_close(call.trace().weights, matrix, **CLOSE)


def calls_of(text):
    """Return the calls of every function that a file got from the attention interface, as syntax trees."""
    for name in set(re.findall(r"^ +(\w+)(?:: \w+)? = ALL_ATTENTION_FUNCTIONS\b", text, re.MULTILINE)):
        for start in re.finditer(rf"\b{name}\(", text):
            call = text[start.start() : start.start() + 3000]
            ends = (
                i
                for i, letter in enumerate(call, 1)
                if letter == ")" and call.count("(", 0, i) == call.count(")", 0, i)
            )
            yield ast.parse(call[: next(ends)], mode="eval").body


def test_every_call_of_every_model_fits_our_function():
    """The calls are read from the source code of all models of transformers."""
    from telescope.interception.huggingface.interface_interceptor import _attention_function

    ours = signature(partial(_attention_function, "sdpa"))
    files = sorted(Path(transformers.__file__).parent.glob("models/*/modeling_*.py"))
    found, by_keyword = 0, set()
    for file in files:
        for call in calls_of(file.read_text()):
            given = [word.arg for word in call.keywords]
            options = dict.fromkeys(word for word in given if word is not None)
            if None in given and len(call.args) < 5:
                options.setdefault("attention_mask")  # in the **kwargs, if nowhere else
            bound = ours.bind(*call.args, **options).arguments
            assert {"module", "query", "key", "value", "attention_mask"} <= bound.keys(), file
            assert not {"query", "key", "value", "mask"} & bound.get("options", {}).keys(), file
            found += 1
            by_keyword |= {file} if "attention_mask" in given else set()
    assert found > len(files) / 2
    assert len(by_keyword) > 10
