"""Render the steps of an attention as HTML for a notebook, with the full number behind every cell."""

from collections.abc import Sequence
from html import escape

from .numbers import background, decimal_places, format_number, text_colour, visible_indices
from .terminal import TraceStep, largest_weight

ROWS, COLUMNS = 48, 24

STYLE = (
    "<style>.telescope table{border-collapse:collapse;font:12px ui-monospace,monospace;margin:.2em 0 1em 1em}"
    ".telescope th,.telescope td{padding:.15em .5em;text-align:right;font-weight:normal;border:0}"
    ".telescope th{opacity:.7}.telescope summary{cursor:pointer}</style>"
)


def render_html(formula: str, steps: Sequence[TraceStep], heads: int, batch: int = 0) -> str:
    """Return a table of each step of one sequence of the batch, head by head.

    Tokens are escaped: a token is data, never markup.
    """
    parts = [STYLE, f"<p><b>{escape(formula)}</b></p>"]
    for head in range(heads):
        tables = "".join(_render_step(step, batch, head, heads) for step in steps)
        opened = " open" if head == 0 else ""
        parts.append(f"<details{opened}><summary>head {head}</summary>{tables}</details>" if heads > 1 else tables)
    return f'<div class="telescope">{"".join(parts)}</div>'


def _render_step(step: TraceStep, batch: int, head: int, heads: int) -> str:
    matrix = step.matrix(batch, head, heads)
    peak = largest_weight(step.name, matrix)
    places, values = decimal_places(matrix) if peak is None else 4, matrix.tolist()
    columns = visible_indices(matrix.shape[-1], COLUMNS)
    names = step.columns or tuple(map(str, range(matrix.shape[-1])))
    lines = ["<tr><th></th>", *(f"<th>{'…' if j is None else escape(names[j])}</th>" for j in columns), "</tr>"]
    for i in visible_indices(len(values), ROWS):
        if i is None:
            lines.append("<tr><th>…</th></tr>")
            continue
        cells = "".join("<td>…</td>" if j is None else _render_cell(values[i][j], places, peak) for j in columns)
        lines.append(f"<tr><th>{escape(step.rows[i])}</th>{cells}</tr>")
    return f"<div>{escape(step.name)} = {escape(step.formula)}</div><table>{''.join(lines)}</table>"


def _render_cell(number: float, places: int, peak: float | None) -> str:
    style = ""
    if peak is not None:
        colour = background(number / peak)
        style = f' style="background:rgb{colour};color:{text_colour(colour)}"'
    return f'<td title="{number!r}"{style}>{format_number(number, places)}</td>'
