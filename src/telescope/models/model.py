"""`Config` and `Model`, the base classes of all configs and models: checks of fields, saving as a
folder, and functions that models share.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from functools import partial
from math import inf
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Self, Union, get_args, get_origin

import torch
from jaxtyping import Bool, Float, Int
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..attention import Attention, Mask, has_data
from ..files import (
    WEIGHTS_FILE,
    WRITTEN_BY,
    atomic_folder,
    check_savable,
    save_tensors,
    to_json,
    write_json,
)
from ..layers import DefinitionModule, check_choice, group_size, head_width
from ..words import hint

MAX_INT = 2**63  # whole numbers must be smaller: sizes of tensors are signed 64-bit integers


@dataclass(frozen=True)
class Config:
    """The base class of configs: a frozen dataclass of numbers, booleans, None and words.

    Constructing a config checks every field. An unknown field or a value of another type raises a
    TypeError, a value out of range a ValueError, each with one sentence that names the field.

    Example:
        >>> from telescope.models import GPTConfig
        >>> GPTConfig(d_model=64, heads=4).to_dict()["heads"]
        4
        >>> GPTConfig.from_dict({"d_model": 64, "heads": 4}) == GPTConfig(
        ...     d_model=64, heads=4
        ... )
        True
    """

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Raise a TypeError that suggests the nearest field where a keyword is not a field."""
        known = [field.name for field in fields(cls)]
        # Before the dataclass raises its own TypeError, which suggests nothing.
        for name in given:
            if name not in known:
                raise TypeError(f'{cls.__name__} has no field "{name}"; {hint(name, known)}')
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_type(field.name, getattr(self, field.name), field.type)
        self._check_fields()

    def _check_fields(self) -> None:
        """Raise a ValueError where fields are out of range or contradict each other."""

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """Return the config with these fields, as `to_dict` returns them; others have defaults.

        Args:
            given: fields by name.

        Raises:
            ValueError: where a field without a default is missing.
        """
        missing = [
            f'"{field.name}"'
            for field in fields(cls)
            if field.default is field.default_factory is MISSING and field.name not in given
        ]
        if missing:
            raise ValueError(f"{cls.__name__} needs {' and '.join(missing)}, which must be given")
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as a dict that JSON can hold."""
        return asdict(self)


@dataclass(frozen=True)
class ModelConfig(Config):
    """The base class of the configs of models. Whole numbers are sizes, from 1 on; numbers named
    dropout are probabilities; other numbers are above zero. None passes.
    """

    may_be_zero: ClassVar[tuple[str, ...]] = ()

    def _check_fields(self) -> None:
        for field in fields(self):
            kinds = get_args(field.type) or (field.type,)
            if "dropout" in field.name:
                check_probabilities(self, field.name)
            elif int in kinds and field.name not in self.may_be_zero:
                check_at_least_one(self, field.name)
            elif float in kinds:
                check_positive(self, field.name)

    @property
    def _weight_dropout(self) -> float:
        """The dropout of attention weights: attention_dropout where it is given, else dropout."""
        config: Any = self
        given: float | None = config.attention_dropout
        return config.dropout if given is None else given


@dataclass(frozen=True)
class Special:
    """The special token ids of a model. Ids that are not known are None.

    Args:
        start: the id that begins a text.
        end: the ids that end a text.
        pad: the id that fills shorter sequences of a batch.

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
    _check_range(config, names, lambda size: size >= 1, "must be at least 1")


def check_at_most(config: Config, most: int, *names: str) -> None:
    """Raise a ValueError where one of the fields `names` is above `most`; None passes."""
    _check_range(config, names, lambda size: size <= most, f"is too large; at most {most:,} can be")


def check_positive(config: Config, *names: str) -> None:
    """Raise a ValueError where a field is not a finite number above zero; None passes."""
    _check_range(config, names, lambda number: 0.0 < number < inf, "must be a number above zero")


def check_probabilities(config: Config, *names: str) -> None:
    """Raise a ValueError where one of the fields `names` is outside 0 <= p < 1; None passes."""
    _check_range(config, names, lambda p: 0.0 <= p < 1.0, "is a probability: from 0, below 1")


def _check_range(
    config: Config, names: Iterable[str], fits: Callable[[Any], bool], sentence: str
) -> None:
    for name in names:
        value = getattr(config, name)
        # None means "not given", and is always in range.
        if value is not None and not fits(value):
            raise ValueError(f"{name}={value} {sentence}")


def check_heads(
    d_model: int, heads: int, key_heads: int | None = None, d_k: int | None = None
) -> None:
    """Raise a ValueError where heads do not divide d_model, or key_heads the heads."""
    if d_k is None:
        head_width(d_model, heads)
    group_size(heads, heads if key_heads is None else key_heads)


def _check_type(name: str, value: Any, declared: Any) -> None:
    """Raise a TypeError unless the value is of the declared type, e.g. int or a Literal."""
    # A union is checked member by member.
    kinds = get_args(declared) if get_origin(declared) in (Union, UnionType) else (declared,)
    # Words have their own sentence, with the nearest one suggested.
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    if words and isinstance(value, str):
        check_choice(name, value, words)
        return
    # A whole number will do for a float, but True is no number.
    plain = {float: (float, int), int: (int,), bool: (bool,), str: (str,), NoneType: (NoneType,)}
    if not any(type(value) in plain.get(kind, ()) for kind in kinds):
        names = [kind.__name__.replace("NoneType", "None") for kind in kinds if kind in plain]
        wanted = [*words, *names]
        raise TypeError(
            f"{name}={value!r} is {type(value).__name__}; it takes {' or '.join(wanted)}"
        )
    if type(value) is int and abs(value) >= MAX_INT:
        raise ValueError(
            f"{name} is a whole number of {value.bit_length()} bits; at most 63 can be"
        )


# Ids of a text or a source, of a target; the states of a target; the logits of a text.
Ids = Int[Tensor, "batch n"]
Targets = Int[Tensor, "batch m"]
TargetStates = Float[Tensor, "batch m d_model"]
Logits = Float[Tensor, "batch n vocabulary"]

FORMAT = 1  # the number in config.json; a file with a higher number than those known is refused
FORMAT_WITH_ATTENTION = 2  # the format that also holds a definition of attention


class Model(nn.Module):
    """The base class of all models.

    A subclass that can be saved and loaded names its config: `class GPT(Model,
    config_type=GPTConfig)`. Loading finds the subclass by its name in `MODEL_CLASSES`.

    Attributes:
        config: the sizes and options that the model was built with.
        tokenizer: converts text to ids and back, or None.
        special: the special ids: start, end and padding.

    Example:
        >>> import tempfile, torch, telescope as ts
        >>> from telescope.models import GPT, GPTConfig
        >>> model = GPT(GPTConfig(vocabulary=10, d_model=8, heads=2, blocks=1)).eval()
        >>> ids = torch.tensor([[3, 1, 4]])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save(f"{folder}/gpt")
        ...     torch.equal(ts.load(f"{folder}/gpt")(ids), model(ids))
        True
        >>> model.attention
        Attention(mask=causal)
    """

    config: Config
    config_type: ClassVar[type[Config]]
    tokenizer: Tokenizer | None = None
    special: Special = Special()

    def __init_subclass__(cls, config_type: type[Config] | None = None, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if config_type is not None:
            cls.config_type = config_type
            # Registered by name, which is what a config.json holds.
            MODEL_CLASSES[cls.__name__] = cls

    @property
    def attention(self) -> Attention:
        """The definition of attention that the model was built with."""
        raise NotImplementedError(f"{type(self).__name__} must implement the property attention")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write config.json, model.safetensors and, with a tokenizer, tokenizer.json into a folder.

        The folder appears complete or not at all. A model that was saved there before is replaced.

        Args:
            path: the folder.

        Raises:
            ValueError: where `path` holds anything else, where the model differs from what its
                config describes, or where its definition has a function; a WriteError, which is a
                ValueError and an OSError, where the disk is full or cannot be written; a TypeError
                where the class or the tokenizer cannot be saved. Equal models have equal files.
        """
        # A definition that the config already describes is not stored twice.
        attention = custom_attention(self)
        # Nothing is written that could not be loaded again.
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
            # Copies: safetensors refuses views of one storage.
            weights |= {name: tensor.detach().clone() for name, tensor in tensors.items()}
        # Complete or not at all, even if the process is killed.
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
    # The model as its config alone would build it, without numbers.
    default = build_on_meta(kind, model.config).attention
    return None if model.attention == default else model.attention


def check_matches_config(model: Model, attention: Attention | None = None) -> None:
    """Raise an error where a model differs from what loading would build of its config.

    A TypeError for a class that cannot be saved; a ValueError for other modules, shapes,
    definitions or rotary positions, and for weights on the "meta" device.
    """
    kind = MODEL_CLASSES.get(type(model).__name__)
    if kind is not type(model):
        raise TypeError(
            f"{type(model).__name__} is not a model that can be loaded again; there are "
            f"{', '.join(MODEL_CLASSES)}"
        )
    # Compare with the twin that loading would build: names, shapes, definitions.
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
    # The first difference is enough for one sentence.
    for name in (*(weights.keys() ^ twin_weights.keys()), *(parts.keys() ^ twin_parts.keys())):
        raise ValueError(
            f'"{name}" is not what its config describes; the model was changed after it was made'
        )
    for name, tensor in weights.items():
        shape = list(twin_weights[name].shape)
        if tensor.is_meta or list(tensor.shape) != shape:
            has = f"shape {list(tensor.shape)}"
            if tensor.is_meta:
                has = 'no numbers, because its device is "meta"'
            raise ValueError(f'"{name}" has {has}; its config describes a tensor of shape {shape}')
    for name, part in parts.items():
        # What a module holds besides its weights.
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
    # Shapes without memory: a model of any size is built in milliseconds.
    with torch.device("meta"), _SkipNormalInit():
        return kind(config) if attention is None else kind(config, attention=attention)


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of the model by name, without those of definitions; each once."""
    defined = tuple(
        f"{name}." for name, module in model.named_modules() if isinstance(module, DefinitionModule)
    )
    # Tied weights are one tensor under several names: the first name counts.
    unique: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not name.startswith(defined):
            unique.setdefault(id(tensor), (name, tensor))
    return dict(unique.values())


class _SkipNormalInit(TorchFunctionMode):
    """Skip normal_ on "meta" tensors, for which torch would import its compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Both ways in which layers draw normal numbers.
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
    """Yield the modules by name, without those that the caller's definition has."""
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
        shape = f"{ids.dtype} of shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else ""
        what = shape or type(ids).__name__
        raise ValueError(
            f"{name} is {what}; a model takes whole numbers (batch, n), one for each token"
        )
    if ids.numel() and ids.device.type == "cpu" and has_data(ids):
        # One pass over the ids finds both ends.
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
    """Return which tokens of x (batch, n, …) are no padding by this mask; all without one.

    Raises a ValueError for a mask that differs from query to query.
    """
    batch, n = x.shape[:2]
    if mask is None:
        return torch.ones(batch, n, dtype=torch.bool, device=x.device)
    # Padding is the same for all queries; a causal mask says nothing about it.
    if not mask.same_for_all_queries:
        raise ValueError(
            f"mask={mask!r} differs from query to query; only ts.padding says which tokens are real"
        )
    last_row = mask.block(range(n - 1, n), n, of=(n, n), batch=batch, device=x.device)
    return last_row[:, 0, 0].expand(batch, n)
