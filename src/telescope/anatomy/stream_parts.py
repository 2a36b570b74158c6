"""The modules that a residual stream runs through: what writes to it, what normalises it, and what
turns it into logits.

Nothing is known of single families: norms are recognised by their class, and what writes is the
outermost module around no norm and no attention, such as an embedding or a feed-forward network.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from torch import nn

from ..layers import Attend, LearnedPositions, SinusoidalPositions
from .modules import Modules
from .parts import find_output_projections

POSITIONS = (LearnedPositions, SinusoidalPositions)
"""Modules that return their input plus positions: what they write is the difference."""


class StreamParts(NamedTuple):
    """The modules of the residual streams of a model, by path."""

    embeddings: dict[str, nn.Module]
    positions: dict[str, nn.Module]
    norms: dict[str, nn.Module]
    writers: dict[str, nn.Module]
    """Feed-forward networks, experts, and everything else that may write to a stream."""
    projections: dict[str, nn.Module]
    """The output projection of each attention, by the name of the attention."""
    layers: dict[str, nn.Module]
    """The module that is given the stream for each attention, by the name of the attention."""
    unembedding: tuple[str, nn.Module] | None
    """What turns the end of the stream into logits, if that is a module."""


def attention_layer(modules: Modules, attention: nn.Module) -> nn.Module:
    """Return the module that holds the projections of an attention: the layer around an `Attend`,
    and any other attention itself.
    """
    if not isinstance(attention, Attend):
        return attention
    path = next(path for path, module in modules.items() if module is attention)
    return modules[path.rpartition(".")[0]]


def find_stream_parts(modules: Modules, attentions: Mapping[str, nn.Module]) -> StreamParts:
    """Return the modules of the residual streams of a model with these attentions."""
    layers = {name: attention_layer(modules, one) for name, one in attentions.items()}
    projections: dict[str, nn.Module] = {}
    for name, attention in attentions.items():
        try:
            projections |= {name: find_output_projections(modules, {name: attention})[name].module}
        except ValueError:  # an attention whose W_O is not known writes as a whole
            continue
    unembedding = find_unembedding(modules)
    parts = StreamParts({}, {}, {}, {}, projections, layers, unembedding)

    # Nothing inside of an attention writes to the stream, and its output projection is known.
    closed = {id(layer) for name, layer in layers.items() if name in projections}
    known = {id(one) for one in projections.values()}
    if unembedding is not None:
        known.add(id(unembedding[1]))
    around = {
        path.rpartition(".")[0]
        for path, module in modules.items()
        if is_norm(module) or id(module) in closed or id(module) in known
    }
    containing = {above for path in around for above in (path, *_above(path))}
    for path, module in _outermost(modules, closed, containing):
        if id(module) in known or isinstance(module, nn.Dropout | nn.Identity):
            continue
        if is_norm(module):
            parts.norms[path] = module
        elif isinstance(module, POSITIONS):
            parts.positions[path] = module
        elif isinstance(module, nn.Embedding):
            parts.embeddings[path] = module
        else:
            parts.writers[path] = module
    return parts


def is_norm(module: nn.Module) -> bool:
    """Return whether a module is a LayerNorm or an RMSNorm, by the name of its class."""
    name = type(module).__name__
    is_named = "Norm" in name and not name.startswith(("Batch", "Group", "Instance"))
    return is_named and not module._modules


def find_unembedding(modules: Modules) -> tuple[str, nn.Module] | None:
    """Return the module that turns hidden states into logits, with its path; None where a model of
    transformers has none, or any other model.
    """
    modeling = sys.modules.get("transformers.modeling_utils")
    model = modules[""]
    if modeling is None or not isinstance(model, modeling.PreTrainedModel):
        return None
    try:
        found = model.get_output_embeddings()
    except (NotImplementedError, AttributeError):
        return None
    if not isinstance(found, nn.Module):
        return None
    return next(((path, one) for path, one in modules.items() if one is found), None)


def _outermost(
    modules: Modules, closed: set[int], containing: set[str]
) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules around no norm and no attention that lie in no other such module."""
    inside: list[str] = []
    for path, module in modules.items():
        if any(path.startswith(one) for one in inside[-1:]):
            continue
        if id(module) in closed:
            # An attention is passed over whole.
            inside.append(f"{path}.")
        elif path not in containing:
            inside.append(f"{path}.")
            yield path, module


def _above(path: str) -> list[str]:
    steps = path.split(".") if path else []
    return [".".join(steps[:count]) for count in range(len(steps))]
