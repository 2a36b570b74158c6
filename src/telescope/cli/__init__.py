"""The command line: what each command takes and prints. A mistake gets one sentence that says what
would be right.

May import every other room; a command imports what it needs when it runs, so that --help is quick.
Read this file first: `app` lists the commands, `main` runs one.
"""

import sys
from typing import Annotated

import typer

from .. import __version__
from .atlas import atlas, compare
from .boundary import run
from .examples import EXAMPLES
from .learning import evaluate, recipe, train
from .looking import doctor, explain, serve, watch
from .writing import generate, recall, summarize, translate

VERSION = f"telescope {__version__}"

app = typer.Typer(rich_markup_mode=None)
for command in (
    explain,
    translate,
    summarize,
    generate,
    recall,
    train,
    evaluate,
    watch,
    atlas,
    compare,
    serve,
    doctor,
):
    app.command(epilog=EXAMPLES[command.__name__])(command)
new = typer.Typer(rich_markup_mode=None)
new.command(epilog=EXAMPLES["new recipe"])(recipe)
app.add_typer(new, name="new")


@new.callback(invoke_without_command=True)
def new_file(context: typer.Context) -> None:
    """Write a file to start from: a recipe."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.callback(invoke_without_command=True)
def telescope(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Look inside attention while it runs at full speed."""
    if version:
        print(VERSION)
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """Run the command of `sys.argv`, and exit with a code of boundary.py. An error prints one
    sentence.
    """
    raise SystemExit(run(_run_command))


def _run_command() -> int | None:
    if sys.argv[1:] == [
        "--version"
    ]:  # answered here: typer imports pydantic to read a flag, which takes 0.2 s
        print(VERSION)
        return None
    code: int | None = app(standalone_mode=False)
    return code
