"""Looking on at models of Hugging Face's transformers, through its attention interface. Only here it is imported."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from torch import nn

from ..eye import Eye


def owns(model: nn.Module) -> bool:
    """Whether it is a model of transformers, or holds one."""
    modeling = sys.modules.get("transformers.modeling_utils")  # a model of it has imported it
    return modeling is not None and any(isinstance(part, modeling.PreTrainedModel) for part in model.modules())


def attentions(model: nn.Module) -> dict[str, nn.Module]:
    """The model's attentions, by where they stand in it; a ValueError says why a model cannot be watched."""
    from .interface import attentions

    return attentions(model)


def embeddings(model: nn.Module) -> Iterable[nn.Module]:
    """Where tokens come in."""
    from .interface import embeddings

    return embeddings(model)


@contextmanager
def looking(model: nn.Module, attentions: Mapping[str, nn.Module], eye: Eye) -> Iterator[None]:
    """The model goes through our door while the block runs."""
    from .interface import looking

    with looking(model, attentions, eye):
        yield
