"""What the name of a task in a recipe stands for: how it is learnt, and how it is measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from tokenizers import Tokenizer

from ...models import Model
from ...text.corpus_files import Split
from ...training import Data, Objective, Training
from ...training.validation import Validate
from ...words import one_line
from .recipe import Recipe

R = TypeVar("R", bound=Recipe)
Answer = dict[str, Any]  # what a model answered to one question, beside what is right; a line of JSON


def must_say(answers: Sequence[Answer], **kinds: type | tuple[type, ...]) -> None:
    """Raise a ValueError where one of the answers, which come from a file, does not say these fields."""
    for number, answer in enumerate(answers, 1):
        for name, kind in kinds.items():
            said = answer.get(name)
            if not isinstance(said, kind) or isinstance(said, bool):
                raise ValueError(
                    f'answer {number} says "{name}": {one_line(repr(said)[:80])}, which is of another type'
                )
            if isinstance(said, list) and not all(isinstance(text, str) for text in said):
                raise ValueError(f'answer {number}: "{name}" holds something else than texts')


@dataclass(frozen=True)
class Stage:
    """One training of a model; `better` is which validation is the better one, "highest bleu"; without, the last."""

    settings: Training
    data: Data
    objective: Objective
    validate: Validate | None = None
    better: str = "lowest loss"


@dataclass(frozen=True)
class Work:
    """A new model, and what it goes through, one after the other, by the name of the table that says how."""

    model: Model
    stages: Mapping[str, Stage]


@dataclass(frozen=True)
class Task(Generic[R]):
    """
    recipe   what a recipe of it holds
    prepare  what is to be done, from the recipe and the folder of all data; a tokenizer that is given is used as it is
    answer   what a model answers to everything in a split
    score    the figures of these answers, the one that counts first. It needs nothing but the answers, so that they can
             be scored elsewhere
    """

    recipe: type[R]
    prepare: Callable[[R, Path, Tokenizer | None], Work]
    answer: Callable[[R, Model, Path, Split], list[Answer]]
    score: Callable[[R, list[Answer]], dict[str, float]]
