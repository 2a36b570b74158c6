"""Looking on at models of Hugging Face's transformers, through its attention interface. Only here it is imported."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from torch import nn

from ...recording.names import Parts
from ..observer import Observer


def owns(parts: Parts) -> bool:
    """Whether it is a model of transformers, or holds one."""
    modeling = sys.modules.get("transformers.modeling_utils")  # a model of it has imported it
    return modeling is not None and any(isinstance(part, modeling.PreTrainedModel) for part in parts.values())


def attentions(parts: Parts) -> dict[str, nn.Module]:
    """The model's attentions, by where they stand in it; a ValueError says why a model cannot be watched."""
    from .interface import attentions

    return attentions(parts)


def embeddings(parts: Parts) -> Iterable[nn.Module]:
    """Where tokens come in."""
    from .interface import embeddings

    return embeddings(parts)


@contextmanager
def looking(parts: Parts, attentions: Mapping[str, nn.Module], eye: Observer) -> Iterator[None]:
    """The model goes through our door while the block runs."""
    from .interface import looking

    with looking(parts, attentions, eye):
        yield
