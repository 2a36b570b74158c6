"""Exporting a model to a folder that `transformers` loads."""

import os
from typing import Any

from torch import Tensor

from ....files.atomic import WRITTEN_BY, atomic_folder, write_json
from ....files.safetensors import WEIGHTS_FILE, save_tensors
from ...encoder import Encoder
from ...gpt import GPT
from ...model import Model, check_matches_config, write_tokenizer
from ...transformer import Transformer
from ..tensor_names import rows_for
from . import llama
from .bert import BERT
from .family import Family
from .gpt2 import GPT2
from .marian import MARIAN


def export(model: Model, path: str | os.PathLike[str]) -> None:
    """Write a folder that `transformers` loads, as GPT-2, Llama, Mistral, Qwen2, BERT or Marian,
    with equal logits.

    model  a GPT, Encoder or Transformer whose options transformers supports
    path   the folder; a model that was saved there before is replaced

    Raises a ValueError with the reason where the model has no counterpart, or `path` holds anything
    else.

    Example:
        >>> import os, tempfile, telescope as ts
        >>> from telescope.models import GPT, GPTConfig
        >>> model = GPT(GPTConfig(vocabulary=10, d_model=8, heads=2, blocks=1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ts.export(model, f"{folder}/gpt2")
        ...     sorted(os.listdir(f"{folder}/gpt2"))
        ['config.json', 'model.safetensors']
    """
    check_matches_config(model)
    family = choose_family(model)
    config = {
        "architectures": [family.architecture],
        "model_type": family.name,
        **family.write(model.config),
        **_special(model),
        "torch_dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
    }
    with atomic_folder(path) as folder:
        write_json(folder / "config.json", config)
        save_tensors(tensors_for(model, family), folder / WEIGHTS_FILE, WRITTEN_BY)
        write_tokenizer(model, folder)
        if model.tokenizer is not None:
            write_json(
                folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"}
            )


def choose_family(model: Model) -> Family:
    """Return the family that a model is exported as; a ValueError where there is none."""
    if isinstance(model, GPT):
        return GPT2 if model.config.positions == "learned" else llama.choose_family(model.config)
    if isinstance(model, Transformer):
        return MARIAN
    if isinstance(model, Encoder):
        return BERT
    raise ValueError(
        f"{type(model).__name__} has no counterpart in transformers, so it cannot be exported"
    )


def tensors_for(model: Model, family: Family) -> dict[str, Tensor]:
    """Return the model's tensors under the family's names; a tensor with several names is written
    under its first.
    """
    weights = family.weights(model)
    first_rows = {row.ours: row for row in reversed(rows_for(family.table(model.config), model))}
    return {
        name: part.detach().contiguous()
        for ours, row in first_rows.items()
        for name, part in row.parts(model, weights[ours]).items()
    }


def _special(model: Model) -> dict[str, Any]:
    """Return the special ids as fields of config.json."""
    start = model.special.start
    end = list(model.special.end)
    pad = model.special.pad
    ids = {"eos_token_id": end[0] if len(end) == 1 else end or None, "pad_token_id": pad}
    if not isinstance(model, Transformer):
        return ids | {"bos_token_id": start}
    if start is None:
        raise ValueError(
            "Marian needs a start token: set model.special = ts.models.Special(start=...)"
        )
    return ids | {"decoder_start_token_id": start, "forced_eos_token_id": None}
