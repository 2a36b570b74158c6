"""Numbers as tables for a terminal: named rows and columns, weights as coloured cells."""

from collections.abc import Callable, Iterable, Sequence
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

from .numbers import background, digits, ink, shown, write


class TraceStep(NamedTuple):
    """`formula` made the numbers; `rows` are tokens, and so are `columns`, or None where they are features."""

    name: str
    formula: str
    numbers: Float[Tensor, "batch head row column"]
    axes: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...] | None

    def matrix(self, batch: int, head: int, heads: int) -> Float[Tensor, "row column"]:
        """What head number `head` of `heads` sees of it: grouped heads share their keys and values."""
        return self.numbers[batch, head * self.numbers.shape[1] // heads]


def peak(name: str, numbers: Tensor) -> float | None:
    """The largest weight, which is drawn brightest; None for steps that are not weights."""
    return None if name != "weights" or not numbers.numel() else numbers.max().item() or 1.0


ROWS, COLUMNS = 24, 12  # what fits a page; every number is in to_json()


class TableLine(NamedTuple):
    """One line of a table. Numbers with a peak are weights, in colour, and the peak is the brightest."""

    name: str
    numbers: Tensor
    places: int
    peak: float | None


def lines(names: Sequence[str], matrix: Tensor, peak: float | None = None) -> list[TableLine]:
    places = digits(matrix) if peak is None else 4
    return [TableLine(name, numbers, places, peak) for name, numbers in zip(names, matrix, strict=True)]


def table(columns: Sequence[str] | None, lines: Sequence[TableLine]) -> RenderableType:
    return inset(Fitting(lambda: (_drawn(columns, lines, most) for most in range(COLUMNS, 2, -1))))


class Fitting:
    """The first of some tables that there is room for: fewer numbers are better than numbers cut short."""

    def __init__(self, tables: Callable[[], Iterable[Table]]) -> None:
        self.tables = tables

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        boundless, drawn = options.update(width=10_000), Table()
        for drawn in self.tables():
            if Measurement.get(console, boundless, drawn).maximum <= options.max_width:
                break
        yield drawn


def _drawn(columns: Sequence[str] | None, lines: Sequence[TableLine], most: int) -> Table:
    drawn = Table(box=None, padding=(0, 1), pad_edge=False, show_header=columns is not None, header_style="dim")
    drawn.add_column(no_wrap=True)
    across = shown(len(lines[0].numbers) if lines else 0, most)
    for j in across:
        drawn.add_column(Text("…" if j is None else columns[j] if columns else ""), justify="right", no_wrap=True)
    for i in shown(len(lines), ROWS):
        if i is None:
            drawn.add_row("…")
            continue
        name, numbers, places, peak = lines[i]
        values = numbers.tolist()
        drawn.add_row(Text(name), *(Text("…") if j is None else cell(values[j], places, peak) for j in across))
    return drawn


def inset(picture: RenderableType) -> RenderableType:
    return Padding(picture, (0, 0, 0, 3))


def text(picture: RenderableType, width: int = 240) -> str:
    """The picture in plain characters, without colour."""
    page = StringIO()
    Console(file=page, width=width, color_system=None, legacy_windows=False).print(picture)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines())


def cell(number: float, places: int, peak: float | None, name: str = "") -> Text:
    if number == -inf:
        return Text("-inf", style="dim")
    if peak is None:
        return Text(write(number, places))
    paper = background(number / peak)
    return Text(f" {name}{write(number, places)} ", style=f"{ink(paper)} on rgb({paper[0]},{paper[1]},{paper[2]})")


def walk(formula: str, steps: Sequence[TraceStep], heads: int, batch: int = 0) -> RenderableType:
    """Every step in order, head by head. Where queries, keys and values are the same inputs, they are shown once."""
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
            parts += [title, table(step.columns, lines(step.rows, matrix, peak(step.name, matrix)))]
    return Group(*parts)
