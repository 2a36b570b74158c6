"""`train`: from a recipe and data to a folder with a model, which can be loaded, measured and gone on with."""

import os
import shutil
from pathlib import Path

from ... import training
from ...models import Model
from ...models.saved.load import read_tokenizer
from ...text.corpus_files import data_folder
from ...training.processes import needed
from .recipe import Recipe
from .registry import TASKS, read

RECIPE = "recipe.toml"


def changed(recipe: Recipe, *, seed: int | None = None, steps: int | None = None, watch: int | None = None) -> Recipe:
    """The same recipe with another seed, for so many steps, and with a look at the attention every `watch` steps."""
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
    """Train the model of a recipe, and save it in the folder `out`, with recipe.toml and all that is needed to go on.

    The same call goes on where an earlier one was stopped. `data` is the folder of all data; see `data_folder`.
    """
    recipe = recipe if isinstance(recipe, Recipe) else read(recipe)
    place = Path(out)
    _must_be_free(place, recipe)
    learnt = place / "tokenizer.json"  # once: a run that goes on must have the same ids
    tokenizer = read_tokenizer(learnt) if learnt.exists() else None
    work = TASKS[recipe.task].prepare(recipe, data_folder(data), tokenizer)
    if first_process():
        place.mkdir(parents=True, exist_ok=True)
        _put(place / RECIPE, recipe.to_toml())
        if work.model.tokenizer is not None:
            _put(learnt, work.model.tokenizer.to_str(pretty=True))
    model = work.model
    for name, stage in work.stages.items():
        model = training.train(
            model,
            stage.data,
            stage.objective,
            stage.settings,
            place / name,
            validate=stage.validate,
            better=stage.better,
            report=report,
        )
    if first_process():
        save(model, place)
    return model


def save(model: Model, folder: Path) -> None:
    """The model among the other things of a run; the weights come last, so that a folder that has them is whole."""
    new = folder / ".model"
    shutil.rmtree(new, ignore_errors=True)
    model.save(new)
    for name in sorted(os.listdir(new), key="model.safetensors".__eq__):
        (new / name).replace(folder / name)
    new.rmdir()


def first_process() -> bool:
    """Of those that torchrun or accelerate launch started, only the first writes."""
    return bool(needed("accelerate").PartialState().is_main_process)


def _must_be_free(folder: Path, recipe: Recipe) -> None:
    """A new folder, or one with a run of this recipe. Its settings are compared by training; here, what ids mean."""
    if not folder.is_dir() or not (there := sorted(os.listdir(folder))):
        return
    if RECIPE not in there:
        raise ValueError(f"{folder} holds {there[0]}, and no run of a recipe; choose a new folder")
    before = read(folder / RECIPE)
    for table in ("task", "data", "tokenizer"):
        if getattr(before, table, None) != getattr(recipe, table, None):
            raise ValueError(f"{folder} holds a run of {before.name} with another {table}; choose a new folder")


def _put(file: Path, text: str) -> None:
    """Whole or not at all."""
    new = file.with_name(f".{file.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(file)
