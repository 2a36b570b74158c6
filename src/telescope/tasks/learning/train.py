"""`train`: train the model of a recipe, and write a folder that can be loaded, measured, and continued."""

import os
import shutil
from pathlib import Path

from ... import training
from ...files.writable import check_can_write
from ...models import Model
from ...models.saved.load import read_tokenizer
from ...text.corpus_files import data_folder
from ...training.processes import import_required
from .recipe import Recipe
from .registry import TASKS, read

RECIPE = "recipe.toml"


def override(recipe: Recipe, *, seed: int | None = None, steps: int | None = None, watch: int | None = None) -> Recipe:
    """Return the recipe with another seed, another number of steps, or statistics of every head each `watch` steps."""
    if steps is not None:
        recipe = recipe.training_with(steps=steps, epochs=None)
    given = {name: value for name, value in (("seed", seed), ("watch_every", watch)) if value is not None}
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
    out     the folder for the model, recipe.toml and checkpoints. The same call continues a run that was stopped
    data    the folder of all data; see `data_folder`
    report  called with each event of the training; see `training.train`

    Raises ValueError for a wrong recipe, missing data, and a folder that holds anything but a run of this recipe.
    """
    recipe = recipe if isinstance(recipe, Recipe) else read(recipe)
    folder = Path(out)
    check_can_write(folder / RECIPE)  # before the data is read, which may take long
    check_folder(folder, recipe)
    tokenizer_file = folder / "tokenizer.json"  # trained once: a run that continues must have the same ids
    tokenizer = read_tokenizer(tokenizer_file) if tokenizer_file.exists() else None
    work = TASKS[recipe.task].prepare(recipe, data_folder(data), tokenizer)
    if first_process():
        # A checkpoint holds the weights and two numbers of Adam for each; the next one is written before it is removed.
        size = 3 * sum(parameter.nbytes for parameter in work.model.parameters())
        check_can_write(folder / RECIPE, size=2 * size)
        folder.mkdir(parents=True, exist_ok=True)
        _write_whole(folder / RECIPE, recipe.to_toml())
        if work.model.tokenizer is not None:
            _write_whole(tokenizer_file, work.model.tokenizer.to_str(pretty=True))
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
        )
    if first_process():
        save(model, folder)
    return model


def save(model: Model, folder: Path) -> None:
    """Save a model into the folder of its run; the weights last, so that a folder with weights is complete."""
    new = folder / ".model"
    shutil.rmtree(new, ignore_errors=True)
    model.save(new)
    for name in sorted(os.listdir(new), key="model.safetensors".__eq__):
        (new / name).replace(folder / name)
    new.rmdir()


def first_process() -> bool:
    """Return whether this is the first process of torchrun or accelerate launch: only that one writes files."""
    return bool(import_required("accelerate").PartialState().is_main_process)


def check_folder(folder: Path, recipe: Recipe) -> None:
    """Raise a ValueError unless the folder is new or empty, or holds a run of this recipe.

    Only what determines the token ids is compared here; `training` compares the settings.
    """
    if not folder.is_dir() or not (names := sorted(os.listdir(folder))):
        return
    if RECIPE not in names:
        raise ValueError(f"{folder} holds {names[0]}, and no run of a recipe; choose a new folder")
    before = read(folder / RECIPE)
    for table in ("task", "data", "tokenizer"):
        if getattr(before, table, None) != getattr(recipe, table, None):
            raise ValueError(f"{folder} holds a run of {before.name} with another {table}; choose a new folder")


def _write_whole(file: Path, text: str) -> None:
    """Write a file completely or not at all."""
    new = file.with_name(f".{file.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(file)
