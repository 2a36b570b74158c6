"""One of our models as a folder of Hugging Face's."""

import os
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from ....files.atomic import WRITTEN_BY, write_json, written_whole
from ....files.safetensors import SINGLE
from ...encoder import Encoder
from ...gpt import GPT
from ...model import Model, must_be_its_config, write_tokenizer
from ...transformer import Transformer
from ..tensor_names import rows_for
from . import llama
from .bert import BERT
from .family import Family
from .gpt2 import GPT2
from .marian import MARIAN


def export(model: Model, path: str | os.PathLike[str]) -> None:
    """Write a folder that `transformers` loads, as GPT-2, Llama, Mistral, Qwen2, BERT or Marian, with equal logits.

    A model that has no counterpart there is refused, with the reason.
    """
    must_be_its_config(model)
    family = counterpart(model)
    config = {
        "architectures": [family.architecture],
        "model_type": family.name,
        **family.write(model.config),
        **_special(model),
        "torch_dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
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
    if isinstance(model, Encoder):
        return BERT
    raise ValueError(f"{type(model).__name__} has no counterpart in transformers, so it cannot be exported")


def theirs(model: Model, family: Family) -> dict[str, Tensor]:
    """Our tensors under their names; one that has several names there is written once."""
    weights = family.weights(model)
    once = {row.ours: row for row in reversed(rows_for(family.table(model.config), model))}
    return {
        name: part.detach().contiguous()
        for ours, row in once.items()
        for name, part in row.parts(model, weights[ours]).items()
    }


def _special(model: Model) -> dict[str, Any]:
    start, end, pad = model.special.start, list(model.special.end), model.special.pad
    ids = {"eos_token_id": end[0] if len(end) == 1 else end or None, "pad_token_id": pad}
    if not isinstance(model, Transformer):
        return ids | {"bos_token_id": start}
    if start is None:
        raise ValueError("a Marian starts with some token: say model.special = ts.models.Special(start=...)")
    return ids | {"decoder_start_token_id": start, "forced_eos_token_id": None}
