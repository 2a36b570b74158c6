"""Render the steps of an attention as tables, for a terminal and as HTML: named rows, weights as
coloured cells.
"""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from io import StringIO
from math import inf
from typing import NamedTuple

from jaxtyping import Float
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from torch import Tensor

from .numbers import (
    background,
    decimal_places,
    format_number,
    round_numbers,
    significant_digits,
    text_colour,
    visible_indices,
)

# What fits a page; every number is in to_json()
ROWS = 24
COLUMNS = 12
HTML_ROWS = 48
HTML_COLUMNS = 24

STYLE = (
    "<style>.telescope table{border-collapse:collapse;font:12px ui-monospace,monospace;margin:.2em "
    "0 1em 1em}"
    ".telescope th,.telescope td{padding:.15em .5em;text-align:right;font-weight:normal;border:0}"
    ".telescope th{opacity:.7}.telescope summary{cursor:pointer}</style>"
)


class TraceStep(NamedTuple):
    """One step of an attention, as it is shown.

    formula  how the numbers were made, such as "scores / √64"
    axes     the names of the four axes of `numbers`
    rows     the token of each row
    columns  the token of each column; None where the columns are features
    """

    name: str
    formula: str
    numbers: Float[Tensor, "batch head row column"]
    axes: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...] | None

    def matrix(self, batch: int, head: int, heads: int) -> Float[Tensor, "row column"]:
        """Return the numbers of head `head` of `heads`. Grouped heads share the matrix of their
        keys or values.
        """
        return self.numbers[batch, head * self.numbers.shape[1] // heads]


def render_steps(
    formula: str, steps: Sequence[TraceStep], heads: int, batch: int = 0
) -> RenderableType:
    """Return a table of each step, head by head, under the formula of the whole attention.

    Where queries, keys and values are one tensor, that tensor is shown once, as "inputs".
    """
    queries, keys, values, *rest = steps
    if queries.numbers is keys.numbers is values.numbers:
        steps = [queries._replace(name="inputs", formula="x: each is query, key and value"), *rest]
    parts: list[RenderableType] = [Text(formula, style="bold")]
    for head in range(heads):
        if heads > 1:
            parts.append(Text(f"\nhead {head}", style="bold"))
        for number, step in enumerate(steps, 1):
            matrix = step.matrix(batch, head, heads)
            title = Text.assemble((f"\n{number}  {step.name}", "bold cyan"), f" = {step.formula}")
            rows = table_rows(step.rows, matrix, largest_weight(step.name, matrix))
            parts += [title, render_table(step.columns, rows)]
    return Group(*parts)


def largest_weight(step: str, numbers: Tensor) -> float | None:
    """Return the largest number of the step "weights", which is drawn brightest; None for the other
    steps.
    """
    return None if step != "weights" or not numbers.numel() else numbers.max().item() or 1.0


class TableRow(NamedTuple):
    """One row of a table. A row with a `peak` holds weights: they are coloured, and the peak is the
    brightest.
    """

    name: str
    numbers: Tensor
    places: int
    peak: float | None


def table_rows(names: Sequence[str], matrix: Tensor, peak: float | None = None) -> list[TableRow]:
    """Return the rows of a matrix, all with the same number of decimal places."""
    places = decimal_places(matrix) if peak is None else 4
    return [
        TableRow(name, numbers, places, peak) for name, numbers in zip(names, matrix, strict=True)
    ]


def render_table(columns: Sequence[str] | None, rows: Sequence[TableRow]) -> RenderableType:
    """Return an indented table of these rows, with as many columns, up to 12, as the terminal is
    wide enough for.
    """
    return indent(
        FirstThatFits(lambda: (_build_table(columns, rows, most) for most in range(COLUMNS, 2, -1)))
    )


class FirstThatFits:
    """Render the first of several tables that fits the terminal's width, or the last one.

    The tables show fewer and fewer numbers: leaving numbers out is better than cutting them short.
    """

    def __init__(self, tables: Callable[[], Iterable[Table]]) -> None:
        self.tables = tables

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unlimited = options.update(width=10_000)
        table = Table()
        for table in self.tables():
            if Measurement.get(console, unlimited, table).maximum <= options.max_width:
                break
        yield table


def _build_table(columns: Sequence[str] | None, rows: Sequence[TableRow], most: int) -> Table:
    table = Table(
        box=None,
        padding=(0, 1),
        pad_edge=False,
        show_header=columns is not None,
        header_style="dim",
    )
    table.add_column(no_wrap=True)
    visible = visible_indices(len(rows[0].numbers) if rows else 0, most)
    for j in visible:
        table.add_column(
            Text("…" if j is None else columns[j] if columns else ""), justify="right", no_wrap=True
        )
    for i in visible_indices(len(rows), ROWS):
        if i is None:
            table.add_row("…")
            continue
        name, numbers, places, peak = rows[i]
        values = numbers.tolist()
        table.add_row(
            Text(name),
            *(Text("…") if j is None else number_cell(values[j], places, peak) for j in visible),
        )
    return table


def number_cell(number: float, places: int, peak: float | None, label: str = "") -> Text:
    """Return one cell. With a `peak` the number is a weight: its background shows its share of the
    peak.
    """
    if number == -inf:
        return Text("-inf", style="dim")
    if peak is None:
        return Text(format_number(number, places))
    colour = background(number / peak)
    style = f"{text_colour(colour)} on rgb({colour[0]},{colour[1]},{colour[2]})"
    return Text(f" {label}{format_number(number, places)} ", style=style)


def indent(renderable: RenderableType) -> RenderableType:
    """Return the renderable, three columns to the right."""
    return Padding(renderable, (0, 0, 0, 3))


def render_text(renderable: RenderableType, width: int = 240) -> str:
    """Return the renderable as plain characters, without colour."""
    page = StringIO()
    Console(file=page, width=width, color_system=None, legacy_windows=False).print(renderable)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines())


# --------------------------------------------------------------------------------------------- HTML


def render_html(formula: str, steps: Sequence[TraceStep], heads: int, batch: int = 0) -> str:
    """Return a table of each step of one sequence of the batch as HTML.

    The title of a cell is its number with all digits that are true.
    Tokens are escaped: a token is data, never markup.
    """
    parts = [STYLE, f"<p><b>{escape(formula)}</b></p>"]
    for head in range(heads):
        tables = "".join(_render_step(step, batch, head, heads) for step in steps)
        opened = " open" if head == 0 else ""
        parts.append(
            f"<details{opened}><summary>head {head}</summary>{tables}</details>"
            if heads > 1
            else tables
        )
    return f'<div class="telescope">{"".join(parts)}</div>'


def _render_step(step: TraceStep, batch: int, head: int, heads: int) -> str:
    matrix = step.matrix(batch, head, heads)
    peak = largest_weight(step.name, matrix)
    places = decimal_places(matrix) if peak is None else 4
    values = matrix.tolist()
    digits = significant_digits(matrix.dtype)
    columns = visible_indices(matrix.shape[-1], HTML_COLUMNS)
    names = step.columns or tuple(map(str, range(matrix.shape[-1])))
    lines = [
        "<tr><th></th>",
        *(f"<th>{'…' if j is None else escape(names[j])}</th>" for j in columns),
        "</tr>",
    ]
    for i in visible_indices(len(values), HTML_ROWS):
        if i is None:
            lines.append("<tr><th>…</th></tr>")
            continue
        row = values[i]
        cells = "".join(
            "<td>…</td>" if j is None else _render_cell(row[j], places, peak, digits)
            for j in columns
        )
        lines.append(f"<tr><th>{escape(step.rows[i])}</th>{cells}</tr>")
    return f"<div>{escape(step.name)} = {escape(step.formula)}</div><table>{''.join(lines)}</table>"


def _render_cell(number: float, places: int, peak: float | None, digits: int) -> str:
    style = ""
    if peak is not None:
        colour = background(number / peak)
        style = f' style="background:rgb{colour};color:{text_colour(colour)}"'
    return (
        f'<td title="{round_numbers(number, digits)!r}"{style}>{format_number(number, places)}</td>'
    )
