"""Options that several commands share, and how commands load a model and print."""

import json
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType

# Options with the same name mean the same in every command.
Texts = Annotated[
    list[str] | None,
    typer.Argument(
        help="Texts in quotes, or names of files; without any, or with -, standard input.",
        show_default=False,
    ),
]
ModelName = Annotated[
    str, typer.Option("--model", help="A shipped model, or a folder with a saved model.")
]
Beams = Annotated[
    int, typer.Option("--beams", help="Number of beams of the beam search; 1 is greedy.")
]
NBest = Annotated[
    int, typer.Option("--n-best", help="Number of texts to print for each input, best first.")
]
Show = Annotated[
    bool,
    typer.Option(
        "--show", help="Also print, as a table, which words each written word attended to."
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON; numbers have the digits of float32.")
]
Plain = Annotated[
    bool,
    typer.Option("--plain", help="Print no colours. The default where output is not a terminal."),
]
Port = Annotated[int, typer.Option(help="Port of the page; 0 picks a free port.", min=0, max=65535)]
Device = Annotated[
    str, typer.Option("--device", help="Device that computes: cpu, cuda, cuda:1, ...")
]

# How a command edits the model that it runs.
MuteOption = Annotated[
    list[str] | None,
    typer.Option(
        "--mute",
        help="Switch heads off, as in decoder.1.cross:2 or encoder.*:0,3. Repeatable.",
        show_default=False,
    ),
]
HideOption = Annotated[
    list[str] | None,
    typer.Option(
        "--hide",
        help="Hide a text that is read from every attention. Repeatable.",
        show_default=False,
    ),
]


def read_edits(mute: list[str] | None, hide: list[str] | None) -> list[Any]:
    """Return the edits that --mute and --hide describe; raise a ValueError for anything else."""
    from ..editing import hide as make_hide
    from ..editing import mute as make_mute

    edits: list[Any] = []
    for given in mute or ():
        # "decoder.1.cross:2,3"; without a colon, all heads.
        layers, _, heads = given.partition(":")
        try:
            numbers = [int(number) for number in heads.split(",")] if heads else None
        except ValueError:
            raise ValueError(
                f'--mute "{given}" is no head; such as --mute decoder.1.cross:2'
            ) from None
        edits.append(make_mute(layers or None, numbers))
    return edits + [make_hide(text) for text in hide or ()]


def editing(model: Any, edits: list[Any]) -> AbstractContextManager[object]:
    """Return the context in which the model runs edited; without edits, as it is."""
    from ..editing import edit

    return edit(model, *edits) if edits else nullcontext()


def beside(label: str, drawn: Iterable[RenderableType]) -> list[RenderableType]:
    """Return what is drawn with a label before each line of text, so that two results can stand
    below each other.
    """
    return [f"{label:<10}{line}" if isinstance(line, str) else line for line in drawn]


def refuse(context: typer.Context, names: str, way: str) -> None:
    """Raise a ValueError if one of these options, separated by spaces, was given on the command
    line: nothing would read it.

    way   what to do instead, after "--layer "
    """
    options = {one.name: one.opts[0] for one in context.command.params}
    for name in names.split():
        # What has its default, or comes from nowhere, was not asked for.
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise ValueError(f"{options[name]} {way}")


# What only one command needs is imported when it runs: importing torch takes seconds.


def load_model(name: str, device: str = "cpu") -> Any:
    """Load a model in float32, whatever its file holds, so that what it writes does not depend on
    the machine.
    """
    import torch

    from ..models import check_device, load

    return load(name, device=check_device(device), dtype=torch.float32)


def print_all(renderables: Iterable[RenderableType], plain: bool) -> None:
    """Print strings unwrapped, one per line, so that a pipe can read them; tables at most 120
    columns wide.
    """
    from ..traces import render_text

    for renderable in renderables:
        # A text is printed to the letter: rich would wrap it.
        if isinstance(renderable, str):
            print(renderable)
        # A pipe or a file gets no colours, and the same width everywhere.
        elif plain or not sys.stdout.isatty():
            print(render_text(renderable, width=120))
        else:
            # No highlighting: rich would colour every number.
            Console(highlight=False).print(renderable)
    # Flush, so that a pipe gets each result before the next one is computed.
    sys.stdout.flush()


def print_json(contents: object, indent: int | None = None, digits: int | None = None) -> None:
    """Print JSON, and flush: a pipe gets each object as soon as it is computed.

    Numbers are rounded to so many significant digits: by default to those of float32, in which
    models compute.
    """
    from ..traces import DIGITS, round_numbers

    # allow_nan=False: NaN is no JSON, and other programs refuse it.
    contents = round_numbers(contents, digits or DIGITS)
    print(json.dumps(contents, ensure_ascii=False, allow_nan=False, indent=indent), flush=True)
