"""Position encodings as numbers: what each adds or rotates, and how a score then depends on the
distance of two words.

Three encodings without a model: sinusoidal (added to the embedding), rotary (rotates queries and
keys) and ALiBi (subtracted from the scores).
"""

from typing import Any

import torch
from jaxtyping import Float
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from ...attention import alibi, rotary, sinusoidal
from ...traces import indent

KINDS = ("sinusoidal", "rotary", "alibi")
POSITIONS = 64
HEADS = 8
WIDTHS = (4, 8, 16, 32, 64, 128)  # features that the page's slider has
SHOWN = (0, 1, 2, 3, 4, 8, 16, 32, 63)  # distances of the table
FURTHER = 20  # the second position from which distances are measured


def to_dict(kind: str, d: int = 64) -> dict[str, Any]:
    """Return one encoding of d features as data for JSON.

    table       what is added (sinusoidal: position x feature), the angles in radians (rotary:
                position x pair) or the bias (ALiBi: head x distance)
    curves      by distance, 0 to 63: the dot product of two positions, the score of one query and
                one key, or the weight of a key where all scores are equal
    difference  the largest difference of such a score between positions of the same distance; 0 but
                for rounding
    """
    curves, difference = _curves(kind, d)
    table = {"sinusoidal": _waves, "rotary": _angles, "alibi": _biases}[kind](d)
    return {
        "kind": kind,
        "d": d,
        "n": POSITIONS,
        "widths": list(WIDTHS),
        "table": [[round(x, 6) for x in row] for row in table.tolist()],
        "curves": [{"name": name, "numbers": numbers.tolist()} for name, numbers in curves.items()],
        "difference": difference,
    }


def _waves(d: int) -> Float[Tensor, "position d"]:
    return sinusoidal(POSITIONS, d, dtype=torch.float64)


def _angles(d: int) -> Float[Tensor, "position pair"]:
    """Return the angle of each position and pair: position · base^(-2i/d)."""
    turned = rotary(pairs="neighbours").at(torch.ones(1, dtype=torch.long), d, torch.float64)
    return torch.arange(POSITIONS)[:, None] * torch.atan2(turned.sin, turned.cos)[0]


def _biases(d: int) -> Float[Tensor, "head distance"]:
    slopes: Tensor = alibi(HEADS).slopes  # type: ignore[attr-defined]
    return -slopes[:, None] * torch.arange(POSITIONS)


def _curves(kind: str, d: int) -> tuple[dict[str, Float[Tensor, " distance"]], float]:
    """Return numbers by distance, and how much they differ between pairs of positions that have the
    same distance.
    """
    if kind == "alibi":
        return {f"head {head}": _biases(d)[head].softmax(-1) for head in (0, 3, 7)}, 0.0
    pairs = _scores(kind, d)
    found = torch.stack([pairs[p, p : p + POSITIONS] for p in range(POSITIONS)])
    name = {
        "sinusoidal": "PE(p) · PE(p + distance)",
        "rotary": "q · k, rotated to p and p + distance",
    }[kind]
    curves = {f"{name}, p = {p}": found[p] for p in (0, FURTHER)}
    return curves, float((found - found[0]).abs().max())


def _scores(kind: str, d: int) -> Float[Tensor, "position position"]:
    """Return the dot products of twice as many positions, so that every distance occurs from every
    position.
    """
    if kind == "sinusoidal":
        waves = sinusoidal(2 * POSITIONS, d, dtype=torch.float64)
        return waves @ waves.mT
    same = torch.full(
        (1, 1, 2 * POSITIONS, d), d**-0.5, dtype=torch.float64
    )  # one vector of length 1, everywhere
    turned: Tensor = rotary(pairs="neighbours")(same)[0, 0]
    return turned @ turned.mT


def table_to_dict() -> dict[str, Any]:
    """Return the table of `draw_table` as data for JSON."""
    waves, turned, faded = (list(_curves(kind, 64)[0].values()) for kind in KINDS)
    rows = [
        {"distance": at, "sinusoidal": float(waves[0][at]), "rotary": float(turned[0][at])}
        | {f"alibi {head}": float(faded[place][at]) for place, head in enumerate((0, 3, 7))}
        for at in SHOWN
    ]
    return {"example": "positions", "d": 64, "rows": rows}


def draw_table() -> RenderableType:
    """Return a table for a rich console: what each encoding makes of the distance between two
    words.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in (
        "distance",
        "sinusoidal PE·PE",
        "rotary q·k",
        "ALiBi head 0",
        "head 3",
        "head 7",
    ):
        table.add_column(heading, justify="right")
    for row in table_to_dict()["rows"]:
        distance, *numbers = row.values()
        table.add_row(str(distance), *(f"{number:.4f}" for number in numbers))
    caption = (
        "Sinusoidal: the dot product of the encodings of two positions, 64 features.\n"
        "Rotary: the score of a query and a key that are the same vector of length 1, rotated to "
        "their positions.\n"
        "ALiBi: the weight of a key in three of eight heads, where all scores are equal.\n"
        "All three depend on the distance alone, not on where in the text the two words are."
    )
    return Group(
        Text("What positions do to scores", style="bold"),
        Text(caption, style="dim"),
        Text(),
        indent(table),
    )
