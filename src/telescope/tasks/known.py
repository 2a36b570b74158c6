"""The tasks by name, and recipes from their files."""

import os
import tomllib
from pathlib import Path
from typing import Any

from ..words import hint, near
from .generate import GENERATE
from .recall.task import RECALL
from .recipe import Recipe
from .summarize import SUMMARIZE
from .task import Task
from .translate import TRANSLATE

TASKS: dict[str, Task[Any]] = {"translate": TRANSLATE, "summarize": SUMMARIZE, "generate": GENERATE, "recall": RECALL}


def read(path: str | os.PathLike[str]) -> Recipe:
    """The recipe of a file, named as the file is unless it says a name."""
    file = Path(path)
    try:
        said = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        meant = near(file.name, (other.name for other in file.parent.glob("*.toml")))
        way = f'; did you mean "{file.parent / meant}"?' if meant else ""
        raise ValueError(f"there is no recipe {file}{way}") from None
    except (OSError, ValueError) as error:  # a folder; not UTF-8, not TOML
        raise ValueError(f"{file} is not a recipe that can be read: {error}") from None
    name, task = said.pop("name", file.stem), said.pop("task", None)
    if task not in TASKS:
        raise ValueError(f"{file}: there is no task={task!r}; {hint(str(task), TASKS)}")
    kind: type[Recipe] = TASKS[task].recipe
    return kind.from_tables(str(name), task, said)
