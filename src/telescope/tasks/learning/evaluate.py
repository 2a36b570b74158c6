"""`evaluate`: measure a model that was trained by a recipe, from its folder."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import cast, get_args

import torch

from ...files import atomic_file, check_can_write
from ...layers import check_choice
from ...models import find_model, find_shipped, load
from ...text import Split, data_folder, parse_json, read_lines
from .recipe import Answer
from .train import RECIPE, read

Place = str | os.PathLike[str]


@dataclass(frozen=True)
class Evaluation:
    """The figures of a split, the most important first, and the number of answers they are computed
    from.
    """

    recipe: str
    split: str
    answers: int
    figures: dict[str, float]


def evaluate(
    folder: Place,
    *,
    data: Place | None = None,
    split: str = "test",
    recipe: Place | None = None,
    out: Place | None = None,
) -> Evaluation:
    """Let a model answer everything in a split, and return the figures of its answers.

    folder  what `train` wrote, or the name of a shipped model
    data    the folder of all data; see `data_folder`
    split   "test" or "validation"
    recipe  the recipe to measure by, unless given the folder's own
    out     where answers (SPLIT.jsonl) and figures (SPLIT.json) are written, FOLDER/evaluation
            unless given; for a shipped model, evaluation/NAME in the working directory

    Raises ValueError for a folder, recipe or split that does not exist.
    """
    predict(folder, data=data, split=split, recipe=recipe, out=out)
    return score(folder, split=split, recipe=recipe, out=out)


def predict(
    folder: Place,
    *,
    data: Place | None = None,
    split: str = "test",
    recipe: Place | None = None,
    out: Place | None = None,
) -> Path:
    """Write a model's answers as lines of JSON, to be scored later by `score`, and return the file.

    The arguments are those of `evaluate`.
    """
    # Everything that can be wrong is checked before the model runs.
    settings = read(recipe or find_model(folder) / RECIPE)
    if out is None and not Path(folder).is_dir() and find_shipped(folder) is None:
        raise ValueError(f"{folder} is no folder in which answers can be kept; --out names one")
    check_choice("split", split, get_args(Split))
    file = _file(folder, split, out)
    check_can_write(file)  # before the model runs, which may take long
    # In float32, whatever the file holds, so that figures do not depend on the machine.
    model = load(folder, device="cuda" if torch.cuda.is_available() else "cpu", dtype=torch.float32)
    answers = settings.answer(model, data_folder(data), cast(Split, split))
    # Make the folder only when there are answers to write.
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers)
    # Answers are kept: they can be scored again, elsewhere and by other metrics.
    with atomic_file(file) as new:
        new.write_text(lines, encoding="utf-8")
    return file


def score(
    folder: Place, *, split: str = "test", recipe: Place | None = None, out: Place | None = None
) -> Evaluation:
    """Return the figures of the answers that `predict` wrote, and write them next to the
    answers.
    """
    settings = read(recipe or find_model(folder) / RECIPE)
    file = _file(folder, split, out)
    # Only the file counts, which may have been written on another machine.
    answers = _read_answers(file)
    evaluation = Evaluation(settings.name, split, len(answers), settings.score(answers))
    with atomic_file(file.with_suffix(".json")) as new:
        new.write_text(json.dumps(asdict(evaluation), indent=1) + "\n", encoding="utf-8")
    return evaluation


def spread(runs: Sequence[Evaluation]) -> dict[str, tuple[float, float]]:
    """Return the mean and the standard deviation of each figure over several runs."""
    # Runs of one recipe have the same figures.
    columns = {name: [run.figures[name] for run in runs] for name in runs[0].figures}
    return {name: (mean(column), stdev(column)) for name, column in columns.items()}


def _file(folder: Place, split: str, out: Place | None) -> Path:
    """Return the file for a split's answers.

    The answers of a shipped model are not in a folder NAME: `load` would take such a folder for the
    model.
    """
    if out is None:
        is_shipped = find_shipped(folder) is not None
        out = Path("evaluation") / folder if is_shipped else Path(folder) / "evaluation"
    return Path(out) / f"{split}.jsonl"


def _read_answers(file: Path) -> list[Answer]:
    if not file.exists():
        raise ValueError(f"there is no {file} to score; telescope evaluate --predict writes it")
    answers = []
    for number, line in enumerate(read_lines(file), 1):
        where = f"{file}, line {number}"
        # A line that is no answer is reported by its number.
        answer = parse_json(line, where)
        if not isinstance(answer, dict):
            raise ValueError(f"{where}: is not an object, as an answer should be")
        answers.append(answer)
    return answers
