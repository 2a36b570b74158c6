"""The notebooks of the lessons: copy them into a folder, and say which cell to run first where one
is run too early.
"""

import ast
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from ..files import LoadError, atomic_file

# In a wheel they lie in this package; in a clone of the repository, in lessons/.
IN_PACKAGE = Path(__file__).with_name("notebooks")
IN_CLONE = Path(__file__).parents[3] / "lessons"


def list_notebooks() -> list[Path]:
    """Return the files of the notebooks, in the order of the lessons.

    Raises LoadError where there are none, as in a copy of the source code alone.

    Example:
        >>> from telescope.lessons.notebooks import list_notebooks
        >>> list_notebooks()[0].name
        '01-weight-free.ipynb'
    """
    for folder in (IN_PACKAGE, IN_CLONE):
        if found := sorted(folder.glob("[0-9][0-9]-*.ipynb")):
            return found
    raise LoadError(
        "this installation of telescope has no notebooks; pip install "
        "'telescope-attention[lessons]' brings them"
    )


def copy_notebooks(folder: str | os.PathLike[str], *, force: bool = False) -> list[Path]:
    """Copy the notebooks of all lessons into a folder, which is made where it is missing. Return
    the copies.

    Args:
        folder: Where to.
        force: Overwrite notebooks that are there, with what was written into them.

    Raises:
        ValueError: If the folder is a file, or holds one of the notebooks and `force` is False.

    Example:
        >>> import tempfile
        >>> from telescope.lessons.notebooks import copy_notebooks
        >>> len(copy_notebooks(tempfile.mkdtemp())) > 15
        True
    """
    place = Path(folder)
    notebooks = list_notebooks()
    if place.exists() and not place.is_dir():
        raise ValueError(f"{place} is a file; name a folder for the notebooks")

    # Look at all of them first: a refusal leaves no half of a course.
    copies = [place / notebook.name for notebook in notebooks]
    there = [copy for copy in copies if os.path.lexists(copy)]
    if there and not force:
        raise ValueError(
            f"{there[0]} exists, and may hold your answers; name another folder, or overwrite it "
            "with --force"
        )

    # Each appears under its name only when all of it is written.
    place.mkdir(parents=True, exist_ok=True)
    for notebook, copy in zip(notebooks, copies, strict=True):
        with atomic_file(copy) as new:
            new.write_bytes(notebook.read_bytes())
    return copies


# --------------------------------------------------------------------------- cells that need others


def follow(notebook: str) -> None:
    """Let a NameError in this notebook say which cell has to be run first. The first cell of each
    notebook calls this.

    Does nothing outside of IPython.

    Args:
        notebook: Name of its file, without ".ipynb".
    """
    # Where IPython was not imported, no notebook runs.
    if "IPython" not in sys.modules:
        return
    shell = sys.modules["IPython"].get_ipython()
    made_in = cells_by_name(notebook)

    def explain(
        shell: Any,
        kind: type[BaseException],
        problem: NameError,
        trace: TracebackType,
        tb_offset: int | None = None,
    ) -> None:
        cell = made_in.get(problem.name or "")
        if cell is not None:
            sentence = (
                f"{problem.name} is not known yet: run cell {cell} first. Or choose "
                '"Run All Above Selected Cell" in the menu Run.'
            )
            # IPython shows these lines instead of a traceback.
            lines = [f"NameError: {sentence}"]
            problem._render_traceback_ = lambda: lines  # type: ignore[attr-defined]
        shell.showtraceback((kind, problem, trace), tb_offset=tb_offset)

    if shell is not None:
        shell.set_custom_exc((NameError,), explain)


def cells_by_name(notebook: str) -> dict[str, int]:
    """Return for each name that a notebook defines the first cell of code that does so, from 1 on.

    It is empty for a notebook that is not one of ours.

    Example:
        >>> from telescope.lessons.notebooks import cells_by_name
        >>> cells_by_name("01-weight-free")["torch"]
        2
    """
    made_in: dict[str, int] = {}
    with suppress(LoadError, OSError, ValueError, StopIteration):
        file = next(file for file in list_notebooks() if file.stem == notebook)
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        for number, source in enumerate(code, 1):
            for name in defined_names(source):
                made_in.setdefault(name, number)
    return made_in


def defined_names(code: str) -> set[str]:
    """Return the names that a cell of code defines: imported, assigned, or of a function.

    Example:
        >>> from telescope.lessons.notebooks import defined_names
        >>> sorted(defined_names("import torch as t\\nfor i in range(3):\\n    x = i"))
        ['i', 't', 'x']
    """
    try:
        tree = ast.parse(code)
    except SyntaxError:  # a line of IPython's own, as %pip
        return set()
    found = set()
    waiting: list[ast.AST] = [*tree.body]
    while waiting:
        node = waiting.pop()
        match node:
            # What is assigned inside of a function stays there.
            case ast.FunctionDef() | ast.ClassDef():
                found.add(node.name)
                continue
            case (
                ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp()
            ):
                continue
            case ast.Import() | ast.ImportFrom():
                found |= {(name.asname or name.name).partition(".")[0] for name in node.names}
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
        waiting += ast.iter_child_nodes(node)
    return found
