"""Weights between words, as tables for a terminal."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from ..observe.table import Fitting, Line, drawn, inset
from .looking import Looking

LONGEST = 16  # letters of a word
JOINED = "a word in several pieces is one here: its row is the mean over them, its column their sum"


def show(looking: Looking) -> RenderableType:
    """The alignment: what each word looked at when it was written."""
    layer, heads = looking.layers[looking.sharpest].name, looking.weights.shape[1]
    says = f"rows: what was written; columns: what it looked at, in %, the mean of the {heads} heads of {layer}"
    return Group(Text(says, style="dim"), shares(looking.rows.names, looking.columns.names, looking.alignment))


def shares(
    rows: Sequence[str], columns: Sequence[str], weights: Float[Tensor, "row column"], peak: float | None = None
) -> RenderableType:
    """In hundredths. Where there is no room for all columns those stay that are given most, and one is all others."""
    brightest = (float(weights.max()) if peak is None else peak) or 1.0

    def draw(most: int) -> Table:
        names, kept = columns, weights
        if len(columns) > most:
            largest = weights.sum(0).topk(most - 1).indices.sort().values
            others = weights.sum(1, keepdim=True) - weights[:, largest].sum(1, keepdim=True)
            names = [*(columns[j] for j in largest.tolist()), "others"]
            kept = torch.cat([weights[:, largest], others.clamp(min=0.0)], 1)
        lines = [Line(_short(name), 100 * row, 0, 100 * brightest) for name, row in zip(rows, kept, strict=True)]
        return drawn([_short(name) for name in names], lines, most, tight=True)

    return inset(Fitting(draw))


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
