"""Data to train on: `Examples`, texts or pairs of texts; `Windows` of one long text, or `Repeated`
ones; and `Gapped` texts to be restored. Ids are kept on the device, one after another, and batches
are gathered.
"""

import zlib
from collections.abc import Sequence
from itertools import chain

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

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

    Raises:
        ValueError, TypeError: if there are no examples, if sources and targets differ in number, or
            if a sequence is too short or holds anything but whole numbers from 0 on.

    Example:
        >>> from telescope.training import Examples, Training
        >>> data = Examples([[5, 6], [7]], [[1, 6, 5, 2], [1, 7, 2]])
        >>> len(data), data.largest
        (2, 7)
        >>> batch = data.take(data.batches(Training(steps=1, rows=2), epoch=0)[0])
        >>> batch.source.shape, batch.target.shape
        (torch.Size([2, 8]), torch.Size([2, 8]))
        >>> data.describe()[:10]
        '2 examples'
        >>> import torch
        >>> data.to(torch.device("cpu")).largest
        7
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
        # The last id of a target is only predicted, never read: inputs are shorter by one.
        input_lengths = [*(column.lengths for column in id_columns[:-1]), self.targets.lengths - 1]
        self.widths = round_widths(torch.stack(input_lengths))  # (column, example), on the CPU

    def __len__(self) -> int:
        return self.widths.shape[1]

    def to(self, device: torch.device) -> "Examples":
        """Move the ids to the device, in place, and return the data.

        Args:
            device: where batches are gathered.
        """
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

        Args:
            settings: seed and sizes of the batches.
            epoch: the number of the epoch; None is all examples once, from wide to narrow.
        """
        draw = None if epoch is None else generator(settings.seed, epoch)
        # From wide to narrow, and at random among examples of equal widths.
        order = torch.arange(len(self))
        if draw is not None:
            order = torch.randperm(len(self), generator=draw)
        order = order[_order_by_width(self.widths[:, order])]
        widths = self.widths[:, order]
        widest = widths.amax(0).tolist()

        # Cut into batches; the last one repeats its first row until it is full.
        shapes: list[tuple[tuple[int, ...], int]] = []
        rows: list[Tensor] = []
        first = 0
        while first < len(order):
            size = settings.rows_of(widest[first])
            real = order[first : first + size]
            shapes.append((tuple(widths[:, first : first + size].amax(1).tolist()), len(real)))
            rows.append(torch.cat([real, real[:1].expand(size - len(real))]))
            first += size

        # One copy to the device for all batches: a copy for each would wait for it.
        together = torch.cat(rows).to(self.targets.ids.device)
        on_device = torch.split(together, [*map(len, rows)])
        specs = [Spec(indices, *shape) for indices, shape in zip(on_device, shapes, strict=True)]
        if draw is None:
            return specs
        return [specs[i] for i in torch.randperm(len(specs), generator=draw).tolist()]

    def take(self, spec: Spec) -> TextBatch | PairBatch:
        """Return the batch of a spec, gathered on the device.

        Args:
            spec: one of `batches`.
        """
        width = spec.widths[-1]
        # One more than the width: inputs and targets are the same ids, shifted by one.
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

    def to(self, device: torch.device) -> None:
        """Move the tensors to the device, in place."""
        self.ids = self.ids.to(device)
        self.starts = self.starts.to(device)
        self.lengths = self.lengths.to(device)

    def gather(
        self, rows: Int[Tensor, " batch"], width: int, padding: int
    ) -> tuple[Int[Tensor, "batch width"], Int[Tensor, " batch"]]:
        """Return the sequences with these indices, padded to the width, and their lengths."""
        lengths = self.lengths[rows]
        column = torch.arange(width, device=rows.device)
        # Places behind the last sequence are clamped, and overwritten by padding.
        places = (self.starts[rows, None] + column).clamp(max=len(self.ids) - 1)
        return self.ids[places].masked_fill(column >= lengths[:, None], padding), lengths


def round_widths(lengths: Int[Tensor, "column n"]) -> Int[Tensor, "column n"]:
    """Round lengths up to a multiple of 8; above 64, to 80, 96, 112, 128, 160, …: four steps for
    each power of two.
    """
    # The longest column of an example decides: all its columns are rounded by the same step.
    longest = lengths.amax(0)
    octave = torch.log2((longest.clamp(min=2) - 1).double()).floor().long()
    step = (2 ** (octave - 2)).clamp(min=8)
    return (lengths + step - 1) // step * step


def _order_by_width(widths: Int[Tensor, "column n"]) -> Int[Tensor, " n"]:
    """Return the order from wide to narrow: by the widest column, which limits the rows, then by
    each column.
    """
    key = widths.amax(0)
    # All widths as one number, whose digits are the columns: one sort instead of several.
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
        checksum = zlib.crc32(column.ids.numpy().data, checksum)
        checksum = zlib.crc32(column.lengths.numpy().data, checksum)
    return f"{len(columns[0].lengths):,} examples, {counts}, checksum {checksum:08x}"


class Windows:
    """Windows of `block` tokens at random positions of one long text, with the token after each as
    its target.

    An epoch has as many windows as fit the text side by side. For validation the windows do stand
    side by side, and cover the text once.

    Args:
        ids: the text: a sequence or an int64 tensor (n,).
        block: tokens of a window, from 1 to n - 1.

    Raises:
        TypeError: if the ids are not one row of int64, ValueError if an id is negative or the block
            does not fit.

    Example:
        >>> from telescope.training import Training, Windows
        >>> data = Windows([0, 1, 2, 3, 4], block=2)
        >>> batch = data.take(data.batches(Training(steps=1, rows=2), epoch=None)[0])
        >>> batch.ids.tolist(), batch.targets.tolist()
        ([[0, 1], [2, 3]], [[1, 2], [3, 4]])
        >>> import torch
        >>> data.to(torch.device("cpu")).describe()[:10]
        '5 ids in w'
    """

    def __init__(self, ids: Sequence[int] | Tensor, block: int) -> None:
        self.ids = torch.as_tensor(ids)
        if self.ids.dtype != torch.int64 or self.ids.ndim != 1:
            shape = tuple(self.ids.shape)
            raise TypeError(
                f"ids are {self.ids.dtype} of shape {shape}; a text is one row of int64"
            )
        length = len(self.ids)
        if block < 1 or length <= block:
            raise ValueError(
                f"block={block} does not fit a text of {length} ids; 1 to {length - 1} do"
            )
        if int(self.ids.min()) < 0:
            raise ValueError(f"ids has {int(self.ids.min())}; ids are 0 and above")
        self.largest = int(self.ids.max())
        self.block = block
        checksum = zlib.crc32(self.ids.cpu().contiguous().numpy().data)
        self.description = f"{length:,} ids in windows of {block:,}, checksum {checksum:08x}"

    def to(self, device: torch.device) -> "Windows":
        """Move the ids to the device, in place, and return the data.

        Args:
            device: where batches are gathered.
        """
        self.ids = self.ids.to(device)
        return self

    def describe(self) -> str:
        """Return the number of ids, the block and a checksum."""
        return self.description

    def batches(self, settings: Training, epoch: int | None) -> list[Spec]:
        """Return the specs of an epoch, at random positions; with epoch=None those of all windows,
        side by side.

        Args:
            settings: seed and sizes of the batches.
            epoch: the number of the epoch; None is all windows, side by side.
        """
        rows = settings.rows_of(self.block)
        windows = -(-(len(self.ids) - 1) // self.block)
        count = -(-windows // rows)
        if epoch is None:
            # Side by side; the last batch is filled up with windows from the beginning.
            starts = torch.arange(count * rows) % windows * self.block
            real = [min(rows, windows - i * rows) for i in range(count)]
        else:
            draw = generator(settings.seed, epoch)
            starts = torch.randint(len(self.ids) - self.block, (count * rows,), generator=draw)
            real = [rows] * count
        split = torch.split(starts.to(self.ids.device), rows)
        return [Spec(begin, (self.block,), n) for begin, n in zip(split, real, strict=True)]

    def take(self, spec: Spec) -> TextBatch:
        """Return the batch of a spec. Targets beyond the end of the text are IGNORE.

        Args:
            spec: one of `batches`.
        """
        places = spec.rows[:, None] + torch.arange(self.block + 1, device=spec.rows.device)
        last = len(self.ids) - 1
        text = self.ids[places.clamp(max=last)]
        targets = text[:, 1:].masked_fill(places[:, 1:] > last, IGNORE)
        targets[spec.real :] = IGNORE
        return TextBatch(text[:, :-1].contiguous(), targets)


# ------------------------------------------------------------------------------- texts that repeat

SHORTEST_PERIOD = 8  # tokens that come again and again; the longest period is half of a window
DRAWN_SHARE = 0.15  # of the windows that repeat: their tokens are drawn at random


class Repeated(Windows):
    """`Windows`, of which a share says its first tokens again and again: data from which a model
    learns to look for an earlier occurrence.

    Most of these windows repeat what the text says there. Some repeat tokens drawn at random, which
    nothing but the repetition predicts. How many tokens come again is drawn for each window, anew
    in every epoch. Validation reads the text as it is.

    Args:
        share: of the windows, from 0 to 1.
        ids, block: as in `Windows`.

    Example:
        >>> from telescope.training import Repeated, Training
        >>> data = Repeated(range(100), block=32, share=1.0)
        >>> batch = data.take(data.batches(Training(steps=1, rows=1), epoch=0)[0])
        >>> batch.ids[0].tolist()[:16]
        [74, 56, 9, 34, 57, 93, 41, 52, 93, 36, 42, 95, 74, 56, 9, 34]
    """

    def __init__(self, ids: Sequence[int] | Tensor, block: int, share: float) -> None:
        super().__init__(ids, block)
        if not 0 <= share <= 1:
            raise ValueError(f"a share of {share} of the windows is not possible; 0 to 1 is")
        if block < 2 * SHORTEST_PERIOD:
            raise ValueError(
                f"block={block} is too short to repeat {SHORTEST_PERIOD} tokens; "
                f"{2 * SHORTEST_PERIOD} is enough"
            )
        self.share = share
        self.description += f", {share:.0%} of them repeat"

    def batches(self, settings: Training, epoch: int | None) -> list[Spec]:
        """Return the specs of `Windows`; those of an epoch have the random numbers of each row.

        Args:
            settings: seed and sizes of the batches.
            epoch: the number of the epoch; None is the text as it is, side by side.
        """
        specs = super().batches(settings, epoch)
        if epoch is None:
            return specs
        # One more than the epoch's own seed, so that places and periods are drawn apart.
        draw = generator(settings.seed + 1, epoch)
        rows = [len(spec.rows) for spec in specs]
        chances = torch.rand(sum(rows), 2 + self.block // 2, generator=draw).to(self.ids.device)
        return [
            spec._replace(chances=part)
            for spec, part in zip(specs, torch.split(chances, rows), strict=True)
        ]

    def take(self, spec: Spec) -> TextBatch:
        """Return the batch of a spec, in which some rows repeat.

        Args:
            spec: one of `batches`.
        """
        whole = super().take(spec)
        if spec.chances is None:
            return whole
        chosen, length = spec.chances[:, :2].unbind(1)
        tokens = spec.chances[:, 2:]
        text = torch.cat([whole.ids, whole.targets[:, -1:]], 1)
        drawn = (tokens * (self.largest + 1)).long()
        first = torch.where(
            (chosen < self.share * DRAWN_SHARE)[:, None], drawn, text[:, : drawn.shape[1]]
        )
        periods = SHORTEST_PERIOD + (length * (self.block // 2 - SHORTEST_PERIOD + 1)).long()
        place = torch.arange(self.block + 1, device=spec.rows.device)
        repeated = first.gather(1, place % periods[:, None])
        text = torch.where((chosen < self.share)[:, None], repeated, text)
        return TextBatch(text[:, :-1].contiguous(), text[:, 1:].contiguous())


# ---------------------------------------------------------------------------------- texts with gaps

MAX_GAP = 5  # ids of a gap: uniformly 1 to 5, longer where gaps overlap
GAP_SHARE = 0.3  # approximate share of all ids that lie in gaps


class Gapped(Examples):
    """Texts as targets, with sources in which runs of ids are replaced by one id: data for
    pretraining by denoising.

    The gaps of a text are drawn anew in every epoch. The last id of a text, its end, is never in a
    gap.

    Args:
        texts: sequences of ids, each with its end id last.
        start: the id that starts the decoder; put in front of each target, and in the source in
            place of each gap.

    Example:
        >>> from telescope.training import Gapped, Training
        >>> data = Gapped([[5, 6, 7, 8, 2]], start=1)
        >>> batch = data.take(data.batches(Training(steps=1, rows=1), epoch=0)[0])
        >>> batch.target[0, :5].tolist(), batch.targets[0, :5].tolist()
        ([1, 5, 6, 7, 8], [5, 6, 7, 8, 2])
        >>> import torch
        >>> data.to(torch.device("cpu")).describe()[:9]
        '1 example'
    """

    def __init__(self, texts: Sequence[Sequence[int]], start: int) -> None:
        super().__init__(texts, [[start, *ids] for ids in texts])
        self.gap = start
        self.description += ", with gaps"

    def batches(self, settings: Training, epoch: int | None) -> list[Spec]:
        """Return the specs of `Examples`, with the random numbers of the gaps.

        The numbers are drawn on the CPU, so that they are the same on every device, and all at
        once, which is fast.

        Args:
            settings: seed and sizes of the batches.
            epoch: the number of the epoch; None is all texts once, from wide to narrow.
        """
        specs = super().batches(settings, epoch)
        sizes = [len(spec.rows) * spec.widths[0] for spec in specs]
        draw = generator(settings.seed, epoch or 0)
        together = torch.rand(sum(sizes), generator=draw).to(self.targets.ids.device)
        chances = torch.split(together, sizes)
        return [
            spec._replace(chances=part.view(-1, spec.widths[0]))
            for spec, part in zip(specs, chances, strict=True)
        ]

    def take(self, spec: Spec) -> PairBatch:
        """Return the batch of a spec, with gaps in its sources.

        Args:
            spec: one of `batches`.
        """
        whole = super().take(spec)
        assert isinstance(whole, PairBatch)
        assert spec.chances is not None
        source, lengths = cut_gaps(whole.source, whole.lengths, spec.chances, self.gap)
        return whole._replace(source=source, lengths=lengths)


def cut_gaps(
    ids: Int[Tensor, "batch n"],
    lengths: Int[Tensor, " batch"],
    chances: Float[Tensor, "batch n"],
    gap: int,
) -> tuple[Int[Tensor, "batch n"], Int[Tensor, " batch"]]:
    """Replace runs of ids by the id `gap`, and return the shortened rows, padded with 0, and their
    lengths.

    chances  uniform in [0, 1): a number below a threshold starts a gap at its position, and sets
             the gap's length
    """
    place = torch.arange(ids.shape[1], device=ids.device)
    last = lengths[:, None] - 1
    # Gaps have (MAX_GAP + 1) / 2 ids on average, so that so many positions start one.
    threshold = GAP_SHARE * 2 / (MAX_GAP + 1)
    length = 1 + (chances / threshold * MAX_GAP).long()
    gap_ends = torch.where(chances < threshold, place + length, 0)
    # An id is inside a gap if a gap that started before ends after it; the end id never is.
    inside = (gap_ends.cummax(1).values > place) & (place < last)
    first = inside & ~pad(inside[:, :-1], (1, 0))
    # Of each gap the first place stays, with the gap's id. A stable sort moves forward what is
    # kept.
    kept = (~inside | first) & (place <= last)
    order = (~kept).int().argsort(dim=1, stable=True)
    shortened = ids.masked_fill(first, gap).gather(1, order)
    new_lengths = kept.sum(1)
    return shortened.masked_fill(place >= new_lengths[:, None], 0), new_lengths
