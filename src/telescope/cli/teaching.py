"""telescope lessons"""

import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer


def lessons(
    folder: Annotated[
        Path, typer.Argument(help="Folder for the notebooks; it is made where it is missing.")
    ],
    force: Annotated[
        bool,
        typer.Option("--force", help="Overwrite notebooks that are there, with your answers."),
    ] = False,
) -> None:
    """Copy the notebooks of the lessons into a folder."""
    from ..lessons.notebooks import copy_notebooks

    copies = copy_notebooks(folder, force=force)
    start = f"jupyter lab {shlex.quote(str(folder))}"
    if find_spec("jupyterlab") is None:
        start = f"pip install 'telescope-attention[lessons]', then {start}"
    print(f"{len(copies)} notebooks written to {folder}. Next: {start}")
