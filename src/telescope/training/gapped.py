"""`Gapped`: texts to be written out whole from what is left of them (text infilling, Lewis et al. 2019).

Most of such a text is there and only has to be copied, which is what a summary or a translation of names takes, and
what few examples of either teach.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from .batch import Pair, Spec, generator
from .examples import Examples
from .settings import Training

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

    def take(self, spec: Spec) -> Pair:
        whole = super().take(spec)
        assert isinstance(whole, Pair)
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
