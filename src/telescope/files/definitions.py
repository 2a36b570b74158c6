"""Definitions of attention as JSON plus named tensors, and back. Functions are saved by name only,
never as code.
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import torch
from jaxtyping import AbstractArray, Bool, Float, jaxtyped
from torch import Tensor, nn

from ..attention import (
    Attention,
    Bias,
    Mask,
    Pairs,
    Restriction,
    Value,
    by_sum,
    mask,
    masks,
    regions,
    restrict,
    scores,
    softmax,
)
from ..words import hint
from .errors import LoadError

# Abstract base classes, and the class that wraps a function: a definition in a file cannot be one
# of these.
_NOT_SAVED = {"Mask", "Combination", "Bias", "Score", "Restriction", "OfPositions"}
VALUE_CLASSES: dict[str, type[Value]] = {
    kind.__name__: kind
    for module in (mask, masks, scores, restrict, regions)
    for kind in vars(module).values()
    if isinstance(kind, type)
    and issubclass(kind, Value)
    and kind.__module__ == module.__name__
    and kind.__name__ not in _NOT_SAVED
} | {"Attention": Attention}
# Functions have names in files: nothing that is read is ever executed.
NORMALIZERS = {"softmax": softmax, "by_sum": by_sum}
MAX_DEPTH = 32  # levels of nesting that are read; definitions that are saved have a handful
MAX_INT = 2**62  # whole numbers must be smaller: the sum of two still fits into a tensor's int64


# ------------------------------------------------------------------------------------------ to JSON


def to_json(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return a definition, or a part of one, as JSON; add its tensors to `tensors`, each once,
    under new names.

    A mask or bias that is a function, or of a class outside this library, is represented by its
    repr alone. Any other unknown object raises a ValueError.
    """
    if isinstance(value, Tensor):
        # A tensor that occurs twice is saved once, so that it is one tensor again when loaded.
        existing = (name for name, tensor in tensors.items() if tensor is value)
        name = next(existing, f"attention.{len(tensors)}")
        tensors[name] = value
        return {"tensor": name} | ({"parameter": True} if isinstance(value, nn.Parameter) else {})
    if isinstance(value, tuple):
        return [to_json(part, tensors) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    # The class, not its name: a class of the user's own may have the name of one of ours.
    own: Any = type(value)
    if own in VALUE_CLASSES.values():
        parts = {name: getattr(value, name) for name in _field_types(own)}
        functions = [
            part for part in parts.values() if callable(part) and not isinstance(part, Value)
        ]
        # The normalizer of an Attention is a function that has a name in files.
        if not functions or isinstance(value, Attention):
            saved = {name: to_json(part, tensors) for name, part in parts.items()}
            return {"is": own.__name__} | saved
    for name, normalizer in NORMALIZERS.items():
        if normalizer is value:
            return {"normalizer": name}
    for kind, what in ((Mask, "mask"), (Bias, "bias")):
        if isinstance(value, kind):
            return {"untold": what, "name": repr(value)}
    raise ValueError(
        f"{value!r} in a definition is a function or of a class of your own, which cannot be saved"
    )


def check_savable(name: str, attention: Attention) -> None:
    """Raise a ValueError where a part of a definition is a function: files hold numbers, and
    nothing executable.
    """
    try:
        unsaved = _find_unsaved(to_json(attention, {}))
    except ValueError as problem:
        unsaved = str(problem)
    if unsaved is not None:
        raise ValueError(
            f"{name}: {unsaved}, so the model could not be saved; a tensor can be: "
            "ts.from_additive(tensor), ts.relative(table), mask=ts.from_tensor(tensor)"
        )


def _find_unsaved(parsed: Any) -> str | None:
    """Describe the first part of a definition in JSON of which only the name is saved; None where
    there is none.
    """
    match parsed:
        case {"untold": what, "name": name}:
            return f"its {what} is {name}, a function or of a class of your own"
        case dict() | list():
            parts = map(_find_unsaved, parsed.values() if isinstance(parsed, dict) else parsed)
            return next((part for part in parts if part is not None), None)
    return None


# ---------------------------------------------------------------------------------------- from JSON


def from_json(parsed: Any, tensors: dict[str, Tensor], where: str, depth: int = 0) -> Any:
    """Return the definition, or the part of one, that `to_json` wrote; every field has the type its
    class declares.

    parsed   JSON, parsed; may be hostile
    tensors  the tensors by name; those that are parameters are replaced by nn.Parameters in this
             dict
    where    the name of the file, for errors
    depth    how deep `parsed` is nested in the whole definition

    Raises a LoadError where `parsed` is not a definition.
    """
    if depth > MAX_DEPTH:
        raise LoadError(f"{where}: its definition is nested more than {MAX_DEPTH} deep")
    match parsed:
        case {"tensor": str(name), "parameter": True} if name in tensors:
            tensor = tensors[name]
            if not tensor.is_floating_point():
                raise LoadError(
                    f'{where}: its tensor "{name}" is {tensor.dtype}, which cannot be learnt'
                )
            # A second reference gets the same parameter.
            if not isinstance(tensor, nn.Parameter):
                tensors[name] = nn.Parameter(tensor)
            return tensors[name]
        case {"tensor": str(name)} if name in tensors:
            return tensors[name]
        case {"normalizer": str(name)} if name in NORMALIZERS:
            return NORMALIZERS[name]
        case {"untold": "mask", "name": str(name)}:
            return UnsavedMask(name)
        case {"untold": "bias", "name": str(name)}:
            return UnsavedBias(name)
        case {"is": str(name)} if name in VALUE_CLASSES:
            given = {
                part: from_json(value, tensors, where, depth + 1)
                for part, value in parsed.items()
                if part != "is"
            }
            return _construct(name, given, where)
        case list():
            return tuple(from_json(part, tensors, where, depth + 1) for part in parsed)
        case None | bool() | int() | float() | str():
            return parsed
    raise LoadError(f"{where}: its definition holds {str(parsed)[:80]}, which is no part of one")


def _construct(name: str, given: dict[str, Any], where: str) -> Value:
    """Return the value of class `name` with these fields, after checking the fields' names and
    types.
    """
    kind: Any = VALUE_CLASSES[name]
    types = _field_types(kind)
    # The file may be hostile: check names and types before anything is called with them.
    for part, value in given.items():
        if part not in types:
            raise LoadError(f'{where}: {name} has no field "{part}"; {hint(part, types)}')
        if not _matches_type(value, types[part]):
            raise LoadError(
                f'{where}: field "{part}" of {name} is {_describe(value)}, which is of another type'
            )
    needed = (
        field.name
        for field in fields(kind)
        if field.default is MISSING and field.default_factory is MISSING
    )
    lacking = [part for part in needed if part not in given]
    if lacking:
        raise LoadError(f'{where}: {name} lacks its field "{lacking[0]}"')
    try:
        value = kind(**given)
    except (TypeError, ValueError) as problem:
        raise LoadError(f"{where}: {name} refuses its fields: {problem}") from None
    if isinstance(value, Restriction):
        _check_restriction(value, where)
    return cast(Value, value)


@dataclass(frozen=True, eq=False)
class UnsavedMask(Mask):
    """Stands for a mask that was a function: its name was saved, the function was not. Using it
    raises a ValueError.
    """

    name: str

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        raise _unsaved_error("mask", self.name)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class UnsavedBias(Bias):
    """Stands for a bias that was a function, as `UnsavedMask` does for a mask."""

    name: str

    def __call__(self, at: Pairs) -> Float[Tensor, "#batch #head #query #key"]:
        raise _unsaved_error("bias", self.name)

    def __repr__(self) -> str:
        return self.name


def _unsaved_error(what: str, name: str) -> ValueError:
    return ValueError(
        f"its {what} was a function, {name}, which was not saved; only saved summaries can be read"
    )


# ------------------------------------------------------------------------------ types of the fields


@cache
def _field_types(kind: Any) -> dict[str, Any]:
    """Return the declared type of each field of a dataclass."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _matches_type(value: Any, declared: Any) -> bool:
    """Return whether a value is of a declared type. A function matches only a field that takes
    nothing else.
    """
    options = get_args(declared) if get_origin(declared) in (Union, UnionType) else (declared,)
    return any(_matches_option(value, option, alone=len(options) == 1) for option in options)


def _matches_option(value: Any, kind: Any, alone: bool) -> bool:
    """Return whether a value is of one type of a union; `alone` where the union has no other."""
    if kind is bool:
        return type(value) is bool
    if kind in (int, float) and type(value) is int:
        return abs(value) < MAX_INT
    if get_origin(kind) is tuple:
        if type(value) is not tuple:
            return False
        kinds = get_args(kind)
        if kinds[1:] == (...,):  # tuple[int, ...]
            kinds = kinds[:1] * len(value)
        return len(value) == len(kinds) and all(map(_matches_type, value, kinds))
    if get_origin(kind) is Callable:
        return alone and value in NORMALIZERS.values()
    if kind is NoneType or not issubclass(kind, AbstractArray):
        return isinstance(value, kind) and not isinstance(value, bool)
    if not isinstance(value, Tensor):
        return False
    # jaxtyping's Int does not include unsigned dtypes.
    if not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool):
        value = value.long()
    # A scope of its own: other tensors may use the same names for their axes.
    with jaxtyped("context"):
        return isinstance(value, kind)


def _check_restriction(restriction: Restriction, where: str) -> None:
    """Raise a LoadError where a restriction selects heads, queries, sequences or keys that the
    whole does not have.
    """
    of = getattr(restriction, "of", None)
    which = getattr(restriction, "which", None)
    size = of[0] if isinstance(of, tuple) else of
    outside = False
    if which is not None and size is not None and which.numel():
        outside = bool(which.min() < 0 or which.max() >= size)
    if outside or getattr(restriction, "gone", 0) < 0:
        raise LoadError(
            f"{where}: {type(restriction).__name__} selects indices outside of the whole"
        )


def _describe(value: Any) -> str:
    """Return a value for an error message: a tensor by its dtype and shape, anything else by at
    most 80 characters.
    """
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype}, {list(value.shape)}"
    return repr(value)[:80]
