"""The names of a model's attentions, and the selection of some of them by `layers=`."""

from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import SupportsIndex

from torch import nn

from ..anatomy import Modules
from ..words import hint, index_range, whole_number

Layers = str | SupportsIndex | Iterable[str | SupportsIndex] | None
"""Names, patterns such as "encoder.*" or numbers of layers; None is all."""
HeadNumbers = SupportsIndex | Sequence[SupportsIndex] | None
"""Numbers of heads, one or several; None is all."""


class UnknownNameError(KeyError):
    """A KeyError whose message is printed without quotes around it."""

    def __str__(self) -> str:
        return str(self.args[0])


def attention_name(path: str) -> str:
    """Return the name of one of Telescope's attentions from its path:
    encoder.3.self_attention.attend is encoder.3.self.
    """
    layer = path.removesuffix("attend").removesuffix(".")
    *where, last = layer.split(".")
    return ".".join([*where, last.removesuffix("_attention") or "attention"])


def select_layers(
    names: Sequence[str], layers: Layers, unwatched: Sequence[str] = (), argument: str = "layers"
) -> list[str]:
    """Return the names that `layers` selects: by name, by a pattern such as "encoder.*", or by
    number.

    A number selects that layer of every stack of the model, and a negative number counts from the
    last layer of each. `unwatched` are the attentions that cannot be watched, for the error. Raise
    a ValueError if nothing is selected, and a TypeError for any other type.
    """
    if layers is None:
        return list(names)
    # One item is a list of one; a name is no list of letters.
    wanted = (
        list(layers) if isinstance(layers, Iterable) and not isinstance(layers, str) else [layers]
    )
    if not wanted:
        raise ValueError(
            f"{argument}=[] leaves nothing to watch; {argument}=None watches every attention"
        )
    found = [_select(names, one, unwatched, argument) for one in wanted]
    # Return the model's order, and each name once.
    return [name for name in names if any(name in selected for selected in found)]


def _select(
    names: Sequence[str], one: str | SupportsIndex, unwatched: Sequence[str], argument: str
) -> list[str]:
    """Return the names that one item of `layers` selects."""
    if isinstance(one, str):
        # A pattern selects by name; a path without a match selects what lies below.
        found = [name for name in names if fnmatchcase(name, one)] or attentions_inside(names, one)
        if not found:
            # Tell an attention that cannot be watched from a name that does not exist.
            refused = [name for name in unwatched if fnmatchcase(name, one)] or attentions_inside(
                unwatched, one
            )
            raise ValueError(
                f'{argument}="{one}": {describe_unwatched(refused)}'
                if refused
                else f'{argument}="{one}" is no attention of this model; {hint(one, names)}'
            )
        return found
    try:
        number = whole_number(argument, one)
    except TypeError:
        kind = type(one).__name__
        raise TypeError(
            f'{argument} takes names, patterns such as "encoder.*" and numbers, not {kind}'
        ) from None

    # A number selects in each stack; stacks may have different numbers of layers.
    places = {name: place for name in names if (place := stack_and_number(name))}
    # Sorted, the last layer of a stack comes last, and sets its size.
    sizes = {stack: last + 1 for stack, last in sorted(places.values())}
    found = [
        name
        for name, (stack, place) in places.items()
        if place == (number if number >= 0 else sizes[stack] + number)
    ]
    if not found:
        known = (
            f"they count {index_range(max(sizes.values()))}"
            if sizes
            else f"none is numbered: {', '.join(names)}"
        )
        raise ValueError(f"{argument}={one} is no layer of this model; {known}")
    return found


def attention_named(name: object, names: Sequence[str], left_out: Sequence[str]) -> str:
    """Return the full name of the only attention that `name` stands for: its name, a path of the
    model, or the number of a layer.

    Raise an UnknownNameError that lists the attentions if there are several, or suggests a name;
    `left_out` are those that were not watched.
    """
    if not isinstance(name, str):
        return _attention_at(name, names)
    if name in names:
        return name
    # A path with one attention inside stands for that attention.
    inside = attentions_inside(names, name)
    if len(inside) == 1:
        return inside[0]
    if inside:
        raise UnknownNameError(
            f'there are {len(inside)} attentions in "{name}": {", ".join(inside)}'
        )
    # Tell an attention that was not watched from a name that does not exist.
    unwatched = [path for path in left_out if path == name] or attentions_inside(left_out, name)
    if unwatched:
        raise UnknownNameError(f'"{name}" was not watched: {describe_unwatched(unwatched)}')
    said = f'no attention watched is "{name}"'
    # The names of hooks of another library, and a number as a text.
    if names and name.rpartition(".")[2].startswith("hook_"):
        raise UnknownNameError(
            f'{said}; recording["{names[0]}"] is one, with .weights, .trace() and .before in place '
            "of hooks"
        )
    if name.lstrip("-").isdecimal():
        raise UnknownNameError(f"{said}; the number of a layer is written without quotes: [{name}]")
    raise UnknownNameError(f"{said}; {hint(name, names)}")


def _attention_at(place: object, names: Sequence[str]) -> str:
    """Return the name of the only attention of a layer, by its number."""
    if not isinstance(place, SupportsIndex) or isinstance(place, bool):
        raise UnknownNameError(
            f"recording[{place!r}] is no attention; recording[layer] takes one name or number, and "
            "what was recorded of it are attributes: recording[layer].weights"
        )
    try:
        found = select_layers(names, place, argument="layer")
    except ValueError as problem:
        raise UnknownNameError(str(problem)) from None
    if len(found) > 1:
        raise UnknownNameError(f"layer {place} has {len(found)} attentions: {', '.join(found)}")
    return found[0]


def stack_and_number(name: str) -> tuple[str, int] | None:
    """Return the stack of an attention and its number there: decoder.0.cross is number 0 of
    decoder.
    """
    parts = name.split(".")
    # The first number is the layer's: a block may number its parts, too.
    numbered = [i for i, part in enumerate(parts) if part.isdecimal()]
    return (".".join(parts[: numbered[0]]), int(parts[numbered[0]])) if numbered else None


def attentions_inside(names: Iterable[str], path: str) -> list[str]:
    """Return the names below a path: model.layers.3 holds model.layers.3.self_attn."""
    return [name for name in names if name.startswith(f"{path}.")]


def numbers_of_heads(heads: SupportsIndex | Sequence[SupportsIndex]) -> tuple[int, ...]:
    """Return the numbers that `heads=` gives, negative ones as they are: layers may differ in their
    number of heads.

    Raise a ValueError unless they are numbers, at least one, each once.
    """
    # Let whole_number judge each number; the error names them all.
    given = tuple(heads) if isinstance(heads, Iterable) else (heads,)
    try:
        numbers = tuple(whole_number("heads", number) for number in given)
    except TypeError:
        numbers = ()
    if not numbers or len(set(numbers)) < len(numbers):
        raise ValueError(
            f"heads={heads!r} are not numbers of heads, each once; they count from 0, or from the "
            "last: -1, -2; "
            "None is all"
        )
    return numbers


def head_numbers(name: str, heads: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the numbers of heads of an attention with `count` heads; negative numbers count from
    the last.

    Raise a ValueError if a head does not exist, or is named twice.
    """
    # -1 and the last number may be the same head, so that duplicates are counted after this.
    numbers = tuple(count + number if number < 0 else number for number in heads)
    if not all(0 <= number < count for number in numbers):
        raise ValueError(f'heads={[*heads]}: "{name}" has {count}, numbered {index_range(count)}')
    if len(set(numbers)) < len(numbers):
        raise ValueError(f'heads={[*heads]} names a head of "{name}" twice: it has {count} heads')
    return numbers


def unwatched_attentions(modules: Modules, watched: Iterable[nn.Module]) -> tuple[str, ...]:
    """Return the paths of modules that are attentions by the names of their classes and are not
    watched.

    Only innermost modules: none that contains a watched attention or another unwatched one, or lies
    within a watched attention.
    """
    # An attention is recognised by the name of its class.
    named = modules.of_classes(lambda kind: kind.__name__.endswith("Attention"))
    ids = {id(module) for module in watched}
    # As a rule all of them are watched.
    if all(id(module) in ids for module in named.values()):
        return ()
    paths = {path for path, module in modules.items() if id(module) in ids}
    # A module that contains an attention is no attention itself, but a layer around one.
    containing = {above for path in (*paths, *named) for above in _above(path)}
    return tuple(
        path for path in named if path not in containing and paths.isdisjoint([path, *_above(path)])
    )


def layers_without_attention(
    modules: Modules, watched: Iterable[nn.Module], unwatched: Collection[str]
) -> tuple[str, ...]:
    """Return the paths of layers that hold no attention, in stacks of which some layer holds one:
    those that mix tokens in another way, such as by a state space.
    """
    ids = {id(module) for module in watched}
    paths = [*unwatched, *(path for path, module in modules.items() if id(module) in ids)]
    holding = {above for path in paths for above in (path, *_above(path))}
    found: list[str] = []
    stacks = modules.instances(nn.ModuleList)
    for path, stack in stacks.items():
        # A list inside of a layer holds the parts of the layer.
        if not stacks.keys().isdisjoint(_above(path)):
            continue
        layers = [f"{path}.{name}" for name in stack._modules]
        if not holding.isdisjoint(layers):
            found += [layer for layer in layers if layer not in holding]
    return tuple(found)


def describe_unwatched(names: Sequence[str], verb: str = "watch") -> str:
    """Return a sentence that names the attentions that cannot be watched; `verb` is "watch" or
    "edit".
    """
    subject = f"{len(names)} attentions compute" if len(names) > 1 else "one attention computes"
    return (
        f"{subject} the weights by code of their own, which {verb} cannot look into: "
        f"{list_names(names)}"
    )


def list_names(names: Sequence[str]) -> str:
    """Return the first three names, and how many more there are."""
    rest = len(names) - 3
    return ", ".join(names[:3]) + (f" and {rest} more" if rest > 0 else "")


def _above(path: str) -> list[str]:
    """Return the paths of the modules that contain this one."""
    steps = path.split(".") if path else []
    return [".".join(steps[:count]) for count in range(len(steps))]
