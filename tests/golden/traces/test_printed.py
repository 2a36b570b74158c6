"""Tables print as characters, and a notebook shows them as HTML."""

from html.parser import HTMLParser

import pytest
import torch
from rich.table import Table

import telescope as ts
from telescope.printed import MOST_HTML_ROWS, FirstThatFits, PrintedTable


class Cells(HTMLParser):
    """The texts of a table's cells, row by row, and every tag."""

    def __init__(self, page):
        super().__init__()
        self.rows, self.tags, self.caption = [], set(), ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        self.inside = tag

    def handle_data(self, data):
        if self.inside in ("td", "th"):
            self.rows[-1][-1] += data
        if self.inside == "caption":
            self.caption += data


def table(rows, **more):
    made = Table("name", "share", **more)
    for row in rows:
        made.add_row(*row)
    return made


class Printed(PrintedTable):
    def __init__(self, *tables):
        self.tables = tables

    def __rich__(self):
        return self.tables[0] if len(self.tables) == 1 else FirstThatFits(lambda: self.tables)


def test_a_table_is_html_in_a_notebook():
    found = Cells(Printed(table([("a", "10%"), ("[bold]b[/bold]", "20%")], title="two"))._repr_html_())
    assert found.rows == [["name", "share"], ["a", "10%"], ["b", "20%"]]
    assert found.caption == "two"


def test_a_notebook_has_the_widest_table():
    narrow = Table("name")
    found = Cells(Printed(table([("a", "10%")]), narrow)._repr_html_())
    assert found.rows[0] == ["name", "share"]


def test_a_token_is_no_markup():
    found = Cells(Printed(table([("<script>alert(1)</script>", '"&amp;')]))._repr_html_())
    assert found.rows[1] == ["<script>alert(1)</script>", '"&amp;']
    assert found.tags <= {"style", "table", "caption", "thead", "tbody", "tr", "th", "td"}


@pytest.mark.parametrize("more", [0, 1, 7])
def test_a_long_table_counts_the_rows_that_it_leaves_out(more):
    found = Cells(Printed(table([(str(i), "") for i in range(MOST_HTML_ROWS + more)]))._repr_html_())
    assert len(found.rows) == 1 + MOST_HTML_ROWS
    assert found.caption == (f"{more} more rows: .table() has them all" if more else "")


def test_what_is_watched_is_html_in_a_notebook():
    """The cells are those that are printed."""
    model = ts.load("shakespeare")
    ids = torch.tensor([model.tokenizer.encode("To be, or not to be").ids])
    with torch.no_grad(), ts.watch(model) as recording:
        model(ids)
    atlas = ts.atlas(model, ["To be, or not to be: that is the question. " * 3])
    shown = (
        recording,
        recording.heads(),
        ts.effect(model, ids, [ts.mute(0, heads=0)]),
        atlas,
        ts.compare(atlas, atlas),
    )
    for one in shown:
        found = Cells(one._repr_html_())
        printed = " ".join(repr(one).split())
        assert len(found.rows) > 1
        assert all(" ".join(cell.split()) in printed for row in found.rows for cell in row)
