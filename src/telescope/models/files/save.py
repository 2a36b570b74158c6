"""Saving: a model's config, its weights and its tokenizer, as one folder."""

import os
from dataclasses import asdict

from safetensors.torch import save_file
from tokenizers import Tokenizer

from ..model import Model
from .build import empty
from .kinds import FORMAT, KINDS
from .table import weights_of
from .tensors import SINGLE
from .whole import WRITTEN_BY, write_json, written_whole


def save(model: Model, path: str | os.PathLike[str]) -> None:
    must_be_its_config(model)
    weights = {name: tensor.detach().contiguous() for name, tensor in weights_of(model).items()}
    config = {
        "telescope": FORMAT,
        "model": type(model).__name__,
        "config": model.config.to_dict(),
        "special": asdict(model.special),
    }
    with written_whole(path) as folder:
        write_json(folder / "config.json", config)
        save_file(weights, folder / SINGLE, metadata=WRITTEN_BY)
        write_tokenizer(model, folder)


def write_tokenizer(model: Model, folder: os.PathLike[str]) -> None:
    if isinstance(model.tokenizer, Tokenizer):
        model.tokenizer.save(os.path.join(folder, "tokenizer.json"))
    elif model.tokenizer is not None:
        raise TypeError(f"model.tokenizer is a {type(model.tokenizer).__name__}; a tokenizers.Tokenizer can be saved")


def must_be_its_config(model: Model) -> None:
    """What is loaded again is built from the config: refuse a model that is anything more."""
    kind = KINDS.get(type(model).__name__)
    if kind is not type(model):
        raise TypeError(f"{type(model).__name__} is not a model that can be loaded again; there are {', '.join(KINDS)}")
    twin = empty(kind, model.config)
    weights, usual = weights_of(model), weights_of(twin)
    parts, usual_parts = dict(model.named_modules()), dict(twin.named_modules())
    for name in (*(weights.keys() ^ usual.keys()), *(parts.keys() ^ usual_parts.keys())):
        raise ValueError(f'"{name}" is not what its config describes; the model was changed after it was made')
    for name, tensor in weights.items():
        if tensor.is_meta or tensor.shape != usual[name].shape:
            has = "no numbers, it is on meta" if tensor.is_meta else f"shape {list(tensor.shape)}"
            raise ValueError(f'"{name}" has {has}; its config describes a tensor of shape {list(usual[name].shape)}')
    for name, part in parts.items():
        for what in ("attention", "rotary"):
            given, said = (getattr(module, what, None) for module in (part, usual_parts[name]))
            if given != said:
                raise ValueError(f"{name}.{what} is {given!r}; by its config, {said!r} is what would be loaded again")
