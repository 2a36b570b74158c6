"""Which keys a block of queries looks at: what engines that go block by block leave out."""

import torch
from jaxtyping import Int
from torch import Tensor

from ..attention import Attention, Pairs, by_sum, softmax
from ..attention.values import has_numbers


def key_ranges(queries: Tensor, keys: Tensor, attention: Attention) -> Int[Tensor, "query 2"] | None:
    """Where each query looks: from which key up to which, whatever the sequence and head; None may be anywhere.

    All queries are asked about at once, since on a GPU every answer is waited for.
    """
    (batch, heads, rows, _), columns = queries.shape, keys.shape[-2]
    if attention.normalize not in (softmax, by_sum) or not has_numbers(queries) or 0 in (batch, heads, rows, columns):
        return None  # another normaliser may want to know how many keys are hidden
    at = Pairs.block(range(rows), range(1), of=(rows, columns), batch=batch, heads=heads, device=queries.device)
    spans = attention.mask.spans(at, columns)
    start = spans.start.masked_fill(spans.empty, columns).amin((0, 1))
    stop = spans.stop.masked_fill(spans.empty, 0).amax((0, 1))
    return torch.cat([torch.minimum(start, stop), stop], dim=-1).expand(rows, 2).cpu()


def range_of_block(key_ranges: Int[Tensor, "query 2"] | None, block: range, columns: int) -> range:
    """The keys that a block of queries looks at."""
    if key_ranges is None:
        return range(columns)
    mine = key_ranges[block.start : block.stop]
    seeing = mine[mine[:, 0] < mine[:, 1]]
    return range(int(seeing[:, 0].min()), int(seeing[:, 1].max())) if len(seeing) else range(0)
