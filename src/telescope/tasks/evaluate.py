"""`evaluate`: the figures of a model that was trained by a recipe, from its folder."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

import torch

from ..layers.check import one_of
from ..models import load
from ..text.corpora import Split, data_folder
from ..text.corpora.files import lines
from .known import TASKS, read
from .task import Answer
from .train import RECIPE


@dataclass(frozen=True)
class Evaluation:
    """The figures of a split, the one that counts first, and how many answers they are of."""

    recipe: str
    split: str
    answers: int
    figures: dict[str, float]


def evaluate(
    folder: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    split: str = "test",
    recipe: str | os.PathLike[str] | None = None,
) -> Evaluation:
    """Answer everything in a split, and score the answers. Both are kept in the folder, in evaluation/."""
    predict(folder, data=data, split=split, recipe=recipe)
    return score(folder, split=split, recipe=recipe)


def predict(
    folder: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    split: str = "test",
    recipe: str | os.PathLike[str] | None = None,
) -> Path:
    """The answers alone, as lines of JSON: they can be scored elsewhere. `recipe` is the folder's unless given."""
    said = read(recipe or Path(folder) / RECIPE)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load(folder, device=device, dtype=torch.float32)
    answers = TASKS[said.task].answer(said, model, data_folder(data), _split(split))
    file = _file(folder, split)
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(it, ensure_ascii=False) + "\n" for it in answers), encoding="utf-8")
    return file


def score(
    folder: str | os.PathLike[str], *, split: str = "test", recipe: str | os.PathLike[str] | None = None
) -> Evaluation:
    """The figures of answers that are there."""
    said = read(recipe or Path(folder) / RECIPE)
    answers = _answers(_file(folder, split))
    found = Evaluation(said.name, split, len(answers), TASKS[said.task].score(said, answers))
    text = json.dumps({"recipe": found.recipe, "split": split, "answers": len(answers), **found.figures}, indent=1)
    _file(folder, split).with_suffix(".json").write_text(text + "\n", encoding="utf-8")
    return found


def _split(given: str) -> Split:
    one_of("split", given, get_args(Split))
    return cast(Split, given)


def _file(folder: str | os.PathLike[str], split: str) -> Path:
    return Path(folder) / "evaluation" / f"{split}.jsonl"


def _answers(file: Path) -> list[Answer]:
    if not file.exists():
        raise ValueError(f"there is no {file} to score; telescope evaluate --predict writes it")
    try:
        return [json.loads(line) for line in lines(file)]
    except ValueError as error:
        raise ValueError(f"{file} cannot be read: {error}") from None
