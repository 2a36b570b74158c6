"""A recipe: everything that leads to one trained model, as a TOML file with a table for each part.

The class of a recipe is its task: it says how a model is prepared, trained and measured.
"""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, Self, get_args, get_type_hints

import torch
from tokenizers import Tokenizer

from ...layers import check_choice
from ...models import MODEL_CLASSES, Config, Model, check_at_most
from ...text import Split, TextPair, group_targets, read_rows, read_running_text, split_of
from ...training import Data, Objective, Training, Validate
from ...words import hint, one_line

MOST_BLOCKS = 4096  # of each stack of a model
Answer = dict[str, Any]  # a model's answer to one question and the right answers; a line of JSON


@dataclass(frozen=True)
class TrainingStage:
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
class PreparedModel:
    """A new model and its stages of training, in order, by the name of the recipe's table, such as
    "training".
    """

    model: Model
    stages: Mapping[str, TrainingStage]


@dataclass(frozen=True)
class LeftOut:
    """Count the rows of the files that are not in the data, by the reason: "empty", "too long"."""

    training: Counter[str] = field(default_factory=Counter)
    validation: Counter[str] = field(default_factory=Counter)

    def counts(self) -> dict[str, int]:
        """Return all counts above zero, such as {"empty": 3, "too long in validation": 1}."""
        validation = {f"{reason} in validation": n for reason, n in self.validation.items()}
        return {reason: n for reason, n in {**self.training, **validation}.items() if n}


# --------------------------------------------------------------------------------------- the recipe


@dataclass(frozen=True)
class Recipe(ABC):
    """The base of all recipes: the recipe class of a task has a field for each of its tables."""

    name: str
    task: str

    @abstractmethod
    def prepare(self, data: Path, tokenizer: Tokenizer | None) -> PreparedModel:
        """Return the model and its stages of training.

        data       the folder of all data
        tokenizer  that of a run that continues; None learns a new one
        """

    @abstractmethod
    def answer(self, model: Model, data: Path, split: Split) -> list[Answer]:
        """Return a model's answers to everything in a split."""

    @abstractmethod
    def score(self, answers: list[Answer]) -> dict[str, float]:
        """Return the figures of these answers, the most important first.

        Nothing but the answers is read, so that they can be scored on another machine.
        """

    @classmethod
    def from_tables(cls, name: str, task: str, tables: Mapping[str, Any]) -> Self:
        """Return the recipe of a parsed file.

        A table that is left out takes its defaults, or is None where its type allows None. Raises
        ValueError for an unknown table, or a table with a wrong field.
        """
        hints = get_type_hints(cls)
        kinds = {part.name: hints[part.name] for part in fields(cls)[2:]}  # after name and task
        # A misspelt table must not be taken for one that was left out.
        for key, table in tables.items():
            if key not in kinds:
                raise ValueError(f'{name}: a recipe to {task} has no "{key}"; {hint(key, kinds)}')
            if not isinstance(table, dict):
                raise ValueError(f"{name}: {key}={table!r} should be a table, [{key}]")
        # A table that may be None stays None if it is left out; any other takes its defaults.
        read: dict[str, Any] = {}
        for key, kind in kinds.items():
            options = get_args(kind)  # of `Training | None`
            if NoneType in options and key not in tables:
                read[key] = None
                continue
            # What is wrong in a table is reported with the name of the table.
            try:
                read[key] = (options[0] if options else kind).from_dict(tables.get(key, {}))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{name}, [{key}]: {error}") from None
        return cls(name, task, **read)

    def training_with(self, **changes: Any) -> Self:
        """Return the recipe with other settings in each of its trainings."""
        trainings: dict[str, Any] = {
            key: replace(table, **changes)
            for key, table in self.tables().items()
            if isinstance(table, Training)
        }
        return replace(self, **trainings)

    def tables(self) -> dict[str, "Config | Shape"]:
        """Return the tables that are not None, by name."""
        tables = {part.name: getattr(self, part.name) for part in fields(self)[2:]}
        return {name: table for name, table in tables.items() if table is not None}

    def to_toml(self) -> str:
        """Return the recipe as TOML, with every setting that is not None, defaults included."""
        lines = [f"name = {json.dumps(self.name)}", f"task = {json.dumps(self.task)}"]
        for name, table in self.tables().items():
            lines += ["", f"[{name}]"]
            for key, value in table.to_dict().items():
                # TOML writes strings, booleans and numbers as JSON does, except infinity.
                is_float = isinstance(value, float)
                text = str(value) if is_float else json.dumps(value, ensure_ascii=False)
                if value is not None:
                    lines.append(f"{key} = {text}")
        return "\n".join(lines) + "\n"


def check_fields(answers: Sequence[Answer], **types: type | tuple[type, ...]) -> None:
    """Raise a ValueError where an answer, read from a file, lacks one of these fields or has it
    with another type.
    """
    for number, answer in enumerate(answers, 1):
        for name, kind in types.items():
            value = answer.get(name)
            # True is an int, but no figure of an answer.
            if not isinstance(value, kind) or isinstance(value, bool):
                shown = one_line(repr(value)[:80])
                raise ValueError(
                    f'answer {number} says "{name}": {shown}, which is of another type'
                )
            if isinstance(value, list) and not all(isinstance(text, str) for text in value):
                raise ValueError(f'answer {number}: "{name}" holds something else than texts')


# ------------------------------------------------------------------- tables that several tasks have


@dataclass(frozen=True)
class Shape:
    """The table [model]: the kind, such as "Transformer", and its config; `vocabulary` comes from
    the tokenizer.
    """

    kind: type[Model]
    config: Config

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        rest = dict(given)
        name = rest.pop("kind", None)
        if not isinstance(name, str) or name not in MODEL_CLASSES:
            raise ValueError(f"kind={name!r} is no model; {hint(str(name), MODEL_CLASSES)}")
        if "vocabulary" in rest:
            raise ValueError(
                f"vocabulary={rest['vocabulary']} is what the tokenizer says; leave it out"
            )
        config = MODEL_CLASSES[name].config_type.from_dict(rest)
        # Each block takes time to build, however small it is.
        counts = [part.name for part in fields(config) if part.name.endswith(("blocks", "layers"))]
        check_at_most(config, MOST_BLOCKS, *counts)
        return cls(MODEL_CLASSES[name], config)

    def to_dict(self) -> dict[str, Any]:
        settings = asdict(self.config)
        del settings["vocabulary"]
        return {"kind": self.kind.__name__, **settings}

    def build(self, vocabulary: int, seed: int) -> Model:
        """Return a new model with random weights, the same for the same seed."""
        # The seed counts for the weights alone; the training seeds again.
        torch.manual_seed(seed)
        try:
            return self.kind(replace(self.config, vocabulary=vocabulary))  # type: ignore[call-arg]
        except (RuntimeError, MemoryError) as problem:
            reason = str(problem).partition("\n")[0] or "there is not enough memory"
            raise ValueError(
                f"[model]: a {self.kind.__name__} of this size cannot be built: {reason}"
            ) from None


@dataclass(frozen=True)
class OwnData(Config):
    """A corpus by its name, or files of the user's own: one of `corpus` and `train` is given.

    Without a file for validation, `held_out` % of the training data are held out, by a hash of the
    source. Without a file for the test, the test is the validation.
    """

    corpus: str | None = None
    train: str | None = None  # a file; see telescope.text.data_files
    validation: str | None = None
    test: str | None = None
    held_out: int = 5  # %

    def check_source(self, corpora: Mapping[str, Any]) -> None:
        """Raise a ValueError unless one of `corpus` and `train` is given, and the corpus is
        known.
        """
        if (self.corpus is None) == (self.train is None):
            given = "both are given" if self.train is not None else "neither is given"
            raise ValueError(
                f"give one of corpus, which is {', '.join(corpora)}, or train, a file of yours; "
                f"{given}"
            )
        if self.corpus is not None:
            check_choice("corpus", self.corpus, corpora)
            # A corpus has splits of its own.
            for name in ("validation", "test"):
                file = getattr(self, name)
                if file is not None:
                    raise ValueError(
                        f'{name}="{file}" goes with train, not with corpus="{self.corpus}"'
                    )
        if not 1 <= self.held_out <= 50:
            raise ValueError(
                f"held_out={self.held_out} % of the data cannot be held out; 1 to 50 can be"
            )

    def read_pairs(
        self, data: Path, split: Split, source: str, target: str, left_out: Counter[str] | None
    ) -> list[TextPair]:
        """Return the pairs of a split, each source once with all its targets.

        left_out  counts the rows that are left out, by the reason; those of a file with two splits
                  count as training
        """
        file, shared = self._file_of(split)
        # Rows of a file with two splits are counted once, with the training.
        counted = None if shared and split != "train" else left_out
        rows = read_rows(data, file, (source, target), counted)
        if shared:
            wanted = "train" if split == "train" else "validation"
            # By a hash of the source: equal sources are never in both parts.
            rows = [row for row in rows if split_of(row[0], self.held_out) == wanted]
            if not rows:
                raise ValueError(
                    f"{file} has too few rows to hold out {self.held_out} % of them; name a file "
                    "by validation"
                )
        return group_targets([(text, other) for text, other in rows])

    def read_whole_text(
        self, data: Path, split: Split, column: str | None, left_out: Counter[str] | None
    ) -> str:
        """Return the running text of a split; held out is the end of the training text. `left_out`
        as above.
        """
        file, shared = self._file_of(split)
        counted = None if shared and split != "train" else left_out
        text = read_running_text(data, file, column, counted)
        if not shared:
            return text
        cut = len(text) - len(text) * self.held_out // 100
        return text[:cut] if split == "train" else text[cut:]

    def _file_of(self, split: Split) -> tuple[str, bool]:
        """Return the file of a split, and whether it is the training file, of which a part is held
        out.
        """
        assert self.train is not None
        if split == "train":
            return self.train, self.validation is None
        # Without a file for the test, the test is the validation.
        named = self.validation if split == "validation" else self.test or self.validation
        return named or self.train, named is None
