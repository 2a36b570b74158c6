"""Folders of Hugging Face that Telescope cannot reproduce are refused by name, never loaded as something else."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import telescope as ts
from support.sentences import load_says as says
from telescope.models import (
    GPT,
    Encoder,
    EncoderConfig,
    GPTConfig,
    LuongTranslator,
    Special,
    Transformer,
    TransformerConfig,
)

SIZES = {"vocabulary": 11, "max_positions": 8, "d_model": 8, "blocks": 2, "heads": 2}
LLAMA = {"positions": "rotary", "norm": "rms", "gated": True, "activation": "silu", "bias": False, "tied": False}
MODELS = {
    "gpt2": GPT(GPTConfig(**SIZES)),
    "llama": GPT(GPTConfig(**SIZES, **LLAMA)),
    "mistral": GPT(GPTConfig(**SIZES, **LLAMA, window=3)),
    "qwen2": GPT(GPTConfig(**SIZES, **LLAMA, attention_bias=True)),
    "bert": Encoder(EncoderConfig(**SIZES, pooling="bert")),
    "marian": Transformer(
        TransformerConfig(
            vocabulary=11,
            max_positions=8,
            d_model=8,
            encoder_blocks=1,
            decoder_blocks=1,
            heads=2,
            positions="sinusoidal_halves",
            head_bias=True,
        )
    ),
}
MODELS["marian"].special = Special(start=3)


@pytest.fixture
def folder(tmp_path):
    def make(family):
        ts.export(MODELS[family], tmp_path / family)
        return tmp_path / family

    return make


def configure(folder, **fields):
    """Change fields of config.json; `...` removes a field."""
    config = json.loads((folder / "config.json").read_text()) | fields
    contents = {name: value for name, value in config.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(contents))
    return folder


def change(folder, **tensors):
    file = folder / "model.safetensors"
    weights = load_file(file) | {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    save_file({name: tensor for name, tensor in weights.items() if tensor is not None}, file)
    return folder


@pytest.mark.parametrize("family", MODELS)
def test_an_unchanged_folder_loads(folder, family):
    assert ts.load(folder(family)).state_dict().keys() == MODELS[family].state_dict().keys()


# ------------------------------------------------------------------------------------------------------------ options


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("quantization_config", {"bits": 4}),
        ("auto_map", {"AutoModel": "code.Model"}),
        ("pruned_heads", {"0": [1]}),
        ("per_layer_config", {"0": {"num_attention_heads": 1}}),
        ("use_qk_norm", True),
        ("logit_scale", 0.5),
        ("is_decoder", True),
    ],
)
def test_an_unknown_option_is_refused_by_name(folder, family, field, value):
    says(configure(folder(family), **{field: value}), "config.json", field, f"{family}", longest=700)


@pytest.mark.parametrize("family", MODELS)
def test_options_that_are_off_and_fields_of_tools_are_ignored(folder, family):
    configure(folder(family), quantization_config=None, use_qk_norm=False, pruned_heads={}, _commit="a", use_cache=True)
    ts.load(configure(folder(family), **{"transformers.js_config": {"dtype": "q4"}}))


@pytest.mark.parametrize(
    ("family", "fields", "parts"),
    [
        ("gpt2", {"scale_attn_weights": False}, ["scale_attn_weights=false", "true is"]),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, ["scale_attn_by_inverse_layer_idx=true"]),
        ("gpt2", {"reorder_and_upcast_attn": True}, ["reorder_and_upcast_attn=true"]),
        ("gpt2", {"add_cross_attention": True}, ["add_cross_attention=true"]),
        ("gpt2", {"activation_function": "quick_gelu"}, ['activation_function="quick_gelu"', '"gelu_new"']),
        ("gpt2", {"embd_pdrop": 0.5}, ["embd_pdrop=0.5"]),
        ("gpt2", {"n_head": "2"}, ['n_head="2"', "whole number"]),
        ("gpt2", {"n_head": True}, ["n_head=true", "whole number"]),
        ("gpt2", {"n_head": 3}, ["d_model=8 cannot be split into heads=3"]),
        ("gpt2", {"n_head": ...}, ["has no field n_head"]),
        ("gpt2", {"n_layer": 10**9}, ["blocks=1000000000"]),
        ("gpt2", {"layer_norm_epsilon": "small"}, ['layer_norm_epsilon="small"', "a number"]),
        ("gpt2", {"tie_word_embeddings": "yes"}, ['tie_word_embeddings="yes"', "true or false"]),
        ("gpt2", {"eos_token_id": "end"}, ["the special id for end is 'end'"]),
        ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, ["rope_scaling", '"yarn"', '"llama3"']),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, ["rope_scaling", 'type="dynamic"']),
        ("llama", {"rope_scaling": {"rope_type": "linear"}}, ["rope_scaling has no field factor"]),
        ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, ["has no field low_freq_factor"]),
        ("llama", {"rope_parameters": {"rope_type": "longrope"}}, ["rope_parameters", '"longrope"']),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, ["partial_rotary_factor=0.5"]),
        ("llama", {"rope_parameters": {"rope_type": "default", "mrope_section": [1]}}, ["mrope_section"]),
        ("llama", {"rope_scaling": "linear"}, ['rope_scaling="linear"', "an object"]),
        ("llama", {"rope_theta": 10**400}, ["rope_theta=1000"]),
        ("llama", {"partial_rotary_factor": 0.5}, ["partial_rotary_factor=0.5"]),
        ("llama", {"hidden_act": "relu2"}, ['hidden_act="relu2"']),
        ("llama", {"num_key_value_heads": 3}, ["key_heads=3 does not divide heads=2"]),
        ("mistral", {"sliding_window": -1}, ["sliding_window=-1"]),
        ("mistral", {"layer_types": ["full_attention", "sliding_attention"]}, ["layer_types"]),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
            ["layer_types", "one kind for all layers"],
        ),
        ("qwen2", {"layer_types": ["linear_attention"] * 2}, ["linear_attention"]),
        ("qwen2", {"layer_types": "full_attention"}, ["layer_types", "a list"]),
        ("bert", {"position_embedding_type": "relative_key"}, ['position_embedding_type="relative_key"', '"absolute"']),
        ("bert", {"add_cross_attention": True}, ["add_cross_attention=true"]),
        ("bert", {"hidden_act": "mish"}, ['hidden_act="mish"']),
        ("bert", {"type_vocab_size": 0}, ["type_vocab_size=0"]),
        ("marian", {"static_position_embeddings": False}, ["static_position_embeddings=false"]),
        ("marian", {"normalize_before": True}, ["normalize_before=true"]),
        ("marian", {"normalize_embedding": True}, ["normalize_embedding=true"]),
        ("marian", {"encoder_layerdrop": 0.5}, ["encoder_layerdrop=0.5"]),
        ("marian", {"tie_word_embeddings": False}, ["tie_word_embeddings=false"]),
        ("marian", {"max_position_embeddings": -8}, ["max_position_embeddings=-8"]),
        ("marian", {"decoder_vocab_size": 12}, ["decoder_vocab_size=12"]),
        ("marian", {"d_model": 7, "encoder_attention_heads": 7, "decoder_attention_heads": 7}, ["d_model=7"]),
    ],
)
def test_an_unsupported_option_is_refused_by_name(folder, family, fields, parts):
    says(configure(folder(family), **fields), "config.json", *parts, longest=700)


# ------------------------------------------------------------------------------------------------------------ tensors


@pytest.mark.parametrize(
    ("family", "tensors", "parts"),
    [
        ("gpt2", {"transformer__h__1__attn__c_attn__weight": None}, ["transformer.h.1.attn.c_attn.weight", "missing"]),
        (
            "gpt2",
            {"transformer__h__1__attn__c_attn__weight": torch.zeros(24, 8)},
            ["transformer.h.1.attn.c_attn.weight", "shape [24, 8]", "[8, 24]"],
        ),
        ("gpt2", {"transformer__h__2__ln_1__weight": torch.zeros(8)}, ["transformer.h.2.ln_1.weight", "no place"]),
        ("gpt2", {"transformer__wte__weight": None}, ["transformer.wte.weight", "missing"]),
        ("gpt2", {"lm_head__weight": torch.zeros(11, 8)}, ["transformer.wte.weight", "lm_head.weight", "differ"]),
        (
            "llama",
            {"model__layers__0__self_attn__k_proj__weight": None},
            ["layers.0.self_attn.k_proj.weight", "missing"],
        ),
        (
            "llama",
            {"model__layers__0__self_attn__k_proj__weight": torch.zeros(4, 8)},
            ["layers.0.self_attn.k_proj.weight", "shape [4, 8]", "[8, 8]"],
        ),
        ("llama", {"model__layers__0__self_attn__k_proj__bias": torch.zeros(8)}, ["k_proj.bias", "no place"]),
        ("llama", {"lm_head__weight": None}, ["lm_head.weight", "missing"]),
        ("llama", {"model__norm__weight": torch.zeros(8).half()}, ["F32", "F16", "dtype="]),
        ("llama", {"model__norm__weight": torch.zeros(8, dtype=torch.int8)}, ["model.norm.weight", "is I8"]),
        ("qwen2", {"model__layers__1__self_attn__q_proj__bias": None}, ["layers.1.self_attn.q_proj.bias", "missing"]),
        ("bert", {"bert__pooler__dense__bias": None}, ["bert.pooler.dense.bias", "missing"]),
        ("bert", {"classifier__weight": torch.zeros(2, 8)}, ["classifier.weight", "no place"]),
        (
            "bert",
            {"bert__embeddings__LayerNorm__gamma": torch.zeros(8)},
            ["bert.embeddings.LayerNorm.weight", "bert.embeddings.LayerNorm.gamma", "two names of the same tensor"],
        ),
        ("marian", {"model__shared__weight": None}, ["model.shared.weight", "missing"]),
        (
            "marian",
            {"model__encoder__embed_tokens__weight": torch.zeros(11, 8)},
            ["model.shared.weight", "model.encoder.embed_tokens.weight", "differ"],
        ),
        (
            "marian",
            {"model__encoder__embed_positions__weight": torch.zeros(8, 8)},
            ["model.encoder.embed_positions.weight", "sines and cosines"],
        ),
        (
            "marian",
            {"model__decoder__embed_positions__weight": ts.sinusoidal(8, 8)},
            ["model.decoder.embed_positions.weight", "sines and cosines"],
        ),
    ],
)
def test_a_tensor_that_does_not_fit(folder, family, tensors, parts):
    says(change(folder(family), **tensors), "model.safetensors", *parts, longest=700)


def test_the_error_about_a_missing_tensor_names_the_files(folder):
    place = configure(folder("gpt2"), n_layer=3)
    says(place, 'model.safetensors: tensor "transformer.h.2.ln_1.weight" is missing', longest=700)


# --------------------------------------------------------------------------------------- what is the same all the same


def logits(model):
    with torch.no_grad():
        ids = torch.tensor([[1, 2, 3, 4, 5]])
        return model(ids, ids) if isinstance(model, Transformer) else model(ids)


def test_a_tied_head_may_be_stored_twice_if_both_are_equal(folder):
    place = folder("gpt2")
    embedding = load_file(place / "model.safetensors")["transformer.wte.weight"]
    assert torch.equal(logits(ts.load(change(place, lm_head__weight=embedding.clone()))), logits(MODELS["gpt2"]))
    only_the_head = change(place, transformer__wte__weight=None, lm_head__weight=embedding.clone())
    assert torch.equal(logits(ts.load(only_the_head)), logits(MODELS["gpt2"]))


def test_positions_of_marian_may_be_in_the_file(folder):
    positions = ts.sinusoidal(8, 8, pairs="halves")
    place = change(
        folder("marian"),
        model__encoder__embed_positions__weight=positions.clone(),
        model__decoder__embed_positions__weight=positions.clone(),
    )
    assert torch.equal(logits(ts.load(place)), logits(MODELS["marian"].eval()))


def test_bias_of_the_logits_may_be_missing(folder):
    model = ts.load(change(folder("marian"), final_logits_bias=None))
    assert not model.config.head_bias
    with torch.no_grad():
        moved = logits(MODELS["marian"].eval()) - MODELS["marian"].head_bias
    assert torch.allclose(logits(model), moved, atol=1e-6)


def test_prefix_of_the_model_may_be_missing(folder):
    for family, prefix in (("gpt2", "transformer."), ("marian", "model.")):
        place = folder(family)
        weights = load_file(place / "model.safetensors")
        bare = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
        save_file(bare, place / "model.safetensors")
        assert torch.equal(ts.load(place).embedding.weight, MODELS[family].embedding.weight)


def test_buffers_of_old_files_are_ignored(folder):
    mask = torch.ones(1, 1, 8, 8, dtype=torch.bool).tril()
    ts.load(change(folder("gpt2"), transformer__h__0__attn__bias=mask, transformer__h__0__attn__masked_bias=~mask))
    ts.load(change(folder("llama"), model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(2)))


def test_mixed_dtypes_are_converted_to_the_given_dtype(folder):
    place = change(folder("llama"), model__norm__weight=torch.ones(8).bfloat16())
    model = ts.load(place, dtype=torch.float64)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    assert torch.equal(model.norm.weight, torch.ones(8).double())


def test_special_ids_outside_the_vocabulary_are_ignored(folder):
    place = configure(folder("gpt2"), bos_token_id=50256, eos_token_id=[4, 50256], pad_token_id=-1)
    assert ts.load(place).special == Special(end=(4,))
    (place / "generation_config.json").write_text('{"eos_token_id": 5, "bos_token_id": 2}')
    assert ts.load(place).special == Special(start=2, end=(5,))


@pytest.mark.parametrize(
    ("contents", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": ["mean"]}, "mean"),
        ({"pooling_mode_max_tokens": True}, None),
        ({"pooling_mode": ["mean", "cls"]}, None),
        ({}, None),
    ],
)
def test_pooling_is_read_from_sentence_transformers(folder, contents, pooling):
    place = folder("bert")
    (place / "1_Pooling").mkdir()
    (place / "1_Pooling" / "config.json").write_text(json.dumps(contents))
    if pooling is None:
        says(place, "1_Pooling/config.json: pooling by", "is not supported", longest=700)
    else:
        assert ts.load(place).config.pooling == pooling


def test_older_spellings_of_rope_scaling(folder):
    place = folder("llama")
    contents = ts.load(configure(place, rope_theta=77.0, rope_scaling=None)).config
    assert (contents.rotary_base, contents.rotary_scaling) == (77.0, None)
    contents = ts.load(configure(place, rope_theta=77.0, rope_scaling={"type": "linear", "factor": 3})).config
    assert (contents.rotary_base, contents.rotary_scaling, contents.rotary_factor) == (77.0, "linear", 3.0)
    now = {"rope_type": "linear", "factor": 3.0, "rope_theta": 5.0}
    contents = ts.load(configure(place, rope_theta=..., rope_scaling=..., rope_parameters=now)).config
    assert (contents.rotary_base, contents.rotary_scaling, contents.rotary_factor) == (5.0, "linear", 3.0)


# ------------------------------------------------------------------------------------------------------------- export


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"attention": "synthesizer"}, ["attention='synthesizer'", "GPT-2"]),
        ({"norm": "rms"}, ["norm='rms'", "GPT-2"]),
        ({"window": 3}, ["window=3", "GPT-2"]),
        ({"key_heads": 1}, ["key_heads=1", "GPT-2"]),
        ({"d_k": 2}, ["d_k=2", "GPT-2"]),
        ({"bias": False}, ["bias=False", "GPT-2"]),
        ({"gated": True}, ["gated=True", "GPT-2"]),
        ({"positions": "none"}, ["positions='none'", "Llama"]),
        (LLAMA | {"rotary_fraction": 0.5}, ["rotary_fraction=0.5", "Llama"]),
        (LLAMA | {"norm": "layer"}, ["norm='layer'", "Llama"]),
        (LLAMA | {"gated": False}, ["gated=False", "Llama"]),
        (LLAMA | {"out_bias": True}, ["attention_bias and out_bias differ"]),
        (LLAMA | {"window": 3, "bias": True}, ["Mistral has a window and no biases"]),
        (LLAMA | {"heads": 3, "d_k": 2}, ["d_model=8", "heads"]),
    ],
)
def test_model_without_a_counterpart_is_not_exported(tmp_path, options, parts):
    with pytest.raises(ValueError, match=r"export|transformers") as caught:
        ts.export(GPT(GPTConfig(**SIZES | options)), tmp_path / "exported")
    assert not [part for part in parts if part not in str(caught.value)], caught.value
    assert not (tmp_path / "exported").exists()


@pytest.mark.parametrize(
    ("family", "options", "part"),
    [
        ("BERT", {"types": 0}, "types=0"),
        ("BERT", {"norm": "rms"}, "norm='rms'"),
        ("BERT", {"pooling": "cls"}, "pooling='cls'"),
        ("Marian", {"positions": "sinusoidal"}, "positions='sinusoidal'"),
        ("Marian", {"positions": "learned"}, "positions='learned'"),
        ("Marian", {"pre_norm": True}, "pre_norm=True"),
        ("Marian", {"final_norm": True}, "final_norm=True"),
        ("Marian", {"norm_eps": 1e-6}, "norm_eps=1e-06"),
        ("Marian", {"tied": False}, "tied=False"),
        ("Marian", {"bias": False}, "bias=False"),
    ],
)
def test_an_option_without_a_counterpart_is_not_exported(tmp_path, family, options, part):
    if family == "BERT":
        model = Encoder(EncoderConfig(**SIZES | options))
    else:
        model = Transformer(TransformerConfig(**{"positions": "sinusoidal_halves"} | options))
    with pytest.raises(ValueError, match=f"has no counterpart in {family}") as caught:
        ts.export(model, tmp_path / "exported")
    assert part in str(caught.value)


def test_marian_needs_a_start_token(tmp_path):
    model = Transformer(TransformerConfig(positions="sinusoidal_halves"))
    with pytest.raises(ValueError, match=r"model.special = ts.models.Special\(start=...\)"):
        ts.export(model, tmp_path / "exported")


def test_lstm_has_no_counterpart(tmp_path):
    with pytest.raises(ValueError, match="LuongTranslator has no counterpart in transformers"):
        ts.export(LuongTranslator(), tmp_path / "exported")


def test_other_modules_are_not_exported(tmp_path):
    with pytest.raises(TypeError, match="Linear is not a model"):
        ts.export(nn.Linear(2, 2), tmp_path / "exported")
