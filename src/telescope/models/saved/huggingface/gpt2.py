"""GPT-2: learned positions, LayerNorm before each sublayer, linear layers stored as (in, out)."""

from typing import Any

from torch import Tensor

from ....files.safetensors import StoredTensors
from ...gpt import GPT, GPTConfig
from ..tensor_names import TensorName, linear, row
from .family import ACTIVATIONS, THEIR_ACTIVATIONS, Family, Fields, require_values


def table(config: GPTConfig) -> list[TensorName]:
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


def read(fields: Fields, tensors: StoredTensors) -> GPTConfig:
    """Return our config for a GPT-2 config.json."""
    fields.require(
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        reorder_and_upcast_attn=False,
        add_cross_attention=False,
        is_decoder=False,
        is_encoder_decoder=False,
    )
    fields.ignore(
        "n_ctx", "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels"
    )
    fields.ignore("summary_first_dropout")
    dropout = fields.number("resid_pdrop", 0.1)
    fields.require(embd_pdrop=dropout)
    d_model = fields.whole("n_embd")
    return GPTConfig(
        vocabulary=fields.whole("vocab_size"),
        max_positions=fields.whole("n_positions"),
        d_model=d_model,
        blocks=fields.whole("n_layer"),
        heads=fields.whole("n_head"),
        d_hidden=fields.optional_whole("n_inner") or 4 * d_model,
        activation=fields.one_of("activation_function", "gelu_new", ACTIVATIONS),
        norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        tied=fields.flag("tie_word_embeddings", True),
        dropout=dropout,
        attention_dropout=fields.number("attn_pdrop", 0.1),
    )


def write(config: GPTConfig) -> dict[str, Any]:
    """Return the fields of a GPT-2 config.json; a ValueError where an option has no counterpart."""
    require_values(
        config, "GPT-2", norm="layer", gated=False, bias=True, attention="causal", window=None
    )
    require_values(
        config,
        "GPT-2",
        attention_bias=(None, True),
        out_bias=(None, True),
        key_heads=(None, config.heads),
    )
    require_values(config, "GPT-2", d_k=(None, config.d_model / config.heads))
    return {
        "vocab_size": config.vocabulary,
        "n_positions": config.max_positions,
        "n_embd": config.d_model,
        "n_layer": config.blocks,
        "n_head": config.heads,
        "n_inner": config.d_hidden or 4 * config.d_model,
        "activation_function": THEIR_ACTIVATIONS[config.activation],
        "layer_norm_epsilon": config.norm_eps,
        "tie_word_embeddings": config.tied,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.dropout
        if config.attention_dropout is None
        else config.attention_dropout,
    }


UNUSED = ("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias")  # the causal mask
GPT2 = Family("gpt2", "GPT2LMHeadModel", GPT, "transformer.", table, read, write, UNUSED)
