"""Form the whole rows of a few queries of each sequence, and pool their weights by distance and
into a small map.

A survey never holds a row. Where the weight goes at each distance is measured on at most ROWS
queries of a sequence, spread evenly over its length: exact for these queries, at 32 / n of the cost
of all scores.
"""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import Attention, Pairs
from ..surveys import Summary, compute_dtype

ROWS = 32  # queries of a sequence whose rows are formed; also the rows and columns of its map
BACK = 20  # buckets of distances: 0, 1, 2, 3 to 4, 5 to 8, ..., 131,073 and more
BUCKETS = BACK + 1  # the last bucket has the keys after the query
SCORES = {"cpu": 2**22, "cuda": 2**25}  # numbers in memory at a time


class RowSample(NamedTuple):
    """The pooled rows of each sequence; float64."""

    distances: Float[Tensor, "batch heads bucket"]
    """The weight at each distance, summed over the sampled queries that see a key besides
    themselves.
    """
    sampled: Float[Tensor, " batch"]
    """How many queries that is."""
    map: Float[Tensor, "batch heads row column"]
    """The sampled rows, keys pooled to ROWS columns; zeros for a sequence of fewer than ROWS
    queries or keys.
    """

    def split(self, count: int) -> "list[RowSample]":
        """Return the samples of the `count` calls that are stacked in this one."""
        return [
            RowSample(*parts) for parts in zip(*(part.chunk(count) for part in self), strict=True)
        ]


def bucket_limits() -> list[tuple[int, int]]:
    """Return the smallest and largest distance of each bucket but the last."""
    # Distances 0, 1 and 2 have a bucket each; from 3 on, each is twice as wide as the last.
    starts = [0, 1, 2, *(2**k + 1 for k in range(1, BACK - 2))]
    # 2**40 is longer than any text: the last bucket is open.
    return [(start, stop - 1) for start, stop in zip(starts, [*starts[1:], 2**40], strict=True)]


@lru_cache(maxsize=16)
def _limits(device: torch.device) -> Int[Tensor, "bucket 2"]:
    """Return `bucket_limits` as a tensor, made once: the host waits for a GPU to which it
    copies.
    """
    return torch.tensor(bucket_limits(), device=device)


def sample_rows(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    summary: Summary,
    *,
    across: bool,
) -> RowSample:
    """Return the pooled rows of every sequence; padding, if any, stands behind its tokens.

    The summary is of the same attention, with top=1 at least. In cross-attention distances are
    unknown, and NaN.
    """
    # A query without a largest key sees nothing: padding, which ends a sequence.
    real = (summary.top_keys[..., 0] >= 0).any(1)
    lengths = _last(real)
    key_lengths = _last((summary.received > 0).any(1)) if across else lengths

    # Divide the batch, so that the scores of each stretch fit into SCORES.
    per_sequence = queries.shape[1] * ROWS * keys.shape[-2]
    at_once = max(1, SCORES.get(queries.device.type, SCORES["cuda"]) // max(per_sequence, 1))
    stretches = [
        range(start, min(start + at_once, len(queries)))
        for start in range(0, len(queries), at_once)
    ]
    parts = [
        _sample(queries, keys, attention, summary.lse, lengths, key_lengths, some, across)
        for some in stretches
    ]
    return RowSample(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _sample(
    queries: Tensor,
    keys: Tensor,
    attention: Attention,
    lse: Float[Tensor, "batch heads query"] | None,
    lengths: Int[Tensor, " batch"],
    key_lengths: Int[Tensor, " batch"],
    batch: range,
    across: bool,
) -> RowSample:
    """Return the pooled rows of some of the sequences."""
    some = slice(batch.start, batch.stop)
    size, heads, _, width = queries[some].shape
    columns = keys.shape[-2]
    device = queries.device
    length = lengths[some, None]
    key_length = key_lengths[some, None]

    # Take the middle of each of ROWS equal parts of a text, or every query of a short one.
    number = torch.arange(ROWS, device=device)[None]
    rows = torch.where(length >= ROWS, (2 * number + 1) * length // (2 * ROWS), number)
    valid = number < length
    # Short texts fill up with any query; `valid` leaves these rows out.
    rows = rows.clamp(max=max(queries.shape[-2] - 1, 0))
    offset = columns - queries.shape[-2]

    # Tell mask and bias which queries the sampled rows are.
    at = Pairs.block(
        range(ROWS),
        range(columns),
        of=(queries.shape[-2], columns),
        batch=batch,
        heads=range(heads),
        device=device,
    )
    at = replace(at, row=rows[:, None, :, None], query=rows[:, None, :, None] + offset)

    # Form the scores as the definition does, step by step.
    own = (
        queries[some]
        .gather(2, rows[:, None, :, None].expand(-1, heads, -1, width))
        .to(compute_dtype(queries))
    )
    scaled = attention.scaled(attention.score(own, keys[some].to(own.dtype)), keys)
    masked = attention.masked(attention.biased(attention.capped(scaled), at), at)
    if lse is None:
        weights = attention.weights(masked)
    else:
        # For a row that sees no key, 0 in place of lse makes exp(-inf - 0) = 0, not NaN.
        own_lse = lse[some].gather(2, rows[:, None].expand(-1, heads, -1))
        weights = masked.sub_(
            own_lse.masked_fill(own_lse == -torch.inf, 0.0)[..., None].to(masked.dtype)
        ).exp_()

    # The weight before each key: that of a stretch of keys is the difference of two.
    running = masked.new_zeros(*masked.shape[:3], columns + 1, dtype=torch.float64)
    torch.cumsum(weights, -1, dtype=torch.float64, out=running[..., 1:])

    def before(edges: Tensor) -> Tensor:
        """Return the weight of all keys before these, (size, row, edge), for each head."""
        where = edges.clamp(0, columns).expand(size, ROWS, -1)[:, None].expand(-1, heads, -1, -1)
        return running.gather(-1, where)

    # Sum the weight by distance back from the query; all later keys are one bucket.
    place = rows[..., None] + offset
    limits = _limits(device)
    back = before(place - limits[:, 0] + 1) - before(place - limits[:, 1])
    ahead = running[..., -1:] - before(place + 1)
    # A query at position 0 sees no key besides itself.
    counts = valid & ((rows + offset) > 0)
    distances = (torch.cat([back, ahead], -1) * counts[:, None, :, None]).sum(2)

    # Pool the keys of each row into ROWS columns of the map.
    edge = torch.arange(ROWS + 1, device=device)
    pooled = before(((edge * key_length + ROWS - 1) // ROWS)[:, None]).diff(dim=-1)
    fits = (length >= ROWS) & (key_length >= ROWS)
    return RowSample(
        torch.full_like(distances, torch.nan) if across else distances,
        counts.sum(1).double(),
        pooled * fits[:, :, None, None],
    )


def _last(present: Tensor) -> Int[Tensor, " batch"]:
    """Return one past the last True of each row; 0 for a row without one."""
    number = torch.arange(1, present.shape[1] + 1, device=present.device)
    return (number * present).amax(1) if present.shape[1] else number.new_zeros(len(present))
