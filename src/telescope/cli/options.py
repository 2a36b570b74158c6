"""Options that several commands have."""

from typing import Annotated

import typer

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
