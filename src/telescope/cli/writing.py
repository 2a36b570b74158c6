"""telescope translate | summarize | generate | recall"""

import sys
from itertools import chain, islice
from typing import Annotated, Any

import typer

from .common import AsJson, Beam, Best, Device, Given, ModelName, Plain, Show, load, print_all, print_json

TRANSLATOR, SUMMARIZER, WRITER = "translator-en-de", "summarizer", "shakespeare"
LINES = 64  # how many are read before what was made of them is written


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
    """Translate each text, line by line. A line of several sentences is translated sentence by sentence."""
    from ..tasks.explaining import show as report
    from ..tasks.writing import given
    from ..tasks.writing.rewrite import apart, rewrite

    loaded, lines = load(model, device), given.lines(text or [])
    while some := list(islice(lines, 1 if given.typed(text or []) else LINES)):
        for line, parts in zip(some, rewrite(loaded, some, apart, beams=beam, n_best=n_best), strict=True):
            if as_json:
                print_json(report.to_dict(loaded, line, parts, show=show))
            else:
                print_all(report.draw(loaded, parts, show=show), plain)


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
    """Summarize each document. One that is too long to be read at once is summarized in parts, each in a line."""
    from ..tasks.explaining import show as report
    from ..tasks.writing import given
    from ..tasks.writing.rewrite import rewrite, together

    loaded, documents = load(model, device), list(given.documents(text or []))
    for document, parts in zip(documents, rewrite(loaded, documents, together, beams=beam, n_best=n_best), strict=True):
        if as_json:
            print_json(report.to_dict(loaded, document, parts, between="\n", show=show))
        else:
            print_all(report.draw(loaded, parts, between="\n", show=show), plain)


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
    """Write on from each prompt, for as long as you like."""
    from ..tasks.explaining import show as report
    from ..tasks.writing import given, write_on
    from ..tasks.writing.rewrite import RewrittenPart

    loaded = load(model, device)
    how: dict[str, Any] = {"max_new_tokens": tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    for text in given.documents(prompt or []) if prompt or not sys.stdin.isatty() else [""]:
        if beam is not None:
            found = write_on.search(loaded, text, max_new_tokens=tokens, beams=beam, n_best=n_best)
        elif n_best > 1 or as_json or show:
            found = [write_on.draw(loaded, text, seed=seed + i, **how) for i in range(n_best)]
        else:
            written = write_on.write_on(loaded, text, seed=seed, **how)
            for said in chain([text], (token.text or "" for token in written), ["\n"]):
                print(said, end="", flush=True)
            continue
        if as_json:
            print_json(report.to_dict(loaded, text, [RewrittenPart(text, found)], show=show))
        else:
            print_all(report.draw(loaded, [RewrittenPart(text, found)], before=text, show=show), plain)


def recall(
    model: Annotated[str, typer.Option(help="a folder that telescope train made by one of recipes/recall-*.toml")],
    name: Annotated[
        list[str] | None, typer.Argument(help="of persons, each in quotes, a file of names, or - for a pipe")
    ] = None,
    as_json: AsJson = False,
    device: Device = "cpu",
) -> None:
    """Where was NAME born? As far as a model that was trained to recall has read about it."""
    from ..tasks.learning.recall import about, answers
    from ..tasks.writing import given

    loaded = load(model, device)
    questions = [about(line.strip()) for line in given.lines(name or []) if line.strip()]
    for question, answer in zip(questions, answers(loaded, questions), strict=True):
        if as_json:
            print_json({"question": question, "answer": answer})
        else:
            print(answer)
