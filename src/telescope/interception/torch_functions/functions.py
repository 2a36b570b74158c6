"""The attention functions that are intercepted, and where each is found."""

import sys
from collections.abc import Callable
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

from ...engines import attend
from .calls import FlexCall, FunctionCall, SdpaCall, TelescopeCall
from .other_libraries import FlashCall, FlashPackedCall, XformersCall


class AttentionFunction(NamedTuple):
    """A function that attends."""

    module: str
    """The Python module that has it, which may not be imported."""
    name: str
    call: type[FunctionCall]

    @property
    def original(self) -> Callable[..., Any] | None:
        """The function; None if its library is not imported."""
        found = getattr(sys.modules.get(self.module), self.name, None)
        return getattr(found, "original", found)


FUNCTIONS = (
    AttentionFunction("torch.nn.functional", "scaled_dot_product_attention", SdpaCall),
    AttentionFunction("torch.nn.attention.flex_attention", "flex_attention", FlexCall),
    AttentionFunction("flash_attn", "flash_attn_func", FlashCall),
    AttentionFunction("flash_attn", "flash_attn_qkvpacked_func", FlashPackedCall),
    AttentionFunction("flash_attn.flash_attn_interface", "flash_attn_func", FlashCall),
    AttentionFunction(
        "flash_attn.flash_attn_interface", "flash_attn_qkvpacked_func", FlashPackedCall
    ),
    AttentionFunction("xformers.ops", "memory_efficient_attention", XformersCall),
    AttentionFunction("xformers.ops.fmha", "memory_efficient_attention", XformersCall),
    AttentionFunction("telescope", "attend", TelescopeCall),
    AttentionFunction("telescope.public", "attend", TelescopeCall),
)
# Attributes that mean an attention function whatever they are an attribute of; `attend` does not.
NAMES = {one.name for one in FUNCTIONS} - {"attend"} | {"multi_head_attention_forward"}


def call_of(value: Any) -> type[FunctionCall] | None:
    """Return the class of the calls of a function, compiled or not; None if it does not attend."""
    # No other object is asked for attributes: libraries have some that import files when asked.
    if not isinstance(value, FunctionType | BuiltinFunctionType):
        return None
    value = getattr(value, "original", value)
    # What torch.compile made of flex_attention.
    inner = getattr(value, "_torchdynamo_orig_callable", value)
    if inner is attend:
        return TelescopeCall
    return next((one.call for one in FUNCTIONS if one.original is inner), None)


def is_attention_function(value: Any) -> bool:
    """Return whether a value is one of the functions, compiled or not."""
    return call_of(value) is not None


def holds_attention_function(value: Any) -> bool:
    """Return whether a value is a partial of one of the functions, which runs past replacements."""
    return isinstance(value, partial) and is_attention_function(value.func)
