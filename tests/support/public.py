"""The public surface: the names of the public rooms, the classes that they return, and the members of both."""

import inspect
import pkgutil
import re
import sys
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import get_args

import telescope

ROOMS = ("", "layers", "models", "decoding", "training", "plot", "lessons", "explorer", "health", "callbacks")


def room(name):
    return import_module(f"telescope.{name}".rstrip("."))


def named():
    """Return what each `__all__` of a public room holds, by its dotted name, and `ts.open`."""
    found = {"telescope.open": telescope.open}
    for name in ROOMS:
        module = room(name)
        found |= {f"{module.__name__}.{one}": getattr(module, one) for one in module.__all__}
    return found


def is_ours(value):
    return getattr(value, "__module__", "").startswith("telescope")


def is_function_object(value):
    """Return whether a value is called as a function, though it is an object: `ts.mute`, which also has `each`."""
    if inspect.isclass(value) or inspect.isroutine(value) or not (is_ours(value) and callable(value)):
        return False
    return not isinstance(value, telescope.Score)  # `ts.dot` is a value that is given to others


def is_value(value):
    """Return whether a public name is neither a class, a function nor a module: `ts.causal`, IGNORE."""
    if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value):
        return False
    return not is_function_object(value)


def sources():
    """Return the files of the package."""
    return sorted(Path(telescope.__file__).parent.rglob("*.py"))


def members(value):
    """Return the public methods and properties of a class that were defined by Telescope."""
    found = {}
    for base in reversed(inspect.getmro(value)):
        for name, part in vars(base).items() if is_ours(base) else ():
            kinds = property | cached_property | classmethod | staticmethod
            if name.startswith("_") or not (inspect.isfunction(part) or isinstance(part, kinds)):
                continue
            # matplotlib writes a method into every subclass of its own.
            if function_of(part).__module__.startswith("telescope"):
                found[name] = part
    return found


def function_of(part):
    """Return the function behind a method or property."""
    if isinstance(part, property):
        part = part.fget
    part = getattr(part, "func", getattr(part, "__func__", part))
    return inspect.unwrap(part)


@cache
def classes_by_name():
    """Return every class of the package whose name is unique, by that name."""
    found = {}
    for module in pkgutil.walk_packages(telescope.__path__, "telescope."):
        if module.name.startswith("telescope.surveys.kernels") or module.name.endswith("__main__"):
            continue
        for value in vars(import_module(module.name)).values():
            if inspect.isclass(value) and is_ours(value):
                found.setdefault(value.__name__, value)
    return found


def named_in(annotation, module):
    """Return the classes of the package that an annotation names, which stands in a module and may be a string."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    names = re.findall(r"[A-Z]\w+", text)
    here = vars(sys.modules[module])
    found = [here.get(name) or classes_by_name().get(name) for name in names]
    return {value for value in found if inspect.isclass(value) and is_ours(value)}


def returned(value):
    """Return the classes in the annotation of what a function, method or property returns."""
    function = function_of(value)
    return named_in(inspect.signature(function).return_annotation, function.__module__)


def fields_of(value):
    """Return the public fields of a class and their annotations: of a dataclass, a named tuple or a protocol."""
    found = {}
    for base in reversed(inspect.getmro(value)):
        if is_ours(base):
            own = vars(base).get("__annotations__", {})
            found |= {name: kind for name, kind in own.items() if not name.startswith("_")}
    return {name: kind for name, kind in found.items() if "ClassVar" not in str(kind)}


def functions():
    """Return the public functions by name, and the methods of objects that are called, such as `ts.mute`."""
    found = {}
    for name, value in named().items():
        if inspect.isroutine(value):
            found[name] = value
        elif is_function_object(value) and not fields_of(type(value)):
            found[name] = type(value).__call__
            found |= {f"{name}.{one}": part for one, part in members(type(value)).items()}
    return found


def classes():
    """Return the public classes, and those that public functions, methods and fields hand out, in turn."""
    wanted = {value for value in named().values() if inspect.isclass(value) and is_ours(value)}
    wanted |= set().union(*map(returned, functions().values()))
    found = set()
    while wanted - found:
        value = (wanted - found).pop()
        found.add(value)
        wanted |= set().union(*map(returned, members(value).values()))
        # Mapping[str, Watched] hands out a Watched, too.
        bases = [one for base in vars(value).get("__orig_bases__", ()) for one in get_args(base)]
        for annotation in [*fields_of(value).values(), *bases]:
            wanted |= named_in(annotation, value.__module__)
    return sorted(found, key=lambda value: (value.__module__, value.__qualname__))
