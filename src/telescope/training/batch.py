"""Batches of training: tensors with one row for each sequence, and the `Data` protocol that
produces them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .settings import Training

# The target of padding and of rows that only fill up a batch: no loss is computed for it.
IGNORE = -100
"""The target that does not count: that of padding, and of rows that only fill up a shape.

Example:
    >>> from telescope.training import IGNORE
    >>> IGNORE
    -100
"""


class TextBatch(NamedTuple):
    """Token ids (batch, n) and the id that follows each of them, as `targets` (batch, n): a batch
    for a GPT.

    Attributes:
        ids: (batch, n), token ids.
        targets: (batch, n), the id that follows each of them; IGNORE where none counts.

    Example:
        >>> import torch
        >>> from telescope.training import TextBatch
        >>> text = torch.tensor([[5, 6, 7, 8]])
        >>> TextBatch(ids=text[:, :-1], targets=text[:, 1:]).targets.tolist()
        [[6, 7, 8]]
    """

    ids: Int[Tensor, "batch n"]
    targets: Int[Tensor, "batch n"]


class PairBatch(NamedTuple):
    """Source ids with their lengths, and the decoder's inputs and targets: a batch for a
    translator.

    Attributes:
        source: (batch, n); ids from position lengths[i] of row i on are padding, and masked.
        lengths: (batch,); real tokens of each source.
        target: (batch, m); inputs of the decoder. Padding needs no mask: it stands last, and the
            decoder is causal.
        targets: (batch, m); the id that follows each of `target`, IGNORE for padding.

    Example:
        >>> from telescope.training import Examples, Training
        >>> data = Examples([[5, 6, 7]], [[1, 7, 6, 5, 2]])
        >>> batch = data.take(data.batches(Training(steps=1, rows=1), epoch=None)[0])
        >>> [
        ...     part[0, :4].tolist()
        ...     for part in (batch.source, batch.target, batch.targets)
        ... ]
        [[5, 6, 7, 0], [1, 7, 6, 5], [7, 6, 5, 2]]
    """

    source: Int[Tensor, "batch n"]
    lengths: Int[Tensor, " batch"]
    target: Int[Tensor, "batch m"]
    targets: Int[Tensor, "batch m"]


Batch = TypeVar("Batch", bound=tuple[Any, ...])  # a NamedTuple of tensors with a field `targets`


class Spec(NamedTuple):
    """Describe a batch before its tensors are gathered.

    Attributes:
        rows: (batch,), on the device: indices of examples, or start positions of windows.
        widths: columns of the batch's tensors: (source, target), or (text,).
        real: the first `real` rows count; the others only fill up the shape.
        chances: (batch, n), uniform in [0, 1): random numbers for data that is changed at random,
            such as `Gapped`.

    Example:
        >>> from telescope.training import Training, Windows
        >>> data = Windows([0, 1, 2, 3, 4], block=2)
        >>> spec = data.batches(Training(steps=1, rows=3), epoch=None)[0]
        >>> spec.rows.tolist(), spec.widths, spec.real
        ([0, 2, 0], (2,), 2)
    """

    rows: Int[Tensor, " batch"]
    widths: tuple[int, ...]
    real: int
    chances: Float[Tensor, "batch n"] | None = None


@runtime_checkable
class Data(Protocol):
    """The interface of training data: `Examples`, `Windows`, `Repeated`, `Gapped`, or any class
    with these members.

    Batches depend on the settings' seed and on the epoch alone, so that two numbers identify a
    position in the data. Implementations must not draw from torch's global generators, which belong
    to the model; use `generator`.

    Attributes:
        largest: the largest id.

    Example:
        >>> from telescope.training import Data, Windows
        >>> data: Data = Windows([0, 1, 2, 3], block=2)
        >>> data.largest
        3
        >>> import torch
        >>> from telescope.training import Training
        >>> specs = data.batches(Training(steps=1, rows=1), epoch=0)
        >>> data.to(torch.device("cpu")).take(specs[0]).ids.shape
        torch.Size([1, 2])
        >>> data.describe()[:10]
        '4 ids in w'
    """

    # The largest id, to report an id outside the vocabulary before a GPU kernel fails on it.
    largest: int

    def to(self, device: torch.device) -> "Data":
        """Move the data to the device and return it.

        Args:
            device: where batches are gathered.
        """
        ...

    def batches(self, settings: Training, epoch: int | None) -> Sequence[Any]:
        """Return the specs of an epoch's batches; with epoch=None, for validation, everything once
        and in order.

        Args:
            settings: seed and sizes of the batches.
            epoch: the number of the epoch; None is everything once and in order.
        """

    def take(self, spec: Any) -> Any:
        """Return the batch of a spec. In rows that only fill up the shape every target is
        IGNORE.

        Args:
            spec: one of `batches`.
        """

    def describe(self) -> str:
        """Return a line with sizes and a checksum: a run resumes only with data of the same
        description.
        """


def generator(seed: int, epoch: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return the random generator of an epoch. On the CPU, the default, it draws the same numbers
    on every machine.

    Args:
        seed: the seed of the run.
        epoch: the number of the epoch, from 0.
        device: where the numbers are drawn.

    Example:
        >>> import torch
        >>> from telescope.training import generator
        >>> first = torch.rand(2, generator=generator(seed=0, epoch=3))
        >>> torch.equal(first, torch.rand(2, generator=generator(seed=0, epoch=3)))
        True
    """
    # A prime larger than any number of epochs keeps the seeds of two runs apart.
    return torch.Generator(device).manual_seed(1_000_003 * seed + epoch)


def process_share(batch: Batch, rank: int, processes: int) -> Batch:
    """Return the rows of one process: an equal share of the batch, padded with the first row
    without targets.
    """
    if processes == 1:
        return batch
    rows = len(batch[0])
    size = -(-rows // processes)
    own_rows = torch.arange(rank * size, (rank + 1) * size, device=batch[0].device)
    is_padding = own_rows >= rows
    own_rows = own_rows.masked_fill(is_padding, 0)
    share: Any = type(batch)(*(tensor[own_rows] for tensor in batch))
    targets = share.targets.masked_fill(is_padding[:, None], IGNORE)
    return cast(Batch, share._replace(targets=targets))
