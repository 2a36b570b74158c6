"""Numbers for people: at most four decimal places, weights as colours, tables for a terminal and as
HTML, and JSON.
"""

from collections.abc import Sequence
from html import escape
from math import inf, isfinite
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from torch import Tensor

from ..printed import FirstThatFits

# Significant digits of float32, in which models compute; float16 and bfloat16 are computed in
# float32.
DIGITS = 7
DIGITS_OF_FLOAT64 = 15


def decimal_places(numbers: Tensor) -> int:
    """Return the places that numbers need: 0 for whole ones, 2 for 0.43, else 4."""
    finite = numbers[numbers.isfinite()].double()
    # Rounded at 1e-4, which is less than four places show.
    for places in (0, 2):
        if bool(((finite * 10**places).round() - finite * 10**places).abs().le(1e-4).all()):
            return places
    return 4


def format_number(number: float, places: int) -> str:
    """Return the number with this many decimal places; in scientific notation from a million on."""
    if not isfinite(number):
        return str(number)
    # From a million on digits behind the point say nothing.
    return f"{number:.4g}" if abs(number) >= 1e6 else f"{number:.{places}f}"


def visible_indices(count: int, most: int) -> list[int | None]:
    """Return which of `count` items to show: first and last ones, None for the gap."""
    if count <= most:
        return list(range(count))
    # Most of the room for the first items, a quarter for the last ones.
    last = max(1, most // 4)
    return [*range(most - last - 1), None, *range(count - last, count)]


def format_vector(numbers: Tensor, most: int = 8) -> str:
    """Return a vector as text, such as "[0.43 0.15 0.89]", with at most `most` numbers."""
    places = decimal_places(numbers)
    values = numbers.tolist()
    cells = (
        "…" if i is None else format_number(values[i], places)
        for i in visible_indices(len(values), most)
    )
    return f"[{' '.join(cells)}]"


def format_factor(number: float, places: int) -> str:
    """Return a number after a multiplication sign: a negative one in brackets."""
    return f"({format_number(number, places)})" if number < 0 else format_number(number, places)


def format_sum(terms: Sequence[str], most: int = 8) -> str:
    """Return the sum as text, such as "a + b - c + … + z", with at most `most` terms."""
    summed = " + ".join("…" if i is None else terms[i] for i in visible_indices(len(terms), most))
    # a + -b is written a - b.
    return summed.replace("+ -", "- ")


# viridis (van der Walt & Smith 2015, CC0), at 0, 1/8, … 1.
_VIRIDIS = (
    (68, 1, 84),
    (71, 45, 123),
    (59, 82, 139),
    (44, 114, 142),
    (33, 145, 140),
    (40, 174, 128),
    (94, 201, 98),
    (173, 220, 48),
    (253, 231, 37),
)


def background(weight: float) -> tuple[int, int, int]:
    """Return the colour (red, green, blue) of a weight from 0 to 1; weights outside take the colour
    of the nearest end.

    NaN takes the colour of 0.
    """
    # NaN is not equal to itself, and takes the first colour.
    position = min(max(weight, 0.0), 1.0) * (len(_VIRIDIS) - 1) if weight == weight else 0.0
    low = min(int(position), len(_VIRIDIS) - 2)
    return tuple(  # type: ignore[return-value]
        round(a + (b - a) * (position - low))
        for a, b in zip(_VIRIDIS[low], _VIRIDIS[low + 1], strict=True)
    )


def text_colour(colour: tuple[int, int, int]) -> str:
    """Return "black" or "white": the one whose contrast is at least 4.5 : 1."""
    return "black" if luminance(colour) > 0.179 else "white"


def luminance(colour: Sequence[float | int]) -> float:
    """Return the perceived brightness of a colour, from 0 to 1 (WCAG's relative luminance)."""
    channels = (channel / 255 for channel in colour)
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    red, green, blue = linear
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def significant_digits(dtype: torch.dtype) -> int:
    """Return how many significant digits of a number of this dtype are true."""
    return DIGITS_OF_FLOAT64 if dtype == torch.float64 else DIGITS


def round_numbers(contents: Any, digits: int = DIGITS) -> Any:
    """Return what JSON would hold with every float rounded to significant digits, for people: 0.7,
    not 0.69999998807.

    Whole numbers and texts stay as they are.
    """
    if isinstance(contents, float):
        return float(f"{contents:.{digits}g}")
    # Nested as deep as JSON is.
    if isinstance(contents, dict):
        return {name: round_numbers(part, digits) for name, part in contents.items()}
    if isinstance(contents, list | tuple):
        return [round_numbers(part, digits) for part in contents]
    return contents


def shortest_numbers(tensor: Tensor) -> Any:
    """Return a tensor as nested lists of the shortest decimals that are the same numbers in its
    dtype.

    -inf, inf and nan are strings, since JSON has no such numbers.
    """
    if tensor.dtype == torch.float64:
        return json_numbers(tensor)
    exact = tensor.detach().float().cpu().numpy()
    # numpy writes the fewest digits that identify a float32.
    shortest: Any = exact.astype(str).astype("float64")
    return _finite_or_strings(shortest.tolist())


def json_numbers(tensor: Tensor | None) -> Any:
    """Return a tensor as nested lists, in float64; -inf, inf and nan as strings, since JSON has no
    such numbers.
    """
    if tensor is None:
        return None
    exact = tensor.detach().double().cpu()
    return exact.tolist() if bool(exact.isfinite().all()) else _finite_or_strings(exact.tolist())


def json_number(value: float | None) -> float | str | None:
    """Return one number as `json_numbers` would."""
    return None if value is None else _finite_or_strings(value)


def _finite_or_strings(numbers: Any) -> Any:
    if isinstance(numbers, list):
        return [_finite_or_strings(number) for number in numbers]
    return numbers if isfinite(numbers) else str(numbers)


# What fits a page; every number is in to_json().
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

    Attributes:
        formula: how the numbers were made, such as "scores / √64".
        axes: the names of the four axes of `numbers`.
        rows: the token of each row.
        columns: the token of each column; None where the columns are features.
        name: of the step, such as "weights".
        numbers: (batch, head, row, column).

    Example:
        >>> import torch, telescope as ts
        >>> x = torch.eye(2)[None, None]
        >>> step = [*ts.trace(x, x, x).walk()][-1]
        >>> step.name, step.matrix(batch=0, head=0, heads=1).shape
        ('context', torch.Size([2, 2]))
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

        Args:
            batch: which sequence.
            head: which head.
            heads: how many heads the queries have.
        """
        return self.numbers[batch, head * self.numbers.shape[1] // heads]


def render_steps(
    formula: str, steps: Sequence[TraceStep], heads: int, batch: int = 0
) -> RenderableType:
    """Return a table of each step, head by head, under the formula of the whole attention.

    Where queries, keys and values are one tensor, that tensor is shown once, as "inputs".
    """
    # One tensor in all three roles is shown once.
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
    """Return the largest weight, which is drawn brightest; None for other steps."""
    return None if step != "weights" or not numbers.numel() else numbers.max().item() or 1.0


class TableRow(NamedTuple):
    """One row of a table. Where it has a `peak` it holds weights, which are coloured."""

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


def _build_table(columns: Sequence[str] | None, rows: Sequence[TableRow], most: int) -> Table:
    table = Table(
        box=None,
        padding=(0, 1),
        pad_edge=False,
        show_header=columns is not None,
        header_style="dim",
    )
    table.add_column(no_wrap=True)
    # The same columns for every row.
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
    """Return one cell; the background of a weight shows its share of the peak."""
    # Hidden pairs are dim, and have no colour.
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


# --------------------------------------------------------------------------------------------- HTML


def render_html(formula: str, steps: Sequence[TraceStep], heads: int, batch: int = 0) -> str:
    """Return a table of each step of one sequence of the batch as HTML.

    The title of a cell is its number with all digits that are true.
    Tokens are escaped: a token is data, never markup.
    """
    parts = [STYLE, f"<p><b>{escape(formula)}</b></p>"]
    for head in range(heads):
        tables = "".join(_render_step(step, batch, head, heads) for step in steps)
        # The first head is open, the others unfold.
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
    # The title of a cell shows every true digit.
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
