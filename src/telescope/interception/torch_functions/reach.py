"""Find the modules of a model that attend, by the code of their classes, before the model runs.

A module attends if its forward names one of the attention functions, in a method, in a function or
in an object that the forward calls; modules inside of it speak for themselves. Code that chooses a
function in a table is not understood: its modules are found when they run.
"""

import dis
from collections.abc import Iterator, Mapping, Sequence
from inspect import getattr_static, unwrap
from itertools import pairwise
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple
from weakref import WeakSet

from torch import nn

from ...anatomy import Modules
from ...recording import list_names, unwatched_attentions
from .functions import NAMES, holds_attention_function, is_attention_function

# Classes of these packages call no attention function in code of their own, or are known here.
KNOWN = ("torch.", "telescope.")
# Those that do, in transformers, do it by its attention interface.
WITH_INTERFACE = "transformers."
# Packages whose functions are not looked into.
LIBRARIES = (
    "torch",
    "numpy",
    "builtins",
    "math",
    "functools",
    "typing",
    "collections",
    "telescope",
)
OWN = __name__.partition(".")[0]
DEEPEST = 12  # calls of functions by functions


class Variable:
    """A variable of a function around others, as a namespace of one name."""

    def __init__(self, cell: CellType) -> None:
        self.cell = cell

    def __getitem__(self, name: str) -> Any:
        return self.cell.cell_contents

    def __setitem__(self, name: str, value: Any) -> None:
        self.cell.cell_contents = value

    def get(self, name: str) -> Any:
        """Return what the variable holds."""
        return self.cell.cell_contents


class Binding(NamedTuple):
    """A name of a user's own for an attention function."""

    namespace: dict[str, Any] | Variable
    name: str

    @property
    def key(self) -> tuple[int, str]:
        """What is equal for two that are one."""
        held = self.namespace.cell if isinstance(self.namespace, Variable) else self.namespace
        return id(held), self.name


class Reach:
    """What the forward of a module reaches."""

    def __init__(self) -> None:
        self.attends = False
        self.weighs = False
        """Whether it computes a softmax by itself."""
        self.bindings: list[Binding] = []
        self._seen: set[tuple[CodeType, type]] = set()

    @classmethod
    def of(cls, module: nn.Module) -> "Reach":
        """Read the code of a module's forward."""
        found = cls()
        forward = vars(module).get("forward", getattr_static(type(module), "forward"))
        found._look_at(forward, module, 0)
        return found

    def _look_at(self, value: Any, owner: Any, depth: int) -> None:
        """Look into a value that code names: a function, a method, an object that can be called."""
        if depth > DEEPEST or isinstance(value, type | ModuleType | nn.Module):
            return
        if isinstance(value, property):
            value = value.fget
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        if callable(value):
            value = unwrap(value)
        own = getattr(value, "__self__", owner)
        function = getattr(value, "__func__", value)
        if isinstance(function, FunctionType):
            if not _is_library(function.__module__):
                self._read(function, own, depth)
        elif callable(value) and not _is_library(type(value).__module__):
            call = getattr_static(type(value), "__call__", None)
            if isinstance(call, FunctionType):
                self._read(call, value, depth)

    def _read(self, function: FunctionType, owner: Any, depth: int) -> None:
        kind = type(owner)
        if (function.__code__, kind) in self._seen:
            return
        self._seen.add((function.__code__, kind))
        names = set(_names_of(function.__code__))
        variables = function.__globals__
        self.attends |= not names.isdisjoint(NAMES)
        self.weighs |= "softmax" in names
        cells = [cell for cell in function.__closure__ or () if _is_assigned(cell)]
        # A name of the file, of another file that it names, or of the object itself.
        named = [variables.get(name) for name in names] + [cell.cell_contents for cell in cells]
        files = [one for one in named if isinstance(one, ModuleType)]
        if "attend" in names and any(one.__name__ == OWN for one in files):
            self.attends |= _takes_attend(function.__code__, variables)
        namespaces = [variables, getattr(owner, "__dict__", {})]
        namespaces += [vars(one) for one in files if not _is_library(one.__name__)]
        for name in names:
            for namespace in namespaces:
                value = namespace.get(name)
                if value is None:
                    continue
                self.attends |= holds_attention_function(value)
                if is_attention_function(value):
                    self.attends = True
                    self.bindings.append(Binding(namespace, name))
                else:
                    self._look_at(value, owner, depth + 1)
            # Also what a method replaces: it may call it by super().
            for base in kind.__mro__:
                self._look_at(vars(base).get(name), owner, depth + 1)
        for cell in cells:
            value = cell.cell_contents
            self.attends |= holds_attention_function(value)
            if is_attention_function(value):
                self.attends = True
                self.bindings.append(Binding(Variable(cell), ""))
            self._look_at(value, owner, depth + 1)


def _takes_attend(code: CodeType, variables: Mapping[str, Any]) -> bool:
    """Return whether code takes `attend` from Telescope: `ts.attend`, and not `self.attend`."""
    for before, after in pairwise(dis.get_instructions(code)):
        if after.argval == "attend":
            holder = variables.get(before.argval) if isinstance(before.argval, str) else None
            if getattr(holder, "__name__", None) == OWN:
                return True
    inside = [one for one in code.co_consts if isinstance(one, CodeType)]
    return any(_takes_attend(one, variables) for one in inside)


def _is_assigned(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _names_of(code: CodeType) -> Iterator[str]:
    """Yield the names that code and the functions inside of it use, without local variables."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of(constant)


def _is_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in LIBRARIES


seen_attending: WeakSet[nn.Module] = WeakSet()
"""Modules that attended when they ran, which their code did not tell."""


class FoundModules(NamedTuple):
    """The modules of a model that attend."""

    attending: dict[str, nn.Module]
    """By path."""
    by_hand: tuple[str, ...]
    """The paths of modules that compute their weights by code of their own."""
    may_attend: bool
    """Whether some module looks like an attention and its code could not be understood."""
    bindings: list[Binding]


def find_attending(modules: Modules) -> FoundModules:
    """Find the modules of a model that attend."""
    return _find(_not_of(modules, KNOWN))


def find_beside(modules: Modules, known: Sequence[nn.Module]) -> FoundModules:
    """Find the modules that attend beside those that are known of a model of transformers or of
    Telescope. Attentions of transformers that do not use its interface may be among them.
    """
    others = _not_of(modules, (*KNOWN, WITH_INTERFACE))
    others |= {path: modules[path] for path in unwatched_attentions(modules, known)}
    attentions = set(map(id, known))
    return _find({path: one for path, one in others.items() if id(one) not in attentions})


def _not_of(modules: Modules, packages: tuple[str, ...]) -> dict[str, nn.Module]:
    """Return torch's attentions, and the modules of classes that are of none of these packages."""
    # Models have many modules and few classes.
    return modules.of_classes(
        lambda kind: (
            issubclass(kind, nn.MultiheadAttention)
            or not f"{kind.__module__}.".startswith(packages)
        )
    )


def _find(modules: Mapping[str, nn.Module]) -> FoundModules:
    attending: dict[str, nn.Module] = {}
    weighing = []
    bindings: list[Binding] = []
    may_attend = False
    known: dict[type, Reach] = {}
    for path, module in modules.items():
        kind = type(module)
        if isinstance(module, nn.MultiheadAttention) or module in seen_attending:
            attending[path] = module
            continue
        # Attributes of a module may be functions of its own: only classes without any share a read.
        own = any(callable(value) for value in vars(module).values())
        found = known.get(kind)
        if found is None or own:
            found = Reach.of(module)
            known[kind] = found
        bindings += found.bindings
        if found.attends:
            attending[path] = module
        elif found.weighs:
            weighing.append(path)
        else:
            may_attend |= "Attention" in kind.__name__
    # A softmax alone may be that of a classifier: name the innermost that look like attentions.
    inside = {above for path in (*attending, *weighing) for above in _above(path)}
    by_hand = tuple(path for path in weighing if path not in inside)
    return FoundModules(attending, by_hand, may_attend, bindings)


def describe_by_hand(paths: Sequence[str]) -> str:
    """Return a sentence that names the modules that compute their weights by code of their own."""
    subject = f"{len(paths)} modules compute their" if len(paths) > 1 else "one module computes its"
    return f"{subject} weights by hand, with a softmax that cannot be seen: {list_names(paths)}"


def _above(path: str) -> list[str]:
    steps = path.split(".") if path else []
    return [".".join(steps[:count]) for count in range(len(steps))]
