"""The command line. It speaks like a colleague: one sentence where something is wrong, and the way out."""

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.progress import Progress

from .words import hint

TRANSLATOR, SUMMARIZER, WRITER = "translator-en-de", "summarizer", "shakespeare"
LINES = 64  # how many are read before what was made of them is written

Given = Annotated[
    list[str] | None, typer.Argument(help="a text in quotes, a file, or - for a pipe", show_default=False)
]
ModelName = Annotated[str, typer.Option("--model", help="a shipped model, or a folder")]
Beam = Annotated[int, typer.Option("--beam", help="how many texts are followed at once; 1 is greedy")]
Best = Annotated[int, typer.Option("--n-best", help="how many texts are written of each")]
Show = Annotated[bool, typer.Option("--show", help="what each word looked at when it was written, as a table")]
AsJson = Annotated[bool, typer.Option("--json", help="every number with all its digits, as JSON")]
Plain = Annotated[bool, typer.Option("--plain", help="no colour; also when the output is not a terminal")]
Port = Annotated[int, typer.Option(help="of the page; 0 is any that is free", min=0, max=65535)]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, ...")]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def telescope(context: typer.Context) -> None:
    """Look inside attention while it runs at full speed."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def explain(
    sentence: Annotated[list[str] | None, typer.Argument(help="a sentence to translate and look into")] = None,
    example: Annotated[
        str | None, typer.Option(help="instead: journey, thinking-machines, lights, bank or telescope")
    ] = None,
    model: ModelName = TRANSLATOR,
    query: Annotated[str | None, typer.Option(help="the word whose row is written out, product by product")] = None,
    between: Annotated[
        str | None, typer.Option(help="two words, a,b: which heads read the one from the query, and which the other")
    ] = None,
    layer: Annotated[int | None, typer.Option(help="of which layer a head is shown in full")] = None,
    head: Annotated[int | None, typer.Option(help="which head is shown in full; unless given, a sharp one")] = None,
    every_head: Annotated[bool, typer.Option("--every-head", help="the weights of every head")] = False,
    steps: Annotated[bool, typer.Option("--steps", help="of one head every step and every product")] = False,
    by_sum: Annotated[bool, typer.Option("--by-sum", help="examples: divide by the sum, the notes' way")] = False,
    open_page: Annotated[bool, typer.Option("--open", help="in a browser instead: every number of a sentence")] = False,
    port: Port = 0,
    as_json: AsJson = False,
    plain: Plain = False,
) -> None:
    """Walk through attention, step by step: a sentence of your own in a translator, or an example of the notes."""
    if sentence and (example or by_sum):
        raise ValueError("a sentence of your own goes through a trained model; --example and --by-sum are without one")
    if open_page:
        if not sentence:
            raise ValueError('--open shows a sentence of your own: telescope explain "Good morning" --open')
        _explore(model, " ".join(sentence), layer=layer, head=head, query=query, port=port)
        return
    if sentence:
        from .tasks.explaining.explain_sentence import draw
        from .tasks.explaining.sentence import explained

        found = explained(
            _load(model),
            " ".join(sentence),
            name=model,
            query=query,
            between=_pair(between),
            layer=layer,
            head=head,
        )
        drawn, numbers = draw(found, every_head=every_head, steps=steps), found.to_dict
    else:
        from . import attention
        from .tasks.explaining.examples import EXAMPLES
        from .tasks.explaining.explain import explain as picture

        name = example or "journey"
        if name not in EXAMPLES:
            raise ValueError(f'there is no example "{name}"; {hint(name, EXAMPLES)}')
        chosen = EXAMPLES[name](attention.by_sum if by_sum else attention.softmax)
        drawn, numbers = picture(chosen, query), chosen.to_dict
    if as_json:
        _json(numbers(), indent=1)
    else:
        _show([drawn], plain)


@app.command()
def translate(
    text: Given = None,
    model: ModelName = TRANSLATOR,
    beam: Beam = 5,
    n_best: Best = 1,
    show: Show = False,
    as_json: AsJson = False,
    plain: Plain = False,
    device: Device = "cpu",
) -> None:
    """Translate, line by line. A line of several sentences is translated sentence by sentence."""
    from .tasks.explaining import report
    from .tasks.writing.given import opened
    from .tasks.writing.parts import apart
    from .tasks.writing.rewrite import rewrite

    loaded = _load(model, device)
    with opened(text or []) as stream:
        lines = (line.rstrip("\r\n") for line in stream)
        while some := list(islice(lines, 1 if stream.isatty() else LINES)):
            for line, parts in zip(some, rewrite(loaded, some, apart, beams=beam, n_best=n_best), strict=True):
                if as_json:
                    _json(report.to_dict(loaded, line, parts, show=show))
                else:
                    _show(report.draw(loaded, parts, show=show), plain)


@app.command()
def summarize(
    text: Given = None,
    model: ModelName = SUMMARIZER,
    beam: Beam = 5,
    n_best: Best = 1,
    show: Show = False,
    as_json: AsJson = False,
    plain: Plain = False,
    device: Device = "cpu",
) -> None:
    """Summarize a document. One that is too long to be read at once is summarized in parts, each in a line."""
    from .tasks.explaining import report
    from .tasks.writing.given import opened
    from .tasks.writing.parts import together
    from .tasks.writing.rewrite import rewrite

    loaded = _load(model, device)
    with opened(text or []) as stream:
        document = stream.read()
    (parts,) = rewrite(loaded, [document], together, beams=beam, n_best=n_best)
    if as_json:
        _json(report.to_dict(loaded, document, parts, between="\n", show=show))
    else:
        _show(report.draw(loaded, parts, between="\n", show=show), plain)


@app.command()
def generate(
    prompt: Given = None,
    model: ModelName = WRITER,
    tokens: Annotated[int, typer.Option(help="how many are written at most")] = 256,
    temperature: Annotated[float, typer.Option(help="0 is the likeliest token every time")] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="draw from so many of the likeliest")] = None,
    top_p: Annotated[float, typer.Option(help="draw from the likeliest that make up so much")] = 1.0,
    seed: Annotated[int, typer.Option(help="the same seed writes the same text")] = 0,
    beam: Annotated[int | None, typer.Option("--beam", help="search with so many texts instead of drawing")] = None,
    n_best: Best = 1,
    show: Show = False,
    as_json: AsJson = False,
    plain: Plain = False,
    device: Device = "cpu",
) -> None:
    """Write on from a prompt, for as long as you like."""
    from .tasks.explaining import report
    from .tasks.writing import write_on
    from .tasks.writing.given import opened
    from .tasks.writing.rewrite import Part

    loaded, text = _load(model, device), ""
    if prompt or not sys.stdin.isatty():
        with opened(prompt or []) as stream:
            text = stream.read()
    how: dict[str, Any] = {"max_new_tokens": tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    if beam is not None:
        found = write_on.search(loaded, text, max_new_tokens=tokens, beams=beam, n_best=n_best)
    elif n_best > 1 or as_json or show:
        found = [write_on.draw(loaded, text, seed=seed + i, **how) for i in range(n_best)]
    else:
        written = write_on.write_on(loaded, text, seed=seed, **how)
        for said in chain([text], (token.text or "" for token in written), ["\n"]):
            print(said, end="", flush=True)
        return
    if as_json:
        _json(report.to_dict(loaded, text, [Part(text, found)], show=show))
    else:
        _show(report.draw(loaded, [Part(text, found)], before=text, show=show), plain)


@app.command()
def doctor(
    every: Annotated[bool, typer.Option("--all", help="also what compiles for half a minute first")] = False,
    as_json: AsJson = False,
    plain: Plain = False,
) -> None:
    """Check every engine on this machine: right, how fast, and what is missing. Exit code 1 if one is wrong."""
    from .tasks.doctor import doctor as examine
    from .tasks.doctor import draw

    report = examine(every=every)
    if as_json:
        _json(asdict(report), indent=1)
    else:
        _show([draw(report)], plain)
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
    from .tasks.learning.known import read
    from .tasks.learning.train import changed
    from .tasks.learning.train import train as learn

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
    as_json: AsJson = False,
) -> None:
    """Measure trained models. What they answer, and the figures, are kept in FOLDER/evaluation."""
    from .tasks.learning import evaluate as measure

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
        _json([asdict(one) for one in found], indent=1)
    elif len(found) > 1:
        figures = "   ".join(f"{name} {mean:.4f} ± {by:.4f}" for name, (mean, by) in measure.spread(found).items())
        print(f"mean of {len(found)} runs   {figures}")


@app.command()
def recall(
    model: Annotated[str, typer.Option(help="a folder that telescope train made by one of recipes/recall-*.toml")],
    name: Annotated[list[str] | None, typer.Argument(help="of a person, a file of names, or - for a pipe")] = None,
    as_json: AsJson = False,
    device: Device = "cpu",
) -> None:
    """Where was NAME born? As far as a model that was trained to recall has read about it."""
    from .tasks.learning.recall.answers import about, answers
    from .tasks.writing.given import opened

    loaded = _load(model, device)
    with opened(name or []) as stream:
        questions = [about(line.strip()) for line in stream if line.strip()]
    for question, answer in zip(questions, answers(loaded, questions), strict=True):
        if as_json:
            _json({"question": question, "answer": answer})
        else:
            print(answer)


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
    device: Device = "cpu",
    as_json: AsJson = False,
    plain: Plain = False,
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
    _show([recording.heads()], plain)


@app.command()
def serve(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="recordings, or folders that hold some", show_default=False)
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", help="what reads the sentences that are typed: shipped, or a folder")
    ] = None,
    port: Port = 0,
    host: Annotated[str, typer.Option(help="anything else than this machine opens it to the network")] = "127.0.0.1",
    open_page: Annotated[bool, typer.Option("--open", help="in a browser")] = False,
) -> None:
    """Serve the explorer: the recordings given, and any sentence, on a page for this machine. Ctrl-C ends it."""
    explorer = _explorer()
    library = explorer.Library(None if model is None else {name: name for name in model})
    opened = [library.open(folder) for some in runs or () for folder in explorer.recordings(some)]
    path = f"/s/{opened[0].name}/heads" if opened else "/"
    explorer.serve(library, host=host, port=port, path=path, browse=open_page)


def _explore(model: str, sentence: str, *, layer: int | None, head: int | None, query: str | None, port: int) -> None:
    """A page about one sentence."""
    from urllib.parse import urlencode

    explorer = _explorer()
    library = explorer.Library({model: _load(model)})
    try:
        run = library.read(sentence)
    except explorer.Refusal as refusal:
        raise ValueError(refusal.message) from None
    where = {"l": layer or 0, "h": head or 0, "i": run.place(query)}
    path = f"/s/{run.name}/walk?{urlencode(where)}"
    explorer.serve(library, port=port, path=path, browse=True)


def _explorer() -> Any:
    """It stands apart: it needs a web server, which not everybody has."""
    from importlib import import_module

    try:
        return import_module(".explorer.server", __package__)
    except ImportError as problem:
        raise ValueError(f"the page needs a web server: pip install 'telescope-attention[serve]' ({problem})") from None


def _load(name: str, device: str = "cpu") -> Any:
    """In float32, whatever the file has: a text then does not depend on the machine."""
    import torch

    from .models import load

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {device}: there is no GPU here that torch can use; leave it out")
    return load(name, device=device, dtype=torch.float32)


def _show(drawn: Iterable[RenderableType], plain: bool) -> None:
    """Texts as they are, for a pipe takes them line by line; pictures as wide as a page."""
    from .observe.table import text

    for one in drawn:
        if isinstance(one, str):
            print(one)
        elif plain or not sys.stdout.isatty():
            print(text(one, width=120))
        else:
            Console(highlight=False).print(one)
    sys.stdout.flush()


def _json(contents: object, indent: int | None = None) -> None:
    print(json.dumps(contents, ensure_ascii=False, allow_nan=False, indent=indent), flush=True)


def _pair(words: str | None) -> list[str]:
    """man,astronomer"""
    named = [word.strip() for word in (words or "").split(",") if word.strip()]
    if len(named) not in (0, 2):
        raise ValueError(f'--between "{words}" is not two words; such as --between man,astronomer')
    return named


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
    except (typer.Abort, KeyboardInterrupt):
        raise SystemExit(130) from None
    except (typer.TyperException, ValueError) as problem:
        message = problem.format_message() if isinstance(problem, typer.TyperException) else str(problem)
        print(f"telescope: {message}", file=sys.stderr)
        raise SystemExit(2) from None
    raise SystemExit(code or 0)


if __name__ == "__main__":
    main()
