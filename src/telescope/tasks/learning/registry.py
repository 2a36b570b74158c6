"""The tasks by name, and recipes from their files."""

import os
import tomllib
from pathlib import Path
from typing import Any

from ...files import paths
from ...words import hint, near, one_line
from .language_model import GENERATE
from .recall import RECALL
from .recipe import Recipe
from .summarize import SUMMARIZE
from .task import Task
from .translate import TRANSLATE

LARGEST = 1_000_000  # bytes of a recipe
TASKS: dict[str, Task[Any]] = {"translate": TRANSLATE, "summarize": SUMMARIZE, "generate": GENERATE, "recall": RECALL}


def read(path: str | os.PathLike[str]) -> Recipe:
    """The recipe of a file, named as the file is unless it says a name."""
    file = Path(path)
    if paths.missing(os.fspath(file)):
        meant = near(file.name, (other.name for other in file.parent.glob("*.toml")))
        way = f'; did you mean "{file.parent / meant}"?' if meant else ""
        raise ValueError(f"there is no recipe {file}{way}") from None
    try:
        said = tomllib.loads(paths.read(file, at_most=LARGEST).decode("utf-8"))
    except RecursionError:
        raise ValueError(f"{file} is not a recipe that can be read: it is nested too deep") from None
    except ValueError as error:  # a folder or a pipe; not UTF-8, not TOML
        raise ValueError(one_line(f"{file} is not a recipe that can be read: {error}")) from None
    name, task = said.pop("name", file.stem), said.pop("task", None)
    if not isinstance(task, str) or task not in TASKS:
        raise ValueError(one_line(f"{file}: there is no task={task!r}; {hint(str(task), TASKS)}"))
    if not isinstance(name, str):
        raise ValueError(one_line(f"{file}: name={name!r} is no name; a text is"))
    kind: type[Recipe] = TASKS[task].recipe
    try:
        return kind.from_tables(name, task, said)
    except ValueError as error:
        raise ValueError(one_line(str(error))) from None
