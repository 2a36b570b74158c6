"""The command line. It speaks like a colleague: one sentence where something is wrong, and the way out."""

import json
import os
import sys
from dataclasses import asdict
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.progress import Progress

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
def watch(
    model: Annotated[Path, typer.Option(help="a folder with a model, ours or Hugging Face's, and its tokenizer.json")],
    text: Annotated[Path, typer.Option(help="the text that it reads")],
    out: Annotated[Path | None, typer.Option(help="where the recording is saved, for ts.open and the explorer")] = None,
    layers: Annotated[str | None, typer.Option(help='which attentions: a name, "decoder.*", or a number')] = None,
    keep: Annotated[str, typer.Option(help="summaries, queries-keys or steps")] = "summaries",
    store: Annotated[str, typer.Option(help="where it is kept meanwhile: device, ram or disk")] = "device",
    tokens: Annotated[int | None, typer.Option(help="read at most so many", min=1)] = None,
    write: Annotated[int, typer.Option(help="go on with so many new tokens", min=0)] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="the heads as JSON")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="no colour; also when the output is not a terminal")] = False,
) -> None:
    """Let a model read a text, look at every head, and say what kind each is."""
    from .tasks.look import look, to_json
    from .words import size

    try:
        contents = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ValueError(f"--text {text} cannot be read: {problem}") from None
    chosen = int(layers) if layers is not None and layers.lstrip("-").isdecimal() else layers
    with Progress(console=Console(file=sys.stderr), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("reading", total=None)
        reading = look(
            model,
            contents,
            layers=chosen,
            keep=keep,
            store=store,
            tokens=tokens,
            write=write,
            device=device,
            progress=lambda name, done, of: bar.update(task, description=name, completed=done, total=of),
        )
    recording = reading.recording
    if out is not None:
        recording.save(out)
    if as_json:
        print(to_json(reading))
        return
    saved = "" if out is None else f", saved as {out}"
    print(f"{recording.model} read {reading.tokens:,} tokens: {size(recording.nbytes)}{saved}")
    if reading.written:
        print(f"it wrote: {reading.written}")
    _show(recording.heads(), plain)


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
