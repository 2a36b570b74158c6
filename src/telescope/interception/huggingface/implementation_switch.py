"""The names of implementations in the configs of a model, while it is intercepted."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from ..interceptor import lock
from ..module_hook import uncompiled
from .attention_modules import check_implementations
from .transformers_internals import ImplementationName, implementation_name, set_implementation

Functions = Callable[[str], tuple[Callable[..., Any], Callable[..., Any]]]
"""From the name of an implementation to the attention function and the mask function that take its
place.
"""

# Configs that hold an ImplementationName, and how many blocks need them.
_switched: dict[int, tuple[Any, int]] = {}


def switch(config: Any, functions: Functions) -> None:
    """Let a config name an intercepted implementation until `switch_back` was called as often as
    this.
    """
    _, count = _switched.get(id(config), (config, 0))
    _switched[id(config)] = (config, count + 1)
    _rename_implementation(config, functions)


def _rename_implementation(config: Any, functions: Functions) -> None:
    """Replace the implementation's name in a config by an ImplementationName, and register our
    functions under it.
    """
    original = implementation_name(config)
    # The config names no implementation, or ours already.
    if original is None or isinstance(original, ImplementationName):
        return
    name = ImplementationName(original)
    # The keys are plain strings: Dynamo cannot look anything up in a table that has other keys.
    attend, make_mask = functions(str(original))
    AttentionInterface.register(str(name), uncompiled(attend))
    AttentionMaskInterface.register(str(name), uncompiled(make_mask))
    set_implementation(config, name)


def switch_back(config: Any) -> None:
    """Undo `switch`, unless the model's implementation was changed inside the block: that choice
    stays.

    Our functions stay registered: another thread may have read their name, and be about to look
    them up.
    """
    with lock:
        _, count = _switched.pop(id(config))
        name = implementation_name(config)
        if count > 1:
            _switched[id(config)] = (config, count - 1)
        elif isinstance(name, ImplementationName):
            set_implementation(config, name.implementation)


def adopt_implementation(
    model: PreTrainedModel,
    configs: Sequence[Any],
    attentions: Mapping[str, nn.Module],
    functions: Functions,
) -> None:
    """Intercept an implementation that was chosen inside the block, or raise a ValueError if it is
    not known.
    """
    names = [implementation_name(config) for config in configs]
    # As a rule, nobody has changed the implementation.
    if all(name is None or isinstance(name, ImplementationName) for name in names):
        return
    check_implementations(type(model).__name__, attentions)
    with lock:
        for config in configs:
            _rename_implementation(config, functions)
