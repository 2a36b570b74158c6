"""`check`: say what `train` would do with a recipe, and about how long it would take, without
writing anything.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from ...files import check_can_write
from ...text.corpus_files import Split, data_folder
from ...training.processes import uses_gpu
from ...training.progress import format_counts, format_duration
from .recipe import Recipe
from .registry import TASKS
from .task import Stage
from .train import RECIPE, check_folder

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
TIMED = 3  # steps that are timed, after one that warms up
NEEDED = (
    "accelerate",
    "tensorboard",
    "sacrebleu",
    "rouge_score",
)  # of the train extra, by `train` or `evaluate`
WIDTH = 100  # characters of a text that is shown


def check(recipe: Recipe, *, data: str | None = None, out: str | None = None) -> Iterator[str]:
    """Yield lines that say what training this recipe would do: data, model, stages, time, and the
    folder.

    All data is read, the tokenizer trained, the model built and three steps timed. Nothing is
    written. Raises ValueError where `train` would.
    """
    folder = data_folder(data)
    yield f"{recipe.name}: {recipe.task}"
    table: Any = recipe.tables()["data"]
    if out is not None:
        check_can_write(Path(out) / RECIPE)
        check_folder(Path(out), recipe)
    for split in SPLITS if hasattr(table, "read") else ():
        yield f"{split:<12}{_describe(table.read(folder, split))}"
    work = TASKS[recipe.task].prepare(recipe, folder, None)
    model = work.model
    tokens = (
        ""
        if model.tokenizer is None
        else f", {model.tokenizer.get_vocab_size():,} tokens in the vocabulary"
    )
    yield (
        f"{'model':<12}{type(model).__name__}, {sum(p.numel() for p in model.parameters()):,} "
        f"parameters{tokens}"
    )
    device = torch.device("cuda" if uses_gpu() else "cpu")
    model.to(device)
    for name, stage in work.stages.items():
        yield f"{name:<12}{_describe_stage(stage, model, device)}"
        if stage.left_out:
            yield f"{'left out':<12}{format_counts(stage.left_out)}"
    if out is not None:
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
    first = read[0]
    return (
        f"{len(read):,} pairs: {_short(first.source)} → "
        f"{_short(first.targets[0] if first.targets else '')}"
    )


def _short(text: str) -> str:
    line = " ".join(text.split())
    return f'"{line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"}"'


def _describe_stage(stage: Stage, model: torch.nn.Module, device: torch.device) -> str:
    settings = stage.settings
    prepared = stage.data.to(device)
    plans = prepared.batches(settings, 0)
    each = max(1, len(plans) // settings.accumulate)  # steps of an epoch
    steps = settings.steps or each * (settings.epochs or 1)
    seconds = _seconds_of_a_step(stage, model, plans, prepared) * settings.accumulate
    size = (
        f"{settings.tokens:,} tokens" if settings.tokens is not None else f"{settings.rows:,} rows"
    )
    threads = torch.get_num_threads()
    where = (
        "this GPU"
        if device.type == "cuda"
        else f"this CPU, {threads} thread{'s' if threads > 1 else ''}"
    )
    return (
        f"{prepared.describe().partition(',')[0]}, {steps:,} steps of {size}: {steps / each:.1f} "
        "times "
        f"through the data; about {format_duration(steps * seconds)} on {where}, without validation"
    )


def _seconds_of_a_step(stage: Stage, model: torch.nn.Module, plans: Any, prepared: Any) -> float:
    """Return the time of a forward and a backward pass, the mean over some batches of the first
    epoch.
    """
    spread = [plans[i * (len(plans) - 1) // TIMED] for i in range(TIMED + 1)]
    options = {
        "label_smoothing": stage.settings.label_smoothing,
        "agreement": stage.settings.agreement,
    }
    model.train()
    begun = 0.0
    for number, plan in enumerate(spread):
        if number == 1:
            begun = _now(model)
        loss: Any = stage.objective(model, prepared.take(plan), **options)
        loss.backward()
        model.zero_grad(set_to_none=True)
    return (_now(model) - begun) / TIMED


def _now(model: torch.nn.Module) -> float:
    if next(model.parameters()).is_cuda:
        torch.cuda.synchronize()
    return perf_counter()
