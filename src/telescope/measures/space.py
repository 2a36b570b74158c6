"""Sum how far heads look within an image, in patches, and within a sound, in seconds."""

from collections.abc import Iterator
from math import nan

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from ..attention import Attention
from ..surveys import Summary, masked_rows
from ..token_kinds import GridSpace
from .places import Places
from .table import SPACE_SUMS

# Scores in memory at a time: on a CPU, those that stay in the cache of a core.
BLOCK = {"cpu": 2**18, "cuda": 2**26}


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
        for name in ("neighbours", "patches", "patch_queries", "patch_weight"):
            found[name] = nothing.clone()
    if frames:
        for name in ("seconds", "frame_weight"):
            found[name] = nothing.clone()

    inputs = (queries, keys, attention, summary, places)
    for grid in grids:
        within = grid.positions
        found["patch_queries"] += sees[:, :, _rows_within(places, within)].sum(-1).double()
        for rows, weights in _weights_within(*inputs, within):
            down, right = _ways(rows, grid)
            near = (down <= 1).float() * (right <= 1).float()
            distance = torch.hypot(down, right).flatten(1)
            sums = _weighted(weights, distance, near.flatten(1))
            found["patches"] += sums[0]
            found["neighbours"] += sums[1]
            found["patch_weight"] += sums[2]
    for stretch in frames:
        every = torch.arange(stretch.count, device=queries.device)
        for rows, weights in _weights_within(*inputs, stretch.positions):
            apart = (rows[:, None] - every).abs().float()
            sums = _weighted(weights, stretch.step * apart)
            found["seconds"] += sums[0]
            found["frame_weight"] += sums[1]
    return torch.stack([found[name] for name in SPACE_SUMS], -1)


def _ways(
    patches: Int[Tensor, " row"], grid: GridSpace
) -> tuple[Float[Tensor, "row down 1"], Float[Tensor, "row 1 right"]]:
    """Return how many rows and how many columns lie between patches and all patches of their
    grid.
    """
    row = patches.div(grid.columns, rounding_mode="floor")
    down = (row[:, None] - torch.arange(grid.rows, device=patches.device)).abs().float()
    column = patches.remainder(grid.columns)
    right = (column[:, None] - torch.arange(grid.columns, device=patches.device)).abs().float()
    return down[:, :, None], right[:, None]


def _weighted(
    weights: Float[Tensor, "batch heads row key"], *factors: Float[Tensor, "row key"]
) -> Float[Tensor, "sum batch heads"]:
    """Return the sums of the weights of a block times each factor, and of the weights alone."""
    every = torch.stack([*factors, torch.ones_like(factors[0])]).to(weights.dtype)
    # One product reads the weights once; a GPU's may be rounded, where a user allows TF32.
    if weights.device.type == "cpu":
        return (weights.flatten(2) @ every.flatten(1).T).double().movedim(-1, 0)
    return torch.stack([(weights * one).sum(-1).sum(-1, dtype=torch.float64) for one in every])


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
) -> Iterator[tuple[Tensor, Float[Tensor, "batch heads row key"]]]:
    """Yield the weights between tokens at these positions, in blocks of queries, with the numbers
    of the queries, counted from the first position. Keys that are not there have weight 0.
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
    before = columns.start + places.evicted - positions.start
    after = len(positions) - before - len(columns)

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
            # A row that sees no key has lse -inf, and -inf + inf is NaN: with inf it is all 0.
            lse = summary.lse[:, :, number, None].to(masked.dtype)
            weights = torch.exp(masked - lse.masked_fill(lse == -torch.inf, torch.inf))
        if before or after:
            weights = pad(weights, (before, after))
        query = torch.tensor([places.positions[row] for row in block], device=device)
        yield query - positions.start, weights
