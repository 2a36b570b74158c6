"""A folder of Hugging Face's as one of our models."""

import json
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from ....files import paths
from ....files import safetensors as tensors
from ....files.errors import LoadError
from ....files.safetensors import Tensors
from ...config import Special
from ...model import Model
from ...transformer import Transformer
from ..build import described, fill, special
from ..tensor_names import rows_for
from .bert import BERT
from .family import Family, Fields
from .gpt2 import GPT2
from .llama import LLAMA, MISTRAL, QWEN2
from .marian import MARIAN

FAMILIES: dict[str, Family] = {family.name: family for family in (GPT2, LLAMA, MISTRAL, QWEN2, BERT, MARIAN)}


def load(
    folder: Path, config: dict[str, Any], *, device: torch.device | str | None, dtype: torch.dtype | None
) -> Model:
    file = folder / "config.json"
    family = _family(file, config.pop("model_type", None))
    fields = Fields(config, file=str(file), family=family.name)
    there = _named(family, tensors.in_folder(folder))
    if dtype is None:
        _must_be_of_one_dtype(there, family.unused)
    model = described(family.model, lambda: family.config(fields, there), file, there)
    model.special = _special(folder, config, model)
    family.check(model.config, there)
    fill(model, there, rows_for(family.table(model.config), model), unused=family.unused, device=device, dtype=dtype)
    return model


def _family(file: Path, name: Any) -> Family:
    if not isinstance(name, str) or name not in FAMILIES:
        what = "has no model_type" if name is None else f"is of model_type {json.dumps(name)}"
        raise LoadError(f"{file} {what}; models of {', '.join(FAMILIES)} can be loaded, and folders of model.save")
    return FAMILIES[name]


def _special(folder: Path, config: dict[str, Any], model: Model) -> Special:
    """Those of generation_config.json, where it has them, are newer than those of config.json."""
    names = {"start": "bos_token_id", "end": "eos_token_id", "pad": "pad_token_id"}
    if isinstance(model, Transformer):
        names["start"] = "decoder_start_token_id"
    newer = folder / "generation_config.json"
    said = config | (paths.read_json(newer) if newer.name in paths.names(folder) else {})
    sizes = model.config.to_dict()
    vocabulary = sizes.get("target_vocabulary") or sizes["vocabulary"]
    return special({ours: said.get(theirs) for ours, theirs in names.items()}, folder / "config.json", vocabulary)


def _named(family: Family, there: Tensors) -> Tensors:
    """Names as the table has them: with the prefix that a model without a head leaves out, and none of 2018."""
    bare = not any(name.startswith(family.prefix) for name in there)

    def rename(name: str) -> str:
        for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
            name = name.removesuffix(old) + new if name.endswith(old) else name
        return family.prefix + name if bare else name

    return there.called(rename)


def _must_be_of_one_dtype(there: Tensors, unused: Iterable[str]) -> None:
    used = [entry for name, entry in there.items() if not any(fnmatchcase(name, pattern) for pattern in unused)]
    for entry in used:
        if entry.dtype != used[0].dtype:
            raise LoadError(
                f'{entry.file}: tensor "{entry.name}" is {entry.kind} and "{used[0].name}" is {used[0].kind}; '
                "say which it shall be: ts.load(path, dtype=torch.float32)"
            )
