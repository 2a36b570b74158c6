"""`train`: train the model of a recipe, and write a folder that can be loaded, measured, and
continued.
"""

import os
import shutil
from pathlib import Path

from tokenizers import Tokenizer

from ... import training
from ...files.atomic import sync_file
from ...files.locks import LOCK
from ...files.writable import check_can_write
from ...models import Model, read_tokenizer
from ...text.corpus_files import data_folder
from ...training.loop import locked
from ...training.processes import Processes
from .recipe import Recipe
from .registry import TASKS, read
from .task import Work

RECIPE = "recipe.toml"


def override(
    recipe: Recipe, *, seed: int | None = None, steps: int | None = None, watch: int | None = None
) -> Recipe:
    """Return the recipe with another seed, another number of steps, or statistics of every head
    each `watch` steps.
    """
    if steps is not None:
        recipe = recipe.training_with(steps=steps, epochs=None)
    given = {
        name: value for name, value in (("seed", seed), ("watch_every", watch)) if value is not None
    }
    return recipe.training_with(**given)


def train(
    recipe: str | os.PathLike[str] | Recipe,
    out: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    report: training.Report | None = None,
) -> Model:
    """Train the model of a recipe, save it in the folder `out`, and return it.

    recipe  a TOML file, or a `Recipe`
    out     the folder for the model, recipe.toml and checkpoints. The same call continues a run
            that was stopped
    data    the folder of all data; see `data_folder`
    report  called with each event of the training; see `training.train`

    Raises ValueError for a wrong recipe, missing data, and a folder that holds anything but a run
    of this recipe, or in which another process trains.
    """
    recipe = recipe if isinstance(recipe, Recipe) else read(recipe)
    folder = Path(out)
    processes = Processes()
    processes.in_first(
        lambda: check_can_write(folder / RECIPE)
    )  # before the data is read, which may take long
    processes.in_first(
        lambda: check_folder(folder, recipe)
    )  # before a lock is put into the folder of something else
    with locked(folder, processes):
        work = _prepare(recipe, folder, data_folder(data), processes)
        model = work.model
        for name, stage in work.stages.items():
            model = training.train(
                model,
                stage.data,
                stage.objective,
                stage.settings,
                folder / name,
                validate=stage.validate,
                better=stage.better,
                report=report,
                left_out=stage.left_out,
            )
        processes.in_first(lambda: save(model, folder))
    return model


def _prepare(recipe: Recipe, folder: Path, data: Path, processes: Processes) -> Work:
    """Prepare the training in every process, and write the recipe and the tokenizer of a new run.

    The first process goes first, and the others take its tokenizer: learning one need not give the
    same pieces twice.
    """
    tokenizer_file = (
        folder / "tokenizer.json"
    )  # trained once: a run that continues must have the same ids
    prepare = TASKS[recipe.task].prepare
    prepared = []

    def prepare_first() -> str | None:
        check_folder(
            folder, recipe
        )  # again: another run may have ended in the folder before it was locked
        tokenizer = read_tokenizer(tokenizer_file) if tokenizer_file.exists() else None
        work = prepare(recipe, data, tokenizer)
        prepared.append(work)
        # A checkpoint holds the weights and two numbers of Adam for each; the next one is written
        # before it is removed.
        size = 3 * sum(parameter.nbytes for parameter in work.model.parameters())
        check_can_write(folder / RECIPE, size=2 * size)
        _write_whole(folder / RECIPE, recipe.to_toml())
        if work.model.tokenizer is None:
            return None
        _write_whole(tokenizer_file, work.model.tokenizer.to_str(pretty=True))
        return str(work.model.tokenizer.to_str())

    text = processes.in_first(prepare_first)
    if prepared:
        return prepared[0]
    return prepare(recipe, data, None if text is None else Tokenizer.from_str(text))


def save(model: Model, folder: Path) -> None:
    """Save a model into the folder of its run; the weights last, so that a folder with weights is
    complete.
    """
    new = folder / ".model"
    shutil.rmtree(new, ignore_errors=True)
    model.save(new)
    for name in sorted(os.listdir(new), key="model.safetensors".__eq__):
        (new / name).replace(folder / name)
    new.rmdir()


def check_folder(folder: Path, recipe: Recipe) -> None:
    """Raise a ValueError unless the folder is new or empty, or holds a run of this recipe.

    Only what determines the token ids is compared here; `training` compares the settings.
    """
    if not folder.is_dir():
        return
    # A run that was killed before it wrote its recipe leaves only these.
    names = sorted(set(os.listdir(folder)) - {LOCK, _unfinished(folder / RECIPE).name})
    if not names:
        return
    if RECIPE not in names:
        raise ValueError(f"{folder} holds {names[0]}, and no run of a recipe; choose a new folder")
    before = read(folder / RECIPE)
    for table in ("task", "data", "tokenizer"):
        if getattr(before, table, None) != getattr(recipe, table, None):
            raise ValueError(
                f"{folder} holds a run of {before.name} with another {table}; choose a new folder"
            )


def _write_whole(file: Path, text: str) -> None:
    """Write a file completely or not at all."""
    new = _unfinished(file)
    new.write_text(text, encoding="utf-8")
    sync_file(new)
    new.replace(file)


def _unfinished(file: Path) -> Path:
    """Return the place where a file is written before it gets its name."""
    return file.with_name(f".{file.name}.new")
