"""The config.json of published models is read correctly, and gives the published number of parameters."""

from pathlib import Path

import pytest

from telescope.files.safetensors import StoredTensors
from telescope.models.saved.huggingface import Fields
from telescope.models.saved.load import FAMILIES
from telescope.models.saved.weights import build_model

GPT2 = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 50257,
}
LLAMA_3_2_1B = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
}
SMOLLM2_135M = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_act": "silu",
    "hidden_size": 576,
    "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
    "use_cache": True,
    "vocab_size": 49152,
}
QWEN2_5_05B = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 896,
    "initializer_range": 0.02,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 24,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
MISTRAL_7B = {
    "architectures": ["MistralForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.34.0.dev0",
    "use_cache": True,
    "vocab_size": 32000,
}
BERT_BASE = {
    "architectures": ["BertForMaskedLM"],
    "attention_probs_dropout_prob": 0.1,
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "transformers_version": "4.6.0.dev0",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": 30522,
}
OPUS_MT = {
    "_num_labels": 3,
    "activation_dropout": 0.0,
    "activation_function": "swish",
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "architectures": ["MarianMTModel"],
    "attention_dropout": 0.0,
    "bad_words_ids": [[58100]],
    "bos_token_id": 0,
    "classif_dropout": 0.0,
    "d_model": 512,
    "decoder_attention_heads": 8,
    "decoder_ffn_dim": 2048,
    "decoder_layerdrop": 0.0,
    "decoder_layers": 6,
    "decoder_start_token_id": 58100,
    "dropout": 0.1,
    "encoder_attention_heads": 8,
    "encoder_ffn_dim": 2048,
    "encoder_layerdrop": 0.0,
    "encoder_layers": 6,
    "eos_token_id": 0,
    "extra_pos_embeddings": 58101,
    "id2label": {"0": "LABEL_0"},
    "init_std": 0.02,
    "is_encoder_decoder": True,
    "label2id": {"LABEL_0": 0},
    "max_length": 512,
    "max_position_embeddings": 512,
    "model_type": "marian",
    "normalize_before": False,
    "normalize_embedding": False,
    "num_beams": 6,
    "num_hidden_layers": 6,
    "pad_token_id": 58100,
    "scale_embedding": True,
    "static_position_embeddings": True,
    "use_cache": True,
    "vocab_size": 58101,
}


def made(config):
    """Return the model on the meta device, from a file with many tensors, these two among them."""
    family = FAMILIES[config["model_type"]]
    names = ["final_logits_bias", "bert.pooler.dense.weight", *map(str, range(99))]
    there = StoredTensors(Path(__file__), dict.fromkeys(names))
    fields = Fields({k: v for k, v in config.items() if k != "model_type"}, file="config.json", family=family.name)
    return build_model(family.model, lambda: family.config(fields, there), Path("config.json"), there)


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        pytest.param(GPT2, 124_439_808, id="gpt2"),
        pytest.param(SMOLLM2_135M, 134_515_008, id="SmolLM2-135M"),
        pytest.param(LLAMA_3_2_1B, 1_235_814_400, id="Llama-3.2-1B"),
        pytest.param(QWEN2_5_05B, 494_032_768, id="Qwen2.5-0.5B"),
        pytest.param(MISTRAL_7B, 7_241_732_096, id="Mistral-7B-v0.1"),
        pytest.param(BERT_BASE, 109_482_240, id="bert-base-uncased"),
        pytest.param(OPUS_MT, 73_886_208 + 58_101, id="opus-mt-en-de"),  # and the bias of its logits, there a buffer
    ],
)
def test_published_model_has_the_published_number_of_parameters(config, parameters):
    assert sum(parameter.numel() for parameter in made(config).parameters()) == parameters


def test_published_options_are_read():
    llama = made(LLAMA_3_2_1B).config
    assert (llama.rotary_scaling, llama.rotary_factor, llama.rotary_original) == ("llama3", 32.0, 8192)
    assert (llama.rotary_base, llama.norm_eps, llama.tied, llama.key_heads) == (500_000.0, 1e-5, True, 8)
    assert made(MISTRAL_7B).config.window == 4096
    qwen = made(QWEN2_5_05B).config
    assert (qwen.window, qwen.attention_bias, qwen.out_bias) == (None, True, False)
    marian = made(OPUS_MT).config
    assert (marian.scaled, marian.activation, marian.positions) == (True, "silu", "sinusoidal_halves")
    assert (made(GPT2).config.activation, made(BERT_BASE).config.activation) == ("gelu_tanh", "gelu")
