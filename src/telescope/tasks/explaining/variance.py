"""Measure why scores are divided by √d: dot products of random vectors of d features, for every d
from 1 to 512.

The vectors of a smaller d are the first features of those of a larger one, so that a picture
changes smoothly with d.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from ...traces import indent

MOST = 512  # features
QUERIES = 512
KEYS = 8
SEED = 7
EXAMPLE = 5  # the query whose scores and weights are shown one by one
SHOWN = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
# The histogram: bins of width 1 from -48.5 to 48.5; the outermost ones hold what lies beyond
EDGE = 48.5
BINS = 97


@dataclass(frozen=True)
class ScoreStatistics:
    """What the scores of 512 queries with 8 keys each do, either as they are or divided by √d.

    variance  of all scores
    largest   the largest of a query's 8 weights, the mean over the queries
    gradient  Σ w(1 - w) over a query's weights, the mean over the queries: the trace of softmax's
              Jacobian, which is 0 where one key has all the weight
    """

    variance: float
    largest: float
    gradient: float

    @classmethod
    def of(cls, scores: Float[Tensor, "query key"]) -> "ScoreStatistics":
        """Measure these scores."""
        weights = scores.softmax(-1)
        gradient = (weights * (1 - weights)).sum(-1).mean()
        return cls(scores.var(correction=0).item(), weights.amax(-1).mean().item(), gradient.item())


@cache
def _all_scores() -> Float[Tensor, "d query key"]:
    """Return q·k for every d: component products, summed over the first d features."""
    dice = torch.Generator().manual_seed(SEED)
    queries = torch.randn(QUERIES, 1, MOST, generator=dice, dtype=torch.float64)
    keys = torch.randn(QUERIES, KEYS, MOST, generator=dice, dtype=torch.float64)
    return (queries * keys).cumsum(-1).permute(2, 0, 1).contiguous()


def random_scores(d: int) -> Float[Tensor, "query key"]:
    """Return the scores q·k of random vectors with d features, each drawn from N(0, 1); ValueError
    beyond 1 to 512.
    """
    if not 1 <= d <= MOST:
        raise ValueError(f"d={d} is not between 1 and {MOST}")
    return _all_scores()[d - 1]


def measure(d: int) -> dict[str, ScoreStatistics]:
    """Return the statistics of the scores for d features, "as they are" and "divided" by √d."""
    scores = random_scores(d)
    return {"dot": ScoreStatistics.of(scores), "divided": ScoreStatistics.of(scores / d**0.5)}


def to_dict(d: int) -> dict[str, Any]:
    """Return everything about one d as data for JSON: statistics, histograms and the weights of one
    query.
    """
    scores = random_scores(d)
    parts = {"dot": scores, "divided": scores / d**0.5}
    return {
        "d": d,
        "most": MOST,
        "edge": EDGE,
        **{
            name: {
                **vars(ScoreStatistics.of(part)),
                "histogram": torch.histc(part.clamp(-EDGE + 0.5, EDGE - 0.5), BINS, -EDGE, EDGE)
                .long()
                .tolist(),
                "scores": part[EXAMPLE].tolist(),
                "weights": part[EXAMPLE].softmax(-1).tolist(),
            }
            for name, part in parts.items()
        },
    }


def table_to_dict() -> dict[str, Any]:
    """Return the table of `draw_table` as data for JSON."""
    rows = [
        {"d": d} | {name: vars(statistics) for name, statistics in measure(d).items()}
        for d in SHOWN
    ]
    return {"example": "variance", "queries": QUERIES, "keys": KEYS, "rows": rows}


def draw_table() -> RenderableType:
    """Return a table for a rich console: what q·k and q·k/√d do as d grows."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in ("d", "var q·k", "var q·k/√d", "largest weight", "…/√d", "gradient", "…/√d"):
        table.add_column(heading, justify="right")
    for d in SHOWN:
        dot, divided = measure(d).values()
        pairs = [(one.variance, one.largest, one.gradient) for one in (dot, divided)]
        cells = [number for both in zip(*pairs, strict=True) for number in both]
        table.add_row(
            str(d), *(f"{number:.{2 if at < 2 else 4}f}" for at, number in enumerate(cells))
        )
    caption = (
        f"{QUERIES} random queries with {KEYS} keys each; every feature is drawn from N(0, 1).\n"
        "A dot product of d features has a variance of about d. Divided by √d it is about 1 for "
        "every d.\n"
        "Without dividing, softmax gives nearly all weight to one key, and its gradient, Σ w(1 - "
        "w), vanishes."
    )
    return Group(
        Text("Why scores are divided by √d", style="bold"),
        Text(caption, style="dim"),
        Text(),
        indent(table),
    )
