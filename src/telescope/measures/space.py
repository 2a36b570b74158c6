"""Sum how far heads look within an image, in patches, and within a sound, in seconds."""

from collections.abc import Callable, Iterator
from math import nan

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..attention import Attention
from ..surveys import Summary, masked_rows
from ..token_kinds import GridSpace
from .places import Places
from .table import SPACE_SUMS

BLOCK = {"cpu": 2**20, "cuda": 2**26}  # scores in memory at a time


def space_sums(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    summary: Summary,
    places: Places,
    sees: Bool[Tensor, "batch heads query"],
) -> Float[Tensor, "batch heads sum"]:
    """Return SPACE_SUMS of each sequence and head; float64, NaN of grids or frames where there are
    none.

    Every weight between two patches of one image, or two frames of one sound, is formed once, block
    by block. `sees` tells which queries see a key.
    """
    nothing = torch.zeros(sees.shape[:2], dtype=torch.float64, device=queries.device)
    found = dict.fromkeys(SPACE_SUMS, nothing + nan)
    assert places.space is not None
    grids = places.space.grids
    frames = places.space.frames
    if grids:
        found |= dict.fromkeys(("neighbours", "patches", "patch_queries", "patch_weight"), nothing)
    if frames:
        found |= dict.fromkeys(("seconds", "frame_weight"), nothing)

    inputs = (queries, keys, attention, summary, places)
    for grid in grids:
        found["patch_queries"] = (
            found["patch_queries"]
            + sees[:, :, _rows_within(places, grid.positions)].sum(-1).double()
        )
        for rows, columns, weights in _weights_within(*inputs, grid.positions):
            down, right = (_apart(rows, columns, axis) for axis in _coordinates(grid))
            near = torch.maximum(down, right) <= 1
            found["neighbours"] = found["neighbours"] + _weighted(weights, near)
            found["patches"] = found["patches"] + _weighted(weights, torch.hypot(down, right))
            found["patch_weight"] = found["patch_weight"] + _weighted(weights)
    for stretch in frames:
        for rows, columns, weights in _weights_within(*inputs, stretch.positions):
            apart = _apart(rows, columns, lambda frame: frame) * stretch.step
            found["seconds"] = found["seconds"] + _weighted(weights, apart)
            found["frame_weight"] = found["frame_weight"] + _weighted(weights)
    return torch.stack([found[name] for name in SPACE_SUMS], -1)


def _coordinates(grid: GridSpace) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Return the functions from the number of a patch to its row and to its column."""
    return (
        lambda patch: patch.div(grid.columns, rounding_mode="floor"),
        lambda patch: patch.remainder(grid.columns),
    )


def _apart(
    rows: Int[Tensor, " row"], columns: Int[Tensor, " key"], axis: Callable[[Tensor], Tensor]
) -> Float[Tensor, "row key"]:
    """Return how far queries and keys are apart along one axis."""
    return (axis(rows)[:, None] - axis(columns)).abs().double()


def _weighted(
    weights: Float[Tensor, "batch heads row key"], factor: Tensor | None = None
) -> Float[Tensor, "batch heads"]:
    """Return the sum of the weights of a block, each times its factor."""
    # Products in float32 of weights and small numbers, added up in float64.
    products = weights if factor is None else weights * factor.to(weights.dtype)
    return products.sum((-2, -1), dtype=torch.float64)


def _rows_within(places: Places, positions: range) -> list[int]:
    """Return which queries are at these positions of the text."""
    return [row for row, position in enumerate(places.positions) if position in positions]


def _weights_within(
    queries: Tensor,
    keys: Tensor,
    attention: Attention,
    summary: Summary,
    places: Places,
    positions: range,
) -> Iterator[tuple[Tensor, Tensor, Float[Tensor, "batch heads row key"]]]:
    """Yield the weights between tokens at these positions, in blocks of queries, with the numbers
    of the queries and of the keys, counted from the first position.
    """
    rows = _rows_within(places, positions)
    # Evicted keys get no weight from the queries of this call; later ones are not there yet.
    start, stop = (
        min(max(0, end - places.evicted), places.keys) for end in (positions.start, positions.stop)
    )
    columns = range(start, stop)
    batch, heads = queries.shape[:2]
    if not rows or not columns:
        return
    device = queries.device
    ahead = places.evicted - positions.start
    key = torch.arange(columns.start, columns.stop, device=device) + ahead

    # A normaliser without lse needs whole rows.
    whole = range(keys.shape[-2])
    formed = whole if summary.lse is None else columns
    most = BLOCK.get(device.type, BLOCK["cuda"])
    each = batch * heads * len(formed) * attention.score.numbers_per_score(queries, keys)
    height = max(1, most // max(1, each))
    for start in range(0, len(rows), height):
        block = rows[start : start + height]
        number = torch.tensor(block, device=device)
        masked = masked_rows(queries, keys, attention, number, formed, range(batch), range(heads))
        if summary.lse is None:
            weights = attention.weights(masked)[..., columns.start : columns.stop]
        else:
            # Where a row sees no key, -inf - lse is NaN: the fill makes it 0.
            lse = summary.lse[:, :, number, None].to(masked.dtype)
            weights = torch.exp(masked - lse).masked_fill_(masked == -torch.inf, 0.0)
        query = torch.tensor([places.positions[row] for row in block], device=device)
        yield query - positions.start, key, weights
