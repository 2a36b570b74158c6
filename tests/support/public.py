"""The public surface: the names of the public rooms, the classes that they return, and the members of both."""

import inspect
import pkgutil
import re
from functools import cached_property
from importlib import import_module
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
    return is_ours(value) and not inspect.isclass(value) and not inspect.isroutine(value) and callable(value)


def members(value):
    """Return the public methods and properties of a class that were defined by Telescope."""
    found = {}
    for base in reversed(inspect.getmro(value)):
        for name, part in vars(base).items() if is_ours(base) else ():
            kinds = property | cached_property | classmethod | staticmethod
            if not name.startswith("_") and (inspect.isfunction(part) or isinstance(part, kinds)):
                found[name] = part
    return found


def function_of(part):
    """Return the function behind a method or property."""
    if isinstance(part, property):
        part = part.fget
    part = getattr(part, "func", getattr(part, "__func__", part))
    return inspect.unwrap(part)


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


def named_in(annotation):
    """Return the class names in an annotation, which may be a string."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return set(re.findall(r"[A-Z]\w+", text))


def returned(value):
    """Return the class names in the annotation of what a function, method or property returns."""
    try:
        return named_in(inspect.signature(function_of(value)).return_annotation)
    except (TypeError, ValueError):
        return set()


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
    by_name = classes_by_name()
    wanted = [value for value in named().values() if inspect.isclass(value) and is_ours(value)]
    names = set().union(*map(returned, functions().values()))
    found = []
    while wanted or names:
        wanted += [by_name[name] for name in names if name in by_name]
        names = set()
        for value in wanted:
            if value not in found:
                found.append(value)
                names |= set().union(*map(returned, members(value).values()), *map(named_in, fields_of(value).values()))
                # Mapping[str, Watched] hands out a Watched.
                bases = [one for base in vars(value).get("__orig_bases__", ()) for one in get_args(base)]
                names |= set().union(*map(named_in, bases))
        wanted = []
    return sorted(found, key=lambda value: (value.__module__, value.__qualname__))
