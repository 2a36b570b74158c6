"""A trace as HTML, for a notebook: the same walk, with the full number behind every cell."""

from html import escape

from .colour import background, ink
from .numbers import digits, shown, write
from .trace import Step, Trace

ROWS, COLUMNS = 48, 24

STYLE = (
    "<style>.telescope table{border-collapse:collapse;font:12px ui-monospace,monospace;margin:.2em 0 1em 1em}"
    ".telescope th,.telescope td{padding:.15em .5em;text-align:right;font-weight:normal;border:0}"
    ".telescope th{opacity:.7}.telescope summary{cursor:pointer}</style>"
)


def html(trace: Trace, batch: int = 0) -> str:
    """Every step of one batch entry, head by head. Tokens are escaped: a token is data, never markup."""
    heads = trace.scores.shape[1]
    parts = [STYLE, f"<p><b>{escape(trace.attention.formula(trace.keys.shape[-1]))}</b></p>"]
    for head in range(heads):
        steps = "".join(_step(trace, step, batch, head) for step in trace.walk())
        opened = " open" if head == 0 else ""
        parts.append(f"<details{opened}><summary>head {head}</summary>{steps}</details>" if heads > 1 else steps)
    return f'<div class="telescope">{"".join(parts)}</div>'


def _step(trace: Trace, step: Step, batch: int, head: int) -> str:
    down, across = step.axes[2:]
    if step.axes[1] == "key_head":
        head = head * step.numbers.shape[1] // trace.queries.shape[1]
    matrix = step.numbers[batch, head]
    peak = matrix.max().item() or 1.0 if step.name == "weights" and matrix.numel() else None
    places, values = digits(matrix) if peak is None else 4, matrix.tolist()
    tokens = trace.query_tokens if down == "query" else trace.key_tokens
    columns = shown(matrix.shape[-1], COLUMNS)
    names = trace.key_tokens if across == "key" else tuple(str(j) for j in range(matrix.shape[-1]))
    head_row = "".join(f"<th>{'…' if j is None else escape(names[j])}</th>" for j in columns)
    lines = [f"<tr><th></th>{head_row}</tr>"]
    for i in shown(len(values), ROWS):
        if i is None:
            lines.append("<tr><th>…</th></tr>")
            continue
        cells = "".join("<td>…</td>" if j is None else _cell(values[i][j], places, peak) for j in columns)
        lines.append(f"<tr><th>{escape(tokens[i])}</th>{cells}</tr>")
    return f"<div>{escape(step.name)} = {escape(step.formula)}</div><table>{''.join(lines)}</table>"


def _cell(number: float, places: int, peak: float | None) -> str:
    style = ""
    if peak is not None:
        paper = background(number / peak)
        style = f' style="background:rgb{paper};color:{ink(paper)}"'
    return f'<td title="{number!r}"{style}>{write(number, places)}</td>'
