"""Loading a model: shipped with the package, saved by Telescope or by Hugging Face, or a file of
llama2.c.
"""

import os
from pathlib import Path
from typing import Any

import torch

from ...attention import Attention, values
from ...files import paths
from ...files.definitions import check_savable, from_json
from ...files.errors import LoadError
from ...files.safetensors import StoredTensors, scan_folder
from ...words import closest_name, hint
from ..device import check_device
from ..model import FORMAT, FORMAT_WITH_ATTENTION, MODEL_CLASSES, Model
from ..shipped import find_shipped, shipped_models
from . import huggingface, llama2c
from .build import build_model, load_weights, read_special
from .tensor_names import identity_rows
from .tokenizer_file import read_tokenizer


def load(
    path: str | os.PathLike[str],
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Model:
    """Return the model in a folder, in eval mode, with its tokenizer as `model.tokenizer` if the
    folder has one.

    path    a folder that `model.save` wrote; a folder of Hugging Face's with a gpt2, llama (SmolLM2
            too), mistral, qwen2, bert or marian (without its tokenizer, source.spm and target.spm);
            a .bin file of llama2.c, with the tok*.bin in the same folder; or the name of a model
            that is shipped with the package, unless the working folder has a file or folder of that
            name
    device  where the weights go; the CPU unless given
    dtype   of the weights; unless given, the dtype in the file. Shipped models are bfloat16 in the
            file, to be small, and are loaded as float32, so that they write the same text on every
            machine

    Nothing in a file is ever executed. Raises a LoadError with one sentence where a file cannot be
    read, a ValueError where `dtype` is not a floating-point dtype or `device` is not here.

    Example:
        >>> import telescope as ts
        >>> model = ts.load("shakespeare")
        >>> type(model).__name__, model.training
        ('GPT', False)
    """
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(
            f"dtype={dtype} is not a dtype of weights; there are torch.float32, torch.bfloat16, ..."
        )
    if (
        device is not None and str(device) != "meta"
    ):  # "meta" gives the shapes of the weights without their numbers
        device = check_device(device)
    if find_shipped(path) is not None:
        dtype = dtype or torch.float32
    place = find_model(path)
    if not paths.is_folder(place):
        return llama2c.load(llama2c.check_is_llama2c(place), device=device, dtype=dtype)
    if "config.json" not in paths.list_names(place):
        return llama2c.load(llama2c.find_in_folder(place), device=device, dtype=dtype)

    config = paths.read_json(place / "config.json")
    load_folder = _load_telescope_folder if "telescope" in config else huggingface.load
    model = load_folder(place, config, device=device, dtype=dtype)
    model.tokenizer = (
        read_tokenizer(place / "tokenizer.json")
        if "tokenizer.json" in paths.list_names(place)
        else None
    )
    return model.eval()


def find_model(path: str | os.PathLike[str]) -> Path:
    """Return the path of a model, by its path or by the name under which it is shipped; else raise
    a LoadError.
    """
    if (folder := find_shipped(path)) is not None:
        return folder
    name = os.fspath(path)
    if Path(path).name == name and paths.is_missing(name):
        raise _unknown_model_error(name)
    return paths.check_exists(path)


def _unknown_model_error(name: str) -> LoadError:
    """Return the error for a name that is neither shipped nor in the working folder; suggest a
    similar name.
    """
    shipped = shipped_models()
    local = [
        entry
        for entry in paths.list_names(Path())
        if entry.endswith(".bin") or Path(entry).is_dir()
    ]
    similar = closest_name(name, [*shipped, *local])
    suggestion = f'; did you mean "{similar}"?' if similar else "."
    return LoadError(
        f'there is no model "{name}"{suggestion} Shipped: {", ".join(shipped) or "none yet"}. A '
        "folder works too."
    )


def _load_telescope_folder(
    folder: Path,
    config: dict[str, Any],
    *,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> Model:
    """Return the model in a folder that `model.save` wrote; `config` is its parsed config.json."""
    file = folder / "config.json"
    if config.get("telescope") not in (FORMAT, FORMAT_WITH_ATTENTION):
        raise LoadError(
            f"{file} is of format {config['telescope']!r}; this version of Telescope reads "
            f"{FORMAT} and "
            f"{FORMAT_WITH_ATTENTION}"
        )
    expected = {"telescope", "model", "config", "special"}
    if config["telescope"] == FORMAT_WITH_ATTENTION:
        expected.add("attention")
    match config:
        case {"model": str(name), "config": dict(fields), "special": dict(ids)} if (
            set(config) == expected
        ):
            pass
        case _:
            last = ' and "attention"' if "attention" in expected else ""
            raise LoadError(
                f'{file} should have the fields "telescope", "model", "config" and '
                f'"special"{last}, and no others'
            )
    if name not in MODEL_CLASSES:
        raise LoadError(f'{file}: there is no model "{name}"; {hint(name, MODEL_CLASSES)}')
    tensors = scan_folder(folder)
    attention = None
    used = set[str]()
    if "attention" in config:
        attention, used = _read_definition(
            config["attention"], file, tensors, device=device, dtype=dtype
        )
    kind = MODEL_CLASSES[name]
    model = build_model(kind, lambda: kind.config_type.from_dict(fields), file, tensors, attention)
    model.special = read_special(ids, file)
    load_weights(model, tensors, identity_rows(model), unused=used, device=device, dtype=dtype)
    return model


def _read_definition(
    parsed: Any,
    file: Path,
    tensors: StoredTensors,
    *,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> tuple[Attention, set[str]]:
    """Return the definition in a config.json, and the names of its tensors in the model's files."""
    with tensors.reader() as read:
        numbers = {name: read(name).to(device) for name in tensors if name.startswith("attention.")}
    if dtype is not None:
        numbers = {
            name: part.to(dtype) if part.is_floating_point() else part
            for name, part in numbers.items()
        }
    attention = from_json(parsed, numbers, str(file))
    if not isinstance(attention, Attention):
        raise LoadError(f'{file}: "attention" is not a definition of attention')
    try:
        check_savable("attention", attention)
    except ValueError as problem:
        raise LoadError(f"{file}: {problem}") from None
    used = {id(tensor) for tensor in values.tensors(attention)}
    return attention, {name for name, tensor in numbers.items() if id(tensor) in used}
