"""Weights between words, as tables for a terminal."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from rich.console import Group, RenderableType
from rich.text import Text
from torch import Tensor

from ..observe.table import COLUMNS, Line, table
from .looking import Looking

JOINED = "a word in several pieces is one here: its row is the mean over them, its column their sum"


def show(looking: Looking) -> RenderableType:
    """The alignment: what each word looked at when it was written."""
    layer, heads = looking.layers[looking.sharpest].name, looking.weights.shape[1]
    says = f"rows: what was written; columns: what it looked at, in {layer}, the mean of {heads} heads; {JOINED}"
    return Group(Text(says, style="dim"), shares(looking.rows.names, looking.columns.names, looking.alignment))


def shares(
    rows: Sequence[str], columns: Sequence[str], weights: Float[Tensor, "row column"], peak: float | None = None
) -> RenderableType:
    """Of more columns than fit those stay that are given most, and one is the sum of all others."""
    brightest = (float(weights.max()) if peak is None else peak) or 1.0
    if weights.shape[1] > COLUMNS:
        most = weights.sum(0).topk(COLUMNS - 1).indices.sort().values
        others = weights.sum(1, keepdim=True) - weights[:, most].sum(1, keepdim=True)
        columns = [*(columns[j] for j in most.tolist()), "all others"]
        weights = torch.cat([weights[:, most], others.clamp(min=0.0)], 1)
    return table(columns, [Line(name, row, 2, brightest) for name, row in zip(rows, weights, strict=True)])
