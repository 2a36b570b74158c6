"""Find the keys that a block of queries can see, so that engines that go block by block skip the
others.
"""

import torch
from jaxtyping import Int
from torch import Tensor

from ..attention import Attention, Pairs, by_sum, softmax
from ..attention.values import has_data


def find_key_ranges(
    queries: Tensor, keys: Tensor, attention: Attention
) -> Int[Tensor, "query 2"] | None:
    """Return for each query the range (start, stop) of the keys it sees in any sequence and head;
    None if unknown.

    All queries are computed at once and copied to the CPU, since on a GPU every copy waits.
    """
    batch, heads, rows, _ = queries.shape
    columns = keys.shape[-2]
    if (
        attention.normalize not in (softmax, by_sum)
        or not has_data(queries)
        or 0 in (batch, heads, rows, columns)
    ):
        return None  # another normaliser may depend on the number of hidden keys
    at = Pairs.block(
        range(rows), range(1), of=(rows, columns), batch=batch, heads=heads, device=queries.device
    )
    spans = attention.mask.spans(at, columns)
    start = spans.start.masked_fill(spans.empty, columns).amin((0, 1))
    stop = spans.stop.masked_fill(spans.empty, 0).amax((0, 1))
    return torch.cat([torch.minimum(start, stop), stop], dim=-1).expand(rows, 2).cpu()


def range_of_block(key_ranges: Int[Tensor, "query 2"] | None, block: range, columns: int) -> range:
    """Return the range of keys that covers what the queries of `block` see; all `columns` keys if
    unknown.
    """
    if key_ranges is None:
        return range(columns)
    ranges = key_ranges[block.start : block.stop]
    nonempty = ranges[ranges[:, 0] < ranges[:, 1]]
    return (
        range(int(nonempty[:, 0].min()), int(nonempty[:, 1].max())) if len(nonempty) else range(0)
    )
