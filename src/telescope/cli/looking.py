"""telescope explain | watch | serve"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from ..words import hint
from .common import AsJson, Device, ModelName, Plain, Port, load, print_all, print_json
from .writing import TRANSLATOR


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
        from ..tasks.explaining.explain_sentence import draw
        from ..tasks.explaining.sentence import explained

        found = explained(
            load(model),
            " ".join(sentence),
            name=model,
            query=query,
            between=_pair(between),
            layer=layer,
            head=head,
        )
        drawn, numbers = draw(found, every_head=every_head, steps=steps), found.to_dict
    else:
        from .. import attention
        from ..tasks.explaining.examples import EXAMPLES
        from ..tasks.explaining.examples import explain as picture

        name = example or "journey"
        if name not in EXAMPLES:
            raise ValueError(f'there is no example "{name}"; {hint(name, EXAMPLES)}')
        chosen = EXAMPLES[name](attention.by_sum if by_sum else attention.softmax)
        drawn, numbers = picture(chosen, query), chosen.to_dict
    if as_json:
        print_json(numbers(), indent=1)
    else:
        print_all([drawn], plain)


def watch(
    model: Annotated[
        Path, typer.Option(help="a shipped model, or a folder, ours or Hugging Face's, with a tokenizer.json")
    ],
    text: Annotated[Path, typer.Option(help="the text that it reads")],
    out: Annotated[Path | None, typer.Option(help="where the recording is saved, for ts.open and the explorer")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="where --out holds a recording, replace it")] = False,
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
    from ..recording.saved.save import must_be_free
    from ..tasks.look import look, to_json
    from ..words import size

    try:
        contents = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ValueError(f"--text {text} cannot be read: {problem}") from None
    if out is not None:  # said before the text is read, which may take long
        must_be_free(out, replace=replace, way="--replace replaces it")
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
        recording.save(out, replace=replace)
    if as_json:
        print(to_json(reading))
        return
    saved = "" if out is None else f", saved as {out}"
    print(f"{recording.model} read {reading.tokens:,} tokens: {size(recording.nbytes)}{saved}")
    if reading.written:
        print(f"it wrote: {reading.written}")
    print_all([recording.heads()], plain)


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
    from ..models import LoadError

    explorer = _explorer()
    library = explorer.Library(None if model is None else {name: name for name in model})
    folders = [folder for some in runs or () for folder in explorer.recordings(some)]
    opened, broken = [], []
    for folder in folders:
        try:
            opened.append(library.open(folder))
        except LoadError as problem:
            broken.append(problem)
    if broken and not opened:
        raise broken[0]
    for reason in broken:
        print(f"telescope: a recording is left out: {reason}", file=sys.stderr)
    path = f"/s/{opened[0].name}/heads" if opened else "/"
    explorer.serve(library, host=host, port=port, path=path, browse=open_page)


def _explore(model: str, sentence: str, *, layer: int | None, head: int | None, query: str | None, port: int) -> None:
    """A page about one sentence."""
    from urllib.parse import urlencode

    explorer = _explorer()
    library = explorer.Library({model: load(model)})
    try:
        run = library.read(sentence)
    except explorer.Refusal as refusal:
        raise ValueError(refusal.message) from None
    where = {"l": layer, "h": head, "i": run.place(query)}
    path = f"/s/{run.name}/walk?{urlencode({name: at for name, at in where.items() if at is not None})}"
    explorer.serve(library, port=port, path=path, browse=True)


def _explorer() -> Any:
    """It stands apart: it needs a web server, which not everybody has."""
    from importlib import import_module

    try:
        return import_module("..explorer.server", __package__)
    except ImportError as problem:
        raise ValueError(f"the page needs a web server: pip install 'telescope-attention[serve]' ({problem})") from None


def _pair(words: str | None) -> list[str]:
    """man,astronomer"""
    named = [word.strip() for word in (words or "").split(",") if word.strip()]
    if len(named) not in (0, 2):
        raise ValueError(f'--between "{words}" is not two words; such as --between man,astronomer')
    return named


def doctor(
    every: Annotated[bool, typer.Option("--all", help="also what compiles for half a minute first")] = False,
    as_json: AsJson = False,
    plain: Plain = False,
) -> None:
    """Check every engine on this machine: right, how fast, and what is missing. Exit code 1 if one is wrong."""
    from ..tasks.doctor import doctor as examine
    from ..tasks.doctor import draw

    report = examine(every=every)
    if as_json:
        print_json(asdict(report), indent=1)
    else:
        print_all([draw(report)], plain)
    raise typer.Exit(0 if report.healthy else 1)
