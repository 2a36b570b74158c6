"""`Windows`: pieces of one long text, drawn anywhere in it; to validate, the whole text, piece by piece."""

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from .batch import IGNORE, Spec, Text, generator
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

    def take(self, spec: Spec) -> Text:
        there = spec.rows[:, None] + torch.arange(self.block + 1, device=spec.rows.device)
        last = len(self.ids) - 1
        text = self.ids[there.clamp(max=last)]
        targets = text[:, 1:].masked_fill(there[:, 1:] > last, IGNORE)
        targets[spec.real :] = IGNORE
        return Text(text[:, :-1].contiguous(), targets)
