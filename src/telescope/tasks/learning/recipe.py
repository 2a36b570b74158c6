"""A recipe: one result, as a TOML file with a table for everything that it is made of."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from types import NoneType
from typing import Any, Protocol, Self, get_args, get_type_hints

import torch

from ...models import Config, Model
from ...models import config as fits
from ...models.model import KINDS
from ...training import Training
from ...words import hint

MOST_BLOCKS = 4096


class RecipeTable(Protocol):
    """A table of the file: frozen, and a key that it does not know is an error. `Config` is one."""

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self: ...

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Shape:
    """[model]: its kind, "Transformer" for one, and its config but for the vocabulary, which the tokenizer says."""

    kind: type[Model]
    config: Config

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        rest = dict(given)
        name = rest.pop("kind", None)
        if not isinstance(name, str) or name not in KINDS:
            raise ValueError(f"kind={name!r} is no model; {hint(str(name), KINDS)}")
        if "vocabulary" in rest:
            raise ValueError(f"vocabulary={rest['vocabulary']} is what the tokenizer says; leave it out")
        config = KINDS[name].config_type.from_dict(rest)
        counts = [field.name for field in fields(config) if field.name.endswith(("blocks", "layers"))]
        fits.at_most(config, MOST_BLOCKS, *counts)
        return cls(KINDS[name], config)

    def to_dict(self) -> dict[str, Any]:
        fields = asdict(self.config)
        del fields["vocabulary"]
        return {"kind": self.kind.__name__, **fields}

    def build(self, vocabulary: int, seed: int) -> Model:
        """A new model, the same for the same seed."""
        torch.manual_seed(seed)
        try:
            return self.kind(replace(self.config, vocabulary=vocabulary))  # type: ignore[call-arg]
        except (RuntimeError, MemoryError) as problem:
            reason = str(problem).partition("\n")[0] or "there is not enough memory"
            raise ValueError(f"[model]: a {self.kind.__name__} of this size cannot be built: {reason}") from None


@dataclass(frozen=True)
class Recipe:
    """The base of all recipes: that of a task has a field for each of its tables."""

    name: str
    task: str

    @classmethod
    def from_tables(cls, name: str, task: str, tables: Mapping[str, Any]) -> Self:
        """A table that is left out has its defaults, if they are enough; one that may be None is then None."""
        kinds = {key: kind for key, kind in get_type_hints(cls).items() if key not in ("name", "task")}
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
        """The same with other settings, in each of its trainings."""
        trainings = {key: table for key, table in self.tables().items() if isinstance(table, Training)}
        others: dict[str, Any] = {key: replace(table, **changes) for key, table in trainings.items()}
        return replace(self, **others)

    def tables(self) -> dict[str, RecipeTable]:
        there = {field.name: getattr(self, field.name) for field in fields(self)[2:]}
        return {name: table for name, table in there.items() if table is not None}

    def to_toml(self) -> str:
        """Every setting, also those that were left out; what is None is left out."""
        lines = [f"name = {json.dumps(self.name)}", f"task = {json.dumps(self.task)}"]
        for name, table in self.tables().items():
            lines += ["", f"[{name}]"]
            lines += [f"{key} = {_toml(value)}" for key, value in table.to_dict().items() if value is not None]
        return "\n".join(lines) + "\n"


def _toml(value: str | bool | float) -> str:
    """Texts, truths and numbers of TOML are those of JSON, but for infinity."""
    return str(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
