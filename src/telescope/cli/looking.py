"""telescope explain | watch | doctor"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from ..words import check_index, hint
from .common import (
    AsJson,
    Device,
    HideOption,
    ModelName,
    MuteOption,
    Plain,
    Port,
    beside,
    editing,
    load_model,
    print_all,
    print_json,
    read_edits,
    refuse,
)
from .serving import import_explorer
from .writing import TRANSLATOR, WRITER, read_documents

# What the page cannot show of a saved recording, by what the recording keeps.
PAGE_LACKS = {
    "summaries": "with --keep summaries the page will show heads, alignments and maps from the "
    "largest weights of each "
    "query; --keep queries-keys adds every weight and the walk, --keep steps the geometry too",
    "queries-keys": "with --keep queries-keys the page will lack context and geometry; --keep "
    "steps keeps them",
}
TABLES = {  # examples that are tables, not attentions, and where the page shows them
    "variance": "/s/example-thinking-machines/variance",
    "positions": "/s/example-journey/positions",
}


def explain(
    context: typer.Context,
    sentence: Annotated[
        list[str] | None,
        typer.Argument(help="A sentence, which the model translates; without one, an example."),
    ] = None,
    example: Annotated[
        str | None,
        typer.Option(
            help="A worked example: journey, thinking-machines, lights, bank, telescope, luong, "
            "synthesizer, variance, "
            "positions."
        ),
    ] = None,
    model: ModelName = TRANSLATOR,
    query: Annotated[
        str | None, typer.Option(help="The word whose row of weights is shown in detail.")
    ] = None,
    between: Annotated[
        str | None,
        typer.Option(
            help="Two words, as in man,astronomer: list which heads attend from the query to "
            "either."
        ),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(help="Layer of the head that is shown in full, from 0; -1 is the last."),
    ] = None,
    head: Annotated[
        int | None,
        typer.Option(
            help="Head that is shown in full, from 0; -1 is the last. The default has the largest "
            "weight."
        ),
    ] = None,
    every_head: Annotated[
        bool, typer.Option("--every-head", help="Show the weights of every head in full.")
    ] = False,
    steps: Annotated[
        bool, typer.Option("--steps", help="Show every step of one head, and every product.")
    ] = False,
    by_sum: Annotated[
        bool,
        typer.Option(
            "--by-sum", help="In examples, divide scores by their sum instead of using softmax."
        ),
    ] = False,
    open_page: Annotated[
        bool, typer.Option("--open", help="Open the sentence or the example in a browser instead.")
    ] = False,
    port: Port = 0,
    mute: MuteOption = None,
    hide: HideOption = None,
    as_json: AsJson = False,
    plain: Plain = False,
) -> None:
    """Show every step of attention in numbers. A translator runs the sentence; without one, an
    example is shown.

    With --mute or --hide, the steps are those of the edited model, below its translation and the
    one as it is.
    """
    # Refuse options that contradict each other.
    edits = read_edits(mute, hide)
    if edits and (open_page or not sentence):
        raise ValueError(
            '--mute and --hide edit a sentence of your own: telescope explain "Good morning" '
            "--mute encoder.0"
        )
    if sentence and (example or by_sum):
        raise ValueError(
            "a sentence of your own goes through a trained model; --example and --by-sum are "
            "without one"
        )
    _refuse_unread(context, example, sentence=bool(sentence), open_page=open_page)
    # --open shows the page instead of printing.
    if open_page:
        if sentence:
            _open_in_browser(
                model, " ".join(sentence), layer=layer, head=head, query=query, port=port
            )
        else:
            _open_example(example or "journey", by_sum=by_sum, query=query, port=port)
        return
    digits = None  # of numbers in JSON: those of float32
    # A sentence of your own: a model translates it, edited where --mute or --hide say so.
    if sentence:
        from ..tasks.explaining.sentence import explain_sentence
        from ..tasks.explaining.show import draw_sentence

        loaded = load_model(model)
        text = " ".join(sentence)
        options: dict[str, Any] = {
            "name": model,
            "query": query,
            "between": _split_pair(between),
            "layer": layer,
            "head": head,
        }
        with editing(loaded, edits):
            explained = explain_sentence(loaded, text, **options)
        drawn = draw_sentence(explained, every_head=every_head, steps=steps)
        to_dict = explained.to_dict
        # Show what the edits changed: translate once more, without them.
        if edits:
            unedited = explain_sentence(loaded, text, name=model).translation
            changes = [str(edit) for edit in edits]
            lines = [
                *beside("as it is", [unedited]),
                *beside("edited", [explained.translation]),
                *changes,
                "",
            ]
            if as_json:
                print_json(explained.to_dict() | {"as_it_is": unedited, "edits": changes}, indent=1)
            else:
                print_all([*lines, drawn], plain)
            return
    else:
        from .. import attention
        from ..tasks.explaining.examples import EXAMPLES, draw_example

        # A worked example is an attention or a table.
        name = _check_example(example or "journey")
        if name in TABLES:
            from ..tasks.explaining import tables
            from ..traces import DIGITS_OF_FLOAT64

            # Each table has two functions: draw_NAME and NAME_to_dict.
            drawn = getattr(tables, f"draw_{name}")()
            to_dict = getattr(tables, f"{name}_to_dict")
            digits = DIGITS_OF_FLOAT64  # these tables are computed in float64
        else:
            chosen = EXAMPLES[name](attention.by_sum if by_sum else attention.softmax)
            drawn = draw_example(chosen, query)
            to_dict = chosen.to_dict
    if as_json:
        print_json(to_dict(), indent=1, digits=digits)
    else:
        print_all([drawn], plain)


def watch(
    context: typer.Context,
    model: Annotated[
        Path,
        typer.Option(
            help="A shipped model, or a folder with a tokenizer.json: saved by telescope or by "
            "Hugging Face."
        ),
    ] = Path(WRITER),
    text: Annotated[
        str | None,
        typer.Option(
            help="The text that the model reads, in quotes, or the name of its file; -, or without "
            "it, standard input.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to save the recording in, for ts.open and telescope serve."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the recording that --out holds.")
    ] = False,
    layers: Annotated[
        str | None,
        typer.Option(
            help='Attentions to record: a name, a pattern such as "decoder.*", or a layer number.'
        ),
    ] = None,
    keep: Annotated[
        str,
        typer.Option(help="What to record of each attention: summaries, queries-keys or steps."),
    ] = "summaries",
    store: Annotated[
        str,
        typer.Option(help="Where to hold the recording while the model runs: device, ram or disk."),
    ] = "device",
    tokens: Annotated[
        int | None, typer.Option(help="Read at most this many tokens of the text.", min=1)
    ] = None,
    write: Annotated[
        int, typer.Option(help="Number of new tokens to write after the text.", min=0)
    ] = 0,
    device: Device = "cpu",
    as_json: AsJson = False,
    plain: Plain = False,
) -> None:
    """Record the attention of a model that reads a text. Prints what kind each head is."""
    from ..files import check_can_write
    from ..models.saved.load import check_device
    from ..recording.saving import check_can_save
    from ..tasks.look import to_json, watch_text
    from ..words import format_bytes

    # Check everything before the model runs, which may take long.
    if out is None:
        refuse(context, "replace", "replaces the recording that --out names; add --out")
    contents = _read_text(text)
    check_device(device)
    if out is not None:
        check_can_save(out, replace=replace, way="--replace replaces it")
        check_can_write(out, name="--out")
        if keep in PAGE_LACKS:
            print(f"telescope: {PAGE_LACKS[keep]}", file=sys.stderr)
    # A number counts layers, also from the end; any other text is a name or a pattern.
    chosen = int(layers) if layers is not None and layers.lstrip("-").isdecimal() else layers
    # The progress bar goes to standard error, so that standard output holds the result alone.
    with Progress(
        console=Console(file=sys.stderr), transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task("reading", total=None)
        watched = watch_text(
            model,
            contents,
            layers=chosen,
            keep=keep,
            store=store,
            tokens=tokens,
            write=write,
            device=device,
            progress=lambda name, done, total: bar.update(
                task, description=name, completed=done, total=total
            ),
        )
    # Save the recording, then print what kind each head is.
    recording = watched.recording
    if out is not None:
        recording.save(out, replace=replace)
    if as_json:
        print(to_json(watched))
        return
    saved = "" if out is None else f", saved as {out}"
    print(
        f"{recording.model} read {watched.tokens:,} tokens: {format_bytes(recording.nbytes)}{saved}"
    )
    if watched.written:
        print(f"it wrote: {watched.written}")
    print_all([recording.heads()], plain)


def doctor(
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Also check engines that first compile for about half a minute."
        ),
    ] = False,
    as_json: AsJson = False,
    plain: Plain = False,
) -> None:
    """Check every attention engine on this machine: errors, speed, what is missing. Exit code 1 if
    one is wrong.
    """
    from ..tasks.doctor import check_engines, draw

    report = check_engines(every=every)
    if as_json:
        print_json(asdict(report), indent=1)
    else:
        print_all([draw(report)], plain)
    # The exit code tells a script what the table tells a reader.
    raise typer.Exit(0 if report.healthy else 1)


def _refuse_unread(
    context: typer.Context, example: str | None, *, sentence: bool, open_page: bool
) -> None:
    """Raise a ValueError for an option of `explain` that belongs to another way to call it."""
    if not sentence:
        way = 'is of a sentence of your own: telescope explain "Good morning."'
        refuse(context, "model between layer head every_head steps", way)
    if not sentence and example in TABLES:
        refuse(context, "query by_sum", f"is of an attention, and {example} is a table")
    if open_page:
        way = "is of what is printed, and --open opens the page instead; leave one of them out"
        refuse(context, "between every_head steps as_json plain", way)
    else:
        refuse(context, "port", "is the port of the page; add --open")


def _check_example(name: str) -> str:
    """Return the name if it is an example's, else raise a ValueError that suggests one."""
    from ..tasks.explaining.examples import EXAMPLES

    known = [*EXAMPLES, *TABLES]
    if name not in known:
        raise ValueError(f'there is no example "{name}"; {hint(name, known)}')
    return name


def _open_example(name: str, *, by_sum: bool, query: str | None, port: int) -> None:
    """Serve the explorer with a worked example, at the screen that shows most of it."""
    _check_example(name)
    explorer = import_explorer()
    library = explorer.Library()
    if name in TABLES:
        path = TABLES[name]
    else:
        run = library.make_example({"example": name, "normalize": "by_sum" if by_sum else None})
        screen = {"bank": "geometry", "telescope": "heads"}.get(name, "walk")
        path = f"/s/{run.name}/{screen}" + ("" if query is None else f"?i={run.place(query)}")
    explorer.serve(library, port=port, path=path, browse=True)


def _open_in_browser(
    model: str, sentence: str, *, layer: int | None, head: int | None, query: str | None, port: int
) -> None:
    """Serve the explorer with one sentence, opened at this layer, head and word."""
    from urllib.parse import urlencode

    explorer = import_explorer()
    library = explorer.Library({model: load_model(model)})
    try:
        run = library.read(sentence)
    except explorer.Refusal as refusal:
        raise ValueError(refusal.message) from None
    if layer is not None:
        layer = check_index("layer", layer, len(run.views))
    if head is not None:
        # A negative number becomes the head's number in the model.
        head = run.views[layer or 0].call.heads[run.views[layer or 0].call._head_index(head)]
    # The page's address says what is chosen; the page chooses what is left out.
    state = {"l": layer, "h": head, "i": run.place(query)}
    chosen = {name: value for name, value in state.items() if value is not None}
    path = f"/s/{run.name}/walk?{urlencode(chosen)}"
    explorer.serve(library, port=port, path=path, browse=True)


def _read_text(given: str | None) -> str:
    """Return the text of --text: the words themselves, those of a file or a pipe, or those of
    standard input.

    Raise a ValueError for a device, which may never end, as /dev/zero does.
    """
    # Refuse folders and devices; a path that does not exist is taken for words.
    if given is not None and given != "-":
        try:
            place = Path(given)
            is_other = place.exists() and not (place.is_file() or place.is_fifo())
        except PermissionError:
            raise ValueError(f"--text {given} cannot be read: no permission") from None
        except (OSError, ValueError):
            # Too long for a file's name, or with characters that no name has: words.
            is_other = False
        if is_other:
            raise ValueError(f"--text {given} is not a file")
    (text,) = read_documents([] if given is None else [given])
    return text


def _split_pair(words: str | None) -> list[str]:
    """Return the two words of "man,astronomer", or no words for None."""
    pair = [word.strip() for word in (words or "").split(",") if word.strip()]
    if len(pair) not in (0, 2):
        raise ValueError(f'--between "{words}" is not two words; such as --between man,astronomer')
    return pair
