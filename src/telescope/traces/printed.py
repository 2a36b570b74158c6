"""The base class of tables: printed as characters, and in a notebook as a table of HTML."""

from html import escape
from typing import Any, ClassVar

from rich.table import Table
from rich.text import Text

from .render import FirstThatFits, render_text

MOST_HTML_ROWS = 60  # of a table in a notebook; what is left out is counted below
STYLE = (
    "<style>.telescope-table{border-collapse:collapse}"
    ".telescope-table :is(td,th){padding:2px 10px;white-space:nowrap}"
    ".telescope-table caption{text-align:left;white-space:pre-line;padding:4px 10px}</style>"
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


class PrintedTable:
    """A base class: what `__rich__` returns is printed in a terminal, and shown by notebooks."""

    _width: ClassVar[int] = 240
    """The most characters of a printed line."""

    def __rich__(self) -> Table | FirstThatFits:
        raise NotImplementedError

    def __repr__(self) -> str:
        return render_text(self.__rich__(), self._width)

    def _repr_html_(self) -> str:
        """Return the table as HTML, with all of its columns."""
        table = self.__rich__()
        # A page scrolls sideways: the widest of the tables, which comes first.
        return html_table(next(iter(table.tables())) if isinstance(table, FirstThatFits) else table)


def html_table(table: Table) -> str:
    """Return a table of rich as HTML. Texts are escaped: a token is data, never markup."""
    columns = [[_plain(cell) for cell in column.cells] for column in table.columns]
    # What a terminal prints above and below the table.
    captions = [_plain(one) for one in (table.title, table.caption) if one]
    left_out = table.row_count - MOST_HTML_ROWS
    if left_out > 0:
        captions.append(f"{left_out:,} more rows: .table() has them all")

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
    caption = f"<caption>{escape(chr(10).join(captions))}</caption>" if captions else ""
    return (
        f'{STYLE}<table class="telescope-table">{caption}<thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _plain(cell: object) -> str:
    """Return what a terminal prints of a cell, which may hold rich's markup."""
    return Text.from_markup(cell).plain if isinstance(cell, str) else str(cell)
