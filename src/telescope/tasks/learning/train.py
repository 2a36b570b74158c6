"""Read a recipe (`read`), say what training it would do (`check`), and `train` its model: into a
folder that can be loaded, measured, and continued.
"""

import os
import shutil
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from tokenizers import Tokenizer

from ... import training
from ...files import LOCK, check_can_write, paths, sync_file
from ...models import Model, read_tokenizer
from ...text import Split, data_folder
from ...training import Processes, format_counts, format_duration, locked, uses_gpu
from ...words import hint, one_line
from .recall import RecallRecipe
from .recipe import PreparedModel, Recipe, TrainingStage
from .text_tasks import GenerateRecipe, SummarizeRecipe, TranslateRecipe

RECIPE = "recipe.toml"  # in the folder of a run
LARGEST = 1_000_000  # most bytes of a recipe
TASKS: dict[str, type[Recipe]] = {
    "translate": TranslateRecipe,
    "summarize": SummarizeRecipe,
    "generate": GenerateRecipe,
    "recall": RecallRecipe,
}


def read(path: str | os.PathLike[str]) -> Recipe:
    """Read a recipe from a TOML file. Without a `name`, the recipe takes the name of the file.

    Raises ValueError for a missing file, a file that is not TOML, an unknown task, and wrong tables
    or fields.
    """
    file = Path(path)
    if paths.is_missing(os.fspath(file)):
        raise ValueError(f"there is no recipe {file}{paths.suggest_name(file, '*.toml')}")
    try:
        tables = tomllib.loads(paths.read_bytes(file, at_most=LARGEST).decode("utf-8"))
    except RecursionError:
        raise ValueError(
            f"{file} is not a recipe that can be read: it is nested too deep"
        ) from None
    except ValueError as error:  # a folder or a pipe; not UTF-8, not TOML
        raise ValueError(one_line(f"{file} is not a recipe that can be read: {error}")) from None
    # All that is left after name and task are tables.
    name = tables.pop("name", file.stem)
    task = tables.pop("task", None)
    if not isinstance(task, str) or task not in TASKS:
        raise ValueError(one_line(f"{file}: there is no task={task!r}; {hint(str(task), TASKS)}"))
    if not isinstance(name, str):
        raise ValueError(one_line(f"{file}: name={name!r} is no name; a string is"))
    try:
        return TASKS[task].from_tables(name, task, tables)
    except ValueError as error:
        raise ValueError(one_line(str(error))) from None


def override(
    recipe: Recipe, *, seed: int | None = None, steps: int | None = None, watch: int | None = None
) -> Recipe:
    """Return the recipe with another seed, another number of steps, or statistics of every head
    each `watch` steps.
    """
    changes: dict[str, Any] = {}
    if steps is not None:
        # The length is given in steps or in epochs, not in both.
        changes |= {"steps": steps, "epochs": None}
    if seed is not None:
        changes["seed"] = seed
    if watch is not None:
        changes["watch_every"] = watch
    return recipe.training_with(**changes)


# ----------------------------------------------------------------------------------------- training


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
    # Before the data is read, which may take long.
    processes.in_first(lambda: check_can_write(folder / RECIPE))
    # Before a lock is put into the folder of something else.
    processes.in_first(lambda: check_folder(folder, recipe))
    with locked(folder, processes):
        prepared = _prepare(recipe, folder, data_folder(data), processes)
        model = prepared.model
        for name, stage in prepared.stages.items():
            # Each stage goes on with the model of the one before.
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


def _prepare(recipe: Recipe, folder: Path, data: Path, processes: Processes) -> PreparedModel:
    """Prepare the training in every process, and write the recipe and the tokenizer of a new run.

    The first process goes first, and the others take its tokenizer: learning one need not give the
    same pieces twice.
    """
    # Learnt once: a run that continues must have the same ids.
    tokenizer_file = folder / "tokenizer.json"
    own: list[PreparedModel] = []

    def prepare_first() -> str | None:
        # Again: another run may have ended in the folder before it was locked.
        check_folder(folder, recipe)
        tokenizer = read_tokenizer(tokenizer_file) if tokenizer_file.exists() else None
        prepared = recipe.prepare(data, tokenizer)
        own.append(prepared)
        # A checkpoint holds the weights and two numbers of Adam for each; the next one is written
        # before it is removed.
        size = 3 * sum(parameter.nbytes for parameter in prepared.model.parameters())
        check_can_write(folder / RECIPE, size=2 * size)
        _write_whole(folder / RECIPE, recipe.to_toml())
        learnt = prepared.model.tokenizer
        if learnt is None:
            return None
        _write_whole(tokenizer_file, learnt.to_str(pretty=True))
        return str(learnt.to_str())

    # The other processes are sent the tokenizer, and prepare by themselves.
    text = processes.in_first(prepare_first)
    if own:
        return own[0]
    return recipe.prepare(data, None if text is None else Tokenizer.from_str(text))


def save(model: Model, folder: Path) -> None:
    """Save a model into the folder of its run; the weights last, so that a folder with weights is
    complete.
    """
    new = folder / ".model"
    # A save that was stopped may have left this folder.
    shutil.rmtree(new, ignore_errors=True)
    model.save(new)
    # False sorts before True: the weights are moved last.
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
    # On the disk before the name changes: a crash leaves the old file or the new one.
    sync_file(new)
    new.replace(file)


def _unfinished(file: Path) -> Path:
    """Return the place where a file is written before it gets its name."""
    return file.with_name(f".{file.name}.new")


# ------------------------------------------------------------------------- what a training would do

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
TIMED = 3  # steps that are timed, after one that warms up
# Of the train extra, by `train` or `evaluate`.
NEEDED = ("accelerate", "tensorboard", "sacrebleu", "rouge_score")
WIDTH = 100  # characters of a text that is shown


def check(recipe: Recipe, *, data: str | None = None, out: str | None = None) -> Iterator[str]:
    """Yield lines that say what training this recipe would do: data, model, stages, time, and the
    folder.

    All data is read, the tokenizer trained, the model built and three steps timed. Nothing is
    written. Raises ValueError where `train` would.
    """
    folder = data_folder(data)
    yield f"{recipe.name}: {recipe.task}"
    if out is not None:
        check_can_write(Path(out) / RECIPE)
        check_folder(Path(out), recipe)
    # Show a part of each split, where the data of a task has splits.
    table: Any = recipe.tables()["data"]
    for split in SPLITS if hasattr(table, "read") else ():
        yield f"{split:<12}{_describe(table.read(folder, split))}"

    prepared = recipe.prepare(folder, None)
    model = prepared.model
    tokens = ""
    if model.tokenizer is not None:
        tokens = f", {model.tokenizer.get_vocab_size():,} tokens in the vocabulary"
    parameters = sum(parameter.numel() for parameter in model.parameters())
    yield f"{'model':<12}{type(model).__name__}, {parameters:,} parameters{tokens}"

    # Time the steps on the device of the training.
    device = torch.device("cuda" if uses_gpu() else "cpu")
    model.to(device)
    for name, stage in prepared.stages.items():
        yield f"{name:<12}{_describe_stage(stage, model, device)}"
        if stage.left_out:
            yield f"{'left out':<12}{format_counts(stage.left_out)}"

    if out is not None:
        # `check_folder` has refused a folder that holds anything but a run of this recipe.
        exists = Path(out).is_dir() and any(Path(out).iterdir())
        yield f"{'folder':<12}{out}: {'a run that will go on' if exists else 'will be made'}"
    missing = [package for package in NEEDED if find_spec(package) is None]
    if missing:
        yield f"{'missing':<12}{' and '.join(missing)}: pip install 'telescope-attention[train]'"
    yield "nothing was written; leave out --check to train"


def _describe(read: Any) -> str:
    """Return the size of a split, and a part of it."""
    if isinstance(read, str):
        return f"{len(read):,} characters: {_short(read)}"
    target = next(iter(read[0].targets), "")
    return f"{len(read):,} pairs: {_short(read[0].source)} → {_short(target)}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return f'"{line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"}"'


def _describe_stage(stage: TrainingStage, model: torch.nn.Module, device: torch.device) -> str:
    settings = stage.settings
    prepared = stage.data.to(device)
    specs = prepared.batches(settings, 0)
    # A step takes `accumulate` batches.
    per_epoch = max(1, len(specs) // settings.accumulate)
    steps = settings.steps or per_epoch * (settings.epochs or 1)

    # Time a forward and a backward pass, the mean over some batches spread over the first epoch.
    options = {"label_smoothing": settings.label_smoothing, "agreement": settings.agreement}
    model.train()
    begun = 0.0
    for number in range(TIMED + 1):
        if number == 1:  # the first one warms up
            begun = _now(device)
        spec = specs[number * (len(specs) - 1) // TIMED]
        loss: Any = stage.objective(model, prepared.take(spec), **options)
        loss.backward()
        model.zero_grad(set_to_none=True)
    seconds = (_now(device) - begun) / TIMED * settings.accumulate

    rows = f"{settings.rows:,} rows" if settings.tokens is None else f"{settings.tokens:,} tokens"
    threads = torch.get_num_threads()
    where = "this GPU"
    if device.type != "cuda":
        where = f"this CPU, {threads} thread{'s' if threads > 1 else ''}"
    return (
        f"{prepared.describe().partition(',')[0]}, {steps:,} steps of {rows}: "
        f"{steps / per_epoch:.1f} times through the data; about "
        f"{format_duration(steps * seconds)} on {where}, without validation"
    )


def _now(device: torch.device) -> float:
    # A GPU runs asynchronously: wait until all steps have finished.
    if device.type == "cuda":
        torch.cuda.synchronize()
    return perf_counter()
