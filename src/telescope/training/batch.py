"""A batch: tensors with one row for each sequence, and among them `targets`, what has to be guessed."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .settings import Training

IGNORE = -100  # a target that is none: padding, and rows that only fill up a batch


class TextBatch(NamedTuple):
    """What a GPT learns by: `targets` are what comes after each of the ids."""

    ids: Int[Tensor, "batch n"]
    targets: Int[Tensor, "batch n"]


class PairBatch(NamedTuple):
    """What a translator learns by. Behind its `lengths` the source is padding; the target's is seen by nobody."""

    source: Int[Tensor, "batch n"]
    lengths: Int[Tensor, " batch"]
    target: Int[Tensor, "batch m"]
    targets: Int[Tensor, "batch m"]


Batch = TypeVar("Batch", bound=tuple[Any, ...])  # a NamedTuple of tensors with a field `targets`


class Spec(NamedTuple):
    """Which batch it will be. `rows` are on the device: examples, or where windows start; the first `real` count.

    What is drawn in a batch is drawn by its `chances`, numbers from 0 to 1.
    """

    rows: Int[Tensor, " batch"]
    widths: tuple[int, ...]
    real: int
    chances: Float[Tensor, "batch n"] | None = None


class Data(Protocol):
    """What can be trained on: `Examples`, `Windows`, or anything else that has these.

    Batches are a matter of the settings' seed and of the epoch alone, so that a place in the data is two numbers.
    Nothing may be drawn from torch's own generators, which are the model's; `generator` makes another.
    """

    largest: int  # of all ids, so that one the model does not know is found before a GPU stumbles over it

    def to(self, device: torch.device) -> "Data": ...

    def batches(self, settings: Training, epoch: int | None) -> Sequence[Any]:
        """The specs of all batches of an epoch; of None, which is for validation: everything once, in order."""

    def take(self, spec: Any) -> Any:
        """The batch of a spec. A row that is there only for the shape has nothing but IGNORE for targets."""

    def describe(self) -> str:
        """By which it is known again: a run goes on only with the same data."""


def generator(seed: int, epoch: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Of an epoch; on a CPU unless said, so that the order is the same everywhere."""
    return torch.Generator(device).manual_seed(1_000_003 * seed + epoch)


def share(batch: Batch, part: int, parts: int) -> Batch:
    """One of `parts` equal parts of the rows. What is missing is filled up by the first row, without targets."""
    if parts == 1:
        return batch
    rows = len(batch[0])
    size = -(-rows // parts)
    mine = torch.arange(part * size, (part + 1) * size, device=batch[0].device)
    beyond = mine >= rows
    cut: Any = type(batch)(*(tensor[mine.masked_fill(beyond, 0)] for tensor in batch))
    cut = cut._replace(targets=cut.targets.masked_fill(beyond[:, None], IGNORE))
    same: Batch = cut
    return same
