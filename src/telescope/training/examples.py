"""`Examples`: texts or pairs of texts, kept on the device as one long row of ids from which batches
are gathered.
"""

import zlib
from collections.abc import Sequence
from itertools import chain

import torch
from jaxtyping import Int
from torch import Tensor

from .batch import IGNORE, PairBatch, Spec, TextBatch, generator
from .settings import Training


class Examples:
    """Training data of separate texts for a GPT, `Examples(texts)`, or of pairs, `Examples(sources,
    targets)`.

    Each text, source and target is a sequence of ids: at least two for a text or a target, one for
    a source. Every id of a text or a target after the first is predicted. So a target begins with
    the id that starts the decoder, and ends with the id at which decoding stops.

    A batch holds sequences of about the same length, in one of few shapes: widths are rounded up
    (`round_widths`), and the number of rows follows from `Training.tokens` or `Training.rows`. Few
    shapes mean few compilations and captures.

    Raises ValueError or TypeError if there are no examples, if sources and targets differ in
    number, or if a sequence is too short or holds anything but whole numbers from 0 on.

    Example:
        >>> from telescope.training import Examples, Training
        >>> data = Examples([[5, 6], [7]], [[1, 6, 5, 2], [1, 7, 2]])
        >>> len(data), data.largest
        (2, 7)
        >>> batch = data.take(data.batches(Training(steps=1, rows=2), epoch=0)[0])
        >>> batch.source.shape, batch.target.shape
        (torch.Size([2, 8]), torch.Size([2, 8]))
    """

    def __init__(self, *columns: Sequence[Sequence[int]]) -> None:
        if len(columns) not in (1, 2):
            raise ValueError(
                f"Examples takes texts, or sources and targets, not {len(columns)} columns"
            )
        if len({len(column) for column in columns}) > 1:
            raise ValueError(
                f"there are {len(columns[0])} sources and {len(columns[1])} targets; each source "
                "needs one target"
            )
        if not len(columns[0]):
            raise ValueError("there are no examples to learn from")
        self.sources = IdColumn("source", columns[0], 1) if len(columns) == 2 else None
        self.targets = IdColumn("target" if len(columns) == 2 else "text", columns[-1], 2)
        id_columns = [self.targets] if self.sources is None else [self.sources, self.targets]
        self.largest = max(int(column.ids.max()) for column in id_columns)
        self.description = _describe(id_columns)
        input_lengths = [*(column.lengths for column in id_columns[:-1]), self.targets.lengths - 1]
        self.widths = round_widths(torch.stack(input_lengths))  # (column, example), on the CPU

    def __len__(self) -> int:
        return self.widths.shape[1]

    def to(self, device: torch.device) -> "Examples":
        """Move the ids to the device, in place, and return the data."""
        for column in (self.sources, self.targets):
            if column is not None:
                column.to(device)
        return self

    def describe(self) -> str:
        """Return the number of examples and ids, and a checksum."""
        return self.description

    def batches(self, settings: Training, epoch: int | None) -> list[Spec]:
        """Return the specs of an epoch in random order; with epoch=None all examples once, from
        wide to narrow.

        Batches are filled from the widest examples on, so that only the last one, of the narrowest,
        lacks rows.
        """
        draw = None if epoch is None else generator(settings.seed, epoch)
        order = (
            torch.arange(len(self)) if draw is None else torch.randperm(len(self), generator=draw)
        )
        order = order[_order_by_width(self.widths[:, order])]
        widths = self.widths[:, order]
        widest = widths.amax(0).tolist()
        shapes: list[tuple[tuple[int, ...], int]] = []
        rows: list[Tensor] = []
        first = 0
        while first < len(order):
            size = settings.rows_of(widest[first])
            real = order[first : first + size]
            shapes.append((tuple(widths[:, first : first + size].amax(1).tolist()), len(real)))
            rows += [real, real[:1].expand(size - len(real))]
            first += size
        sizes = [
            len(real) + len(filling) for real, filling in zip(rows[::2], rows[1::2], strict=True)
        ]
        on_device = torch.split(torch.cat(rows).to(self.targets.ids.device), sizes)
        specs = [Spec(indices, *shape) for indices, shape in zip(on_device, shapes, strict=True)]
        return (
            specs
            if draw is None
            else [specs[i] for i in torch.randperm(len(specs), generator=draw).tolist()]
        )

    def take(self, spec: Spec) -> TextBatch | PairBatch:
        """Return the batch of a spec, gathered on the device."""
        width = spec.widths[-1]
        target, _ = self.targets.gather(spec.rows, width + 1, IGNORE)
        ids = target[:, :-1].clamp(min=0)
        targets = target[:, 1:].contiguous()
        targets[spec.real :] = IGNORE
        if self.sources is None:
            return TextBatch(ids, targets)
        source, lengths = self.sources.gather(spec.rows, spec.widths[0], 0)
        return PairBatch(source, lengths, ids, targets)


class IdColumn:
    """Sequences of ids, stored one after another in `ids`, with the start and the length of
    each.
    """

    def __init__(self, name: str, sequences: Sequence[Sequence[int]], shortest: int) -> None:
        self.lengths = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.int64)
        short = (self.lengths < shortest).nonzero()
        if len(short):
            i = int(short[0])
            raise ValueError(
                f"{name} {i} has {len(sequences[i])} ids; it takes at least {shortest}"
            )
        self.ids = _flatten(name, sequences)
        self.starts = self.lengths.cumsum(0) - self.lengths

    def to(self, device: torch.device) -> "IdColumn":
        """Move the tensors to the device, in place, and return the column."""
        self.ids, self.starts, self.lengths = (
            t.to(device) for t in (self.ids, self.starts, self.lengths)
        )
        return self

    def gather(
        self, rows: Int[Tensor, " batch"], width: int, padding: int
    ) -> tuple[Int[Tensor, "batch width"], Int[Tensor, " batch"]]:
        """Return the sequences with these indices, padded to the width, and their lengths."""
        lengths = self.lengths[rows]
        column = torch.arange(width, device=rows.device)
        places = (self.starts[rows, None] + column).clamp(max=len(self.ids) - 1)
        return self.ids[places].masked_fill(column >= lengths[:, None], padding), lengths


def round_widths(lengths: Int[Tensor, "column n"]) -> Int[Tensor, "column n"]:
    """Round lengths up to a multiple of 8; above 64, to 80, 96, 112, 128, 160, …: four steps for
    each power of two.
    """
    longest = lengths.amax(0)
    octave = torch.log2((longest.clamp(min=2) - 1).double()).floor().long()
    step = (2 ** (octave - 2)).clamp(min=8)
    return (lengths + step - 1) // step * step


def _order_by_width(widths: Int[Tensor, "column n"]) -> Int[Tensor, " n"]:
    """Return the order from wide to narrow: by the widest column, which limits the rows, then by
    each column.
    """
    key = widths.amax(0)
    base = int(key.max()) + 1
    for column in widths:
        key = key * base + column
    return key.argsort(descending=True, stable=True)


def _flatten(name: str, sequences: Sequence[Sequence[int]]) -> Int[Tensor, " total"]:
    """Return all ids in one tensor; raise if they are not whole numbers from 0 on."""
    ids = torch.tensor(list(chain.from_iterable(sequences)))
    if ids.dtype != torch.int64:
        raise TypeError(f"{name}s are {ids.dtype}; ids are whole numbers")
    if int(ids.min()) < 0:
        where = next(i for i, sequence in enumerate(sequences) if min(sequence) < 0)
        raise ValueError(f"{name} {where} has the id {min(sequences[where])}; ids are 0 and above")
    return ids


def _describe(columns: Sequence[IdColumn]) -> str:
    counts = ", ".join(f"{len(column.ids):,} ids" for column in columns)
    checksum = 0
    for column in columns:
        checksum = zlib.crc32(
            column.lengths.numpy().tobytes(), zlib.crc32(column.ids.numpy().tobytes(), checksum)
        )
    return f"{len(columns[0].lengths):,} examples, {counts}, checksum {checksum:08x}"
