"""What all configs share: flat, frozen, checked when made, and as JSON."""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from types import NoneType, UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from ..layers.check_sizes import groups, one_of, per_head
from ..words import hint

LARGEST = 2**63  # of whole numbers: tensors cannot count further


@dataclass(frozen=True)
class Config:
    """The base of all configs. A field that does not exist or does not fit is one sentence."""

    def __new__(cls, *_: Any, **given: Any) -> Self:
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise TypeError(f'{cls.__name__} has no field "{name}"; {hint(name, known)}')
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            _must_be(name, getattr(self, name), kind)
        self.check()

    def check(self) -> None:
        """Raise a ValueError where the fields do not fit together."""

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """A config from JSON. What is left out has its default, if there is one."""
        needed = [field.name for field in fields(cls) if field.default is MISSING and field.default_factory is MISSING]
        missing = [f'"{name}"' for name in needed if name not in given]
        if missing:
            raise ValueError(f"{cls.__name__} needs {' and '.join(missing)}, which nothing says")
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def at_least_one(config: Config, *names: str) -> None:
    for name in names:
        size = getattr(config, name)
        if size is not None and size < 1:
            raise ValueError(f"{name}={size} must be at least 1")


def probabilities(config: Config, *names: str) -> None:
    for name in names:
        p = getattr(config, name)
        if p is not None and not 0.0 <= p < 1.0:
            raise ValueError(f"{name}={p} is a probability: from 0, below 1")


def at_most(config: Config, most: int, *names: str) -> None:
    for name in names:
        size = getattr(config, name)
        if size is not None and size > most:
            raise ValueError(f"{name}={size} is too large; at most {most:,} can be")


def positive(config: Config, *names: str) -> None:
    for name in names:
        number = getattr(config, name)
        if number is not None and not 0.0 < number < float("inf"):
            raise ValueError(f"{name}={number} must be a number above zero")


def heads(d_model: int, heads: int, key_heads: int | None = None, d_k: int | None = None) -> None:
    if d_k is None:
        per_head(d_model, heads)
    groups(heads, heads if key_heads is None else key_heads)


def _must_be(name: str, value: Any, hint: Any) -> None:
    """A number, a truth, None, or one of the words of a Literal, whichever the field says."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    if words and isinstance(value, str):
        one_of(name, value, words)
        return
    plain = {float: (float, int), int: (int,), bool: (bool,), str: (str,), NoneType: (NoneType,)}
    if not any(type(value) in plain.get(kind, ()) for kind in kinds):
        wanted = [*words, *(plain[kind][0].__name__.replace("NoneType", "None") for kind in kinds if kind in plain)]
        raise TypeError(f"{name}={value!r} is {type(value).__name__}; it takes {' or '.join(wanted)}")
    if type(value) is int and abs(value) >= LARGEST:
        raise ValueError(f"{name} is a whole number of {value.bit_length()} bits; at most 63 can be")


@dataclass(frozen=True)
class Special:
    """The id with which a text starts, those at which it ends, and the one that fills up a batch; None: not known."""

    start: int | None = None
    end: tuple[int, ...] = ()
    pad: int | None = None
