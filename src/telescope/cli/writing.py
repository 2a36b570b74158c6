"""telescope translate | summarize | generate | recall, and how they read texts: arguments, files,
standard input.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO, TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from .common import (
    AsJson,
    Beams,
    Device,
    HideOption,
    ModelName,
    MuteOption,
    NBest,
    Plain,
    Show,
    Texts,
    beside,
    editing,
    load_model,
    print_all,
    print_json,
    read_edits,
    refuse,
)

# The shipped models, which commands use unless --model names another.
TRANSLATOR = "translator-en-de"
SUMMARIZER = "summarizer"
WRITER = "shakespeare"
LINES = 64  # how many lines are read and translated together before their translations are printed
# What looks like a path or ends like a file's name, and is one word.
LIKE_A_FILE = re.compile(r"(?:\.{0,2}/|~).*|\S*\.[a-z]{2,5}")


def translate(
    text: Texts = None,
    model: ModelName = TRANSLATOR,
    beams: Beams = 5,
    n_best: NBest = 1,
    show: Show = False,
    mute: MuteOption = None,
    hide: HideOption = None,
    as_json: AsJson = False,
    plain: Plain = False,
    device: Device = "cpu",
) -> None:
    """Translate texts line by line. A line of several sentences is translated sentence by sentence.

    With --mute or --hide, each translation is followed by the one that the edited model writes.
    """
    from ..tasks.writing import rewrite, split_by_sentence

    # Read the edits first: a wrong one is refused before the model is loaded.
    edits = read_edits(mute, hide)
    loaded = load_model(model, device)
    lines = _read_lines(text or [])
    # A person who types waits for each line; a file is translated in batches.
    while batch := list(islice(lines, 1 if _is_typed(text or []) else LINES)):
        # All lines by the model as it is, then all by the edited one; printed line by line.
        results = []
        for used in _versions(edits):
            with editing(loaded, used):
                written = rewrite(loaded, batch, split_by_sentence, beams=beams, n_best=n_best)
            results.append([(used, parts) for parts in written])
        for line, *versions in zip(batch, *results, strict=True):
            _print_texts(loaded, line, versions, show=show, as_json=as_json, plain=plain)


def summarize(
    text: Texts = None,
    model: ModelName = SUMMARIZER,
    beams: Beams = 5,
    n_best: NBest = 1,
    show: Show = False,
    as_json: AsJson = False,
    plain: Plain = False,
    device: Device = "cpu",
) -> None:
    """Summarize documents. A document too long for the model is summarized in parts, one line for
    each part.
    """
    from ..tasks.writing import rewrite, split_by_length

    loaded = load_model(model, device)
    # All documents before the first summary: their parts are written in batches.
    documents = list(read_documents(text or []))
    summaries = rewrite(loaded, documents, split_by_length, beams=beams, n_best=n_best)
    # Each part of a long document has a line of its own.
    layout: dict[str, Any] = {"show": show, "as_json": as_json, "plain": plain, "between": "\n"}
    for document, parts in zip(documents, summaries, strict=True):
        _print_texts(loaded, document, [([], parts)], **layout)


def generate(
    context: typer.Context,
    prompt: Texts = None,
    model: ModelName = WRITER,
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens to write.")] = 256,
    temperature: Annotated[
        float,
        typer.Option(help="Temperature of the softmax; 0 takes the likeliest token every time."),
    ] = 0.8,
    top_k: Annotated[
        int | None, typer.Option(help="Sample from this many of the likeliest tokens only.")
    ] = None,
    top_p: Annotated[
        float,
        typer.Option(help="Sample from the likeliest tokens that together have this probability."),
    ] = 1.0,
    seed: Annotated[
        int, typer.Option(help="Seed of the sampling; the same seed writes the same text.")
    ] = 0,
    beams: Annotated[
        int | None,
        typer.Option("--beams", help="Use beam search with this many beams instead of sampling."),
    ] = None,
    n_best: NBest = 1,
    show: Show = False,
    mute: MuteOption = None,
    hide: HideOption = None,
    as_json: AsJson = False,
    plain: Plain = False,
    device: Device = "cpu",
) -> None:
    """Continue prompts with a GPT. The text may become longer than the model reads at once.

    With --mute or --hide, each text is followed by the one that the edited model writes.
    """
    from ..tasks.writing import RewrittenPart, sample_text, search_text, stream_text

    if beams is not None:
        way = "samples, and --beams searches for the likeliest text; leave one of them out"
        refuse(context, "temperature top_k top_p seed", way)
    edits = read_edits(mute, hide)
    loaded = load_model(model, device)
    sampling: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    sampling |= {"max_new_tokens": max_new_tokens}

    # Without a prompt on a terminal, write from an empty text instead of waiting for one.
    for text in read_documents(prompt or []) if prompt or not _stdin_is_terminal() else [""]:
        # One text as it is: print each token as soon as it is written.
        if beams is None and n_best == 1 and not (as_json or show or edits):
            tokens = stream_text(loaded, text, seed=seed, **sampling)
            for piece in chain([text], (token.text or "" for token in tokens), ["\n"]):
                print(piece, end="", flush=True)
            continue

        # Otherwise write whole texts, by the model as it is and by the edited one.
        versions = []
        for used in _versions(edits):
            with editing(loaded, used):
                if beams is not None:
                    limits = {"max_new_tokens": max_new_tokens, "beams": beams, "n_best": n_best}
                    found = search_text(loaded, text, **limits)
                else:
                    # Each of several samples has a seed of its own.
                    found = [
                        sample_text(loaded, text, seed=seed + i, **sampling) for i in range(n_best)
                    ]
            versions.append((used, [RewrittenPart(text, found)]))
        # The prompt is printed before what continues it.
        layout: dict[str, Any] = {"show": show, "as_json": as_json, "plain": plain}
        _print_texts(loaded, text, versions, before=text, **layout)


def recall(
    model: Annotated[
        str,
        typer.Option(
            help="A folder that telescope train wrote, with one of recipes/recall-*.toml."
        ),
    ],
    name: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names in quotes, or files with a name in each line; without any, or with -, "
            "standard input."
        ),
    ] = None,
    as_json: AsJson = False,
    device: Device = "cpu",
) -> None:
    """Answer where each person was born. Takes a model that was trained with a recall recipe."""
    from ..tasks.learning.recall import answer_questions, as_question

    loaded = load_model(model, device)
    # All names before the first answer: they are answered in batches.
    questions = [as_question(line.strip()) for line in _read_lines(name or []) if line.strip()]
    for question, answer in zip(questions, answer_questions(loaded, questions), strict=True):
        if as_json:
            print_json({"question": question, "answer": answer})
        else:
            print(answer)


def _versions(edits: list[Any]) -> list[list[Any]]:
    """Return the edits with which a text is written: none and, where there are edits, those."""
    return [[], edits] if edits else [[]]


def _print_texts(
    model: Any,
    text: str,
    versions: Sequence[tuple[list[Any], Any]],
    *,
    show: bool,
    as_json: bool,
    plain: bool,
    before: str = "",
    between: str = " ",
) -> None:
    """Print what was written of one text, by the model as it is and by the edited one.

    versions  the edits, and the parts that were written with them
    before    a text that stands before what was written
    between   what stands between two parts
    """
    from ..tasks.explaining import show as output

    contents: dict[str, Any] = {}
    drawn: list[Any] = []
    for used, parts in versions:
        # The tables of --show run the model again.
        with editing(model, used if show else []):
            if as_json:
                one = output.to_dict(model, text, parts, between=between, show=show)
                # The fields of the text as it is, and those of the edited one below "edited".
                contents |= {"edited": one, "edits": [*map(str, used)]} if used else one
            else:
                own = output.draw(model, parts, before=before, between=between, show=show)
                # Labels only where two versions stand below each other.
                label = "edited" if used else "as it is"
                drawn += beside(label, own) if len(versions) > 1 else own
    print_json(contents) if as_json else print_all(drawn, plain)


# ------------------------------------------------------------------- the texts that a command reads


def read_documents(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the whole text of each argument, or of standard input where there are no arguments."""
    for argument in _arguments_or_stdin(arguments):
        with _open_argument(argument) as stream:
            yield stream.read()


def _read_lines(arguments: Sequence[str]) -> Iterator[str]:
    """Yield every line of every argument, without its line break, as soon as the line can be
    read.
    """
    for argument in _arguments_or_stdin(arguments):
        with _open_argument(argument) as stream:
            yield from (line.rstrip("\r\n") for line in stream)
        if argument == "":
            yield ""  # an empty text is one line too: each text has a line in the output


def _is_typed(arguments: Sequence[str]) -> bool:
    """Return whether a person types the lines, and waits for the answer to each."""
    return (not arguments or "-" in arguments) and _stdin_is_terminal()


def _stdin_is_terminal() -> bool:
    """Return whether standard input is a terminal. Python has None for standard input that is
    closed.
    """
    return sys.stdin is not None and sys.stdin.isatty()


def _arguments_or_stdin(arguments: Sequence[str]) -> Sequence[str | None]:
    """Return the arguments, or None alone, which stands for standard input."""
    # What was read is gone: a second "-" would be empty.
    if list(arguments).count("-") > 1:
        raise ValueError('"-" is given twice; standard input can be read once')
    return arguments or (None,)


@contextmanager
def _open_argument(argument: str | None) -> Iterator[IO[str]]:
    """Open an argument as a stream: a text, or the name of a file; `-` and None are standard
    input.
    """
    name = "standard input"
    try:
        if argument is None or argument == "-":
            yield _open_stdin(argument)  # which is not closed: it is the process's
        else:
            name = argument
            with _open_file_or_text(argument) as stream:
                yield stream
    except UnicodeDecodeError:
        raise ValueError(f"{name} is not UTF-8 text; iconv -t utf-8 makes it so") from None


def _open_stdin(argument: str | None) -> IO[str]:
    """Return standard input as UTF-8. A terminal is read only where the argument is "-"."""
    if sys.stdin is None:
        raise ValueError("standard input is closed; give a text in quotes, or a file")
    # A command without arguments must not wait for a terminal without a word.
    if _stdin_is_terminal() and argument is None:
        raise ValueError(
            'there is nothing to read; give a text in quotes, a file, or "-" for a pipe'
        )
    # utf-8-sig, as for files: Windows puts a mark before the text.
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8-sig")
    return sys.stdin


def _open_file_or_text(text: str) -> IO[str]:
    try:
        # The name of a file stands for its text; utf-8-sig as in `_open_stdin`.
        if Path(text).is_file() or Path(text).is_fifo():
            return Path(text).open(encoding="utf-8-sig")
    except PermissionError:
        raise ValueError(f"{text} cannot be read: no permission") from None
    except (OSError, ValueError):
        # Too long for a file's name, or with characters that no name has: a text.
        return StringIO(text)
    # A misspelt file would otherwise be translated as a text.
    if LIKE_A_FILE.fullmatch(text):
        raise ValueError(f'there is no file "{text}"; if that is a text, send it through a pipe')
    return StringIO(text)
