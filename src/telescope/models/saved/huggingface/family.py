"""What is known of a family of Hugging Face's: its config, its tensors, and what becomes of them here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ....files.safetensors import Tensors
from ...config import Config
from ...model import Model
from ..names import Row, weights_of
from .fields import Fields

Reader = Callable[[Fields, Tensors], Config]
Writer = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True)
class Family:
    """`read` makes our config of theirs, given the tensors that there are; `write` makes theirs of ours.

    The names of the table are those of a model with its head; the file of one without leaves the `prefix` out.
    """

    name: str  # model_type
    architecture: str
    model: type[Model]
    prefix: str
    table: Callable[[Any], list[Row]]
    read: Reader
    write: Writer
    unused: tuple[str, ...] = ()  # what may be in a file too: buffers that can be computed, heads that ours has not
    check: Callable[[Any, Tensors], None] = lambda config, tensors: None  # what only the numbers can tell
    weights: Callable[[Model], dict[str, Tensor]] = weights_of  # ours, in the order of features that theirs have

    def config(self, fields: Fields, there: Tensors) -> Config:
        config = self.read(fields, there)
        fields.done()
        return config


ACTIVATIONS = {  # theirs: ours
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
THEIR_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu"}


def only(config: Config, family: str, **fits: Any) -> None:
    """Refuse to export a config that this family has no field for: each of these has the value, or one of them."""
    for name, value in fits.items():
        given = getattr(config, name)
        if given not in (value if isinstance(value, tuple) else (value,)):
            raise ValueError(f"{name}={given!r} has no counterpart in {family}, so this model cannot be exported")
