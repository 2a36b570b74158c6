"""Find the attentions of a model that can be watched and edited, by name."""

from types import ModuleType
from typing import Any, NamedTuple

from torch import nn

from ..recording import Modules, modules_by_path, unwatched_attentions
from . import huggingface, telescope_models


class FoundAttentions(NamedTuple):
    """The attentions of a model."""

    modules: Modules
    backend: ModuleType
    """How the model is intercepted: `telescope_models` or `huggingface`."""
    attentions: dict[str, Any]
    """The modules by name."""
    unwatched: tuple[str, ...]
    """The paths of attentions that compute the weights by code of their own."""


def find_attentions(model: nn.Module, verb: str) -> FoundAttentions:
    """Return the attentions of a model; `verb`, "watch" or "edit", is what the caller wants to do,
    for errors.

    Raise a ValueError if the model is compiled, or has no attention that can be intercepted.
    """
    modules = modules_by_path(model)
    check_not_compiled(modules, verb)
    # Models of transformers are intercepted by its attention interface, others by hooks of torch.
    backend = huggingface if huggingface.owns(modules) else telescope_models
    attentions: dict[str, Any] = backend.attentions(modules)
    if not attentions:
        done = {"watch": "watch can record: it records", "edit": "edit can change: it changes"}[
            verb
        ]
        raise ValueError(
            f"{type(model).__name__} holds no attention that {done} telescope.layers.Attend, "
            "which every attention layer of telescope.layers has, and models of transformers"
        )
    return FoundAttentions(
        modules, backend, attentions, unwatched_attentions(modules, attentions.values())
    )


def check_not_compiled(modules: Modules, verb: str) -> None:
    """Raise a ValueError that names the first compiled module."""
    for path, module in modules.items():
        if _is_compiled(module):
            what = f'its part "{path}"' if path else type(module).__name__
            raise ValueError(
                f"{what} is compiled, and compiled code runs past every hook; {verb} the model as "
                "it was before "
                "torch.compile, and call that one"
            )


def _is_compiled(module: nn.Module) -> bool:
    """Return whether a module is compiled: torch.compile(module), module.compile() or
    torch.compile(module.forward).

    Of functions, only those that torch.compile returns have `get_compiler_config`, so torch._dynamo
    is not imported.
    """
    # torch.compile(module) wraps the module, and module.compile() replaces its call.
    is_wrapped = "_orig_mod" in module._modules
    is_compiled_in_place = module._compiled_call_impl is not None
    return is_wrapped or is_compiled_in_place or hasattr(module.forward, "get_compiler_config")
