"""Watch models of Hugging Face's transformers through its attention interface.

Imports the observer and the recording room; transformers is imported only if the model to watch
needs it. Read attention_modules.py and interception.py first, then watched_model.py and
definition.py; transformers_internals.py holds everything that depends on transformers' code.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import nn

from ...recording.names import Modules
from ..observer import Observer


def owns(modules: Modules) -> bool:
    """Return whether the model is a model of transformers, or contains one."""
    modeling = sys.modules.get(
        "transformers.modeling_utils"
    )  # imported by any model of transformers
    return modeling is not None and any(
        isinstance(module, modeling.PreTrainedModel) for module in modules.values()
    )


def attentions(modules: Modules) -> dict[str, nn.Module]:
    """Return the model's attentions by path; raise a ValueError that says why if a model cannot be
    watched.
    """
    from .attention_modules import attentions

    return attentions(modules)


@contextmanager
def observing(
    modules: Modules,
    attentions: Mapping[str, nn.Module],
    others: Mapping[str, nn.Module],
    observer: Observer,
) -> Iterator[None]:
    """Record each call of `attentions` while the block runs, and note the tokens of the `others`
    where it matters.
    """
    from .watched_model import observing

    with observing(modules, attentions, others, observer):
        yield
