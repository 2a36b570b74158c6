"""Open a folder of files and read everything in it, as a user would."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from ..supervisor import WrongError
from .kinds import data, resume, train


def opened(call: Callable[[], Any], *allowed: type[Exception]) -> Any:
    """Return what a file holds. Only the documented error is accepted: a LoadError, or the given
    alternative.
    """
    from telescope.models import LoadError

    try:
        return call()
    except Exception as problem:
        if type(problem) not in (LoadError, *allowed):
            raise WrongError(f"{type(problem).__name__}: {problem}") from problem
        raise


def use_recording(folder: Path, dice: Random) -> None:
    import telescope as ts

    recording = opened(lambda: ts.open(folder))
    use = dice.randrange(3)
    repr(recording)
    if use == 0:
        recording.heads()
    for watched in recording.values():
        for call in watched.calls:
            if use == 1:
                call.survey()
            elif call.heads:
                call.head(call.heads[-1])
            if recording.keep == "steps" and use == 2:
                call.trace()
    if use == 2:
        ask_page(recording, dice)


def ask_page(recording: Any, dice: Random) -> None:
    """Send the first requests of the page."""
    from telescope.explorer.api import Api
    from telescope.explorer.library import Library

    library = Library({})
    run = library.add(recording, "run", "rev").name
    api = Api(library)
    must_answer(api.answer("GET", "/runs", {}))
    if library.recordings[run].views:
        what = dice.choice(["heads", "trace", "tokens", "geometry", "alignment", "map", "cells"])
        must_answer(
            api.answer(
                "GET", f"/runs/{run}/{what}", {"l": "0", "h": "0", "i": "0", "j": "0", "axis": "q"}
            )
        )


def must_answer(answer: Any) -> None:
    if answer.status not in (200, 201):
        parsed = json.loads(answer.body)["error"]["message"]
        if answer.status not in (400, 404, 405, 409, 422) or not parsed or "\n" in parsed:
            raise AssertionError(f"{answer.status}: {parsed}")


def use_atlas(folder: Path, dice: Random) -> None:
    import telescope as ts
    from telescope.explorer.api import Api
    from telescope.explorer.library import Library
    from telescope.measures import HABITS

    atlas = opened(lambda: ts.open(folder))
    repr(atlas)
    for layer, head in atlas.places[-1:]:
        atlas.statistic(layer, head, "entropy")
        for by in ("distance", "position", "class"):
            atlas.profile(layer, head, by)
        for habit in HABITS:
            atlas.evidence(layer, head, habit)
        if atlas.map_sizes():
            atlas.map(layer, head)
    if dice.random() < 0.3:
        repr(ts.compare(atlas, atlas))
        atlas.save(folder.with_name("again"))
        ts.open(folder.with_name("again"))
    library = Library({})
    name = library.atlases.add("it", atlas)
    api = Api(library)
    for where in ("/atlases", f"/atlases/{name}", f"/atlases/{name}/head"):
        must_answer(api.answer("GET", where, {"l": "0", "h": "0"}))


def use_unfinished(folder: Path, dice: Random) -> None:
    from telescope.files.errors import WriteError

    opened(lambda: resume(folder / "out"), ValueError, WriteError)


def use_texts(folder: Path, dice: Random) -> None:
    """Read a corpus: what cannot be read is skipped with a sentence, and never an error."""
    from telescope.atlases.texts import Corpus, text_at

    corpus = opened(lambda: Corpus(folder), ValueError)
    found = list(corpus)
    for text in found:
        if text.broken and ("\n" in text.broken or len(text.broken) > 2000):
            raise WrongError(f"a reason of {len(text.broken)} characters: {text.broken}")
    for text in found[-1:]:
        text_at(text.source, text.line)
    if not any(text.text for text in found):
        raise ValueError("no text could be read")


def use_tokenizer(folder: Path, dice: Random) -> None:
    """Load a tokenizer, and encode a text that is not short."""
    from telescope.atlases.texts import encoder_of
    from telescope.models.saved.tokenizer_file import read_tokenizer

    tokenizer = opened(lambda: read_tokenizer(folder / "tokenizer.json"))
    encode = encoder_of(tokenizer)
    text = dice.choice(["What is this?", "a" * 300, "What a word, what a world: é 日本 " * 50])
    try:
        ids = encode(text)
    except Exception as problem:  # an unknown character: callers expect whatever the library raises
        raise ValueError(str(problem).partition("\n")[0][:1000] or "?") from None
    tokenizer.decode(ids[:1000])


def use_checkpoint(folder: Path, dice: Random) -> None:
    from telescope.files.errors import WriteError
    from telescope.training import TrainingError

    opened(lambda: train(folder), TrainingError, WriteError)


def use_model(folder: Path, dice: Random) -> None:
    import torch

    import telescope as ts
    from telescope.models import GPT, Encoder
    from telescope.tasks.writing import encode_text

    model = opened(
        lambda: ts.load(folder, dtype=torch.float32)
    )  # as commands do: a file may hold several dtypes
    if isinstance(model, GPT | Encoder):
        with torch.no_grad():
            model(torch.tensor([[0, 1, 2]]))
    if model.tokenizer is not None:
        model.tokenizer.decode(encode_text(model, "What is this?"))


def use_recipe(folder: Path, dice: Random) -> None:
    """Read a recipe, and sometimes prepare its model and its first batches, on the small data of
    the tests.
    """
    from dataclasses import replace

    from support.recipes import small
    from telescope.tasks.learning.train import read

    recipe = opened(lambda: read(folder / "recipe.toml"), ValueError)
    read_again = folder / "again.toml"
    read_again.write_text(recipe.to_toml())
    assert replace(read(read_again), name=recipe.name) == recipe
    if dice.random() < 0.1 and recipe.task != "recall":
        recipe = small(recipe)  # its model and its steps; the rest comes from the file
        stage = recipe.prepare(data(), None).stages["training"]
        stage.data.batches(stage.settings, 0)


def use_corpus(folder: Path, dice: Random) -> None:
    from telescope.text.corpora import SUMMARIES, TEXTS, TRANSLATIONS

    of = {
        "multi30k": ["multi30k", "multi30k-tokens"],
        "tatoeba_de_en": ["tatoeba"],
        "debian_ddtp_en_de": ["debian-descriptions"],
        "debian_synopsis": ["debian-synopsis"],
        "samsum": ["samsum"],
        "tiny_shakespeare": ["tiny-shakespeare"],
        "wikitext2": ["wikitext2"],
    }
    for there in sorted(os.listdir(folder)):
        for name in of.get(there, ()):
            for split in ("train", "validation", "test"):
                languages = ("en", "de") if name in TRANSLATIONS else ()
                read: Any = (TRANSLATIONS | SUMMARIES | TEXTS)[name]
                opened(
                    lambda read=read, split=split, languages=languages: read(
                        folder, split, *languages
                    ),
                    ValueError,
                )


def use_own(folder: Path, dice: Random) -> None:
    from telescope.text.data_files import column_names, read_rows, read_running_text

    for name in sorted(os.listdir(folder)):
        file = str(folder / name)
        opened(lambda file=file: column_names(folder, file), ValueError)
        if name.startswith("pairs"):
            opened(lambda file=file: read_rows(folder, file, ("english", "german")), ValueError)
        column = "english" if name.startswith("pairs") else None
        opened(lambda file=file, column=column: read_running_text(folder, file, column), ValueError)


def use_answers(folder: Path, dice: Random) -> None:
    from telescope.tasks.learning.evaluate import score

    opened(lambda: score(folder), ValueError)
