"""Loading: a shipped model by its name, a folder of ours or of Hugging Face's, or a file of llama2.c."""

import os
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from ...attention import Attention, values
from ...files import paths
from ...files import safetensors as tensors
from ...files.definitions import meant, must_be_savable
from ...files.errors import LoadError
from ...words import hint, near
from ..model import DEFINED, FORMAT, KINDS, Model
from ..shipped import by_name, shipped
from . import huggingface, llama2c
from .build import described, fill, special
from .tensor_names import same


def load(
    path: str | os.PathLike[str], *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> Model:
    """The model of a folder, ready to be used (`eval`), with its tokenizer as `model.tokenizer` if the folder has one.

    The folder is one that `model.save` wrote, or one of Hugging Face's: gpt2, llama (so SmolLM2), mistral, qwen2, bert,
    marian. (Marian's own source.spm and target.spm are not read: model.tokenizer is None.) A .bin of llama2.c is read
    too, with the tok*.bin beside it. Weights keep the dtype they have in the file unless another is given.

    Of a model that ships with the package the name is enough, unless there is a folder of that name here. Its file is
    bfloat16 to be small; it is loaded as float32, so that it writes the same text everywhere.

    Nothing in a file is ever executed. What does not fit is a LoadError, one sentence, and nothing is half-loaded.
    """
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f"dtype={dtype} is not a dtype of weights; there are torch.float32, torch.bfloat16, ...")
    if by_name(path) is not None:
        dtype = dtype or torch.float32
    place = found(path)
    if not paths.is_folder(place):
        return llama2c.load(llama2c.the_file(place), device=device, dtype=dtype)
    if "config.json" not in paths.names(place):
        return llama2c.load(llama2c.in_folder(place), device=device, dtype=dtype)

    config = paths.read_json(place / "config.json")
    loaded = _ours if "telescope" in config else huggingface.load
    model = loaded(place, config, device=device, dtype=dtype)
    model.tokenizer = read_tokenizer(place / "tokenizer.json") if "tokenizer.json" in paths.names(place) else None
    return model.eval()


def found(path: str | os.PathLike[str]) -> Path:
    """Where it is: a model that ships by its name, or what has this path."""
    if (known := by_name(path)) is not None:
        return known
    name = os.fspath(path)
    if Path(path).name == name and paths.missing(name):
        raise _nobody_has(name)
    return paths.existing(path)


def _nobody_has(name: str) -> LoadError:
    there = shipped()
    here = [it for it in paths.names(Path()) if it.endswith(".bin") or Path(it).is_dir()]
    meant = near(name, [*there, *here])
    hinted = f'; did you mean "{meant}"?' if meant else "."
    return LoadError(
        f'there is no model "{name}"{hinted} Shipped: {", ".join(there) or "none yet"}. A folder works too.'
    )


def _ours(
    folder: Path, config: dict[str, Any], *, device: torch.device | str | None, dtype: torch.dtype | None
) -> Model:
    file = folder / "config.json"
    if config.get("telescope") not in (FORMAT, DEFINED):
        raise LoadError(
            f"{file} is of format {config['telescope']!r}; this version of Telescope reads {FORMAT} and {DEFINED}"
        )
    parts = {"telescope", "model", "config", "special"} | ({"attention"} if config["telescope"] == DEFINED else set())
    match config:
        case {"model": str(name), "config": dict(fields), "special": dict(ids)} if set(config) == parts:
            pass
        case _:
            own = ' and "attention"' if "attention" in parts else ""
            raise LoadError(f'{file} should say "telescope", "model", "config" and "special"{own}, and nothing else')
    if name not in KINDS:
        raise LoadError(f'{file}: there is no model "{name}"; {hint(name, KINDS)}')
    there = tensors.in_folder(folder)
    attention, used = None, set[str]()
    if "attention" in config:
        attention, used = _definition(config["attention"], file, there, device=device, dtype=dtype)
    model = described(KINDS[name], lambda: KINDS[name].config_type.from_dict(fields), file, there, attention)
    model.special = special(ids, file)
    fill(model, there, same(model), unused=used, device=device, dtype=dtype)
    return model


def _definition(
    said: Any, file: Path, there: tensors.Tensors, *, device: torch.device | str | None, dtype: torch.dtype | None
) -> tuple[Attention, set[str]]:
    """A definition of the model's own, and the names of its tensors in the files."""
    with there.opened() as read:
        numbers = {name: read(name).to(device) for name in there if name.startswith("attention.")}
    if dtype is not None:
        numbers = {name: it.to(dtype) if it.is_floating_point() else it for name, it in numbers.items()}
    attention = meant(said, numbers, str(file))
    if not isinstance(attention, Attention):
        raise LoadError(f'{file}: "attention" is no definition of an attention')
    try:
        must_be_savable("attention", attention)
    except ValueError as problem:
        raise LoadError(f"{file}: {problem}") from None
    used = {id(tensor) for tensor in values.tensors(attention)}
    return attention, {name for name, tensor in numbers.items() if id(tensor) in used}


def read_tokenizer(file: Path) -> Tokenizer:
    """The tokenizer of a tokenizer.json."""
    try:
        return Tokenizer.from_str(paths.read(file, at_most=1_000_000_000).decode("utf-8"))
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except (
        BaseException
    ) as error:  # the tokenizers library raises nothing narrower, and a panic in Rust is no Exception
        raise LoadError(f"{file} is not a tokenizer that can be read: {error}") from None
