"""The command line. It speaks like a colleague: one sentence where something is wrong, and the way out."""

import json
import os
import sys
from dataclasses import asdict
from io import TextIOWrapper
from typing import Annotated

import typer
from rich.console import Console, RenderableType

from .words import hint

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def telescope(context: typer.Context) -> None:
    """Look inside attention while it runs at full speed."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def explain(
    sentence: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    example: Annotated[str, typer.Option(help="journey, thinking-machines, lights, bank or telescope")] = "journey",
    query: Annotated[str | None, typer.Option(help="the word whose row is written out, product by product")] = None,
    by_sum: Annotated[bool, typer.Option("--by-sum", help="divide by the sum, the notes' way before softmax")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="every number with all its digits, as JSON")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="no colour; also when the output is not a terminal")] = False,
) -> None:
    """Walk through attention, step by step."""
    from . import attention
    from .tasks import examples
    from .tasks.explain import explain as picture

    known = list(examples.EXAMPLES)
    if sentence:
        raise ValueError(
            f"a sentence of your own needs trained weights, which do not ship yet; --example takes {', '.join(known)}"
        )
    if example not in known:
        raise ValueError(f'there is no example "{example}"; {hint(example, known)}')
    chosen = examples.EXAMPLES[example](attention.by_sum if by_sum else attention.softmax)
    drawn = picture(chosen, query)
    if as_json:
        print(json.dumps(chosen.to_dict(), ensure_ascii=False, allow_nan=False, indent=1))
    else:
        _show(drawn, plain)


@app.command()
def doctor(
    every: Annotated[bool, typer.Option("--all", help="also what compiles for half a minute first")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="every number with all its digits, as JSON")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="no colour; also when the output is not a terminal")] = False,
) -> None:
    """Check every engine on this machine: right, how fast, and what is missing. Exit code 1 if one is wrong."""
    from .tasks.doctor import doctor as examine
    from .tasks.doctor import draw

    report = examine(every=every)
    if as_json:
        print(json.dumps(asdict(report), ensure_ascii=False, allow_nan=False, indent=1))
    else:
        _show(draw(report), plain)
    raise typer.Exit(0 if report.healthy else 1)


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="a TOML file; those of published results are in recipes/")],
    out: Annotated[str, typer.Option(help="the folder for the model; a run that was stopped goes on there")],
    data: Annotated[str | None, typer.Option(help="the folder of all data; TELESCOPE_DATA says it too")] = None,
    seed: Annotated[int | None, typer.Option(help="another seed than the recipe's")] = None,
    steps: Annotated[int | None, typer.Option(help="as many steps, instead of the recipe's")] = None,
    watch: Annotated[int | None, typer.Option(help="look at all heads every so many steps, in TensorBoard")] = None,
) -> None:
    """Train a model as a recipe says. Run the same command again to go on where it was stopped."""
    from .tasks.known import read
    from .tasks.train import changed
    from .tasks.train import train as learn

    learn(changed(read(recipe), seed=seed, steps=steps, watch=watch), out, data=data)


@app.command()
def evaluate(
    folders: Annotated[list[str], typer.Argument(help="what telescope train wrote; of several, also the mean")],
    data: Annotated[str | None, typer.Option(help="the folder of all data; TELESCOPE_DATA says it too")] = None,
    split: Annotated[str, typer.Option(help="test or validation")] = "test",
    recipe: Annotated[str | None, typer.Option(help="by which it is measured, if not by the folder's own")] = None,
    out: Annotated[str | None, typer.Option(help="where answers and figures are kept, if not in the folder")] = None,
    predict: Annotated[bool, typer.Option("--predict", help="only write what it answers, to be scored later")] = False,
    score: Annotated[bool, typer.Option("--score", help="only score what was written before")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="every number with all its digits, as JSON")] = False,
) -> None:
    """Measure trained models. What they answer, and the figures, are kept in FOLDER/evaluation."""
    from .tasks import evaluate as measure

    if predict and score:
        raise ValueError("--predict and --score are the two halves of it; leave both out to get the whole")
    if out is not None and len(folders) > 1:
        raise ValueError(f"--out {out} holds the answers of one folder, not of {len(folders)}; leave it out")
    found = []
    for folder in folders:
        if not score:
            written = measure.predict(folder, data=data, split=split, recipe=recipe, out=out)
            if predict:
                print(written)
                continue
        found.append(measure.score(folder, split=split, recipe=recipe, out=out))
        if not as_json:
            figures = "   ".join(f"{name} {figure:.4f}" for name, figure in found[-1].figures.items())
            print(f"{found[-1].recipe}   {split} ({found[-1].answers:,})   {figures}", flush=True)
    if as_json and found:
        print(json.dumps([asdict(one) for one in found], ensure_ascii=False, allow_nan=False, indent=1))
    elif len(found) > 1:
        figures = "   ".join(f"{name} {mean:.4f} ± {by:.4f}" for name, (mean, by) in measure.spread(found).items())
        print(f"mean of {len(found)} runs   {figures}")


def _show(drawn: RenderableType, plain: bool) -> None:
    from .observe.table import text

    if plain or not sys.stdout.isatty():
        print(text(drawn, width=120))
    else:
        Console(highlight=False).print(drawn)


def main() -> None:
    """Run a command; what goes wrong is told in one sentence, on standard error, with exit code 2."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without √ shows a ? there
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as in `telescope explain | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except (typer.TyperException, ValueError) as problem:
        message = problem.format_message() if isinstance(problem, typer.TyperException) else str(problem)
        print(f"telescope: {message}", file=sys.stderr)
        raise SystemExit(2) from None
    raise SystemExit(code or 0)


if __name__ == "__main__":
    main()
