"""Tables print as characters, and a notebook shows them as HTML."""

from html.parser import HTMLParser

import pytest
import torch
from rich.table import Table

import telescope as ts
from telescope.measures import Head
from telescope.printed import MOST_HTML_ROWS, FirstThatFits, PlainTable, PrintedTable


class Cells(HTMLParser):
    """The texts of a table's cells, row by row, and every tag."""

    def __init__(self, page):
        super().__init__()
        self.rows, self.tags, self.caption, self.below = [], set(), "", ""
        self.inside = ""
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
        if self.inside == "div":
            self.below += data

    def handle_endtag(self, tag):
        self.inside = ""


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
    assert found.tags <= {"style", "div", "table", "caption", "thead", "tbody", "tr", "th", "td"}


@pytest.mark.parametrize("more", [0, 1, 7])
def test_a_long_table_counts_the_rows_that_it_leaves_out(more):
    found = Cells(Printed(table([(str(i), "") for i in range(MOST_HTML_ROWS + more)]))._repr_html_())
    assert len(found.rows) == 1 + MOST_HTML_ROWS
    assert found.below == (f"{more} more rows: .table() has them all" if more else "")


HOSTILE = "[/INST] hello [INST] [bold]you[/bold] :cat: <script>alert(1)</script> & <b>"


def test_a_token_is_no_markup_of_a_terminal():
    """As markup, [/INST] is an error, [bold] is not printed, and :cat: is a picture."""
    made = PlainTable(HOSTILE, "share", title=HOSTILE, caption=HOSTILE)
    made.add_row(HOSTILE, "10%")
    own = Printed(made)
    assert repr(own).count(HOSTILE) == 4
    found = Cells(own._repr_html_())
    assert found.rows == [[HOSTILE, "share"], [HOSTILE, "10%"]]
    assert (found.caption, found.below) == (HOSTILE, HOSTILE)
    assert not found.tags & {"script", "b"}


def test_hostile_texts_are_printed_whole():
    """The words of an edit, of a segment and of a text stand in the tables as they are."""
    model = ts.load("shakespeare")
    ids = torch.tensor([model.tokenizer.encode(HOSTILE).ids])
    hide = ts.hide("[/INST]")
    with torch.no_grad(), ts.edit(model, hide), ts.watch(model, keep="queries-keys") as recording:
        model(ids)
    named = recording.heads(segments={"[/INST]": (0, 4)})
    sources = recording.sources(-1, segments={"[/INST]": (0, 4), "[red]": (5, 9)})
    effects = ts.effect(model, ids, [hide])
    atlas = ts.atlas(model, [HOSTILE])
    for one in (recording, named, sources, effects, atlas):
        assert "[/INST]" in repr(one)
        page = one._repr_html_()
        assert "[/INST]" in page
        assert "<script" not in page
        assert "<b>" not in page


def test_a_survey_is_a_table_of_heads():
    """Two queries: equal scores give 1 and 1/2, 1/2; the first key receives 1.5 of 2."""
    zeros = torch.zeros(1, 2, 2, 4)
    survey = ts.survey(zeros, zeros, ts.Attention(mask=ts.causal))
    found = Cells(survey._repr_html_())
    assert found.caption == repr(survey)
    assert found.rows == [
        ["head", "mean entropy", "mean peak", "most received by", "share of all"],
        *([head, "0.3466", "0.75", "key 0", "75.0%"] for head in "01"),  # ln 2 / 2; (1 + 1/2) / 2
    ]
    two = ts.survey(zeros.expand(2, -1, -1, -1), zeros.expand(2, -1, -1, -1), top=0)
    found = Cells(two._repr_html_())
    assert [row[:2] for row in found.rows] == [["sequence", "head"], ["0", "0"], ["0", "1"], ["1", "0"], ["1", "1"]]
    assert found.rows[1][2:] == ["0.6931", "", "key 0", "50.0%"]  # no largest weight was kept
    empty = ts.survey(zeros[:, :, :0], zeros[:, :, :0])
    assert Cells(empty._repr_html_()).rows[1] == ["0", "", "", "", ""]
    hidden = ts.survey(zeros, zeros, ts.Attention(mask=ts.from_tensor(torch.tensor([[0, 0], [1, 0]]).bool())))
    assert Cells(hidden._repr_html_()).rows[1] == ["0", "0", "1", "key 0", "100.0%"]  # of the query that sees a key


def test_a_head_is_a_table_of_what_is_known():
    head = Head("blocks.0.self", 3, "previous", previous=0.75, spread=2.5, segments={"<i>": 0.5})
    found = Cells(head._repr_html_())
    assert found.caption == "blocks.0.self, head 3: previous"
    assert [row[:2] for row in found.rows] == [
        ["measure", "number"],
        ["previous", "75%"],
        ["spread", "2.5"],
        ["<i>", "50%"],
    ]
    assert repr(head).startswith("Head(layer='blocks.0.self', number=3")


def test_what_is_watched_is_html_in_a_notebook():
    """The cells are those that are printed."""
    model = ts.load("shakespeare")
    ids = torch.tensor([model.tokenizer.encode("To be, or not to be").ids])
    with torch.no_grad(), ts.watch(model, keep="steps") as recording:
        model(ids)
    atlas = ts.atlas(model, ["To be, or not to be: that is the question. " * 3])
    shown = (
        recording,
        recording.heads(),
        recording.sources(-1),
        recording.why(0, 0, 5, 3),
        recording.writes(),
        recording.pushes(0, 0),
        recording.lens(),
        recording.readers(0, 0, 5, 3),
        ts.circuits(model),
        ts.effect(model, ids, [ts.mute(0, heads=0)]),
        atlas,
        ts.compare(atlas, atlas),
    )
    for one in shown:
        found = Cells(one._repr_html_())
        printed = " ".join(repr(one).split())
        assert len(found.rows) > 1
        assert all(" ".join(cell.split()) in printed for row in found.rows for cell in row)
