"""The base class of all models, which saves a model as a folder, and functions that all models
share.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

import torch
from jaxtyping import Bool
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..attention import Attention, Mask, has_data
from ..files.atomic import WRITTEN_BY, atomic_folder, write_json
from ..files.definitions import check_savable, to_json
from ..files.safetensors import WEIGHTS_FILE, save_tensors
from ..layers import DefinitionModule, check_choice, group_size, head_width
from ..words import hint

MAX_INT = 2**63  # whole numbers must be smaller: sizes of tensors are signed 64-bit integers


@dataclass(frozen=True)
class Config:
    """The base class of all configs: a frozen dataclass whose fields are numbers, booleans, None or
    words.

    Constructing a config checks every field. An unknown field or a value of another type raises a
    TypeError, a value out of range a ValueError, each with one sentence that names the field.

    Example:
        >>> from telescope.models import GPTConfig
        >>> GPTConfig(d_model=64, heads=4).to_dict()["heads"]
        4
        >>> GPTConfig.from_dict({"d_model": 64, "heads": 4}) == GPTConfig(d_model=64, heads=4)
        True
    """

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Raise a TypeError that suggests the nearest field where a keyword is not a field."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise TypeError(f'{cls.__name__} has no field "{name}"; {hint(name, known)}')
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, declared in get_type_hints(type(self)).items():
            _check_type(name, getattr(self, name), declared)
        self.check()

    def check(self) -> None:
        """Raise a ValueError where a value is out of range or the fields contradict each other; for
        subclasses.
        """

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """Return the config with the fields in `given`, as `to_dict` returns them; other fields
        have their defaults.

        Raises a ValueError where a field without a default is missing.
        """
        needed = [
            field.name
            for field in fields(cls)
            if field.default is MISSING and field.default_factory is MISSING
        ]
        missing = [f'"{name}"' for name in needed if name not in given]
        if missing:
            raise ValueError(f"{cls.__name__} needs {' and '.join(missing)}, which must be given")
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as a dict that JSON can hold."""
        return asdict(self)


@dataclass(frozen=True)
class Special:
    """The special token ids of a model. Ids that are not known are None.

    start  the id that begins a text
    end    the ids that end a text
    pad    the id that fills shorter sequences of a batch

    Example:
        >>> from telescope.models import Special
        >>> Special(start=1, end=(2,)).pad is None
        True
    """

    start: int | None = None
    end: tuple[int, ...] = ()
    pad: int | None = None


# --------------------------------------------------------------- checks of fields, for Config.check


def check_at_least_one(config: Config, *names: str) -> None:
    """Raise a ValueError where one of the fields `names` is below 1; None passes."""
    for name in names:
        size = getattr(config, name)
        if size is not None and size < 1:
            raise ValueError(f"{name}={size} must be at least 1")


def check_at_most(config: Config, most: int, *names: str) -> None:
    """Raise a ValueError where one of the fields `names` is above `most`; None passes."""
    for name in names:
        size = getattr(config, name)
        if size is not None and size > most:
            raise ValueError(f"{name}={size} is too large; at most {most:,} can be")


def check_positive(config: Config, *names: str) -> None:
    """Raise a ValueError where one of the fields `names` is not a finite number above zero; None
    passes.
    """
    for name in names:
        number = getattr(config, name)
        if number is not None and not 0.0 < number < float("inf"):
            raise ValueError(f"{name}={number} must be a number above zero")


def check_probabilities(config: Config, *names: str) -> None:
    """Raise a ValueError where one of the fields `names` is outside 0 <= p < 1; None passes."""
    for name in names:
        p = getattr(config, name)
        if p is not None and not 0.0 <= p < 1.0:
            raise ValueError(f"{name}={p} is a probability: from 0, below 1")


def check_heads(
    d_model: int, heads: int, key_heads: int | None = None, d_k: int | None = None
) -> None:
    """Raise a ValueError where `heads` does not divide d_model (unless d_k is given), or key_heads
    not `heads`.
    """
    if d_k is None:
        head_width(d_model, heads)
    group_size(heads, heads if key_heads is None else key_heads)


def _check_type(name: str, value: Any, declared: Any) -> None:
    """Raise a TypeError unless `value` is of the declared type: int, float, bool, str, None, a
    Literal or a union.
    """
    kinds = get_args(declared) if get_origin(declared) in (Union, UnionType) else (declared,)
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    if words and isinstance(value, str):
        check_choice(name, value, words)
        return
    plain = {float: (float, int), int: (int,), bool: (bool,), str: (str,), NoneType: (NoneType,)}
    if not any(type(value) in plain.get(kind, ()) for kind in kinds):
        wanted = [
            *words,
            *(
                plain[kind][0].__name__.replace("NoneType", "None")
                for kind in kinds
                if kind in plain
            ),
        ]
        raise TypeError(
            f"{name}={value!r} is {type(value).__name__}; it takes {' or '.join(wanted)}"
        )
    if type(value) is int and abs(value) >= MAX_INT:
        raise ValueError(
            f"{name} is a whole number of {value.bit_length()} bits; at most 63 can be"
        )


FORMAT = 1  # the number in config.json; a file with a higher number than those known is refused
FORMAT_WITH_ATTENTION = 2  # the format that also holds a definition of attention


class Model(nn.Module):
    """The base class of all models.

    A subclass that can be saved and loaded names its config: `class GPT(Model,
    config_type=GPTConfig)`. Loading finds the subclass by its name in `MODEL_CLASSES`.

    config     the sizes and options that the model was built with
    tokenizer  converts text to ids and back, or None
    special    the special ids: start, end and padding

    Example:
        >>> import tempfile, torch, telescope as ts
        >>> from telescope.models import GPT, GPTConfig
        >>> model = GPT(GPTConfig(vocabulary=10, d_model=8, heads=2, blocks=1)).eval()
        >>> ids = torch.tensor([[3, 1, 4]])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save(f"{folder}/gpt")
        ...     torch.equal(ts.load(f"{folder}/gpt")(ids), model(ids))
        True
    """

    config: Config
    config_type: ClassVar[type[Config]]
    tokenizer: Tokenizer | None = None
    special: Special = Special()

    def __init_subclass__(cls, config_type: type[Config] | None = None, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if config_type is not None:
            cls.config_type = config_type
            MODEL_CLASSES[cls.__name__] = cls

    @property
    def attention(self) -> Attention:
        """The definition of attention that the model was built with."""
        raise NotImplementedError(f"{type(self).__name__} must implement the property attention")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write config.json, model.safetensors and, if there is a tokenizer, tokenizer.json into
        the folder `path`.

        The folder appears complete or not at all. A model that was saved there before is replaced.

        Raises a ValueError where `path` holds anything else, where the model differs from what its
        config describes, or where its definition has a function; a WriteError, which is a
        ValueError and an OSError, where the disk is full or cannot be written; a TypeError where
        the class or the tokenizer cannot be saved. Equal models have equal files.
        """
        attention = custom_attention(self)
        check_matches_config(self, attention)
        weights = {
            name: tensor.detach().contiguous() for name, tensor in named_weights(self).items()
        }
        config = {
            "telescope": FORMAT if attention is None else FORMAT_WITH_ATTENTION,
            "model": type(self).__name__,
            "config": self.config.to_dict(),
            "special": asdict(self.special),
        }
        if attention is not None:
            check_savable("attention", attention)
            tensors: dict[str, Tensor] = {}
            config["attention"] = to_json(attention, tensors)
            weights |= {
                name: tensor.detach().clone() for name, tensor in tensors.items()
            }  # safetensors refuses views of one storage
        with atomic_folder(path) as folder:
            write_json(folder / "config.json", config)
            save_tensors(weights, folder / WEIGHTS_FILE, WRITTEN_BY)
            write_tokenizer(self, folder)


MODEL_CLASSES: dict[str, type[Model]] = {}
"""The classes of models that can be saved and loaded, by name: every subclass of Model with a
`config_type`.
"""


def write_tokenizer(model: Model, folder: os.PathLike[str]) -> None:
    """Write tokenizer.json into a folder, if the model has a tokenizer."""
    if isinstance(model.tokenizer, Tokenizer):
        # As `Tokenizer.save` writes it, which raises a bare Exception on a full disk.
        Path(folder, "tokenizer.json").write_bytes(model.tokenizer.to_str(pretty=True).encode())
    elif model.tokenizer is not None:
        raise TypeError(
            f"model.tokenizer is a {type(model.tokenizer).__name__}; a tokenizers.Tokenizer can be "
            "saved"
        )


def custom_attention(model: Model) -> Attention | None:
    """Return the model's definition where it differs from the one its config describes; else None.

    None too for a class that cannot be saved.
    """
    kind = MODEL_CLASSES.get(type(model).__name__)
    if kind is not type(model):
        return None
    default = build_on_meta(kind, model.config).attention
    return None if model.attention == default else model.attention


def check_matches_config(model: Model, attention: Attention | None = None) -> None:
    """Raise an error where a model differs from one built from its config and `attention`, as
    loading would build it.

    A TypeError for a class that cannot be saved; a ValueError for other modules, shapes,
    definitions or rotary positions, and for weights on the "meta" device.
    """
    kind = MODEL_CLASSES.get(type(model).__name__)
    if kind is not type(model):
        raise TypeError(
            f"{type(model).__name__} is not a model that can be loaded again; there are "
            f"{', '.join(MODEL_CLASSES)}"
        )
    twin = build_on_meta(kind, model.config, attention)
    if attention is None and model.attention != twin.attention:
        raise ValueError(
            f"attention is {model.attention!r}; by its config, {twin.attention!r} is what would be "
            "loaded again"
        )
    weights = named_weights(model)
    twin_weights = named_weights(twin)
    parts = dict(model.named_modules())
    twin_parts = dict(twin.named_modules())
    for name in (*(weights.keys() ^ twin_weights.keys()), *(parts.keys() ^ twin_parts.keys())):
        raise ValueError(
            f'"{name}" is not what its config describes; the model was changed after it was made'
        )
    for name, tensor in weights.items():
        shape = list(twin_weights[name].shape)
        if tensor.is_meta or list(tensor.shape) != shape:
            has = (
                'no numbers, because its device is "meta"'
                if tensor.is_meta
                else f"shape {list(tensor.shape)}"
            )
            raise ValueError(f'"{name}" has {has}; its config describes a tensor of shape {shape}')
    for name, part in parts.items():
        for what in ("attention", "rotary"):
            given, described = (getattr(module, what, None) for module in (part, twin_parts[name]))
            if given != described:
                numbers = " with other numbers" if repr(given) == repr(described) else ""
                raise ValueError(
                    f"{name}.{what} is {given!r}; by its config, {described!r}{numbers} is what "
                    "would be loaded again"
                )


def build_on_meta(kind: type[Model], config: Config, attention: Attention | None = None) -> Model:
    """Return a model whose weights are on the "meta" device: they have shapes and take no memory.

    The tensors of `attention`, where it is given, stay on their own device.
    """
    with torch.device("meta"), _SkipNormalInit():
        return kind(config) if attention is None else kind(config, attention=attention)


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of the state_dict by name, without those of definitions; a shared one by
    its first name.
    """
    defined = tuple(
        f"{name}." for name, module in model.named_modules() if isinstance(module, DefinitionModule)
    )
    unique: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not name.startswith(defined):
            unique.setdefault(id(tensor), (name, tensor))
    return dict(unique.values())


class _SkipNormalInit(TorchFunctionMode):
    """Skip normal_ on "meta" tensors: there PyTorch would import its compiler, which takes seconds,
    for no result.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.normal_ or func is nn.init.normal_:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


Norm = Literal["layer", "rms"]


def norm_factory(norm: Norm, eps: float, bias: bool = True) -> Callable[[int], nn.Module]:
    """Return a function that constructs the norm, LayerNorm or RMSNorm, of a given width."""
    return (
        partial(nn.RMSNorm, eps=eps) if norm == "rms" else partial(nn.LayerNorm, eps=eps, bias=bias)
    )


def modules_to_initialise(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of a model by name, except those of a definition, whose tensors the caller
    has set.
    """
    defined = {
        id(part)
        for module in model.modules()
        if isinstance(module, DefinitionModule)
        for part in module.modules()
    }
    return ((name, module) for name, module in model.named_modules() if id(module) not in defined)


def check_ids(name: str, ids: Tensor, vocabulary: int) -> None:
    """Raise a ValueError unless `ids` are whole numbers (batch, n) from 0 to vocabulary - 1.

    On a GPU only dtype and shape are checked: reading the numbers would wait for the GPU.
    """
    if not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.int32) or ids.ndim != 2:
        what = (
            f"{ids.dtype} of shape {tuple(ids.shape)}"
            if isinstance(ids, Tensor)
            else type(ids).__name__
        )
        raise ValueError(
            f"{name} is {what}; a model takes whole numbers (batch, n), one for each token"
        )
    if ids.numel() and ids.device.type == "cpu" and has_data(ids):
        low, high = (int(end) for end in ids.aminmax())
        if low < 0 or high >= vocabulary:
            outside = low if low < 0 else high
            raise ValueError(
                f"{name} has the id {outside}; the vocabulary is 0 to {vocabulary - 1}"
            )


def check_batch(name: str, ids: Tensor, batch: int) -> None:
    """Raise a ValueError unless `ids` have as many rows as the cache, whose batch this is."""
    if ids.shape[0] != batch:
        raise ValueError(f"{name} has a batch of {ids.shape[0]}, the cache one of {batch}")


def real_tokens(mask: Mask | None, x: Tensor) -> Bool[Tensor, "batch n"]:
    """Return which tokens of x (batch, n, …) are not padding, by a padding mask; all where there is
    no mask.

    Raises a ValueError for a mask that differs from query to query.
    """
    batch, n = x.shape[:2]
    if mask is None:
        return torch.ones(batch, n, dtype=torch.bool, device=x.device)
    if not mask.same_for_all_queries:
        raise ValueError(
            f"mask={mask!r} differs from query to query; only ts.padding says which tokens are real"
        )
    return mask.block(range(n - 1, n), n, of=(n, n), batch=batch, device=x.device)[:, 0, 0].expand(
        batch, n
    )
