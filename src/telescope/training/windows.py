"""Data cut from running text: `Windows` for a GPT, and `Gapped` texts to be restored by an
encoder-decoder.
"""

import zlib
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from .batch import IGNORE, PairBatch, Spec, TextBatch, generator
from .examples import Examples
from .settings import Training


class Windows:
    """Windows of `block` tokens at random positions of one long text, with the token after each as
    its target.

    ids    the text: a sequence or an int64 tensor (n,)
    block  tokens of a window, from 1 to n - 1

    An epoch has as many windows as fit the text side by side. For validation the windows do stand
    side by side, and cover the text once.

    Raises TypeError if the ids are not one row of int64, ValueError if an id is negative or the
    block does not fit.

    Example:
        >>> from telescope.training import Training, Windows
        >>> data = Windows([0, 1, 2, 3, 4], block=2)
        >>> batch = data.take(data.batches(Training(steps=1, rows=2), epoch=None)[0])
        >>> batch.ids.tolist(), batch.targets.tolist()
        ([[0, 1], [2, 3]], [[1, 2], [3, 4]])
    """

    def __init__(self, ids: Sequence[int] | Tensor, block: int) -> None:
        self.ids = torch.as_tensor(ids)
        if self.ids.dtype != torch.int64 or self.ids.ndim != 1:
            raise TypeError(
                f"ids are {self.ids.dtype} of shape {tuple(self.ids.shape)}; a text is one row of "
                "int64"
            )
        if block < 1 or len(self.ids) <= block:
            raise ValueError(
                f"block={block} does not fit a text of {len(self.ids)} ids; 1 to "
                f"{len(self.ids) - 1} do"
            )
        if int(self.ids.min()) < 0:
            raise ValueError(f"ids has {int(self.ids.min())}; ids are 0 and above")
        self.largest = int(self.ids.max())
        self.block = block
        checksum = zlib.crc32(self.ids.cpu().numpy().tobytes())
        self.description = f"{len(self.ids):,} ids in windows of {block:,}, checksum {checksum:08x}"

    def to(self, device: torch.device) -> "Windows":
        """Move the ids to the device, in place, and return the data."""
        self.ids = self.ids.to(device)
        return self

    def describe(self) -> str:
        """Return the number of ids, the block and a checksum."""
        return self.description

    def batches(self, settings: Training, epoch: int | None) -> list[Spec]:
        """Return the specs of an epoch, at random positions; with epoch=None those of all windows,
        side by side.
        """
        rows = settings.rows_of(self.block)
        windows = -(-(len(self.ids) - 1) // self.block)
        count = -(-windows // rows)
        if epoch is None:
            starts = torch.arange(count * rows) % windows * self.block
        else:
            starts = torch.randint(
                len(self.ids) - self.block,
                (count * rows,),
                generator=generator(settings.seed, epoch),
            )
        real = [rows if epoch is not None else min(rows, windows - i * rows) for i in range(count)]
        split = torch.split(starts.to(self.ids.device), rows)
        return [
            Spec(batch_starts, (self.block,), n)
            for batch_starts, n in zip(split, real, strict=True)
        ]

    def take(self, spec: Spec) -> TextBatch:
        """Return the batch of a spec. Targets beyond the end of the text are IGNORE."""
        places = spec.rows[:, None] + torch.arange(self.block + 1, device=spec.rows.device)
        last = len(self.ids) - 1
        text = self.ids[places.clamp(max=last)]
        targets = text[:, 1:].masked_fill(places[:, 1:] > last, IGNORE)
        targets[spec.real :] = IGNORE
        return TextBatch(text[:, :-1].contiguous(), targets)


MAX_GAP = 5  # ids of a gap: uniformly 1 to 5, longer where gaps overlap
GAP_SHARE = 0.3  # approximate share of all ids that lie in gaps


class Gapped(Examples):
    """Texts as targets, with sources in which runs of ids are replaced by one id: data for
    pretraining by denoising.

    texts  sequences of ids, each with its end id last start  the id that starts the decoder; put in
    front of each target, and in the source in place of each gap

    The gaps of a text are drawn anew in every epoch. The last id of a text, its end, is never in a
    gap.

    Example:
        >>> from telescope.training import Gapped, Training
        >>> data = Gapped([[5, 6, 7, 8, 2]], start=1)
        >>> batch = data.take(data.batches(Training(steps=1, rows=1), epoch=0)[0])
        >>> batch.target[0, :5].tolist(), batch.targets[0, :5].tolist()
        ([1, 5, 6, 7, 8], [5, 6, 7, 8, 2])
    """

    def __init__(self, texts: Sequence[Sequence[int]], start: int) -> None:
        super().__init__(texts, [[start, *ids] for ids in texts])
        self.gap = start
        self.description += ", with gaps"

    def batches(self, settings: Training, epoch: int | None) -> list[Spec]:
        """Return the specs of `Examples`, with the random numbers of the gaps.

        The numbers are drawn on the CPU, so that they are the same on every device, and all at
        once, which is fast.
        """
        specs = super().batches(settings, epoch)
        sizes = [len(spec.rows) * spec.widths[0] for spec in specs]
        draw = generator(settings.seed, 0 if epoch is None else epoch)
        chances = torch.split(
            torch.rand(sum(sizes), generator=draw).to(self.targets.ids.device), sizes
        )
        return [
            spec._replace(chances=part.view(-1, spec.widths[0]))
            for spec, part in zip(specs, chances, strict=True)
        ]

    def take(self, spec: Spec) -> PairBatch:
        """Return the batch of a spec, with gaps in its sources."""
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
    threshold = GAP_SHARE * 2 / (MAX_GAP + 1)
    gap_ends = torch.where(
        chances < threshold, place + 1 + (chances / threshold * MAX_GAP).long(), 0
    )
    inside = (gap_ends.cummax(1).values > place) & (place < last)
    first = inside & ~pad(inside[:, :-1], (1, 0))
    kept = (~inside | first) & (place <= last)
    order = (~kept).int().argsort(dim=1, stable=True)
    new_lengths = kept.sum(1)
    shortened = (
        ids.masked_fill(first, gap).gather(1, order).masked_fill(place >= new_lengths[:, None], 0)
    )
    return shortened, new_lengths
