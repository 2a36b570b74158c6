"""`evaluate`: the figures of a model that was trained by a recipe, from its folder."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import cast, get_args

import torch

from ...layers.check_sizes import one_of
from ...models import load
from ...models.saved.load import found
from ...models.shipped import by_name
from ...text.corpus_files import Split, data_folder, lines, parsed
from .registry import TASKS, read
from .task import Answer
from .train import RECIPE

Place = str | os.PathLike[str]


@dataclass(frozen=True)
class Evaluation:
    """The figures of a split, the one that counts first, and how many answers they are of."""

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
    """Answer everything in a split, and score the answers. Both are kept in `out`, FOLDER/evaluation unless given.

    Of a model that ships the name is enough; what it answers is then kept here, in evaluation/NAME.
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
    """The answers alone, as lines of JSON: they can be scored elsewhere. `recipe` is the folder's unless given."""
    said = read(recipe or found(folder) / RECIPE)
    if out is None and not Path(folder).is_dir() and by_name(folder) is None:
        raise ValueError(f"{folder} is no folder in which answers can be kept; --out says one")
    one_of("split", split, get_args(Split))
    model = load(folder, device="cuda" if torch.cuda.is_available() else "cpu", dtype=torch.float32)
    answers = TASKS[said.task].answer(said, model, data_folder(data), cast(Split, split))
    file = _file(folder, split, out)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(it, ensure_ascii=False) + "\n" for it in answers), encoding="utf-8")
    return file


def score(folder: Place, *, split: str = "test", recipe: Place | None = None, out: Place | None = None) -> Evaluation:
    """The figures of answers that are there."""
    said = read(recipe or found(folder) / RECIPE)
    file = _file(folder, split, out)
    answers = _answers(file)
    figures = Evaluation(said.name, split, len(answers), TASKS[said.task].score(said, answers))
    file.with_suffix(".json").write_text(json.dumps(asdict(figures), indent=1) + "\n", encoding="utf-8")
    return figures


def spread(runs: Sequence[Evaluation]) -> dict[str, tuple[float, float]]:
    """The mean of each figure over several runs, and its standard deviation."""
    columns = {name: [run.figures[name] for run in runs] for name in runs[0].figures}
    return {name: (mean(column), stdev(column)) for name, column in columns.items()}


def _file(folder: Place, split: str, out: Place | None) -> Path:
    """A folder here with the name of a model that ships would from then on be taken for the model."""
    if out is None:
        out = Path(folder) / "evaluation" if by_name(folder) is None else Path("evaluation") / folder
    return Path(out) / f"{split}.jsonl"


def _answers(file: Path) -> list[Answer]:
    if not file.exists():
        raise ValueError(f"there is no {file} to score; telescope evaluate --predict writes it")
    said = [parsed(line, f"{file}, line {number}") for number, line in enumerate(lines(file), 1)]
    for number, answer in enumerate(said, 1):
        if not isinstance(answer, dict):
            raise ValueError(f"{file}, line {number}: is not an object, which an answer is")
    return said
