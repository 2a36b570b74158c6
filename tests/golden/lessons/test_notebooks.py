"""A cell of a notebook that is run too early says which cell to run first."""

import json
from pathlib import Path

import pytest

import telescope
from support.repository import HOME, blocks
from telescope.lessons import notebooks

BOOK = HOME / "lessons" / "01-weight-free.ipynb"


def codes(book):
    return ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]


def test_each_cell_names_the_cells_that_it_needs():
    page = "# 1. A lesson\n\n## The question\n"
    for code in ("x = 1", "def f(y):\n    return x + y", "y = 2", "print(f(y))"):
        page += f"\n```python\n{code}\n```\n"
    first = [code.splitlines()[0] for code in codes(blocks.notebook(page, "01-a-lesson"))]
    # The argument y of f is not the y of cell 4.
    assert first == [
        "# Cell 1.",
        "# Cell 2.",
        "# Cell 3: needs cell 2.",
        "# Cell 4.",
        "# Cell 5: needs cells 2, 3 and 4.",
    ]


def test_a_badge_only_where_the_notebooks_are_published(monkeypatch):
    page = "# 1. A lesson\n\n## The question\n"
    monkeypatch.delenv("TELESCOPE_REPOSITORY", raising=False)
    assert "colab" not in json.dumps(blocks.notebook(page, "01-a-lesson"))
    for given in ("someone/telescope", "https://github.com/someone/telescope/"):
        monkeypatch.setenv("TELESCOPE_REPOSITORY", given)
        first = "".join(blocks.notebook(page, "01-a-lesson")["cells"][0]["source"])
        assert "/github/someone/telescope/blob/main/lessons/01-a-lesson.ipynb" in first


def test_comments_of_a_page_are_no_part_of_its_notebook():
    page = "# 1. A lesson\n\n<!-- needs: gguf -->\n## The question\n\n<!-- assert: 1 < 2 -->\nSo it is.\n"
    book = json.dumps(blocks.notebook(page, "01-a-lesson"))
    assert "<!--" not in book
    assert "So it is." in book


def test_names_and_the_cells_that_make_them():
    assert notebooks.defined_names(
        "def f(a):\n    b = a\n    return b\n[c for c in d]\nwith x as y:\n    z, *w = y"
    ) == {
        "f",
        "y",
        "z",
        "w",
    }
    assert notebooks.defined_names("%pip install telescope") == set()
    assert notebooks.cells_by_name("no-such-notebook") == {}
    made_in = notebooks.cells_by_name(BOOK.stem)
    assert made_in["check"] == 2


def test_a_notebook_run_out_of_order_says_which_cell_comes_first(monkeypatch):
    """Cell 1 is run, cell 2 is not: each other cell that needs cell 2 says so in one sentence."""
    nbclient = pytest.importorskip("nbclient", reason="the lessons extra is not installed")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(Path(telescope.__file__).parents[1]))
    book = blocks.solved(json.loads(BOOK.read_text(encoding="utf-8")))
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    # A fault that is not of the order keeps its traceback.
    fault = {**cells[0], "source": ["def broken():\n", "    return undefined\n", "broken()"], "id": "fault"}
    early = {**book, "cells": [cells[0], *reversed(cells[2:]), fault, cells[1], {**cells[2], "id": "again"}]}
    done = nbclient.NotebookClient(nbformat.reads(json.dumps(early), as_version=4), timeout=120, allow_errors=True)
    done = done.execute()
    said = [
        "\n".join(output.get("traceback", ())) for cell in done.cells for output in cell.outputs if "ename" in output
    ]
    told, last = said[:-1], said[-1]
    assert len(told) >= 3
    for sentence in told:
        assert "is not known yet: run cell " in sentence
        assert len(sentence.splitlines()) == 1
    assert any("run cell 2 first" in sentence for sentence in told)
    assert "Traceback" in last
    assert "undefined" in last
    # After cell 2, cell 3 runs.
    assert not any("ename" in output for output in done.cells[-1].outputs)
