"""Find the attentions of a model, and how their calls are intercepted."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, NamedTuple

from torch import nn

from ..anatomy import Modules
from ..layers import Attend
from ..recording import unwatched_attentions
from . import huggingface, telescope_models, torch_functions
from .interceptor import Handler
from .torch_functions import ALONE


class FoundAttentions(NamedTuple):
    """The attentions of a model."""

    modules: Modules
    backend: ModuleType
    """How the model is intercepted: `huggingface`, `telescope_models` or `torch_functions`."""
    attentions: dict[str, Any]
    """The modules by name, in the order of the model."""
    unwatched: tuple[str, ...]
    """The paths of attentions that compute the weights by code of their own."""
    beside: frozenset[str]
    """The names of those that the backend does not know: modules of another library, or of the
    user's own, inside or around the model. They are intercepted by `torch_functions`.
    """

    def names_passes(self, name: str) -> bool:
        """Return whether the passes through an attention have names: name.2, name.3."""
        return self.backend is not telescope_models or name in self.beside

    def may_attend_across(self, attentions: Mapping[str, nn.Module]) -> bool:
        """Return whether some call of these may read its keys from another sequence."""
        known = [module for name, module in attentions.items() if name not in self.beside]
        return len(known) < len(attentions) or self.backend.may_attend_across(known)

    @contextmanager
    def intercepting(self, attentions: Mapping[str, nn.Module], handler: Handler) -> Iterator[None]:
        """Hand the calls of some attentions of the model to a handler while the block runs."""
        known = {name: one for name, one in attentions.items() if name not in self.beside}
        others = {name: one for name, one in attentions.items() if name in self.beside}
        with ExitStack() as undo:
            undo.enter_context(self.backend.intercepting(self.modules, known, handler))
            if others:
                undo.enter_context(
                    torch_functions.intercepting(self.modules, others, handler, are_beside=True)
                )
            yield


def find_attentions(model: nn.Module, verb: str) -> FoundAttentions:
    """Return the attentions of a model; `verb`, "watch" or "edit", is what the caller wants to do,
    for errors.

    Raise a ValueError if the model has no attention that can be intercepted, or if it is compiled
    and none of transformers.
    """
    modules = Modules.of(model)
    # Models of transformers are intercepted by its attention interface, those of Telescope by hooks
    # of torch, and all others by the functions that they call.
    if huggingface.owns(modules):
        backend: ModuleType = huggingface
    elif modules.instances(Attend):
        backend = telescope_models
        check_not_compiled(modules, verb)
    else:
        backend = torch_functions
    attentions: dict[str, nn.Module] = {}
    problem: ValueError | None = None
    try:
        attentions = backend.attentions(modules)
    except ValueError as error:
        problem = error
    others: dict[str, nn.Module] = {}
    if backend is not torch_functions:
        known = [*attentions.values()]
        # A layer of Telescope's contains its attention: one of the two has a name.
        if backend is telescope_models:
            known += telescope_models.layers_around(modules, attentions).values()
        others = torch_functions.attentions_beside(modules, known)
    # A model of transformers may have nothing but attentions that call torch's functions.
    if problem is not None and others:
        backend = torch_functions
        attentions = others
        others = {}
    elif problem is not None:
        raise problem
    if backend is torch_functions:
        check_not_compiled(modules, verb, around=attentions)
    if others:
        together = attentions | others
        attentions = dict(sorted(together.items(), key=lambda one: modules.numbers[id(one[1])]))
    return FoundAttentions(
        modules,
        backend,
        attentions,
        tuple(path or ALONE for path in unwatched_attentions(modules, attentions.values())),
        frozenset(others),
    )


def check_not_compiled(
    modules: Modules, verb: str, around: Mapping[str, nn.Module] | None = None
) -> None:
    """Raise a ValueError that names the first compiled module; the first that has to do with one of
    the attentions, if these are given.
    """
    # Of functions, only those that torch.compile returns have `get_compiler_config`, so
    # torch._dynamo is not imported. Classes are few.
    forwards = {kind for kind in modules.by_class if hasattr(kind.forward, "get_compiler_config")}
    for path, module in modules.items():
        is_compiled = (
            path in modules.compiled
            or module._compiled_call_impl is not None  # by module.compile()
            or hasattr(vars(module).get("forward"), "get_compiler_config")
            or type(module) in forwards
        )
        if is_compiled and (around is None or _meet(path, around)):
            what = f'its part "{path}"' if path else type(module).__name__
            raise ValueError(
                f"{what} is compiled, and compiled code runs past every hook; {verb} the model as "
                "it was before "
                "torch.compile, and call that one; compiled models of transformers can be "
                "watched"
            )


def _meet(path: str, attentions: Iterable[str]) -> bool:
    """Return whether a module contains one of these attentions, is one, or is inside of one."""
    if path == "" or ALONE in attentions:
        return True
    return any(f"{one}.".startswith(f"{path}.") or path.startswith(f"{one}.") for one in attentions)
