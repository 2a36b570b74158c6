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


def chosen(names: Sequence[str], layers: Layers, past: Sequence[str] = (), argument: str = "layers") -> list[str]:
    """Those that `layers` means: names, patterns such as "encoder.*", or numbers, which count in every stack.

    `past` are attentions that cannot be watched; the error says so if one of them is asked for.
    """
    if layers is None:
        return list(names)
    wanted = list(layers) if isinstance(layers, Iterable) and not isinstance(layers, str) else [layers]
    if not wanted:
        raise ValueError(f"{argument}=[] leaves nothing to watch; {argument}=None watches every attention")
    found = [_meant(names, one, past, argument) for one in wanted]
    return [name for name in names if any(name in some for some in found)]


def within(names: Iterable[str], place: str) -> list[str]:
    """The attentions that stand there: of model.layers.3 that is model.layers.3.self_attn."""
    return [name for name in names if name.startswith(f"{place}.")]


def left_out(parts: Parts, watched: Iterable[nn.Module]) -> tuple[str, ...]:
    """Return the paths of modules that are attentions by the names of their classes and are not watched.

    The innermost of them alone: none that is around or within a watched attention, or around another one.
    """
    seen = {id(module) for module in watched}
    paths = {path for path, module in parts.items() if id(module) in seen}
    named = [path for path, module in parts.items() if type(module).__name__.endswith("Attention")]
    around = {above for path in (*paths, *named) for above in _above(path)}
    return tuple(path for path in named if path not in around and paths.isdisjoint([path, *_above(path)]))


def not_watched(names: Sequence[str]) -> str:
    """Say which attentions cannot be watched."""
    rest = len(names) - 3
    some = ", ".join(names[:3]) + (f" and {rest} more" if rest > 0 else "")
    who = f"{len(names)} attentions compute" if len(names) > 1 else "one attention computes"
    return f"{who} the weights by code of their own, which watch cannot look into: {some}"


def _above(path: str) -> list[str]:
    """The paths of the modules around this one."""
    steps = path.split(".") if path else []
    return [".".join(steps[:count]) for count in range(len(steps))]


def _meant(names: Sequence[str], one: str | int, past: Sequence[str], argument: str) -> list[str]:
    if isinstance(one, str):
        found = [name for name in names if fnmatchcase(name, one)] or within(names, one)
        if not found:
            overlooked = [name for name in past if fnmatchcase(name, one)] or within(past, one)
            raise ValueError(
                f'{argument}="{one}": {not_watched(overlooked)}'
                if overlooked
                else f'{argument}="{one}" is no attention of this model; {hint(one, names)}'
            )
        return found
    if not isinstance(one, int) or isinstance(one, bool):
        raise TypeError(f'{argument} takes names, patterns such as "encoder.*" and numbers, not {type(one).__name__}')
    places = {name: place for name in names if (place := _place(name))}
    sizes = {stack: number + 1 for stack, number in sorted(places.values())}
    found = [name for name, (stack, number) in places.items() if number == (one if one >= 0 else sizes[stack] + one)]
    if not found:
        there = f"they count from 0 to {max(sizes.values()) - 1}" if sizes else f"none is numbered: {', '.join(names)}"
        raise ValueError(f"{argument}={one} is no layer of this model; {there}")
    return found


def _place(name: str) -> tuple[str, int] | None:
    """The stack it stands in and its number there: decoder.0.cross is number 0 in decoder."""
    parts = name.split(".")
    numbered = [i for i, part in enumerate(parts) if part.isdecimal()]  # the first: a block may number its parts too
    return (".".join(parts[: numbered[0]]), int(parts[numbered[0]])) if numbered else None
