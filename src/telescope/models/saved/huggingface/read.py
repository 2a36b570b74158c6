"""Loading a Hugging Face folder as a model of this library."""

import json
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from ....files import paths
from ....files.errors import LoadError
from ....files.safetensors import StoredTensors, scan_folder
from ...config import Special
from ...model import Model
from ...transformer import Transformer
from ..build import build_model, load_weights, read_special
from ..tensor_names import rows_for
from .bert import BERT
from .family import Family, Fields
from .gpt2 import GPT2
from .llama import LLAMA, MISTRAL, QWEN2
from .marian import MARIAN

FAMILIES: dict[str, Family] = {
    family.name: family for family in (GPT2, LLAMA, MISTRAL, QWEN2, BERT, MARIAN)
}


def load(
    folder: Path,
    config: dict[str, Any],
    *,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> Model:
    """Return the model in a Hugging Face folder; `config` is its parsed config.json."""
    file = folder / "config.json"
    family = _family(file, config.pop("model_type", None))
    fields = Fields(config, file=str(file), family=family.name)
    tensors = _canonical_names(family, scan_folder(folder))
    if dtype is None:
        _check_one_dtype(tensors, family.unused)
    model = build_model(family.model, lambda: family.config(fields, tensors), file, tensors)
    model.special = _special(folder, config, model)
    family.check(model.config, tensors)
    load_weights(
        model,
        tensors,
        rows_for(family.table(model.config), model),
        unused=family.unused,
        device=device,
        dtype=dtype,
    )
    return model


def _family(file: Path, name: Any) -> Family:
    """Return the family of a model_type; a LoadError where it is unknown."""
    if not isinstance(name, str) or name not in FAMILIES:
        what = "has no model_type" if name is None else f"is of model_type {json.dumps(name)}"
        raise LoadError(
            f"{file} {what}; models of {', '.join(FAMILIES)} can be loaded, and folders of "
            "model.save"
        )
    return FAMILIES[name]


def _special(folder: Path, config: dict[str, Any], model: Model) -> Special:
    """Return the special ids; generation_config.json, which is newer, takes precedence over
    config.json.
    """
    names = {"start": "bos_token_id", "end": "eos_token_id", "pad": "pad_token_id"}
    if isinstance(model, Transformer):
        names["start"] = "decoder_start_token_id"
    generation = folder / "generation_config.json"
    ids = config | (
        paths.read_json(generation) if generation.name in paths.list_names(folder) else {}
    )
    sizes = model.config.to_dict()
    vocabulary = sizes.get("target_vocabulary") or sizes["vocabulary"]
    return read_special(
        {ours: ids.get(theirs) for ours, theirs in names.items()},
        folder / "config.json",
        vocabulary,
    )


def _canonical_names(family: Family, tensors: StoredTensors) -> StoredTensors:
    """Return the tensors under the names in the family's table.

    Adds the prefix that files of a model without a head leave out; renames gamma and beta, as in
    files of 2018.
    """
    bare = not any(name.startswith(family.prefix) for name in tensors)

    def rename(name: str) -> str:
        for old, new in (
            ("LayerNorm.gamma", "LayerNorm.weight"),
            ("LayerNorm.beta", "LayerNorm.bias"),
        ):
            name = name.removesuffix(old) + new if name.endswith(old) else name
        return family.prefix + name if bare else name

    return tensors.renamed(rename)


def _check_one_dtype(tensors: StoredTensors, unused: Iterable[str]) -> None:
    """Raise a LoadError where the tensors that are used have different dtypes."""
    used = [
        entry
        for name, entry in tensors.items()
        if not any(fnmatchcase(name, pattern) for pattern in unused)
    ]
    for entry in used:
        if entry.dtype != used[0].dtype:
            raise LoadError(
                f'{entry.file}: tensor "{entry.name}" is {entry.kind} and "{used[0].name}" is '
                f"{used[0].kind}; "
                "choose one: ts.load(path, dtype=torch.float32)"
            )
