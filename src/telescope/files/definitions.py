"""A definition of an attention as JSON, its tensors beside it, and back."""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch
from jaxtyping import AbstractArray, Bool, Float, jaxtyped
from torch import Tensor, nn

from ..attention import (
    Attention,
    Bias,
    Mask,
    Pairs,
    biases,
    by_sum,
    mask,
    masks,
    padding_queries,
    restrict,
    scores,
    softmax,
)
from ..attention.restrict import Restriction
from ..attention.values import Value
from ..words import hint
from .errors import LoadError

_PARTS = (mask, masks, biases, scores, restrict, padding_queries)
KINDS: dict[str, type[Value]] = {
    kind.__name__: kind
    for module in _PARTS
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Value) and kind.__module__ == module.__name__
} | {"Attention": Attention}
for _ in (
    "Mask",
    "Combination",
    "Bias",
    "Score",
    "Restriction",
    "OfPositions",
):  # bases, and what a function is put into
    del KINDS[_]
NORMALIZERS = {"softmax": softmax, "by_sum": by_sum}
DEEPEST = 32  # levels of a definition; what is saved has a handful
LARGEST = 2**62  # of a whole number: two of them still add up to one that a tensor can hold


@dataclass(frozen=True, eq=False)
class UntoldMask(Mask):
    """A mask that was a function. Its name was saved, and the function was not."""

    name: str

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        raise _untold("mask", self.name)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class UntoldBias(Bias):
    """A bias that was a function. Its name was saved, and the function was not."""

    name: str

    def __call__(self, at: Pairs) -> Float[Tensor, "#batch #head #query #key"]:
        raise _untold("bias", self.name)

    def __repr__(self) -> str:
        return self.name


def _untold(what: str, name: str) -> ValueError:
    return ValueError(f"its {what} was a function, {name}, which is not saved; what was kept as a summary is there")


def told(value: Any, tensors: dict[str, Tensor]) -> Any:
    """As JSON; the tensors it is made of are put to `tensors`, each once."""
    if isinstance(value, Tensor):
        known = (name for name, tensor in tensors.items() if tensor is value)
        name = next(known, f"attention.{len(tensors)}")
        tensors[name] = value
        return {"tensor": name} | ({"parameter": True} if isinstance(value, nn.Parameter) else {})
    if isinstance(value, tuple):
        return [told(part, tensors) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if type(value).__name__ in KINDS and KINDS[type(value).__name__] is type(value):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}  # type: ignore[arg-type]
        functions = [part for part in parts.values() if callable(part) and not isinstance(part, Value)]
        if not functions or isinstance(value, Attention):
            return {"is": type(value).__name__} | {name: told(part, tensors) for name, part in parts.items()}
    names = [name for name, known in NORMALIZERS.items() if known is value]
    if names:
        return {"normalizer": names[0]}
    for kind, what in ((Mask, "mask"), (Bias, "bias")):
        if isinstance(value, kind):
            return {"untold": what, "name": repr(value)}
    raise ValueError(f"{value!r} in a definition is a function or of a class of your own, which cannot be saved")


def must_be_savable(name: str, attention: Attention) -> None:
    """Raise a ValueError where a part of a definition is a function: a folder holds numbers, and nothing executable."""
    try:
        unknown = _unsaid(told(attention, {}))
    except ValueError as problem:
        unknown = str(problem)
    if unknown is not None:
        raise ValueError(
            f"{name}: {unknown}, so the model could not be saved; a tensor can be: ts.from_additive(tensor), "
            "ts.relative(table), mask=ts.from_tensor(tensor)"
        )


def _unsaid(said: Any) -> str | None:
    """The first part of which only the name was written."""
    match said:
        case {"untold": what, "name": name}:
            return f"its {what} is {name}, a function or of a class of your own"
        case dict() | list():
            parts = map(_unsaid, said.values() if isinstance(said, dict) else said)
            return next((part for part in parts if part is not None), None)
    return None


def meant(said: Any, tensors: dict[str, Tensor], where: str, depth: int = 0) -> Any:
    """What the JSON says: every field of it is of the type that its class declares."""
    if depth > DEEPEST:
        raise LoadError(f"{where}: its definition is nested more than {DEEPEST} deep")
    match said:
        case {"tensor": str(name), "parameter": True} if name in tensors:
            if not isinstance(tensors[name], nn.Parameter):  # the next one of this name is the same parameter
                if not tensors[name].is_floating_point():
                    raise LoadError(f'{where}: its tensor "{name}" is {tensors[name].dtype}, which cannot be learnt')
                tensors[name] = nn.Parameter(tensors[name])
            return tensors[name]
        case {"tensor": str(name)} if name in tensors:
            return tensors[name]
        case {"normalizer": str(name)} if name in NORMALIZERS:
            return NORMALIZERS[name]
        case {"untold": "mask", "name": str(name)}:
            return UntoldMask(name)
        case {"untold": "bias", "name": str(name)}:
            return UntoldBias(name)
        case {"is": str(name)} if name in KINDS:
            kind: Any = KINDS[name]
            kinds = _fields_of(kind)
            given = {part: meant(it, tensors, where, depth + 1) for part, it in said.items() if part != "is"}
            for part, value in given.items():
                if part not in kinds:
                    raise LoadError(f'{where}: {name} has no field "{part}"; {hint(part, kinds)}')
                if not _is(value, kinds[part]):
                    raise LoadError(f'{where}: field "{part}" of {name} is {_short(value)}, which is of another type')
            needed = (it.name for it in fields(kind) if it.default is MISSING and it.default_factory is MISSING)
            lacking = [part for part in needed if part not in given]
            if lacking:
                raise LoadError(f'{where}: {name} lacks its field "{lacking[0]}"')
            try:
                made = kind(**given)
            except (TypeError, ValueError) as problem:
                raise LoadError(f"{where}: its {name} is none: {problem}") from None
            if isinstance(made, Restriction):
                _must_be_numbers_of_the_whole(made, where)
            return made
        case list():
            return tuple(meant(part, tensors, where, depth + 1) for part in said)
        case None | bool() | int() | float() | str():
            return said
    raise LoadError(f"{where}: its definition holds {str(said)[:80]}, which is no part of one")


@cache
def _fields_of(kind: Any) -> dict[str, Any]:
    """The fields of a class, and the type of each."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _is(value: Any, kind: Any) -> bool:
    """Whether a value is of the type that a field declares. A function is none but where nothing else is possible."""
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return any(_is_one(value, option, alone=len(options) == 1) for option in options)


def _is_one(value: Any, kind: Any, alone: bool) -> bool:
    if kind in (int, float) and type(value) is int:
        return abs(value) < LARGEST
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        kinds = kinds[:1] * len(value) if kinds[1:] == (...,) and isinstance(value, tuple) else kinds
        return type(value) is tuple and len(value) == len(kinds) and all(map(_is, value, kinds))
    if get_origin(kind) is Callable:
        return alone and value in NORMALIZERS.values()
    if kind is NoneType or not issubclass(kind, AbstractArray):
        return isinstance(value, kind) and not isinstance(value, bool)
    if not isinstance(value, Tensor):
        return False
    whole = not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
    with jaxtyped("context"):  # the axes of other tensors may be named alike
        return isinstance(value.long() if whole else value, kind)  # unsigned ones are whole numbers too


def _must_be_numbers_of_the_whole(numbering: Restriction, where: str) -> None:
    """What is taken from a whole is a part of it."""
    of, which = getattr(numbering, "of", None), getattr(numbering, "which", None)
    whole = of[0] if isinstance(of, tuple) else of
    right = which is None or whole is None or not which.numel() or (which.min() >= 0 and which.max() < whole)
    if not right or getattr(numbering, "gone", 0) < 0:
        raise LoadError(f"{where}: its {type(numbering).__name__} numbers what is not in the whole")


def _short(value: Any) -> str:
    return f"a tensor of {value.dtype}, {list(value.shape)}" if isinstance(value, Tensor) else repr(value)[:80]
