"""Saving: a model's config, its weights and its tokenizer, as one folder."""

import os
from dataclasses import asdict

from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from ...attention import Attention
from ...files.atomic import WRITTEN_BY, write_json, written_whole
from ...files.definitions import must_be_savable, told
from ...files.safetensors import SINGLE
from ..model import Model
from .build import empty
from .kinds import DEFINED, FORMAT, KINDS
from .table import weights_of


def save(model: Model, path: str | os.PathLike[str]) -> None:
    attention = own_definition(model)
    must_be_its_config(model, attention)
    weights = {name: tensor.detach().contiguous() for name, tensor in weights_of(model).items()}
    config = {
        "telescope": FORMAT if attention is None else DEFINED,
        "model": type(model).__name__,
        "config": model.config.to_dict(),
        "special": asdict(model.special),
    }
    if attention is not None:
        must_be_savable("attention", attention)
        tensors: dict[str, Tensor] = {}
        config["attention"] = told(attention, tensors)
        weights |= {name: tensor.detach().clone() for name, tensor in tensors.items()}  # two may be views of one
    with written_whole(path) as folder:
        write_json(folder / "config.json", config)
        save_file(weights, folder / SINGLE, metadata=WRITTEN_BY)
        write_tokenizer(model, folder)


def write_tokenizer(model: Model, folder: os.PathLike[str]) -> None:
    if isinstance(model.tokenizer, Tokenizer):
        model.tokenizer.save(os.path.join(folder, "tokenizer.json"))
    elif model.tokenizer is not None:
        raise TypeError(f"model.tokenizer is a {type(model.tokenizer).__name__}; a tokenizers.Tokenizer can be saved")


def own_definition(model: Model) -> Attention | None:
    """The definition that a model was made with, if it is not its config's. None of another kind of model."""
    kind = KINDS.get(type(model).__name__)
    if kind is not type(model):
        return None
    usual = empty(kind, model.config).attention
    return None if model.attention == usual else model.attention


def must_be_its_config(model: Model, attention: Attention | None = None) -> None:
    """What is loaded again is built from the config and the definition: refuse a model that is anything more."""
    kind = KINDS.get(type(model).__name__)
    if kind is not type(model):
        raise TypeError(f"{type(model).__name__} is not a model that can be loaded again; there are {', '.join(KINDS)}")
    twin = empty(kind, model.config, attention)
    if attention is None and model.attention != twin.attention:
        raise ValueError(
            f"attention is {model.attention!r}; by its config, {twin.attention!r} is what would be loaded again"
        )
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
                numbers = " of other numbers" if repr(given) == repr(said) else ""
                raise ValueError(
                    f"{name}.{what} is {given!r}; by its config, {said!r}{numbers} is what would be loaded again"
                )
