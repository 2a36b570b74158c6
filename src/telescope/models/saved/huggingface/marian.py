"""Marian: the Transformer of the paper, with sines in the first half of the features and cosines in
the second.
"""

from typing import Any

import torch
from torch import Tensor

from ....attention import sinusoidal
from ....files.errors import LoadError
from ....files.safetensors import StoredTensors
from ...transformer import Transformer, TransformerConfig
from ..tensor_names import TensorName, linear, row
from .family import ACTIVATIONS, THEIR_ACTIVATIONS, Family, Fields, require_values


def table(config: TransformerConfig) -> list[TensorName]:
    """Return the names of the tensors, here and in transformers."""
    return [
        *_embeddings(config),
        row("head_bias", "final_logits_bias", view=_as_row),
        *(row for stack in ("encoder", "decoder") for row in _block(stack)),
    ]


def _embeddings(config: TransformerConfig) -> list[TensorName]:
    """Return the rows of the embeddings: one tensor under up to four names, or one for each
    language, and the head.
    """
    encoder = "model.encoder.embed_tokens.weight"
    decoder = "model.decoder.embed_tokens.weight"
    target = "embedding.weight" if config.shared else "target_embedding.weight"
    return [
        *([row("embedding.weight", "model.shared.weight")] if config.shared else []),
        row("embedding.weight", encoder),
        row(target, decoder),
        row(target if config.tied else "head.weight", "lm_head.weight"),
    ]


def _block(stack: str) -> list[TensorName]:
    """Return the rows of one block of the encoder or the decoder."""
    ours = f"{stack}.{{n}}"
    theirs = f"model.{stack}.layers.{{n}}"
    attentions = {"self_attention": "self_attn"} | (
        {"cross_attention": "encoder_attn"} if stack == "decoder" else {}
    )
    rows: list[TensorName] = []
    for number, (our, their) in enumerate(attentions.items(), start=1):
        q_k_v = (f"{theirs}.{their}.{name}_proj" for name in "qkv")
        rows += linear(f"{ours}.{our}.W_qkv", *q_k_v)
        rows += linear(f"{ours}.{our}.W_O", f"{theirs}.{their}.out_proj")
        rows += linear(f"{ours}.add_norm_{number}.norm", f"{theirs}.{their}_layer_norm")
    rows += linear(f"{ours}.feed_forward.W_1", f"{theirs}.fc1")
    rows += linear(f"{ours}.feed_forward.W_2", f"{theirs}.fc2")
    rows += linear(f"{ours}.add_norm_{len(attentions) + 1}.norm", f"{theirs}.final_layer_norm")
    return rows


def _as_row(bias: Tensor) -> Tensor:
    """Return the bias as a matrix of one row, as the file has it."""
    return bias[None]


def read(fields: Fields, tensors: StoredTensors) -> TransformerConfig:
    """Return our config for a Marian config.json."""
    fields.require(
        static_position_embeddings=True,
        normalize_before=False,
        normalize_embedding=False,
        add_final_layer_norm=False,
        add_bias_logits=False,
        encoder_layerdrop=0.0,
        decoder_layerdrop=0.0,
        is_decoder=False,
        is_encoder_decoder=True,
    )
    fields.ignore("num_hidden_layers", "extra_pos_embeddings")
    vocabulary = fields.whole("vocab_size")
    shared = fields.flag("share_encoder_decoder_embeddings", True)
    if shared:
        fields.require(tie_word_embeddings=True, decoder_vocab_size=vocabulary)
    return TransformerConfig(
        vocabulary=vocabulary,
        target_vocabulary=None if shared else fields.optional_whole("decoder_vocab_size"),
        max_positions=fields.whole("max_position_embeddings"),
        d_model=fields.whole("d_model"),
        encoder_blocks=fields.whole("encoder_layers"),
        decoder_blocks=fields.whole("decoder_layers"),
        heads=fields.whole("encoder_attention_heads"),
        decoder_heads=fields.whole("decoder_attention_heads"),
        d_hidden=fields.whole("encoder_ffn_dim"),
        decoder_d_hidden=fields.whole("decoder_ffn_dim"),
        shared=shared,
        tied=shared or fields.flag("tie_word_embeddings", True),
        head_bias="final_logits_bias" in tensors,
        scaled=fields.flag("scale_embedding", False),
        positions="sinusoidal_halves",
        activation=fields.one_of("activation_function", "gelu", ACTIVATIONS),
        dropout=fields.number("dropout", 0.1),
        attention_dropout=fields.number("attention_dropout", 0.0),
        hidden_dropout=fields.number("activation_dropout", 0.0),
    )


def write(config: TransformerConfig) -> dict[str, Any]:
    """Return the fields of a Marian config.json; a ValueError where an option has no
    counterpart.
    """
    require_values(
        config,
        "Marian",
        positions="sinusoidal_halves",
        pre_norm=False,
        final_norm=(None, False),
        norm="layer",
    )
    require_values(config, "Marian", norm_eps=1e-5, bias=True, tied=(True, config.shared))
    d_hidden = config.d_hidden or 4 * config.d_model
    return {
        "vocab_size": config.vocabulary,
        "decoder_vocab_size": config.target_vocabulary or config.vocabulary,
        "max_position_embeddings": config.max_positions,
        "d_model": config.d_model,
        "encoder_layers": config.encoder_blocks,
        "decoder_layers": config.decoder_blocks,
        "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.decoder_heads or config.heads,
        "encoder_ffn_dim": d_hidden,
        "decoder_ffn_dim": config.decoder_d_hidden or d_hidden,
        "share_encoder_decoder_embeddings": config.shared,
        "tie_word_embeddings": config.tied,
        "scale_embedding": config.scaled,
        "activation_function": THEIR_ACTIVATIONS[config.activation],
        "dropout": config.dropout,
        "attention_dropout": config.dropout
        if config.attention_dropout is None
        else config.attention_dropout,
        "activation_dropout": config.hidden_dropout,
        "is_encoder_decoder": True,
    }


def check_positions(config: TransformerConfig, tensors: StoredTensors) -> None:
    """Raise a LoadError where a file holds positions, as old files do, that are not the computed
    ones.
    """
    with tensors.reader() as read:
        for name in filter(tensors.__contains__, POSITIONS):
            entry = tensors[name]
            if entry.shape == (config.max_positions, config.d_model):
                computed = sinusoidal(*entry.shape, pairs="halves", dtype=torch.float32)
                error = (read(name).float() - computed).abs().max()
                if error <= max(1e-5, torch.finfo(entry.dtype).eps):
                    continue
            raise LoadError(
                f'{entry.file}: tensor "{entry.name}" is not the sines and cosines of Marian'
            )


POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
MARIAN = Family(
    "marian",
    "MarianMTModel",
    Transformer,
    "model.",
    table,
    read,
    write,
    unused=POSITIONS,
    check=check_positions,
)
