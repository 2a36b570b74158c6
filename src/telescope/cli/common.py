"""Options that several commands have."""

import json
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType

Given = Annotated[
    list[str] | None, typer.Argument(help="texts, each in quotes, files, or - for a pipe", show_default=False)
]
ModelName = Annotated[str, typer.Option("--model", help="a shipped model, or a folder")]
Beam = Annotated[int, typer.Option("--beam", help="how many texts are followed at once; 1 is greedy")]
Best = Annotated[int, typer.Option("--n-best", help="how many texts are written of each")]
Show = Annotated[bool, typer.Option("--show", help="what each word looked at when it was written, as a table")]
AsJson = Annotated[bool, typer.Option("--json", help="every number with all its digits, as JSON")]
Plain = Annotated[bool, typer.Option("--plain", help="no colour; also when the output is not a terminal")]
Port = Annotated[int, typer.Option(help="of the page; 0 is any that is free", min=0, max=65535)]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, ...")]


def load(name: str, device: str = "cpu") -> Any:
    """In float32, whatever the file has: a text then does not depend on the machine."""
    import torch

    from ..models import load

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {device}: there is no GPU here that torch can use; leave it out")
    return load(name, device=device, dtype=torch.float32)


def print_all(drawn: Iterable[RenderableType], plain: bool) -> None:
    """Texts as they are, for a pipe takes them line by line; pictures as wide as a page."""
    from ..trace.terminal import text

    for one in drawn:
        if isinstance(one, str):
            print(one)
        elif plain or not sys.stdout.isatty():
            print(text(one, width=120))
        else:
            Console(highlight=False).print(one)
    sys.stdout.flush()


def print_json(contents: object, indent: int | None = None) -> None:
    print(json.dumps(contents, ensure_ascii=False, allow_nan=False, indent=indent), flush=True)
