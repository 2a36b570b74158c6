"""Tables for a terminal, which notebooks show as HTML; every other room prints by them.

Texts are data: a token such as [/INST] or <script> is printed letter by letter, in both.
"""

from collections.abc import Callable, Iterable, Iterator
from html import escape
from io import StringIO
from typing import Any, ClassVar

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

MOST_HTML_ROWS = 60  # of a table in a notebook; what is left out is counted below
# No colours of its own, so that it is dark where the notebook is; a wide table scrolls.
STYLE = (
    "<style>.telescope-scroll{overflow-x:auto}"
    ".telescope-table{border-collapse:collapse}"
    ".telescope-table :is(td,th){padding:2px 10px;white-space:nowrap}"
    ".telescope-table thead th{border-bottom:1px solid color-mix(in srgb,currentColor 30%,#0000)}"
    ".telescope-table caption,.telescope-text{text-align:left;white-space:pre-line;"
    "padding:4px 10px;color:inherit}</style>"
)


class PlainTable(Table):
    """A table of rich whose texts are data: a token such as [/INST] or :cat: is no markup."""

    def __init__(
        self,
        *headers: str,
        title: str | None = None,
        caption: str | None = None,
        **options: Any,
    ) -> None:
        # The styles by which rich sets a title and a caption that are no markup.
        super().__init__(
            title=None if title is None else Text(title, "table.title"),
            caption=None if caption is None else Text(caption, "table.caption"),
            **options,
        )
        for header in headers:
            self.add_column(header)

    def add_column(self, header: Any = "", *more: Any, **options: Any) -> None:
        super().add_column(_as_text(header), *more, **options)

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*map(_as_text, cells), **options)


def _as_text(cell: Any) -> Any:
    return Text(cell) if isinstance(cell, str) else cell


class FirstThatFits:
    """Render the first of several tables that fits the terminal's width, or the last one.

    The tables show fewer and fewer numbers: leaving numbers out is better than cutting them short.
    """

    def __init__(self, tables: Callable[[], Iterable[Table]]) -> None:
        self.tables = tables

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        # Measured as wide as it likes, then compared with what the terminal has.
        unlimited = options.update(width=10_000)
        table = Table()
        for table in self.tables():
            if Measurement.get(console, unlimited, table).maximum <= options.max_width:
                break
        yield table


class PrintedTable:
    """A base class: what `__rich__` returns is printed in a terminal, and shown by notebooks."""

    _width: ClassVar[int] = 240
    """The most characters of a printed line."""
    _rest: ClassVar[str] = ".table() has them all"
    """Where the rows are that a notebook leaves out."""

    def __rich__(self) -> RenderableType:
        raise NotImplementedError

    def __repr__(self) -> str:
        return render_text(self.__rich__(), self._width)

    def _repr_html_(self) -> str:
        """Return the table as HTML, with all of its columns."""
        return STYLE + html_of(self.__rich__(), self._rest)


def render_text(renderable: RenderableType, width: int = 240) -> str:
    """Return the renderable as plain characters, without colour."""
    # Without a terminal: no colours, lines without trailing spaces.
    page = StringIO()
    Console(file=page, width=width, color_system=None, legacy_windows=False).print(renderable)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines())


def html_of(renderable: Any, rest: str = PrintedTable._rest) -> str:
    """Return a table of rich, or a group of tables and lines, as HTML. Texts are escaped."""
    if isinstance(renderable, FirstThatFits):
        # A page scrolls sideways: the widest of the tables, which comes first.
        return html_of(next(iter(renderable.tables())), rest)
    if isinstance(renderable, Group):
        return "".join(html_of(one, rest) for one in renderable.renderables)
    if isinstance(renderable, Table):
        return _html_table(renderable, rest)
    return _html_line(_plain(renderable))


def _html_table(table: Table, rest: str) -> str:
    columns = [[_plain(cell) for cell in column.cells] for column in table.columns]
    # What a terminal prints below the table.
    below = [_plain(table.caption)] if table.caption else []
    left_out = table.row_count - MOST_HTML_ROWS
    if left_out > 0:
        below.append(f"{left_out:,} more rows: {rest}")

    # Numbers stand to the right, as in the terminal.
    sides = [f' style="text-align:{column.justify}"' for column in table.columns]
    heads = "".join(
        f'<th scope="col"{side}>{escape(_plain(column.header))}</th>'
        for column, side in zip(table.columns, sides, strict=True)
    )
    rows = "".join(
        "<tr>"
        + "".join(f"<td{side}>{escape(cell)}</td>" for cell, side in zip(row, sides, strict=True))
        + "</tr>"
        for row in list(zip(*columns, strict=True))[:MOST_HTML_ROWS]
    )
    title = f"<caption>{escape(_plain(table.title))}</caption>" if table.title else ""
    foot = "".join(_html_line(line) for line in below)
    head = f"<thead><tr>{heads}</tr></thead>" if table.show_header else ""
    return (
        f'<div class="telescope-scroll"><table class="telescope-table">{title}{head}'
        f"<tbody>{rows}</tbody></table></div>{foot}"
    )


def _html_line(text: str) -> str:
    return f'<div class="telescope-text">{escape(text)}</div>'


def _plain(cell: object) -> str:
    """Return what a terminal prints of a cell, which may hold rich's markup."""
    return Text.from_markup(cell).plain if isinstance(cell, str) else str(cell)
