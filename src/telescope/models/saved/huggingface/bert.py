"""BERT: learned positions and types, LayerNorm after each sublayer. A head, such as for masked
words, is not loaded.
"""

from typing import Any

from ....files import paths
from ....files.errors import LoadError
from ....files.safetensors import StoredTensors
from ...encoder import Encoder, EncoderConfig
from ..tensor_names import TensorName, linear, row
from .family import ACTIVATIONS, THEIR_ACTIVATIONS, Family, Fields, require_values


def table(config: EncoderConfig) -> list[TensorName]:
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


def read(fields: Fields, tensors: StoredTensors) -> EncoderConfig:
    """Return our config for a BERT config.json."""
    fields.require(
        position_embedding_type="absolute",
        is_decoder=False,
        add_cross_attention=False,
        directionality="bidi",
    )
    fields.require(is_encoder_decoder=False)
    fields.ignore(
        "tie_word_embeddings",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
    )
    fields.ignore("pooler_size_per_head", "pooler_type")
    return EncoderConfig(
        vocabulary=fields.whole("vocab_size"),
        max_positions=fields.whole("max_position_embeddings"),
        types=fields.whole("type_vocab_size", 2),
        d_model=fields.whole("hidden_size"),
        blocks=fields.whole("num_hidden_layers"),
        heads=fields.whole("num_attention_heads"),
        d_hidden=fields.whole("intermediate_size"),
        norm_eps=fields.number("layer_norm_eps", 1e-12),
        activation=fields.one_of("hidden_act", "gelu", ACTIVATIONS),
        pooling=_pooling(tensors),
        dropout=fields.number("hidden_dropout_prob", 0.1),
        attention_dropout=fields.number("attention_probs_dropout_prob", 0.1),
    )


def _pooling(tensors: StoredTensors) -> Any:
    """Return the pooling in sentence-transformers' config; else "bert" if the file has a pooler;
    else "mean".
    """
    folder = tensors.source.parent
    if "1_Pooling" not in paths.list_names(folder):
        return "bert" if "bert.pooler.dense.weight" in tensors else "mean"
    config = paths.read_json(folder / "1_Pooling" / "config.json")
    older = [name.removeprefix("pooling_mode_") for name, used in config.items() if used is True]
    modes = config.get("pooling_mode", older)
    mode = modes[0] if isinstance(modes, list) and len(modes) == 1 else modes
    if mode not in ("mean", "mean_tokens", "cls", "cls_token"):
        raise LoadError(
            f"{folder}/1_Pooling/config.json: pooling by {modes} is not supported; by mean or cls "
            "is"
        )
    return mode.removesuffix("_tokens").removesuffix("_token")


def write(config: EncoderConfig) -> dict[str, Any]:
    """Return the fields of a BERT config.json; a ValueError where an option has no counterpart."""
    require_values(config, "BERT", norm="layer", pooling=("bert", "mean"))
    if config.types < 1:
        raise ValueError("types=0 has no counterpart in BERT, so this model cannot be exported")
    attention_dropout = (
        config.dropout if config.attention_dropout is None else config.attention_dropout
    )
    return {
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.max_positions,
        "type_vocab_size": config.types,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.blocks,
        "num_attention_heads": config.heads,
        "intermediate_size": config.d_hidden or 4 * config.d_model,
        "layer_norm_eps": config.norm_eps,
        "hidden_act": THEIR_ACTIVATIONS[config.activation],
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": attention_dropout,
    }


UNUSED = ("bert.embeddings.position_ids", "bert.pooler.*", "cls.*")
BERT = Family("bert", "BertModel", Encoder, "bert.", table, read, write, UNUSED)
