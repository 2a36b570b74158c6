"""The same walk as HTML, for a notebook, with the full number behind every cell."""

from collections.abc import Sequence
from html import escape

from .numbers import background, digits, ink, shown, write
from .terminal import TraceStep, peak

ROWS, COLUMNS = 48, 24

STYLE = (
    "<style>.telescope table{border-collapse:collapse;font:12px ui-monospace,monospace;margin:.2em 0 1em 1em}"
    ".telescope th,.telescope td{padding:.15em .5em;text-align:right;font-weight:normal;border:0}"
    ".telescope th{opacity:.7}.telescope summary{cursor:pointer}</style>"
)


def html(formula: str, steps: Sequence[TraceStep], heads: int, batch: int = 0) -> str:
    """Every step of one batch entry, head by head. Tokens are escaped: a token is data, never markup."""
    parts = [STYLE, f"<p><b>{escape(formula)}</b></p>"]
    for head in range(heads):
        tables = "".join(_step(step, batch, head, heads) for step in steps)
        opened = " open" if head == 0 else ""
        parts.append(f"<details{opened}><summary>head {head}</summary>{tables}</details>" if heads > 1 else tables)
    return f'<div class="telescope">{"".join(parts)}</div>'


def _step(step: TraceStep, batch: int, head: int, heads: int) -> str:
    matrix = step.matrix(batch, head, heads)
    brightest = peak(step.name, matrix)
    places, values = digits(matrix) if brightest is None else 4, matrix.tolist()
    columns, names = shown(matrix.shape[-1], COLUMNS), step.columns or tuple(map(str, range(matrix.shape[-1])))
    lines = ["<tr><th></th>", *(f"<th>{'…' if j is None else escape(names[j])}</th>" for j in columns), "</tr>"]
    for i in shown(len(values), ROWS):
        if i is None:
            lines.append("<tr><th>…</th></tr>")
            continue
        cells = "".join("<td>…</td>" if j is None else _cell(values[i][j], places, brightest) for j in columns)
        lines.append(f"<tr><th>{escape(step.rows[i])}</th>{cells}</tr>")
    return f"<div>{escape(step.name)} = {escape(step.formula)}</div><table>{''.join(lines)}</table>"


def _cell(number: float, places: int, peak: float | None) -> str:
    style = ""
    if peak is not None:
        paper = background(number / peak)
        style = f' style="background:rgb{paper};color:{ink(paper)}"'
    return f'<td title="{number!r}"{style}>{write(number, places)}</td>'
