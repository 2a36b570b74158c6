"""The command line: what each command takes and prints. A mistake gets one sentence that says what would be right.

May import every other room; a command imports what it needs when it runs, so that --help is quick. Read this file
first: `app` lists the commands, `main` runs one.
"""

import os
import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from .. import __version__
from .atlas import atlas, compare
from .examples import EXAMPLES
from .learning import evaluate, recipe, train
from .looking import doctor, explain, serve, watch
from .writing import generate, recall, summarize, translate

VERSION = f"telescope {__version__}"

app = typer.Typer(rich_markup_mode=None)
for command in (explain, translate, summarize, generate, recall, train, evaluate, watch, atlas, compare, serve, doctor):
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
    """Run the command of `sys.argv`, and exit. An error prints one sentence on standard error; the exit code is 2."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show √ shows ? instead
    if sys.argv[1:] == ["--version"]:  # answered here: typer imports pydantic to read a flag, which takes 0.2 s
        print(VERSION)
        raise SystemExit(0)
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader stopped reading, as in `telescope explain | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except (typer.Abort, KeyboardInterrupt):
        raise SystemExit(130) from None
    except (typer.TyperException, ValueError) as problem:
        message = problem.format_message() if isinstance(problem, typer.TyperException) else str(problem)
        print(f"telescope: {message}", file=sys.stderr)
        raise SystemExit(2) from None
    raise SystemExit(code or 0)
