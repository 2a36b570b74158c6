"""`Examples`: texts, or pairs of them, as one long row of ids on the device, from which a batch is gathered there."""

import zlib
from collections.abc import Sequence
from itertools import chain

import torch
from jaxtyping import Int
from torch import Tensor

from .batch import IGNORE, PairBatch, Spec, TextBatch, generator
from .settings import Training

COLUMNS = ("source", "target")


class IdColumn:
    """Sequences of ids behind each other, and where each starts."""

    def __init__(self, name: str, sequences: Sequence[Sequence[int]], shortest: int) -> None:
        self.lengths = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.int64)
        short = (self.lengths < shortest).nonzero()
        if len(short):
            i = int(short[0])
            raise ValueError(f"{name} {i} has {len(sequences[i])} ids; it takes at least {shortest}")
        self.ids = _ids(name, sequences)
        self.starts = self.lengths.cumsum(0) - self.lengths

    def to(self, device: torch.device) -> "IdColumn":
        self.ids, self.starts, self.lengths = (it.to(device) for it in (self.ids, self.starts, self.lengths))
        return self

    def rows(
        self, which: Int[Tensor, " batch"], width: int, padding: int
    ) -> tuple[Int[Tensor, "batch width"], Int[Tensor, " batch"]]:
        """These sequences side by side, and their lengths."""
        lengths, place = self.lengths[which], torch.arange(width, device=which.device)
        there = (self.starts[which, None] + place).clamp(max=len(self.ids) - 1)
        return self.ids[there].masked_fill(place >= lengths[:, None], padding), lengths


class Examples:
    """Examples(texts) for a GPT; Examples(sources, targets) for a translator. All are sequences of ids.

    A text, or a target, is guessed id by id from its first one on: a target starts with the id with which the decoder
    starts, and ends with the one at which it ends.

    A batch has sequences of about the same length, in one of few shapes: widths are rounded up (`rounded`), and as many
    rows fit as `Training` says. So a GPU meets few shapes, and each again and again.
    """

    def __init__(self, *columns: Sequence[Sequence[int]]) -> None:
        if len(columns) not in (1, 2):
            raise ValueError(f"Examples takes texts, or sources and targets, not {len(columns)} columns")
        if len({len(column) for column in columns}) > 1:
            raise ValueError(f"{len(columns[0])} sources and {len(columns[1])} targets are no pairs")
        if not len(columns[0]):
            raise ValueError("there are no examples to learn from")
        self.sources = IdColumn("source", columns[0], 1) if len(columns) == 2 else None
        self.targets = IdColumn("target" if len(columns) == 2 else "text", columns[-1], 2)
        both = [self.targets] if self.sources is None else [self.sources, self.targets]
        self.largest = max(int(column.ids.max()) for column in both)
        self.described = _described(both)
        wide = [*(column.lengths for column in both[:-1]), self.targets.lengths - 1]  # of what goes in
        self.widths = rounded(torch.stack(wide))  # (column, example), on the CPU

    def __len__(self) -> int:
        return self.widths.shape[1]

    def to(self, device: torch.device) -> "Examples":
        for column in (self.sources, self.targets):
            if column is not None:
                column.to(device)
        return self

    def describe(self) -> str:
        return self.described

    def batches(self, settings: Training, epoch: int | None) -> list[Spec]:
        """From the longest on, as many as fit: then only the last one, of the shortest, is not full."""
        draw = None if epoch is None else generator(settings.seed, epoch)
        order = torch.arange(len(self)) if draw is None else torch.randperm(len(self), generator=draw)
        order = order[_by_width(self.widths[:, order])]
        widths = self.widths[:, order]
        widest = widths.amax(0).tolist()
        shapes: list[tuple[tuple[int, ...], int]] = []
        rows: list[Tensor] = []
        first = 0
        while first < len(order):
            size = settings.rows_of(widest[first])
            some = order[first : first + size]
            shapes.append((tuple(widths[:, first : first + size].amax(1).tolist()), len(some)))
            rows += [some, some[:1].expand(size - len(some))]
            first += size
        sizes = [len(some) + len(more) for some, more in zip(rows[::2], rows[1::2], strict=True)]
        on_device = torch.split(torch.cat(rows).to(self.targets.ids.device), sizes)
        specs = [Spec(some, *shape) for some, shape in zip(on_device, shapes, strict=True)]
        return specs if draw is None else [specs[i] for i in torch.randperm(len(specs), generator=draw).tolist()]

    def take(self, spec: Spec) -> TextBatch | PairBatch:
        width = spec.widths[-1]
        target, _ = self.targets.rows(spec.rows, width + 1, IGNORE)
        ids, targets = target[:, :-1].clamp(min=0), target[:, 1:].contiguous()
        targets[spec.real :] = IGNORE
        if self.sources is None:
            return TextBatch(ids, targets)
        source, lengths = self.sources.rows(spec.rows, spec.widths[0], 0)
        return PairBatch(source, lengths, ids, targets)


def rounded(lengths: Int[Tensor, "column n"]) -> Int[Tensor, "column n"]:
    """Up to the next multiple of 8; beyond 64, of an eighth to a quarter of the longest: 80, 96, 112, 128, 160, …"""
    longest = lengths.amax(0)
    octave = torch.log2((longest.clamp(min=2) - 1).double()).floor().long()
    step = (2 ** (octave - 2)).clamp(min=8)
    return (lengths + step - 1) // step * step


def _by_width(widths: Int[Tensor, "column n"]) -> Int[Tensor, " n"]:
    """The order from wide to narrow: first by the widest column, which says how many rows fit, then by each."""
    key = widths.amax(0)
    base = int(key.max()) + 1
    for column in widths:
        key = key * base + column
    return key.argsort(descending=True, stable=True)


def _ids(name: str, sequences: Sequence[Sequence[int]]) -> Int[Tensor, " total"]:
    ids = torch.tensor(list(chain.from_iterable(sequences)))
    if ids.dtype != torch.int64:
        raise TypeError(f"{name}s are {ids.dtype}; ids are whole numbers")
    if int(ids.min()) < 0:
        where = next(i for i, sequence in enumerate(sequences) if min(sequence) < 0)
        raise ValueError(f"{name} {where} has the id {min(sequences[where])}; ids are 0 and above")
    return ids


def _described(columns: Sequence[IdColumn]) -> str:
    said = ", ".join(f"{len(it.ids):,} ids" for it in columns)
    mark = 0
    for column in columns:
        mark = zlib.crc32(column.lengths.numpy().tobytes(), zlib.crc32(column.ids.numpy().tobytes(), mark))
    return f"{len(columns[0].lengths):,} examples, {said}, checksum {mark:08x}"
