"""The tasks by name, and `read`, which reads a recipe from its file."""

import os
import tomllib
from pathlib import Path
from typing import Any

from ...files import paths
from ...words import closest_name, hint, one_line
from .language_model import GENERATE
from .recall import RECALL
from .recipe import Recipe
from .summarize import SUMMARIZE
from .task import Task
from .translate import TRANSLATE

LARGEST = 1_000_000  # most bytes of a recipe
TASKS: dict[str, Task[Any]] = {
    "translate": TRANSLATE,
    "summarize": SUMMARIZE,
    "generate": GENERATE,
    "recall": RECALL,
}


def read(path: str | os.PathLike[str]) -> Recipe:
    """Read a recipe from a TOML file. Without a `name`, the recipe takes the name of the file.

    Raises ValueError for a missing file, a file that is not TOML, an unknown task, and wrong tables
    or fields.
    """
    file = Path(path)
    if paths.is_missing(os.fspath(file)):
        nearest = closest_name(file.name, (other.name for other in file.parent.glob("*.toml")))
        suggestion = f'; did you mean "{file.parent / nearest}"?' if nearest else ""
        raise ValueError(f"there is no recipe {file}{suggestion}") from None
    try:
        tables = tomllib.loads(paths.read_bytes(file, at_most=LARGEST).decode("utf-8"))
    except RecursionError:
        raise ValueError(
            f"{file} is not a recipe that can be read: it is nested too deep"
        ) from None
    except ValueError as error:  # a folder or a pipe; not UTF-8, not TOML
        raise ValueError(one_line(f"{file} is not a recipe that can be read: {error}")) from None
    name = tables.pop("name", file.stem)
    task = tables.pop("task", None)
    if not isinstance(task, str) or task not in TASKS:
        raise ValueError(one_line(f"{file}: there is no task={task!r}; {hint(str(task), TASKS)}"))
    if not isinstance(name, str):
        raise ValueError(one_line(f"{file}: name={name!r} is no name; a string is"))
    kind: type[Recipe] = TASKS[task].recipe
    try:
        return kind.from_tables(name, task, tables)
    except ValueError as error:
        raise ValueError(one_line(str(error))) from None
