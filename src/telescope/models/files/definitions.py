"""A definition of an attention as JSON, its tensors beside it, and back."""

from dataclasses import dataclass, fields
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor, nn

from ...attention import (
    Attention,
    Bias,
    Mask,
    Pairs,
    biases,
    by_sum,
    heads,
    later,
    mask,
    masks,
    numbering,
    queries,
    scores,
    sequences,
    softmax,
    written,
)
from ...attention.values import Value
from .errors import LoadError

_PARTS = (mask, masks, biases, scores, numbering, heads, queries, sequences, later, written)
KINDS: dict[str, type[Value]] = {
    kind.__name__: kind
    for module in _PARTS
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Value) and kind.__module__ == module.__name__
} | {"Attention": Attention}
NORMALIZERS = {"softmax": softmax, "by_sum": by_sum}


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


def meant(said: Any, tensors: dict[str, Tensor], where: str) -> Any:
    """What the JSON says."""
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
            given = {str(part): meant(it, tensors, where) for part, it in said.items() if part != "is"}
            try:
                return KINDS[name](**given)
            except (TypeError, ValueError, AttributeError) as problem:
                raise LoadError(f"{where}: its {name} is none: {problem}") from None
        case list():
            return tuple(meant(part, tensors, where) for part in said)
        case None | bool() | int() | float() | str():
            return said
    raise LoadError(f"{where}: its definition holds {str(said)[:80]}, which is no part of one")
