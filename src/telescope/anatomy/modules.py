"""The modules of a model, by path and by class."""

from collections.abc import Callable
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar, cast

from torch import nn

Kind = TypeVar("Kind", bound=nn.Module)

COMPILED = "_orig_mod"  # where a module that torch.compile returned has the module it was made of


class Modules(dict[str, nn.Module]):
    """Every module of a model by its path; the model's own path is "".

    Built once when a block is entered: a GPU is idle until it is done. A model has hundreds of
    modules and few classes, so a question about classes is asked of each class once.
    """

    compiled: frozenset[str] = frozenset()
    """The paths of modules that torch.compile returned."""

    @classmethod
    def of(cls, model: nn.Module) -> "Modules":
        """Return dict(model.named_modules()) in half the time.

        A module that torch.compile returned is left out: the module it was made of has its path.
        """
        found = cls()
        seen = set[nn.Module]()
        compiled = set[str]()

        def visit(path: str, module: nn.Module) -> None:
            children = module._modules
            if COMPILED in children:
                compiled.add(path)
                module = module.get_submodule(COMPILED)
                children = module._modules
            # A shared module has the first of its paths, as named_modules() has it.
            if module in seen:
                return
            seen.add(module)
            found[path] = module
            if children:
                prefix = f"{path}." if path else ""
                for name, child in children.items():
                    if child is not None:
                        visit(prefix + name, child)

        visit("", model)
        found.compiled = frozenset(compiled)
        return found

    @cached_property
    def by_class(self) -> dict[type[nn.Module], list[tuple[int, str]]]:
        """The paths of the modules of each class, each with its number in the model."""
        found: dict[type[nn.Module], list[tuple[int, str]]] = {}
        for number, (path, module) in enumerate(self.items()):
            found.setdefault(type(module), []).append((number, path))
        return found

    @cached_property
    def notes(self) -> dict[type, Any]:
        """What others have found out about the model, by its class."""
        return {}

    @cached_property
    def numbers(self) -> dict[int, int]:
        """The number of each module in the model, by its id."""
        return {id(module): number for number, module in enumerate(self.values())}

    def of_classes(self, are_meant: Callable[[type[nn.Module]], bool]) -> dict[str, nn.Module]:
        """Return the modules by path whose class is meant, in the order of the model."""
        meant = [paths for kind, paths in self.by_class.items() if are_meant(kind)]
        return {path: self[path] for _, path in sorted(chain(*meant))}

    def instances(self, base: type[Kind]) -> dict[str, Kind]:
        """Return the modules by path that are instances of a class or of its subclasses."""
        return cast(dict[str, Kind], self.of_classes(lambda kind: issubclass(kind, base)))
