"""The base of all models: a config that describes the whole shape, the meaning of the ids, and saving as a folder."""

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..attention import Attention, Mask
from ..attention.values import has_numbers
from ..files.atomic import WRITTEN_BY, write_json, written_whole
from ..files.definitions import must_be_savable, told
from ..files.safetensors import SINGLE
from ..layers.attend import Definition
from .config import Config, Special
from .saved.tensor_names import weights_of

# The format of config.json; a later one is refused by its number. DEFINED also holds the definition of the attention.
FORMAT, DEFINED = 1, 2


class Model(nn.Module):
    """The base of all models.

    A subclass that can be saved and loaded names its config: `class GPT(Model, config_type=GPTConfig)`. Loading looks
    it up in `KINDS` by its class name.

    tokenizer: turns text into ids and back, or None.
    special: the ids that are not words: start, end and padding.
    """

    config: Config
    config_type: ClassVar[type[Config]]
    tokenizer: Tokenizer | None = None
    special: Special = Special()

    def __init_subclass__(cls, config_type: type[Config] | None = None, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if config_type is not None:
            cls.config_type = config_type
            KINDS[cls.__name__] = cls

    @property
    def attention(self) -> Attention:
        """The definition of attention that the layers were made with."""
        raise NotImplementedError(f"{type(self).__name__} does not say with which definition it was made")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write config.json, model.safetensors and, if there is a tokenizer, tokenizer.json into the folder `path`.

        The folder appears whole or not at all. A model saved there before is replaced; any other folder is refused.
        """
        attention = own_definition(self)
        must_be_its_config(self, attention)
        weights = {name: tensor.detach().contiguous() for name, tensor in weights_of(self).items()}
        config = {
            "telescope": FORMAT if attention is None else DEFINED,
            "model": type(self).__name__,
            "config": self.config.to_dict(),
            "special": asdict(self.special),
        }
        if attention is not None:
            must_be_savable("attention", attention)
            tensors: dict[str, Tensor] = {}
            config["attention"] = told(attention, tensors)
            weights |= {name: tensor.detach().clone() for name, tensor in tensors.items()}  # two may be views of one
        with written_whole(path) as folder:
            write_json(folder / "config.json", config)
            save_file(weights, folder / SINGLE, metadata=WRITTEN_BY)
            write_tokenizer(self, folder)


KINDS: dict[str, type[Model]] = {}
"""The models that a folder can hold, by class name. Each subclass of Model with a `config_type` adds itself."""


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


def empty(kind: type[Model], config: Config, attention: Attention | None = None) -> Model:
    """On "meta", where tensors have a shape and take no memory; a definition of its own has its tensors already."""
    with torch.device("meta"), _NothingDrawn():
        return kind(config) if attention is None else kind(config, attention=attention)


class _NothingDrawn(TorchFunctionMode):
    """Where there are no numbers none need be drawn: to do so torch would import its compiler, which takes seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.normal_ or func is nn.init.normal_:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


Norm = Literal["layer", "rms"]


def normaliser(norm: Norm, eps: float, bias: bool = True) -> Callable[[int], nn.Module]:
    """What makes the normaliser of a width."""
    return partial(nn.RMSNorm, eps=eps) if norm == "rms" else partial(nn.LayerNorm, eps=eps, bias=bias)


def to_initialise(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules of a model by name, without those of a definition: these come with numbers of their own."""
    given = {id(part) for module in model.modules() if isinstance(module, Definition) for part in module.modules()}
    return ((name, module) for name, module in model.named_modules() if id(module) not in given)


def check_ids(name: str, ids: Tensor, vocabulary: int) -> None:
    """Whole numbers (batch, n) from 0 to vocabulary - 1; on a GPU only the form is looked at, the rest would wait."""
    if not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.int32) or ids.ndim != 2:
        what = f"{ids.dtype} of shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
        raise ValueError(f"{name} is {what}; a model takes whole numbers (batch, n), one for each token")
    if ids.numel() and ids.device.type == "cpu" and has_numbers(ids):
        low, high = (int(end) for end in ids.aminmax())
        if low < 0 or high >= vocabulary:
            stranger = low if low < 0 else high
            raise ValueError(f"{name} has the id {stranger}; the vocabulary is 0 to {vocabulary - 1}")


def real_tokens(mask: Mask | None, x: Tensor) -> Bool[Tensor, "batch n"]:
    """Which tokens of x (batch, n, …) a mask of padding shows: those that are no padding."""
    batch, n = x.shape[:2]
    if mask is None:
        return torch.ones(batch, n, dtype=torch.bool, device=x.device)
    if not mask.keys_alone:
        raise ValueError(f"mask={mask!r} differs from query to query; only ts.padding says which tokens are real")
    return mask.block(range(n - 1, n), n, of=(n, n), batch=batch, device=x.device)[:, 0, 0].expand(batch, n)
