"""What a task provides to `train` and `evaluate`: what its recipe holds, how a model is trained,
and measured.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
Answer = dict[str, Any]  # a model's answer to one question and the right answers; a line of JSON


def check_fields(answers: Sequence[Answer], **types: type | tuple[type, ...]) -> None:
    """Raise a ValueError where an answer, read from a file, lacks one of these fields or has it
    with another type.
    """
    for number, answer in enumerate(answers, 1):
        for name, kind in types.items():
            value = answer.get(name)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise ValueError(
                    f'answer {number} says "{name}": {one_line(repr(value)[:80])}, which is of '
                    "another type"
                )
            if isinstance(value, list) and not all(isinstance(text, str) for text in value):
                raise ValueError(f'answer {number}: "{name}" holds something else than texts')


@dataclass(frozen=True)
class LeftOut:
    """Count the rows of the files that are not in the data, by the reason: "empty", "too long"."""

    training: Counter[str] = field(default_factory=Counter)
    validation: Counter[str] = field(default_factory=Counter)

    def counts(self) -> dict[str, int]:
        """Return all counts above zero, such as {"empty": 3, "too long in validation": 1}."""
        counts = dict(self.training) | {
            f"{reason} in validation": n for reason, n in self.validation.items()
        }
        return {reason: count for reason, count in counts.items() if count}


@dataclass(frozen=True)
class Stage:
    """One training of a model.

    better    how to choose the checkpoint to keep, by a figure of `validate`, such as "highest
              bleu"; without `validate`, the last checkpoint is kept
    left_out  counts of a `LeftOut`
    """

    settings: Training
    data: Data
    objective: Objective
    validate: Validate | None = None
    better: str = "lowest loss"
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Work:
    """A new model and its stages of training, in order, by the name of the recipe's table, such as
    "training".
    """

    model: Model
    stages: Mapping[str, Stage]


@dataclass(frozen=True)
class Task(Generic[R]):
    """A kind of recipe, and the three functions that train and measure a model by it.

    recipe   the class of the recipe
    prepare  returns the model and its stages, from the recipe, the folder of all data, and the
             tokenizer of a run that continues, or None
    answer   returns a model's answers to everything in a split
    score    returns the figures of these answers, the most important first. It takes nothing but
             the answers, so that they can be scored on another machine
    """

    recipe: type[R]
    prepare: Callable[[R, Path, Tokenizer | None], Work]
    answer: Callable[[R, Model, Path, Split], list[Answer]]
    score: Callable[[R, list[Answer]], dict[str, float]]
