"""The command line: what each command takes and prints. A mistake gets one sentence that says what
would be right.

May import every other room; a command imports what it needs when it runs, so that --help is quick.
Read this file first: `app` lists the commands, `main` runs one.
"""

import sys
from typing import Annotated

import typer

from .. import __version__
from .boundary import run
from .long_runs import atlas, compare, evaluate, recipe, train
from .looking import doctor, explain, watch
from .serving import serve
from .teaching import lessons
from .writing import generate, recall, summarize, translate

VERSION = f"telescope {__version__}"

# The examples that --help of each command ends with.
EXAMPLES = {
    "explain": (
        'explain "The man saw the astronomer with a telescope"',
        'explain "Good morning." --open',
        "explain --example journey --query starts",
        'explain "Good morning." --json > steps.json',
    ),
    "translate": (
        'translate "Where is the train station?"',
        'translate "Good morning." "How are you?" --show',
        "translate letter.txt --beams 5 --n-best 3",
        "translate letter.txt --model runs/mine",
    ),
    "summarize": ("summarize description.txt", "summarize *.txt --json"),
    "generate": (
        'generate "ROMEO:"',
        'generate "ROMEO:" --temperature 0.5 --seed 7 --max-new-tokens 100',
        "generate prompt.txt --model runs/mine",
    ),
    "recall": ('recall "Khatchig Mouradian" --model runs/recall-rotary',),
    "train": (
        "train mine.toml --check",
        "train mine.toml --out runs/mine",
        "train mine.toml --out runs/mine --steps 200 --watch 50",
    ),
    "evaluate": (
        "evaluate runs/mine",
        "evaluate runs/mine --split validation --json",
        "evaluate runs/seed-0 runs/seed-1 runs/seed-2",
    ),
    "watch": (
        'watch --text "To be, or not to be"',
        "watch --model shakespeare --text play.txt",
        "watch --model DIR --text book.txt --tokens 4096 --keep queries-keys --out run.telescope",
    ),
    "atlas": (
        "atlas --model shakespeare --texts play.txt --out atlas",
        "atlas --model DIR --texts corpus/ --out atlas --device cuda --dtype bfloat16",
    ),
    "compare": ("compare atlas-of-step-1000 atlas-of-step-2000", "compare before after --json"),
    "serve": ("serve --open", "serve run.telescope --open", "serve --model runs/mine --port 8000"),
    "lessons": ("lessons my-lessons", "lessons my-lessons --force"),
    "doctor": ("doctor", "doctor --all --json"),
    "new recipe": (
        "new recipe translate mine.toml --train pairs.tsv",
        "new recipe translate mine.toml --train train.{} --source en --target de",
        "new recipe summarize mine.toml --train mails.csv --source body --target subject",
        "new recipe generate mine.toml --train novel.txt",
    ),
}


def _epilog(command: str) -> str:
    """Return the examples of a command; \\b keeps their line breaks."""
    lines = "".join(f"\n  telescope {line}" for line in EXAMPLES[command])
    return f"\b\nExamples:{lines}"


# No markup: brackets in a help text are brackets.
app = typer.Typer(rich_markup_mode=None)

# In the order in which --help lists the commands.
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
    lessons,
    doctor,
):
    app.command(epilog=_epilog(command.__name__))(command)

# `telescope new recipe`: `new` is a group of commands, with one command so far.
new = typer.Typer(rich_markup_mode=None)
new.command(epilog=_epilog("new recipe"))(recipe)
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
    # Reached where --version stands beside other words; alone, `_run_command` answers.
    if version:
        print(VERSION)
        raise typer.Exit
    # `telescope` alone prints the help.
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """Run the command of `sys.argv`, and exit with a code of boundary.py. An error prints one
    sentence.
    """
    raise SystemExit(run(_run_command))


def _run_command() -> int | None:
    # Answered here: typer imports pydantic to read a flag, which takes 0.2 s.
    if sys.argv[1:] == ["--version"]:
        print(VERSION)
        return None
    # Errors come to boundary.py, instead of being printed by typer.
    code: int | None = app(standalone_mode=False)
    return code
