"""The base class of configs (flat, frozen, checked when constructed, stored as JSON), and checks of
their fields.
"""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from types import NoneType, UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from ..layers.check_sizes import check_choice, group_size, head_width
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
