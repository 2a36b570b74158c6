"""`Windows`: pieces of one long text, drawn anywhere in it; to validate, the whole text, piece by piece."""

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
    """Windows(ids, block=256): `block` tokens, and what comes after each. An epoch has as many as the text holds."""

    def __init__(self, ids: Sequence[int] | Tensor, block: int) -> None:
        self.ids = torch.as_tensor(ids)
        if self.ids.dtype != torch.int64 or self.ids.ndim != 1:
            raise TypeError(f"ids are {self.ids.dtype} of shape {tuple(self.ids.shape)}; a text is one row of int64")
        if block < 1 or len(self.ids) <= block:
            raise ValueError(f"block={block} does not fit a text of {len(self.ids)} ids; 1 to {len(self.ids) - 1} do")
        if int(self.ids.min()) < 0:
            raise ValueError(f"ids has {int(self.ids.min())}; ids are 0 and above")
        self.block, self.largest = block, int(self.ids.max())
        mark = zlib.crc32(self.ids.cpu().numpy().tobytes())
        self.described = f"{len(self.ids):,} ids in windows of {block:,}, checksum {mark:08x}"

    def to(self, device: torch.device) -> "Windows":
        self.ids = self.ids.to(device)
        return self

    def describe(self) -> str:
        return self.described

    def batches(self, settings: Training, epoch: int | None) -> list[Spec]:
        rows, windows = settings.rows_of(self.block), -(-(len(self.ids) - 1) // self.block)
        count = -(-windows // rows)
        if epoch is None:
            starts = torch.arange(count * rows) % windows * self.block
        else:
            starts = torch.randint(
                len(self.ids) - self.block, (count * rows,), generator=generator(settings.seed, epoch)
            )
        real = [rows if epoch is not None else min(rows, windows - i * rows) for i in range(count)]
        split = torch.split(starts.to(self.ids.device), rows)
        return [Spec(some, (self.block,), there) for some, there in zip(split, real, strict=True)]

    def take(self, spec: Spec) -> TextBatch:
        there = spec.rows[:, None] + torch.arange(self.block + 1, device=spec.rows.device)
        last = len(self.ids) - 1
        text = self.ids[there.clamp(max=last)]
        targets = text[:, 1:].masked_fill(there[:, 1:] > last, IGNORE)
        targets[spec.real :] = IGNORE
        return TextBatch(text[:, :-1].contiguous(), targets)


LONGEST = 5  # ids of a gap; they are 1 to 5 long, evenly, unless they run into each other
SHARE = 0.3  # of all ids are in gaps, about


class Gapped(Examples):
    """Gapped(texts, start): each text is the target behind `start`, and the source has that id for each gap.

    Where gaps are is drawn anew in every epoch. The last id of a text, its end, is always there.
    """

    def __init__(self, texts: Sequence[Sequence[int]], start: int) -> None:
        super().__init__(texts, [[start, *ids] for ids in texts])
        self.gap = start
        self.described += ", with gaps"

    def batches(self, settings: Training, epoch: int | None) -> list[Spec]:
        """Chances are drawn on the CPU, so that they are the same on every device; all at once, since that is quick."""
        specs = super().batches(settings, epoch)
        sizes = [len(spec.rows) * spec.widths[0] for spec in specs]
        draw = generator(settings.seed, 0 if epoch is None else epoch)
        chances = torch.split(torch.rand(sum(sizes), generator=draw).to(self.targets.ids.device), sizes)
        return [spec._replace(chances=some.view(-1, spec.widths[0])) for spec, some in zip(specs, chances, strict=True)]

    def take(self, spec: Spec) -> PairBatch:
        whole = super().take(spec)
        assert isinstance(whole, PairBatch)
        assert spec.chances is not None
        source, lengths = with_gaps(whole.source, whole.lengths, spec.chances, self.gap)
        return whole._replace(source=source, lengths=lengths)


def with_gaps(
    ids: Int[Tensor, "batch n"], lengths: Int[Tensor, " batch"], chances: Float[Tensor, "batch n"], gap: int
) -> tuple[Int[Tensor, "batch n"], Int[Tensor, " batch"]]:
    """What is left of each text, pushed together, and its length. A low chance, from 0 to 1, starts a gap there."""
    place = torch.arange(ids.shape[1], device=ids.device)
    last = lengths[:, None] - 1
    often = SHARE * 2 / (LONGEST + 1)
    until = torch.where(chances < often, place + 1 + (chances / often * LONGEST).long(), 0)
    inside = (until.cummax(1).values > place) & (place < last)
    first = inside & ~pad(inside[:, :-1], (1, 0))
    kept = (~inside | first) & (place <= last)
    order = (~kept).int().argsort(dim=1, stable=True)
    left = kept.sum(1)
    return ids.masked_fill(first, gap).gather(1, order).masked_fill(place >= left[:, None], 0), left
