"""A trace as a walk through its steps, for a terminal: matrices with their tokens, weights as coloured cells."""

from collections.abc import Iterator, Sequence
from io import StringIO
from math import inf
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from torch import Tensor

from .colour import background, ink
from .numbers import digits, factor, shown, total, vector, write
from .trace import Row, Step, Trace

ROWS, COLUMNS = 24, 12  # what fits a page; every number is in to_json()


def text(picture: RenderableType, width: int = 240) -> str:
    """The picture in plain characters, without colour."""
    page = StringIO()
    Console(file=page, width=width, color_system=None, legacy_windows=False).print(picture)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines())


def walk(trace: Trace, batch: int = 0) -> RenderableType:
    """Every step in order, head by head."""
    heads = trace.scores.shape[1]
    parts: list[RenderableType] = [Text(trace.attention.formula(trace.keys.shape[-1]), style="bold")]
    for head in range(heads):
        if heads > 1:
            parts.append(Text(f"\nhead {head}", style="bold"))
        parts += [
            Group(Text(), _title(i, name, step), _numbers(trace, step, batch, head)) for i, name, step in _steps(trace)
        ]
    return Group(*parts)


def matrix(name: str, numbers: Tensor) -> RenderableType:
    """A matrix by itself, such as a W_q."""
    lines = [Line("", line, digits(numbers), None) for line in numbers]
    return Group(Text(f"\n{name}, {numbers.shape[0]} x {numbers.shape[1]}", style="bold cyan"), _table(None, lines))


def row(row: Row) -> RenderableType:
    """One query: the products that make each score, the steps to its weights, and the parts that make its context."""
    trace, keys = row.trace, shown(len(row.trace.key_tokens), ROWS)
    sums = Table.grid(padding=(0, 1))
    parts = Table.grid(padding=(0, 1))
    for j in keys:
        if j is None:
            sums.add_row("…")
            parts.add_row("", "…")
            continue
        score = row.steps["scores"][j].item()
        sums.add_row(trace.key_tokens[j], _products(row, j), f"= {write(score, digits(row.steps['scores']))}")
        weight = write(row.weights[j].item(), 4)
        parts.add_row("+" if j else "", f"{weight}·{vector(row.values[j])}", Text(trace.key_tokens[j], style="dim"))
    parts.add_row("=", Text(vector(row.context), style="bold"))
    return Group(
        Text.assemble("scores of ", (row.token, "bold"), f": {trace.attention.score.formula}, product by product"),
        _inset(sums),
        Text("\nfrom scores to weights"),
        _table(trace.key_tokens, [_line(name, numbers) for name, numbers in row.steps.items()]),
        Text.assemble("\ncontext of ", (row.token, "bold"), ": its weights times the values, summed"),
        _inset(parts),
    )


def _line(name: str, numbers: Tensor) -> "Line":
    peak = _peak(name, numbers)
    return Line(name, numbers, digits(numbers) if peak is None else 4, peak)


def _peak(name: str, numbers: Tensor) -> float | None:
    return None if name != "weights" or not numbers.numel() else numbers.max().item() or 1.0


def _products(row: Row, j: int) -> str:
    """0.55·0.43 + 0.87·0.15 + 0.66·0.89, or the bare terms where the score is no dot product."""
    if row.factors is None:
        return total([write(term, 4) for term in row.terms[j].tolist()])
    query, keys = row.factors
    pairs = zip(query.tolist(), keys[j].tolist(), strict=True)
    return total([f"{write(a, digits(query))}·{factor(b, digits(keys))}" for a, b in pairs])


def _steps(trace: Trace) -> Iterator[tuple[int, str, Step]]:
    """The steps with their numbers; where queries, keys and values are the same inputs, they are shown once."""
    same = trace.queries is trace.keys is trace.values
    steps = [step for step in trace.walk() if not (same and step.name in ("keys", "values"))]
    for i, step in enumerate(steps, 1):
        yield i, "inputs" if same and step.name == "queries" else step.name, step


def _title(number: int, name: str, step: Step) -> Text:
    formula = "x: each is query, key and value" if name == "inputs" else step.formula
    return Text.assemble((f"{number}  {name}", "bold cyan"), f" = {formula}")


def _numbers(trace: Trace, step: Step, batch: int, head: int) -> RenderableType:
    down, across = step.axes[2:]
    if step.axes[1] == "key_head":
        head = head * step.numbers.shape[1] // trace.queries.shape[1]
    tokens = trace.query_tokens if down == "query" else trace.key_tokens
    matrix = step.numbers[batch, head]
    peak = _peak(step.name, matrix)
    places = digits(matrix) if peak is None else 4
    lines = [Line(token, numbers, places, peak) for token, numbers in zip(tokens, matrix, strict=True)]
    return _table(trace.key_tokens if across == "key" else None, lines)


class Line(NamedTuple):
    """One line of a table. Numbers with a peak are weights, in colour, and the peak is the brightest."""

    name: str
    numbers: Tensor
    places: int
    peak: float | None


def _table(columns: Sequence[str] | None, lines: Sequence[Line]) -> RenderableType:
    table = Table(box=None, padding=(0, 1), pad_edge=False, show_header=columns is not None, header_style="dim")
    table.add_column(no_wrap=True)
    across = shown(len(lines[0].numbers) if lines else 0, COLUMNS)
    for j in across:
        table.add_column(Text("…" if j is None else columns[j] if columns else ""), justify="right", no_wrap=True)
    for i in shown(len(lines), ROWS):
        if i is None:
            table.add_row("…")
            continue
        name, numbers, places, peak = lines[i]
        values = numbers.tolist()
        table.add_row(Text(name), *(Text("…") if j is None else _cell(values[j], places, peak) for j in across))
    return _inset(table)


def _cell(number: float, places: int, peak: float | None) -> Text:
    if number == -inf:
        return Text("-inf", style="dim")
    if peak is None:
        return Text(write(number, places))
    paper = background(number / peak)
    return Text(f" {write(number, places)} ", style=f"{ink(paper)} on rgb({paper[0]},{paper[1]},{paper[2]})")


def _inset(picture: RenderableType) -> RenderableType:
    return Padding(picture, (0, 0, 0, 3))
