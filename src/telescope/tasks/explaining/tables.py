"""Two tables without a model: why scores are divided by √d, and what positions do to scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from rich.console import Group, RenderableType
from rich.text import Text
from torch import Tensor

from ...attention import alibi, rotary, sinusoidal
from ...traces import PlainTable, indent

# Random scores: features, queries and keys of the vectors that are drawn
MOST_FEATURES = 512
QUERIES = 512
KEYS = 8
SEED = 7
VARIANCE_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # features, one row of the table each

# Position encodings
ENCODINGS = ("sinusoidal", "rotary", "alibi")
POSITIONS = 64
ALIBI_HEADS = 8
SHOWN_HEADS = (0, 3, 7)  # of ALiBi: one that fades quickly, a middle one, and the slowest
DISTANCES = (0, 1, 2, 3, 4, 8, 16, 32, 63)  # rows of the table
FURTHER = 20  # the second position from which distances are measured

# ----------------------------------------------------------------------------------- dividing by √d


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
    """Return q·k for every d: component products, summed over the first d features.

    The vectors of a smaller d are the first features of those of a larger one, so that a picture
    changes smoothly with d.
    """
    dice = torch.Generator().manual_seed(SEED)
    queries = torch.randn(QUERIES, 1, MOST_FEATURES, generator=dice, dtype=torch.float64)
    keys = torch.randn(QUERIES, KEYS, MOST_FEATURES, generator=dice, dtype=torch.float64)
    # Running sums over the features are the scores of every d.
    return (queries * keys).cumsum(-1).permute(2, 0, 1).contiguous()


def random_scores(d: int) -> Float[Tensor, "query key"]:
    """Return the scores q·k of random vectors with d features, each drawn from N(0, 1); ValueError
    beyond 1 to 512.
    """
    if not 1 <= d <= MOST_FEATURES:
        raise ValueError(f"d={d} is not between 1 and {MOST_FEATURES}")
    return _all_scores()[d - 1]


def variance_to_dict() -> dict[str, Any]:
    """Return the statistics of scores for each number of features, as they are ("dot") and
    "divided" by √d.
    """
    rows = []
    for d in VARIANCE_ROWS:
        scores = random_scores(d)
        parts = {"dot": scores, "divided": scores / d**0.5}
        measured = {name: vars(ScoreStatistics.of(part)) for name, part in parts.items()}
        rows.append({"d": d, **measured})
    return {"example": "variance", "queries": QUERIES, "keys": KEYS, "rows": rows}


def draw_variance() -> RenderableType:
    """Return a table for a rich console: what q·k and q·k/√d do as d grows."""
    headings = ("d", "var q·k", "var q·k/√d", "largest weight", "…/√d", "gradient", "…/√d")
    rows = []
    for row in variance_to_dict()["rows"]:
        # Each statistic, as it is and divided, side by side.
        pairs = zip(row["dot"].values(), row["divided"].values(), strict=True)
        cells = [number for both in pairs for number in both]
        # Variances grow with d and need two places, weights and gradients four.
        numbers = [f"{number:.{2 if at < 2 else 4}f}" for at, number in enumerate(cells)]
        rows.append([str(row["d"]), *numbers])
    caption = (
        f"{QUERIES} random queries with {KEYS} keys each; every feature is drawn from N(0, 1).\n"
        "A dot product of d features has a variance of about d. Divided by √d it is about 1 for "
        "every d.\n"
        "Without dividing, softmax gives nearly all weight to one key, and its gradient, Σ w(1 - "
        "w), vanishes."
    )
    return _draw("Why scores are divided by √d", caption, headings, rows)


# ------------------------------------------------------------------------------ position encodings


def encoding_table(kind: str, d: int) -> Float[Tensor, "row column"]:
    """Return what an encoding does: what it adds (sinusoidal: position x feature), its angles in
    radians (rotary: position x pair), or its bias (ALiBi: head x distance).
    """
    if kind == "sinusoidal":
        return sinusoidal(POSITIONS, d, dtype=torch.float64)
    if kind == "rotary":
        # The angles of position p are p times those of position 1.
        turned = rotary(pairs="neighbours").at(torch.ones(1, dtype=torch.long), d, torch.float64)
        return torch.arange(POSITIONS)[:, None] * torch.atan2(turned.sin, turned.cos)[0]
    # The bias of a head falls by its slope with each step of distance.
    slopes: Tensor = alibi(ALIBI_HEADS).slopes  # type: ignore[attr-defined]
    return -slopes[:, None] * torch.arange(POSITIONS)


def encoding_curves(kind: str, d: int) -> tuple[dict[str, Float[Tensor, " distance"]], float]:
    """Return numbers by distance, 0 to 63: the dot product of two positions, the score of one query
    and one key, or the weight of a key where all scores are equal.

    The second result is how much such a score differs between pairs of positions that have the same
    distance: 0 but for rounding.
    """
    # Where all scores are equal, the weights are the softmax of the bias.
    if kind == "alibi":
        weights = encoding_table(kind, d).softmax(-1)
        return {f"head {head}": weights[head] for head in SHOWN_HEADS}, 0.0
    # Twice as many positions, so that every distance occurs from every position.
    if kind == "sinusoidal":
        name = "PE(p) · PE(p + distance)"
        vectors = sinusoidal(2 * POSITIONS, d, dtype=torch.float64)
    else:
        name = "q · k, rotated to p and p + distance"
        # One vector of length 1, everywhere.
        same = torch.full((1, 1, 2 * POSITIONS, d), d**-0.5, dtype=torch.float64)
        vectors = rotary(pairs="neighbours")(same)[0, 0]
    dots = vectors @ vectors.mT
    # Row p: position p with itself and the 63 positions after it.
    found = torch.stack([dots[p, p : p + POSITIONS] for p in range(POSITIONS)])
    curves = {f"{name}, p = {p}": found[p] for p in (0, FURTHER)}
    return curves, float((found - found[0]).abs().max())


def positions_to_dict() -> dict[str, Any]:
    """Return what each encoding makes of the distance between two words."""
    # Of the first two encodings, only the curve from position 0 is shown.
    waves, turned, faded = (list(encoding_curves(kind, 64)[0].values()) for kind in ENCODINGS)
    rows = [
        {"distance": at, "sinusoidal": float(waves[0][at]), "rotary": float(turned[0][at])}
        | {f"alibi {head}": float(faded[place][at]) for place, head in enumerate(SHOWN_HEADS)}
        for at in DISTANCES
    ]
    return {"example": "positions", "d": 64, "rows": rows}


def draw_positions() -> RenderableType:
    """Return a table for a rich console: what each encoding makes of the distance between two
    words.
    """
    headings = (
        *("distance", "sinusoidal PE·PE", "rotary q·k"),
        *("ALiBi head 0", "head 3", "head 7"),
    )
    rows = []
    for row in positions_to_dict()["rows"]:
        distance, *numbers = row.values()
        rows.append([str(distance), *(f"{number:.4f}" for number in numbers)])
    caption = (
        "Sinusoidal: the dot product of the encodings of two positions, 64 features.\n"
        "Rotary: the score of a query and a key that are the same vector of length 1, rotated to "
        "their positions.\n"
        "ALiBi: the weight of a key in three of eight heads, where all scores are equal.\n"
        "All three depend on the distance alone, not on where in the text the two words are."
    )
    return _draw("What positions do to scores", caption, headings, rows)


def _draw(
    title: str, caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]]
) -> RenderableType:
    table = PlainTable(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    return Group(Text(title, style="bold"), Text(caption, style="dim"), Text(), indent(table))
