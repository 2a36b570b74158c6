"""Intercept models of Hugging Face's transformers through its attention interface.

transformers is imported only if the model needs it. Read attention_modules.py and interception.py
first, then definition.py; transformers_internals.py holds everything that depends on transformers'
code.
"""

import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager

from torch import nn

from ...anatomy import Modules
from ..interceptor import Handler

OLDEST = 5  # version of transformers that edits are tested with


def owns(modules: Modules) -> bool:
    """Return whether the model is a model of transformers, or contains one."""
    # Imported by any model of transformers.
    modeling = sys.modules.get("transformers.modeling_utils")
    return modeling is not None and bool(modules.instances(modeling.PreTrainedModel))


def uses_interface(modules: Modules) -> bool:
    """Return whether some part of a model of transformers uses the attention interface."""
    from .transformers_internals import uses_attention_interface

    return bool(modules.of_classes(uses_attention_interface))


def attentions(modules: Modules) -> dict[str, nn.Module]:
    """Return the model's attentions by path; raise a ValueError that says why if a model cannot be
    watched.
    """
    # Imported here, since attention_modules imports transformers.
    from .attention_modules import attentions

    return attentions(modules)


def may_attend_across(attentions: Iterable[nn.Module]) -> bool:
    """Return whether some call of these attentions may read its keys from another sequence."""
    from .attention_modules import may_be_cross_attention

    return any(map(may_be_cross_attention, attentions))


def check_version() -> None:
    """Raise a ValueError if transformers is older than the versions that edits are tested with."""
    import transformers

    if int(transformers.__version__.partition(".")[0]) < OLDEST:
        raise ValueError(
            f"ts.edit needs transformers {OLDEST} or newer, and {transformers.__version__} is "
            "installed: pip install --upgrade transformers"
        )


def intercepting(
    modules: Modules, attentions: Mapping[str, nn.Module], handler: Handler
) -> AbstractContextManager[None]:
    """Return the context in which the calls of these attentions are handed to a handler."""
    from .interception import intercepting

    return intercepting(modules, attentions, handler)
