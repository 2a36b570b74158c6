"""The names of a model's attentions, and which of them are meant."""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn

from ..words import hint

Layers = str | int | Iterable[str | int] | None
Parts = Mapping[str, nn.Module]  # a model, "", and everything in it, by where it stands


def parts_of(model: nn.Module) -> Parts:
    """What dict(model.named_modules()) is, in half its time: a GPU has nothing to do before."""
    parts: dict[str, nn.Module] = {}
    seen, rest = set[nn.Module](), [("", model)]
    while rest:
        path, module = rest.pop()
        if module in seen:
            continue
        seen.add(module)
        parts[path] = module
        if module._modules:
            below = f"{path}." if path else ""
            rest += [(below + name, part) for name, part in reversed(module._modules.items()) if part is not None]
    return parts


def name_of(path: str) -> str:
    """encoder.3.self_attention.attend → encoder.3.self"""
    layer = path.removesuffix("attend").removesuffix(".")
    *where, last = layer.split(".")
    return ".".join([*where, last.removesuffix("_attention") or "attention"])


def chosen(names: Sequence[str], layers: Layers) -> list[str]:
    """Those that `layers` means: names, patterns such as "encoder.*", or numbers, which count in every stack."""
    if layers is None:
        return list(names)
    wanted = list(layers) if isinstance(layers, Iterable) and not isinstance(layers, str) else [layers]
    if not wanted:
        raise ValueError("layers=[] leaves nothing to watch; layers=None watches every attention")
    found = [_meant(names, one) for one in wanted]
    return [name for name in names if any(name in some for some in found)]


def within(names: Iterable[str], place: str) -> list[str]:
    """The attentions that stand there: of model.layers.3 that is model.layers.3.self_attn."""
    return [name for name in names if name.startswith(f"{place}.")]


def _meant(names: Sequence[str], one: str | int) -> list[str]:
    if isinstance(one, str):
        found = [name for name in names if fnmatchcase(name, one)] or within(names, one)
        if not found:
            raise ValueError(f'layers="{one}" is no attention of this model; {hint(one, names)}')
        return found
    if not isinstance(one, int) or isinstance(one, bool):
        raise TypeError(f'layers takes names, patterns such as "encoder.*" and numbers, not {type(one).__name__}')
    places = {name: place for name in names if (place := _place(name))}
    sizes = {stack: number + 1 for stack, number in sorted(places.values())}
    found = [name for name, (stack, number) in places.items() if number == (one if one >= 0 else sizes[stack] + one)]
    if not found:
        there = f"they count from 0 to {max(sizes.values()) - 1}" if sizes else f"none is numbered: {', '.join(names)}"
        raise ValueError(f"layers={one} is no layer of this model; {there}")
    return found


def _place(name: str) -> tuple[str, int] | None:
    """The stack it stands in and its number there: decoder.0.cross is number 0 in decoder."""
    parts = name.split(".")
    numbered = [i for i, part in enumerate(parts) if part.isdecimal()]  # the first: a block may number its parts too
    return (".".join(parts[: numbered[0]]), int(parts[numbered[0]])) if numbered else None
