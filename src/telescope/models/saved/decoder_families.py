"""GPT-2, Llama, Mistral and Qwen2: how their files map to a GPT. GPT-2 has learned positions and
linear layers stored as (in, out); the others rotary positions, RMSNorm and a gated feed-forward
network.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...files import StoredTensors
from ...layers import MultiHeadAttention
from ..gpt import GPT, GPTConfig
from ..model import Model, named_weights
from .huggingface import ACTIVATIONS, THEIR_ACTIVATIONS, Family, Fields, require_values, sizes_of
from .weights import TensorName, linear, row


def gpt2_table(config: GPTConfig) -> list[TensorName]:
    """Return the names of the tensors, here and in transformers."""
    block = "blocks.{n}"
    theirs = "transformer.h.{n}"
    return [
        row("embedding.weight", "transformer.wte.weight"),
        row("embedding.weight" if config.tied else "head.weight", "lm_head.weight"),
        row("positions.P", "transformer.wpe.weight"),
        *linear(f"{block}.add_norm_1.norm", f"{theirs}.ln_1"),
        *linear(f"{block}.self_attention.W_qkv", f"{theirs}.attn.c_attn", view=Tensor.t),
        *linear(f"{block}.self_attention.W_O", f"{theirs}.attn.c_proj", view=Tensor.t),
        *linear(f"{block}.add_norm_2.norm", f"{theirs}.ln_2"),
        *linear(f"{block}.feed_forward.W_1", f"{theirs}.mlp.c_fc", view=Tensor.t),
        *linear(f"{block}.feed_forward.W_2", f"{theirs}.mlp.c_proj", view=Tensor.t),
        *linear("norm", "transformer.ln_f"),
    ]


# Sizes by their names and ours, for reading and writing alike.
GPT2_SIZES = {
    "vocab_size": "vocabulary",
    "n_positions": "max_positions",
    "n_embd": "d_model",
    "n_layer": "blocks",
    "n_head": "heads",
}


def read_gpt2(fields: Fields, tensors: StoredTensors) -> GPTConfig:
    """Return our config for a GPT-2 config.json."""
    fields.require(
        # Variants that change the scores have no counterpart here.
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        reorder_and_upcast_attn=False,
        add_cross_attention=False,
        is_decoder=False,
        is_encoder_decoder=False,
    )
    # How a head for classification pools, which is not loaded.
    fields.ignore("n_ctx", "summary_type", "summary_use_proj", "summary_activation")
    fields.ignore("summary_proj_to_labels", "summary_first_dropout")
    dropout = fields.number("resid_pdrop", 0.1)
    # One dropout here, three fields there.
    fields.require(embd_pdrop=dropout)
    sizes = fields.sizes(GPT2_SIZES)
    return GPTConfig(
        **sizes,
        d_hidden=fields.optional_whole("n_inner") or 4 * sizes["d_model"],
        activation=fields.one_of("activation_function", "gelu_new", ACTIVATIONS),
        norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        tied=fields.flag("tie_word_embeddings", True),
        dropout=dropout,
        attention_dropout=fields.number("attn_pdrop", 0.1),
    )


def write_gpt2(config: GPTConfig) -> dict[str, Any]:
    """Return the fields of a GPT-2 config.json; a ValueError where an option has no counterpart."""
    require_values(
        config,
        "GPT-2",
        norm="layer",
        gated=False,
        bias=True,
        attention="causal",
        window=None,
        attention_bias=(None, True),
        out_bias=(None, True),
        key_heads=(None, config.heads),
        d_k=(None, config.d_model / config.heads),
    )
    return sizes_of(config, GPT2_SIZES) | {
        "n_inner": config.d_hidden or 4 * config.d_model,
        "activation_function": THEIR_ACTIVATIONS[config.activation],
        "layer_norm_epsilon": config.norm_eps,
        "tie_word_embeddings": config.tied,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config._weight_dropout,
    }


GPT2_UNUSED = ("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias")  # the causal mask
GPT2 = Family(
    "gpt2", "GPT2LMHeadModel", GPT, "transformer.", gpt2_table, read_gpt2, write_gpt2, GPT2_UNUSED
)


def llama_table(config: GPTConfig) -> list[TensorName]:
    """Return the names of the tensors, here and in transformers."""
    block = "blocks.{n}"
    theirs = "model.layers.{n}"
    q_k_v = (f"{theirs}.self_attn.{name}_proj" for name in "qkv")
    return [
        row("embedding.weight", "model.embed_tokens.weight"),
        row("embedding.weight" if config.tied else "head.weight", "lm_head.weight"),
        *linear(f"{block}.add_norm_1.norm", f"{theirs}.input_layernorm"),
        *linear(f"{block}.self_attention.W_qkv", *q_k_v),
        *linear(f"{block}.self_attention.W_O", f"{theirs}.self_attn.o_proj"),
        *linear(f"{block}.add_norm_2.norm", f"{theirs}.post_attention_layernorm"),
        *linear(f"{block}.feed_forward.W_1", f"{theirs}.mlp.gate_proj"),
        *linear(f"{block}.feed_forward.W_3", f"{theirs}.mlp.up_proj"),
        *linear(f"{block}.feed_forward.W_2", f"{theirs}.mlp.down_proj"),
        *linear("norm", "model.norm"),
    ]


# Likewise, of all three families.
LLAMA_SIZES = {
    "vocab_size": "vocabulary",
    "max_position_embeddings": "max_positions",
    "hidden_size": "d_model",
    "num_hidden_layers": "blocks",
    "num_attention_heads": "heads",
    "intermediate_size": "d_hidden",
}


def read_llama(fields: Fields, tensors: StoredTensors) -> GPTConfig:
    """Return the config of a Llama."""
    config = _read_shared(fields)
    attention_bias = fields.flag("attention_bias", False)
    return replace(
        config,
        bias=fields.flag("mlp_bias", False),
        attention_bias=attention_bias,
        out_bias=attention_bias,
    )


def read_mistral(fields: Fields, tensors: StoredTensors) -> GPTConfig:
    """Return the config of a Mistral: a Llama with a window."""
    return replace(_read_shared(fields), window=fields.optional_whole("sliding_window", 4096))


def read_qwen2(fields: Fields, tensors: StoredTensors) -> GPTConfig:
    """Return the config of a Qwen2: biases of queries, keys and values; a window in all layers or
    in none.
    """
    config = _read_shared(fields)
    # A window in some layers only has no counterpart here.
    used = fields.flag("use_sliding_window", False)
    window = fields.optional_whole("sliding_window", 4096)
    first = fields.number("max_window_layers", 28)
    # Newer files list the kind of each layer, older ones a first layer with a window.
    kinds = fields.optional_list("layer_types") or [
        "sliding_attention" if used and window and layer >= first else "full_attention"
        for layer in range(config.blocks)
    ]
    if kinds == ["sliding_attention"] * config.blocks and used and window:
        return replace(config, attention_bias=True, window=window)
    if kinds != ["full_attention"] * config.blocks:
        raise fields.unsupported(
            "layer_types", kinds, "one kind for all layers, full_attention or sliding_attention,"
        )
    return replace(config, attention_bias=True)


def _read_shared(fields: Fields) -> GPTConfig:
    """Return the config from the fields that the three families share."""
    fields.require(is_decoder=False, is_encoder_decoder=False)
    fields.ignore("is_llama_config")  # SmolLM2
    sizes = fields.sizes(LLAMA_SIZES)
    heads = sizes["heads"]
    return GPTConfig(
        **sizes,
        key_heads=fields.optional_whole("num_key_value_heads") or heads,
        d_k=fields.optional_whole("head_dim") or sizes["d_model"] // heads,
        positions="rotary",
        **_rotary(fields, sizes["max_positions"]),
        norm="rms",
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        activation=fields.one_of("hidden_act", "silu", ACTIVATIONS),
        gated=True,
        bias=False,
        attention_bias=False,
        out_bias=False,
        tied=fields.flag("tie_word_embeddings", False),
        attention_dropout=fields.number("attention_dropout", 0.0),
    )


def _rotary(fields: Fields, max_positions: int) -> dict[str, Any]:
    """Return the fields rotary_…, from rope_parameters (transformers 5) or rope_theta and
    rope_scaling (4).
    """
    # Three generations of files say the same in three places.
    base = fields.number("rope_theta", 10_000.0)
    parameters = fields.nested("rope_parameters")
    scaling_fields = fields.nested("rope_scaling")
    # Whichever of the two the file has.
    rope = scaling_fields or parameters
    rope.require(partial_rotary_factor=1.0)
    rotary: dict[str, Any] = {"rotary_base": rope.number("rope_theta", base)}
    older = rope.one_of("type", "default", SCALINGS)
    scaling = rope.one_of(
        "rope_type", next(name for name in SCALINGS if SCALINGS[name] == older), SCALINGS
    )
    if scaling is not None:
        rotary |= {"rotary_scaling": scaling, "rotary_factor": rope.number("factor")}
    if scaling == "llama3":
        rotary["rotary_low"] = rope.number("low_freq_factor")
        rotary["rotary_high"] = rope.number("high_freq_factor")
        rotary["rotary_original"] = rope.whole("original_max_position_embeddings", max_positions)
    # A factor that nobody reads would change every angle.
    rope.check_all_read()
    return rotary


# Their names of rotary scalings, and ours.
SCALINGS = {"default": None, "linear": "linear", "llama3": "llama3"}


def _write_shared(config: GPTConfig) -> dict[str, Any]:
    """Return the fields that the three families share."""
    require_values(
        config,
        "Llama",
        positions="rotary",
        rotary_fraction=1.0,
        norm="rms",
        gated=True,
        attention="causal",
    )
    # Written as transformers 4 has it.
    scaling = {"rope_type": config.rotary_scaling, "factor": config.rotary_factor}
    if config.rotary_scaling == "llama3":
        scaling |= {
            "low_freq_factor": config.rotary_low,
            "high_freq_factor": config.rotary_high,
            "original_max_position_embeddings": config.rotary_original,
        }
    return sizes_of(config, LLAMA_SIZES) | {
        "num_key_value_heads": config.key_heads or config.heads,
        "head_dim": config.d_k or config.d_model // config.heads,
        "intermediate_size": config.d_hidden or 4 * config.d_model,
        "rope_theta": config.rotary_base,
        "rope_scaling": scaling if config.rotary_scaling else None,
        "rms_norm_eps": config.norm_eps,
        "hidden_act": THEIR_ACTIVATIONS[config.activation],
        "tie_word_embeddings": config.tied,
        "attention_dropout": config._weight_dropout,
    }


def _biases(config: GPTConfig) -> tuple[bool, bool, bool]:
    """Return whether there are biases: of W_q, W_k and W_v; of W_O; of the feed-forward network."""
    query_key_value, out = (
        config.bias if bias is None else bias for bias in (config.attention_bias, config.out_bias)
    )
    return query_key_value, out, config.bias


def write_llama(config: GPTConfig) -> dict[str, Any]:
    """Return the fields of a Llama's config.json; a ValueError where an option has no
    counterpart.
    """
    require_values(config, "Llama", window=None)
    query_key_value, out, feed_forward = _biases(config)
    if query_key_value != out:
        raise ValueError(
            "attention_bias and out_bias differ, which Llama has no field for, so this cannot be "
            "exported"
        )
    if config.d_model % config.heads:
        raise ValueError(
            f"transformers has no Llama whose d_model={config.d_model} is not a multiple of its "
            "heads"
        )
    return _write_shared(config) | {"attention_bias": query_key_value, "mlp_bias": feed_forward}


def write_mistral(config: GPTConfig) -> dict[str, Any]:
    """Return the fields of a Mistral's config.json; a ValueError where the model has biases."""
    if any(_biases(config)):
        raise ValueError(
            "Mistral has a window and no biases, so a model with both cannot be exported"
        )
    return _write_shared(config) | {"sliding_window": config.window}


def write_qwen2(config: GPTConfig) -> dict[str, Any]:
    """Return the fields of a Qwen2's config.json."""
    # A window in every layer, from the first on.
    window = {"use_sliding_window": True, "sliding_window": config.window, "max_window_layers": 0}
    return _write_shared(config) | (window if config.window else {"use_sliding_window": False})


def weights_in_halves(model: Model) -> dict[str, Tensor]:
    """Return the weights with rotary pairs in two halves of each head, as transformers has them.

    Where the pairs are neighbours, the features of queries and keys are permuted in the same way,
    so q·k is unchanged.
    """
    weights = named_weights(model)
    assert isinstance(model, GPT)
    if model.config.rotary_pairs == "halves":
        return weights
    for name, module in model.named_modules():
        if not isinstance(module, MultiHeadAttention):
            continue
        heads = module.heads + module.key_heads
        for part in {f"{name}.W_qkv.weight", f"{name}.W_qkv.bias"} & weights.keys():
            # Queries and keys are stacked above the values, which are not rotated.
            rotated, values = weights[part].tensor_split([heads * module.d_k])
            # (heads, pairs, 2, …) → first all first partners, then all second ones.
            pairs = rotated.reshape(heads, -1, 2, *rotated.shape[1:])
            weights[part] = torch.cat([pairs.transpose(1, 2).flatten(0, 2), values])
    return weights


def choose_rotary_family(config: GPTConfig) -> Family:
    """Return the family of a config: Qwen2 for biases of W_q, W_k and W_v alone, Mistral for a
    window, else Llama.
    """
    # Only Qwen2 has biases in just these three matrices.
    if _biases(config) == (True, False, False):
        return QWEN2
    return LLAMA if config.window is None else MISTRAL


LLAMA = Family(
    "llama",
    "LlamaForCausalLM",
    GPT,
    "model.",
    llama_table,
    read_llama,
    write_llama,
    unused=("model.layers.*.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"),
    weights=weights_in_halves,
)
# A Llama with a window; only the config differs.
MISTRAL = replace(
    LLAMA, name="mistral", architecture="MistralForCausalLM", read=read_mistral, write=write_mistral
)
QWEN2 = replace(
    LLAMA, name="qwen2", architecture="Qwen2ForCausalLM", read=read_qwen2, write=write_qwen2
)
