"""BERT and Marian: how their files map to an Encoder and a Transformer. A head of BERT, such as for
masked words, is not loaded; Marian has sines in the first half of the features, then cosines.
"""

from typing import Any

import torch
from torch import Tensor

from ...attention import sinusoidal
from ...files import LoadError, StoredTensors, paths
from ..encoder import Encoder, EncoderConfig
from ..transformer import Transformer, TransformerConfig
from .huggingface import ACTIVATIONS, THEIR_ACTIVATIONS, Family, Fields, require_values, sizes_of
from .weights import TensorName, linear, row


def bert_table(config: EncoderConfig) -> list[TensorName]:
    """Return the names of the tensors, here and in transformers."""
    block = "blocks.{n}"
    theirs = "bert.encoder.layer.{n}"
    q_k_v = (f"{theirs}.attention.self.{name}" for name in ("query", "key", "value"))
    return [
        row("embedding.weight", "bert.embeddings.word_embeddings.weight"),
        row("positions.P", "bert.embeddings.position_embeddings.weight"),
        row("types.weight", "bert.embeddings.token_type_embeddings.weight"),
        *linear("norm", "bert.embeddings.LayerNorm"),
        *linear(f"{block}.self_attention.W_qkv", *q_k_v),
        *linear(f"{block}.self_attention.W_O", f"{theirs}.attention.output.dense"),
        *linear(f"{block}.add_norm_1.norm", f"{theirs}.attention.output.LayerNorm"),
        *linear(f"{block}.feed_forward.W_1", f"{theirs}.intermediate.dense"),
        *linear(f"{block}.feed_forward.W_2", f"{theirs}.output.dense"),
        *linear(f"{block}.add_norm_2.norm", f"{theirs}.output.LayerNorm"),
        *linear("pooler", "bert.pooler.dense"),
    ]


# Sizes by their names and ours, for reading and writing alike.
BERT_SIZES = {
    "vocab_size": "vocabulary",
    "max_position_embeddings": "max_positions",
    "hidden_size": "d_model",
    "num_hidden_layers": "blocks",
    "num_attention_heads": "heads",
    "intermediate_size": "d_hidden",
}


def read_bert(fields: Fields, tensors: StoredTensors) -> EncoderConfig:
    """Return our config for a BERT config.json."""
    fields.require(
        # Other kinds of positions, and decoders, compute something else.
        position_embedding_type="absolute",
        is_decoder=False,
        add_cross_attention=False,
        directionality="bidi",
        is_encoder_decoder=False,
    )
    # Of heads that are not loaded.
    fields.ignore("tie_word_embeddings", "pooler_fc_size", "pooler_num_attention_heads")
    fields.ignore("pooler_num_fc_layers", "pooler_size_per_head", "pooler_type")
    return EncoderConfig(
        **fields.sizes(BERT_SIZES),
        types=fields.whole("type_vocab_size", 2),
        norm_eps=fields.number("layer_norm_eps", 1e-12),
        activation=fields.one_of("hidden_act", "gelu", ACTIVATIONS),
        # The config says nothing about pooling; the files do.
        pooling=_pooling(tensors),
        dropout=fields.number("hidden_dropout_prob", 0.1),
        attention_dropout=fields.number("attention_probs_dropout_prob", 0.1),
    )


def _pooling(tensors: StoredTensors) -> Any:
    """Return the pooling in sentence-transformers' config; else "bert" if the file has a pooler;
    else "mean".
    """
    # A folder of sentence-transformers says how it pools, in a file of its own.
    folder = tensors.source.parent
    if "1_Pooling" not in paths.list_names(folder):
        return "bert" if "bert.pooler.dense.weight" in tensors else "mean"
    config = paths.read_json(folder / "1_Pooling" / "config.json")
    # Older files have one flag for each mode.
    older = [name.removeprefix("pooling_mode_") for name, used in config.items() if used is True]
    modes = config.get("pooling_mode", older)
    # Several modes at once would be concatenated, which is not supported.
    mode = modes[0] if isinstance(modes, list) and len(modes) == 1 else modes
    if mode not in ("mean", "mean_tokens", "cls", "cls_token"):
        raise LoadError(
            f"{folder}/1_Pooling/config.json: pooling by {modes} is not supported; by mean or cls "
            "is"
        )
    return mode.removesuffix("_tokens").removesuffix("_token")


def write_bert(config: EncoderConfig) -> dict[str, Any]:
    """Return the fields of a BERT config.json; a ValueError where an option has no counterpart."""
    # Our "cls" has no pooler, and BERT has no field that would say so.
    require_values(config, "BERT", norm="layer", pooling=("bert", "mean"))
    # BERT always has types.
    if config.types < 1:
        raise ValueError("types=0 has no counterpart in BERT, so this model cannot be exported")
    return sizes_of(config, BERT_SIZES) | {
        "type_vocab_size": config.types,
        "intermediate_size": config.d_hidden or 4 * config.d_model,
        "layer_norm_eps": config.norm_eps,
        "hidden_act": THEIR_ACTIVATIONS[config.activation],
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config._weight_dropout,
    }


# Positions that are counted, and heads.
BERT_UNUSED = ("bert.embeddings.position_ids", "bert.pooler.*", "cls.*")
BERT = Family("bert", "BertModel", Encoder, "bert.", bert_table, read_bert, write_bert, BERT_UNUSED)


def marian_table(config: TransformerConfig) -> list[TensorName]:
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
    # Norms are numbered by the order of the sublayers.
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


# Sizes by their names and ours, for reading and writing alike.
MARIAN_SIZES = {
    "max_position_embeddings": "max_positions",
    "d_model": "d_model",
    "encoder_layers": "encoder_blocks",
    "decoder_layers": "decoder_blocks",
    "encoder_attention_heads": "heads",
    "decoder_attention_heads": "decoder_heads",
    "encoder_ffn_dim": "d_hidden",
    "decoder_ffn_dim": "decoder_d_hidden",
}


def read_marian(fields: Fields, tensors: StoredTensors) -> TransformerConfig:
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
    # The first repeats encoder_layers, and positions are computed.
    fields.ignore("num_hidden_layers", "extra_pos_embeddings")
    vocabulary = fields.whole("vocab_size")
    shared = fields.flag("share_encoder_decoder_embeddings", True)
    if shared:
        # One embedding for both languages is also the head.
        fields.require(tie_word_embeddings=True, decoder_vocab_size=vocabulary)
    return TransformerConfig(
        vocabulary=vocabulary,
        target_vocabulary=None if shared else fields.optional_whole("decoder_vocab_size"),
        **fields.sizes(MARIAN_SIZES),
        shared=shared,
        tied=shared or fields.flag("tie_word_embeddings", True),
        # The config does not say whether there is a bias; the tensors do.
        head_bias="final_logits_bias" in tensors,
        scaled=fields.flag("scale_embedding", False),
        positions="sinusoidal_halves",
        activation=fields.one_of("activation_function", "gelu", ACTIVATIONS),
        dropout=fields.number("dropout", 0.1),
        attention_dropout=fields.number("attention_dropout", 0.0),
        hidden_dropout=fields.number("activation_dropout", 0.0),
    )


def write_marian(config: TransformerConfig) -> dict[str, Any]:
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
        norm_eps=1e-5,
        bias=True,
        tied=(True, config.shared),
    )
    d_hidden = config.d_hidden or 4 * config.d_model
    return sizes_of(config, MARIAN_SIZES) | {
        "vocab_size": config.vocabulary,
        "decoder_vocab_size": config.target_vocabulary or config.vocabulary,
        "decoder_attention_heads": config.decoder_heads or config.heads,
        "encoder_ffn_dim": d_hidden,
        "decoder_ffn_dim": config.decoder_d_hidden or d_hidden,
        "share_encoder_decoder_embeddings": config.shared,
        "tie_word_embeddings": config.tied,
        "scale_embedding": config.scaled,
        "activation_function": THEIR_ACTIVATIONS[config.activation],
        "dropout": config.dropout,
        "attention_dropout": config._weight_dropout,
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
                # Files of old versions store what is computed here: it must be the same.
                computed = sinusoidal(*entry.shape, pairs="halves", dtype=torch.float32)
                error = (read(name).float() - computed).abs().max()
                # Half precision rounds the stored sines.
                if error <= max(1e-5, torch.finfo(entry.dtype).eps):
                    continue
            raise LoadError(
                f'{entry.file}: tensor "{entry.name}" is not the sines and cosines of Marian'
            )


# Only in files of old versions.
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
MARIAN = Family(
    "marian",
    "MarianMTModel",
    Transformer,
    "model.",
    marian_table,
    read_marian,
    write_marian,
    unused=POSITIONS,
    check=check_positions,
)
