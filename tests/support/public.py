"""The public surface: the names of the public rooms, the classes that they return, and the members of both."""

import inspect
import pkgutil
import re
from functools import cached_property
from importlib import import_module

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


def returned(value):
    """Return the names in the annotation of what a function, method or property returns."""
    try:
        annotation = inspect.signature(function_of(value)).return_annotation
    except (TypeError, ValueError):
        return set()
    return set(
        re.findall(r"[A-Z]\w+", annotation if isinstance(annotation, str) else inspect.formatannotation(annotation))
    )


def classes():
    """Return the public classes, and those that public functions, methods and properties return, in turn."""
    by_name, values = classes_by_name(), named().values()
    wanted = [value for value in values if inspect.isclass(value) and is_ours(value)]
    for value in values:
        functions = [value] if inspect.isroutine(value) else []
        if is_function_object(value):
            functions = [type(value).__call__, *members(type(value)).values()]
        wanted += [by_name[name] for one in functions for name in returned(one) if name in by_name]
    found = []
    while wanted:
        value = wanted.pop()
        if value in found:
            continue
        found.append(value)
        parts = members(value).values()
        wanted += [by_name[name] for part in parts for name in returned(part) if name in by_name]
        fields = " ".join(str(kind) for kind in vars(value).get("__annotations__", {}).values())
        wanted += [by_name[name] for name in re.findall(r"[A-Z]\w+", fields) if name in by_name]
    return found
