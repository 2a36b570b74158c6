"""A model without numbers yet: its shape, from its config."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from ..config import Config
from ..model import Model
from .errors import LoadError
from .tensors import Tensors


def empty(kind: type[Model], config: Config) -> Model:
    """On "meta", where tensors have a shape and take no memory."""
    with torch.device("meta"):
        return kind(config)


def described(kind: type[Model], config: Callable[[], Config], file: Path, tensors: Tensors) -> Model:
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
        return empty(kind, says)
    except (ValueError, TypeError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise LoadError(f"{file} does not describe a model that can be built: {reason}") from None
