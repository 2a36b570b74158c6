"""Find the attention modules of a model of transformers, and tell which of their calls are
cross-attention.
"""

from collections.abc import Mapping
from functools import cache
from inspect import signature
from typing import Any

from torch import nn

from ...anatomy import Modules
from ...recording import unwatched_attentions
from .transformers_internals import (
    eager_function_names,
    implementation_of,
    uses_attention_interface,
)

KNOWN = ("sdpa", "eager", "flex_attention")  # and every name with "flash" in it
# The parameters by which an attention module is passed the sequence of its keys.
OTHER_SEQUENCES = (
    "key_value_states",
    "encoder_hidden_states",
    "cross_attention_states",
    "context",
    "context_hidden_states",
)


def attentions(modules: Modules) -> dict[str, nn.Module]:
    """Return the modules that use the attention interface, by path; raise a ValueError if the model
    has none.
    """
    found = modules.of_classes(uses_attention_interface)
    kind = type(modules[""]).__name__
    # Tell a model without any attention from one whose attentions pass the interface by.
    if not found and not unwatched_attentions(modules, ()):
        raise ValueError(
            f"{kind} has no attention to watch or edit: no part of it is an attention, by the "
            "names of their classes; "
            "take a model that attends, such as a Llama or a BERT"
        )
    if not found:
        raise ValueError(
            f"{kind} does not go through transformers' attention interface: no part of it uses "
            "ALL_ATTENTION_FUNCTIONS, so its attention calls cannot be seen; what ts.load reads "
            "can be watched"
        )
    check_implementations(kind, found)
    return found


def check_implementations(kind: str, attentions: Mapping[str, Any]) -> None:
    """Raise a ValueError if an attention uses an implementation whose computation is not known
    here.
    """
    # Reversed, since a later entry replaces an earlier one: the first of each kind stays.
    alike = {
        (id(module.config), type(module)): (path, module)
        for path, module in reversed([*attentions.items()])
    }
    for path, module in reversed(alike.values()):  # the first of each config and class
        implementation = implementation_of(module)
        if implementation not in KNOWN and "flash" not in str(implementation):
            raise ValueError(
                f'{kind} attends by "{implementation}" in {path}, and what that computes is not '
                "known here; "
                'model.set_attn_implementation("sdpa") is one that can be watched'
            )
        # Eager functions are in no table: exactly one has to be named in the module's code.
        if implementation == "eager" and len(eager_function_names(module)) != 1:
            raise ValueError(
                f"{kind} has no eager_attention_forward of its own in {path}, so its eager "
                "attention cannot be called; "
                'model.set_attn_implementation("sdpa") is one that can be watched'
            )


def is_cross_attention(module: nn.Module, given: Mapping[str, Any]) -> bool:
    """Return whether the keys come from another sequence, by the module's class and by the
    arguments of the call.

    The class comes first: a call that reads its keys from a cache may be passed no other sequence.
    """
    kind: Any = type(module)
    own = vars(module).get("is_cross_attention", False)
    if own is True or "Cross" in kind.__name__ or _class_says_cross(kind):
        return True
    if not given:
        return False
    # A call whose keys come from its own hidden states is self-attention.
    others = [given[name] for name in OTHER_SEQUENCES if given.get(name) is not None]
    return any(other is not given.get("hidden_states") for other in others)


@cache
def _class_says_cross(kind: type) -> bool:
    return getattr(kind, "is_cross_attention", False) is True


def cross_attention_by_arguments(
    module: nn.Module, args: Any, kwargs: Mapping[str, Any]
) -> bool | None:
    """Return whether the call of a module's forward is cross-attention; None if no argument can
    tell.
    """
    kind: Any = type(module)
    if not _may_be_cross_attention(kind):
        return None
    # Give positional arguments their names.
    given = dict(zip(forward_parameters(kind), args, strict=False)) | dict(kwargs)
    return is_cross_attention(module, given)


def may_be_cross_attention(module: nn.Module) -> bool:
    """Return whether some call of an attention may read its keys from another sequence."""
    kind: Any = type(module)
    return _may_be_cross_attention(kind) or is_cross_attention(module, {})


@cache
def _may_be_cross_attention(kind: type) -> bool:
    """Return whether a class's forward may be passed the sequence of its keys."""
    return not {*OTHER_SEQUENCES}.isdisjoint(forward_parameters(kind))


@cache
def forward_parameters(kind: type) -> tuple[str, ...]:
    """Return the names of the parameters of a class's forward, without self."""
    return tuple(signature(kind.forward).parameters)[1:]  # type: ignore[attr-defined]
