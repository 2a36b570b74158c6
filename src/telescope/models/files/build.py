"""A model without numbers yet: its shape, from its config."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ...attention import Attention
from ...files.errors import LoadError
from ...files.safetensors import Tensors
from ..config import Config
from ..model import Model


def empty(kind: type[Model], config: Config, attention: Attention | None = None) -> Model:
    """On "meta", where tensors have a shape and take no memory; a definition of its own has its tensors already."""
    with torch.device("meta"), _NothingDrawn():
        return kind(config) if attention is None else kind(config, attention=attention)


class _NothingDrawn(TorchFunctionMode):
    """Where there are no numbers none need be drawn: to do so torch would import its compiler, which takes seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.normal_ or func is nn.init.normal_:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def described(
    kind: type[Model],
    config: Callable[[], Config],
    file: Path,
    tensors: Tensors,
    attention: Attention | None = None,
) -> Model:
    """The model that a config.json describes, if it describes one that these tensors could be."""
    try:
        says = config()
    except LoadError:
        raise
    except (ValueError, TypeError) as error:
        raise LoadError(f"{file}: {error}") from None
    for name, count in asdict(says).items():  # building a billion blocks would take a while, even without numbers
        if name.endswith(("blocks", "layers")) and count > len(tensors):
            raise LoadError(f"{file}: {name}={count}, but {tensors.source} holds only {len(tensors)} tensors")
    try:
        return empty(kind, says, attention)
    except (ValueError, TypeError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise LoadError(f"{file} does not describe a model that can be built: {reason}") from None
