"""Weights between words, as tables for a terminal."""

from collections.abc import Iterator, Sequence
from typing import Any

from jaxtyping import Float
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from ...decoding import Written
from ...models import Model
from ...trace.terminal import Fitting, cell, inset
from ..writing.rewrite import RewrittenPart
from .sentence_views import SentenceAttention, alignment

LONGEST = 16  # letters of a word
MOST = 6  # words that a row is given, where there is no room for all
JOINED = "a word in several pieces is one here: its row is the mean over them, its column their sum"


def show(looking: SentenceAttention) -> RenderableType:
    """The alignment: what each word looked at when it was written."""
    layer, heads = looking.layers[looking.sharpest].name, looking.weights.shape[1]
    says = f"each row: a word that was written, and what it looked at, in %; the mean of the {heads} heads of {layer}"
    return Group(Text(says, style="dim"), shares(looking.rows.names, looking.columns.names, looking.alignment))


def shares(
    rows: Sequence[str], columns: Sequence[str], weights: Float[Tensor, "row column"], peak: float | None = None
) -> RenderableType:
    """In hundredths, a column for each word; where there is no room for that, the words that each row gives most."""
    brightest = 100 * ((float(weights.max()) if peak is None else peak) or 1.0)

    def tables() -> Iterator[Table]:
        yield _matrix(rows, columns, 100 * weights, brightest)
        for most in range(MOST, 0, -1):
            yield _lists(rows, columns, 100 * weights, brightest, min(most, len(columns)))

    return inset(Fitting(tables))


def _matrix(rows: Sequence[str], columns: Sequence[str], shares: Float[Tensor, "row column"], peak: float) -> Table:
    drawn = _empty()
    drawn.show_header = True
    for name in columns:
        drawn.add_column(Text(_short(name)), justify="right", no_wrap=True)
    for name, row in zip(rows, shares.tolist(), strict=True):
        drawn.add_row(Text(_short(name)), *(cell(share, 0, peak) for share in row))
    return drawn


def _lists(
    rows: Sequence[str], columns: Sequence[str], shares: Float[Tensor, "row column"], peak: float, most: int
) -> Table:
    drawn, largest = _empty(), shares.sort(dim=-1, descending=True, stable=True)
    for name, *row in zip(rows, largest.values[:, :most].tolist(), largest.indices[:, :most].tolist(), strict=True):
        cells = [cell(share, 0, peak, f"{_short(columns[j])} ") for share, j in zip(*row, strict=True)]
        drawn.add_row(Text(_short(name)), *cells)
    return drawn


def _empty() -> Table:
    drawn = Table(
        box=None, padding=(0, 1), pad_edge=False, collapse_padding=True, show_header=False, header_style="dim"
    )
    drawn.add_column(no_wrap=True)
    return drawn


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


table = show


def draw(
    model: Model, parts: Sequence[RewrittenPart], *, before: str = "", between: str = " ", show: bool = False
) -> Iterator[RenderableType]:
    """The text of all parts; where several were asked for, or what they looked at, one after another.

    before   what was written on, if it was
    between  what stands between the parts
    """
    several = any(len(part.found) > 1 for part in parts)
    if not several and not show:
        yield before + between.join(part.text for part in parts)
        return
    for part in parts:
        for number, written in enumerate(part.found, 1):
            label = f"{number}  " if written.score is None else f"{written.score:.4f}  "
            yield f"{label if several else ''}{before}{written.text}"
            if show:
                yield table(alignment(model, part.source, written))


def to_dict(
    model: Model, source: str, parts: Sequence[RewrittenPart], *, between: str = " ", show: bool = False
) -> dict[str, Any]:
    """The same, with every number."""
    return {
        "source": source,
        "text": between.join(part.text for part in parts),
        "parts": [
            {"source": part.source, "texts": [_text(model, part.source, written, show) for written in part.found]}
            for part in parts
        ],
    }


def _text(model: Model, source: str, written: Written, show: bool) -> dict[str, Any]:
    said: dict[str, Any] = {"text": written.text, "score": written.score, "why": written.why}
    if show:
        looking = alignment(model, source, written)
        said["alignment"] = {
            "attention": looking.layers[looking.sharpest].name,
            "rows": looking.rows.names,
            "columns": looking.columns.names,
            "weights": looking.alignment.double().tolist(),
        }
    return said
