"""One of our models as a folder of Hugging Face's."""

import os

from safetensors.torch import save_file
from torch import Tensor

from ...gpt import GPT
from ...model import Model
from ...transformer import Transformer
from ..save import must_be_its_config, write_tokenizer
from ..table import rows_for, weights_of
from ..tensors import SINGLE
from ..whole import WRITTEN_BY, write_json, written_whole
from . import llama
from .family import Family
from .gpt2 import GPT2
from .marian import MARIAN


def export(
    model: Model,
    path: str | os.PathLike[str],
    *,
    start: int | None = None,
    end: int | None = None,
    pad: int | None = None,
) -> None:
    """Write a folder that `transformers` loads, as GPT-2, Llama, Mistral, Qwen2, BERT or Marian, with equal logits.

    `start`, `end` and `pad` are the ids with which it begins and ends a text and fills a batch. A model that
    transformers has no counterpart for is refused, with the reason. Dropout is as in ours where theirs has it.
    """
    must_be_its_config(model)
    family = counterpart(model)
    beginning = "decoder_start_token_id" if isinstance(model, Transformer) else "bos_token_id"
    config = {
        "architectures": [family.architecture],
        "model_type": family.name,
        **family.write(model.config),
        "torch_dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        **{beginning: start, "eos_token_id": end, "pad_token_id": pad},
    }
    with written_whole(path) as folder:
        write_json(folder / "config.json", config)
        save_file(theirs(model, family), folder / SINGLE, metadata=WRITTEN_BY)
        write_tokenizer(model, folder)
        if model.tokenizer is not None:
            write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})


def counterpart(model: Model) -> Family:
    if isinstance(model, GPT):
        return GPT2 if model.config.positions == "learned" else llama.like(model.config)
    if isinstance(model, Transformer):
        return MARIAN
    raise ValueError(f"{type(model).__name__} has no counterpart in transformers, so it cannot be exported")


def theirs(model: Model, family: Family) -> dict[str, Tensor]:
    """Our tensors under their names; one that has several names there is written once."""
    weights = weights_of(model)
    once = {row.ours: row for row in reversed(rows_for(family.table(model.config), weights))}
    return {
        name: part.detach().contiguous()
        for ours, row in once.items()
        for name, part in row.parts(model, weights[ours]).items()
    }
