"""telescope serve"""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from .common import Port


def serve(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Recordings, atlases, or folders that hold recordings.", show_default=False
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            help="Model for sentences typed into the page, shipped or a folder. Repeatable.",
        ),
    ] = None,
    port: Port = 0,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on; any other than the default opens the page to the network."
        ),
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(
            help="Token of your own, so that links stay true after a restart; 8 letters or more.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            help="Further name that leads here, such as https://school.example of a proxy. "
            "Repeatable.",
            show_default=False,
        ),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    log: Annotated[
        bool,
        typer.Option(
            "--log", help="Print a line for each request: time, id, method, path, status, duration."
        ),
    ] = False,
) -> None:
    """Serve the explorer, a web page, to this machine. It shows recordings and typed sentences;
    Ctrl-C stops it.
    """
    from ..atlases import is_atlas
    from ..models import LoadError, find_model

    # A name that is wrong is said now, and not to the first reader who types a sentence.
    for one in model or ():
        find_model(one)
    explorer = import_explorer()
    library = explorer.Library(None if model is None else {name: name for name in model})
    # Sort the arguments: an atlas is opened as it is, another folder may hold several recordings.
    atlases = [library.open_atlas(place) for place in filter(is_atlas, runs or ())]
    folders = [
        folder
        for place in runs or ()
        if not is_atlas(place)
        for folder in explorer.recordings(place)
    ]
    # Leave out recordings that cannot be read, unless none can.
    opened = []
    problems = []
    for folder in folders:
        try:
            opened.append(library.open(folder))
        except LoadError as problem:
            problems.append(problem)
    if problems and not opened:
        raise problems[0]
    for unreadable in problems:
        print(f"telescope: a recording is left out: {unreadable}", file=sys.stderr)
    # The page opens at the first atlas, else at the first recording, else at its start.
    path = f"/s/{opened[0].name}/heads" if opened else "/"
    if atlases:
        path = f"/atlas/{atlases[0]}" + (f"?other={atlases[1]}" if len(atlases) > 1 else "")
    log_line = partial(print, file=sys.stderr, flush=True) if log else None
    explorer.serve(
        library,
        host=host,
        port=port,
        path=path,
        token=token,
        names=name or (),
        browse=open_page,
        log=log_line,
    )


def import_explorer() -> Any:
    """Import the explorer's server. The import is late, since the web server is an optional
    dependency.
    """
    from importlib import import_module

    try:
        return import_module("..explorer.server", __package__)
    except ImportError as problem:
        raise ValueError(
            f"the page needs a web server: pip install 'telescope-attention[serve]' ({problem})"
        ) from None
