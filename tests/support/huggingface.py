"""Small models of transformers with random numbers in every tensor, for the tests of imports and exports."""

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="the hf extra is not installed")

VOCABULARY = 61
LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
LINEAR = {"rope_type": "linear", "factor": 2.5, "rope_theta": 500.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "rope_theta": 500.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
GPT2 = {
    "vocab_size": VOCABULARY,
    "n_positions": 64,
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 3,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
}
MARIAN = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 36,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "forced_eos_token_id": None,
    "decoder_start_token_id": 0,
}

GPTS = {
    "gpt2": ("gpt2", {}),
    "gpt2 of another shape": ("gpt2", {"n_inner": 40, "activation_function": "relu", "layer_norm_epsilon": 1e-3}),
    "gpt2 not tied": ("gpt2", {"tie_word_embeddings": False}),
    "llama": ("llama", {}),
    "llama of one key head": ("llama", {"num_key_value_heads": 1}),
    "llama without groups": ("llama", {"num_key_value_heads": None}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama with wide heads": ("llama", {"head_dim": 12}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama, another base": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}),
    "llama, linear": ("llama", {"rope_parameters": LINEAR}),
    "llama 3": ("llama", {"rope_parameters": LLAMA3, "rms_norm_eps": 1e-3}),
    "qwen2": ("qwen2", {}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2, window": ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}),
    "qwen2, window not used": ("qwen2", {"sliding_window": 5, "max_window_layers": 0}),
    "qwen2, window from no layer on": ("qwen2", {"use_sliding_window": True, "sliding_window": 5}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral, window": ("mistral", {"sliding_window": 5}),
    "mistral with wide heads": ("mistral", {"head_dim": 12, "sliding_window": 5}),
}
BERTS = {
    "bert": {},
    "bert of another shape": {"hidden_act": "gelu_new", "type_vocab_size": 3, "layer_norm_eps": 1e-3},
}
MARIANS = {
    "marian": {"scale_embedding": True, "activation_function": "swish"},
    "marian, not scaled": {"activation_function": "relu"},
    "marian, gelu": {"activation_function": "gelu"},
    "marian, two vocabularies": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 53},
    "marian, not tied": {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
}


def gpt(name):
    family, options = GPTS[name]
    kinds = {
        "gpt2": (transformers.GPT2LMHeadModel, transformers.GPT2Config, GPT2),
        "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig, LLAMA),
        "qwen2": (transformers.Qwen2ForCausalLM, transformers.Qwen2Config, LLAMA),
        "mistral": (transformers.MistralForCausalLM, transformers.MistralConfig, LLAMA),
    }
    model, config, usual = kinds[family]
    return numbered(model(config(**{**usual, **options})))


def bert(name, kind="BertModel"):
    return numbered(getattr(transformers, kind)(transformers.BertConfig(**BERT, **BERTS[name])))


def marian(name):
    return numbered(transformers.MarianMTModel(transformers.MarianConfig(**MARIAN, **MARIANS[name])))


@torch.no_grad()
def numbered(model):
    """Set every parameter to random numbers: a bias of zeros, or a norm of ones, would hide a mistake."""
    random = torch.Generator().manual_seed(7)
    tensors = dict(model.named_parameters()) | {n: b for n, b in model.named_buffers() if n == "final_logits_bias"}
    for name, tensor in tensors.items():
        if "embed_positions" in name:
            continue
        spread = torch.randn(tensor.shape, generator=random)
        if tensor.ndim == 1:
            tensor.copy_(0.3 * spread + (1.0 if name.endswith("weight") else 0.0))
        else:
            tensor.copy_(spread * min(tensor.shape) ** -0.5)
    return model.eval()
