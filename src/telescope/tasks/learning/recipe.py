"""A recipe: everything that leads to one trained model, as a TOML file with a table for each
part.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from types import NoneType
from typing import Any, Protocol, Self, get_args, get_type_hints

import torch

from ...models import MODEL_CLASSES, Config, Model, check_at_most
from ...training import Training
from ...words import hint

MOST_BLOCKS = 4096


class RecipeTable(Protocol):
    """A table of the file, as `Config` is: immutable, and an unknown key is an error."""

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self: ...

    def to_dict(self) -> dict[str, Any]: ...


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
        counts = [
            field.name for field in fields(config) if field.name.endswith(("blocks", "layers"))
        ]
        check_at_most(config, MOST_BLOCKS, *counts)
        return cls(MODEL_CLASSES[name], config)

    def to_dict(self) -> dict[str, Any]:
        fields = asdict(self.config)
        del fields["vocabulary"]
        return {"kind": self.kind.__name__, **fields}

    def build(self, vocabulary: int, seed: int) -> Model:
        """Return a new model with random weights, the same for the same seed."""
        torch.manual_seed(seed)
        try:
            return self.kind(replace(self.config, vocabulary=vocabulary))  # type: ignore[call-arg]
        except (RuntimeError, MemoryError) as problem:
            reason = str(problem).partition("\n")[0] or "there is not enough memory"
            raise ValueError(
                f"[model]: a {self.kind.__name__} of this size cannot be built: {reason}"
            ) from None


@dataclass(frozen=True)
class Recipe:
    """The base of all recipes: the recipe class of a task has a field for each of its tables."""

    name: str
    task: str

    @classmethod
    def from_tables(cls, name: str, task: str, tables: Mapping[str, Any]) -> Self:
        """Return the recipe of a parsed file.

        A table that is left out takes its defaults, or is None where its type allows None. Raises
        ValueError for an unknown table, or a table with a wrong field.
        """
        kinds = {
            key: kind for key, kind in get_type_hints(cls).items() if key not in ("name", "task")
        }
        for key, table in tables.items():
            if key not in kinds:
                raise ValueError(f'{name}: a recipe to {task} has no "{key}"; {hint(key, kinds)}')
            if not isinstance(table, dict):
                raise ValueError(f"{name}: {key}={table!r} should be a table, [{key}]")
        read: dict[str, Any] = {}
        for key, kind in kinds.items():
            options = get_args(kind)
            if NoneType in options and key not in tables:
                read[key] = None
                continue
            try:
                read[key] = (options[0] if options else kind).from_dict(tables.get(key, {}))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{name}, [{key}]: {error}") from None
        return cls(name, task, **read)

    def training_with(self, **changes: Any) -> Self:
        """Return the recipe with other settings in each of its trainings."""
        trainings = {
            key: table for key, table in self.tables().items() if isinstance(table, Training)
        }
        others: dict[str, Any] = {
            key: replace(table, **changes) for key, table in trainings.items()
        }
        return replace(self, **others)

    def tables(self) -> dict[str, RecipeTable]:
        """Return the tables that are not None, by name."""
        tables = {
            field.name: getattr(self, field.name) for field in fields(self)[2:]
        }  # after name and task
        return {name: table for name, table in tables.items() if table is not None}

    def to_toml(self) -> str:
        """Return the recipe as TOML, with every setting that is not None, defaults included."""
        lines = [f"name = {json.dumps(self.name)}", f"task = {json.dumps(self.task)}"]
        for name, table in self.tables().items():
            lines += ["", f"[{name}]"]
            lines += [
                f"{key} = {_toml_value(value)}"
                for key, value in table.to_dict().items()
                if value is not None
            ]
        return "\n".join(lines) + "\n"


def _toml_value(value: str | bool | float) -> str:
    """Return a value as TOML, which writes strings, booleans and numbers as JSON does, except
    infinity.
    """
    return str(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
