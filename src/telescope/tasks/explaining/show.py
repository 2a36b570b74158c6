"""Draw the weights between words as tables for a terminal, and what a model wrote as text or
JSON.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from jaxtyping import Float
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from ...decoding import Written
from ...models import Model
from ...traces import FirstThatFits, indent, number_cell
from ..writing.rewrite import RewrittenPart
from .sentence_views import SentenceAttention, watch_alignment

LONGEST = 16  # most letters of a word in a table
MOST = 6  # most words listed in a row, where the table of all words is too wide
JOINED = "a word in several pieces is one here: its row is the mean over them, its column their sum"


def draw(
    model: Model,
    parts: Sequence[RewrittenPart],
    *,
    before: str = "",
    between: str = " ",
    show: bool = False,
) -> Iterator[RenderableType]:
    """Yield the written text; where parts have several texts, or with `show`, each text in a line
    of its own.

    before   the prompt that the text continues, if any
    between  what joins the parts
    show     also yield, for each text, a table of what each written word attended to
    """
    several = any(len(part.found) > 1 for part in parts)
    if not several and not show:
        yield before + between.join(part.text for part in parts)
        return
    for part in parts:
        for number, written in enumerate(part.found, 1):
            label = f"{number}  " if written.score is None else f"{written.score:.4f}  "
            yield f"{label if several else ''}{before}{written.text}"
            if show and written.ids:  # a text of no tokens attended to nothing
                yield draw_alignment(watch_alignment(model, part.source, written))


def to_dict(
    model: Model,
    source: str,
    parts: Sequence[RewrittenPart],
    *,
    between: str = " ",
    show: bool = False,
) -> dict[str, Any]:
    """Return what `draw` yields as data for JSON, with the score of each text."""
    return {
        "source": source,
        "text": between.join(part.text for part in parts),
        "parts": [
            {
                "source": part.source,
                "texts": [_text_to_dict(model, part.source, text, show) for text in part.found],
            }
            for part in parts
        ],
    }


def _text_to_dict(model: Model, source: str, written: Written, show: bool) -> dict[str, Any]:
    result: dict[str, Any] = {"text": written.text, "score": written.score, "why": written.why}
    if show and written.ids:
        attention = watch_alignment(model, source, written)
        result["alignment"] = {
            "attention": attention.layers[attention.sharpest].name,
            "rows": attention.rows.names,
            "columns": attention.columns.names,
            "weights": attention.alignment.double().tolist(),
        }
    return result


def draw_alignment(attention: SentenceAttention) -> RenderableType:
    """Return a table of what each written word attended to."""
    layer = attention.layers[attention.sharpest].name
    heads = attention.weights.shape[1]
    caption = (
        "each row: a written word, and the words it attended to, in %; the mean of the "
        f"{heads} heads of {layer}"
    )
    table = percent_table(attention.rows.names, attention.columns.names, attention.alignment)
    return Group(Text(caption, style="dim"), table)


def percent_table(
    rows: Sequence[str],
    columns: Sequence[str],
    weights: Float[Tensor, "row column"],
    peak: float | None = None,
) -> RenderableType:
    """Return a table of weights in %, a column for each word; where that is too wide, the largest
    weights of each row.

    `peak` is the weight that is drawn brightest, the largest one unless given.
    """
    brightest = 100 * ((float(weights.max()) if peak is None else peak) or 1.0)

    def tables() -> Iterator[Table]:
        yield _matrix(rows, columns, 100 * weights, brightest)
        for most in range(MOST, 0, -1):
            yield _largest_of_rows(rows, columns, 100 * weights, brightest, min(most, len(columns)))

    return indent(FirstThatFits(tables))


def _matrix(
    rows: Sequence[str], columns: Sequence[str], percent: Float[Tensor, "row column"], peak: float
) -> Table:
    table = _empty_table()
    table.show_header = True
    for name in columns:
        table.add_column(Text(_shorten(name)), justify="right", no_wrap=True)
    for name, row in zip(rows, percent.tolist(), strict=True):
        table.add_row(Text(_shorten(name)), *(number_cell(number, 0, peak) for number in row))
    return table


def _largest_of_rows(
    rows: Sequence[str],
    columns: Sequence[str],
    percent: Float[Tensor, "row column"],
    peak: float,
    most: int,
) -> Table:
    table = _empty_table()
    largest = percent.sort(dim=-1, descending=True, stable=True)
    for name, *row in zip(
        rows, largest.values[:, :most].tolist(), largest.indices[:, :most].tolist(), strict=True
    ):
        cells = [
            number_cell(number, 0, peak, f"{_shorten(columns[j])} ")
            for number, j in zip(*row, strict=True)
        ]
        table.add_row(Text(_shorten(name)), *cells)
    return table


def _empty_table() -> Table:
    table = Table(
        box=None,
        padding=(0, 1),
        pad_edge=False,
        collapse_padding=True,
        show_header=False,
        header_style="dim",
    )
    table.add_column(no_wrap=True)
    return table


def _shorten(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
