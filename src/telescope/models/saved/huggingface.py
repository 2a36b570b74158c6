"""Hugging Face's config.json: `Fields` reads it, and `Family` says how one of its model types maps
to a model of this library.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...files import LoadError, StoredTensors
from ..model import Config, Model, named_weights
from .weights import TensorName

# Fields that have no effect on the outputs of a model: how it was trained and is fine-tuned, ...
TRAINING_FIELDS = """
    architectures classif_dropout classifier_dropout finetuning_task gradient_checkpointing id2label
    init_std initializer_range label2id num_labels pretraining_tp problem_type task_specific_params
"""
# ... how text is generated, ...
GENERATION_FIELDS = """
    bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping
    encoder_no_repeat_ngram_size exponential_decay_length_penalty length_penalty max_length
    max_new_tokens min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences
    prefix remove_invalid_values renormalize_logits repetition_penalty suppress_tokens temperature
    tokenizer_class top_k top_p typical_p use_cache
"""
# ... how the file was written, and what a call returns.
OTHER_FIELDS = """
    chunk_size_feed_forward custom_pipelines dtype name_or_path output_attentions
    output_hidden_states output_past output_scores return_dict return_dict_in_generate
    tf_legacy_loss torch_dtype torchscript transformers_version
"""
IGNORED_FIELDS = frozenset((TRAINING_FIELDS + GENERATION_FIELDS + OTHER_FIELDS).split())


class Fields:
    """The fields of a config.json. Each method reads one field, checks its type and marks it as
    read.

    A field that is missing has its default in transformers, passed as `default`. Errors are
    LoadErrors.
    """

    def __init__(self, config: Mapping[str, Any], *, file: str, family: str) -> None:
        self.file = file
        self.family = family
        # What is left at the end nobody has looked at.
        self._unread = dict(config)

    def whole(self, name: str, default: int | None = None) -> int:
        """Return a whole number from 1 on."""
        value = self._take(name, default)
        # True is an int in Python, and no size.
        if type(value) is not int or value < 1:
            raise self.unsupported(name, value, "a whole number from 1 on")
        return value

    def sizes(self, table: Mapping[str, str]) -> dict[str, Any]:
        """Return whole numbers from 1 on by our names, which `table` gives for theirs."""
        return {ours: self.whole(theirs) for theirs, ours in table.items()}

    def optional_whole(self, name: str, default: int | None = None) -> int | None:
        """Return a whole number from 1 on, or None for null."""
        if self._unread.get(name, default) is not None:
            return self.whole(name, default)
        self._unread.pop(name, None)
        return None

    def number(self, name: str, default: float | None = None) -> float:
        """Return a finite number."""
        value = self._take(name, default)
        # JSON may hold 1e999, which is infinite.
        if type(value) not in (int, float) or abs(value) > 1e300:
            raise self.unsupported(name, value, "a number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = self._unread.pop(name, default)
        if type(value) is not bool:
            raise self.unsupported(name, value, "true or false")
        return value

    def one_of(self, name: str, default: str, choices: Mapping[str, Any]) -> Any:
        """Return the value of `choices` for the word in the field."""
        value = self._unread.pop(name, default)
        if not isinstance(value, str) or value not in choices:
            raise self.unsupported(name, value, " or ".join(f'"{choice}"' for choice in choices))
        return choices[value]

    def nested(self, name: str) -> "Fields":
        """Return the fields of an object in a field; no fields where it is null or missing."""
        value = self._unread.pop(name, None)
        if not isinstance(value, dict | None):
            raise self.unsupported(name, value, "an object")
        return Fields(value or {}, file=f"{self.file}: {name}", family=self.family)

    def optional_list(self, name: str) -> list[Any] | None:
        """Return a list, or None for null."""
        value = self._unread.pop(name, None)
        if not isinstance(value, list | None):
            raise self.unsupported(name, value, "a list")
        return value

    def require(self, **values: Any) -> None:
        """Raise a LoadError where a field differs from the one value that this library supports;
        null passes.
        """
        for name, value in values.items():
            # A missing field has the value that is supported: its default in transformers.
            given = self._unread.pop(name, value)
            if given is not None and given != value:
                raise self.unsupported(name, given, json.dumps(value))

    def ignore(self, *names: str) -> None:
        """Mark fields as read that have no effect on the outputs of this family."""
        for name in names:
            self._unread.pop(name, None)

    def check_all_read(self) -> None:
        """Raise a LoadError where an unread field could change the outputs.

        Options that are off, token ids and notes of other tools cannot.
        """
        for name, value in self._unread.items():
            # Options that are off, and notes, change nothing.
            off = value is None or value in (False, [], {})
            note = name.endswith("_token_id") or name.startswith(("_", "unsloth_")) or "." in name
            if not (off or note or name in IGNORED_FIELDS):
                raise LoadError(
                    f"{self.file}: {name}={json.dumps(value)} is not a known option of "
                    f"{self.family}; if it has no effect on the outputs, remove it from the file"
                )

    def _take(self, name: str, default: Any) -> Any:
        """Return a field and mark it as read; a LoadError where it is missing and has no
        default.
        """
        if name not in self._unread and default is None:
            raise LoadError(f"{self.file} has no field {name}, which {self.family} needs")
        return self._unread.pop(name, default)

    def __bool__(self) -> bool:
        """Return whether any field is unread."""
        return bool(self._unread)

    def unsupported(self, name: str, value: Any, fits: str) -> LoadError:
        """Return the error for a value that is not supported; `fits` describes the values that
        are.
        """
        return LoadError(
            f"{self.file}: {name}={json.dumps(value)} is not supported for {self.family}; {fits} is"
        )


Reader = Callable[[Fields, StoredTensors], Config]
Writer = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True)
class Family:
    """A model type of transformers and its counterpart in this library.

    name          the field model_type in config.json
    architecture  the class in transformers, with a head
    model         the class in this library
    prefix        of tensor names; files of a model without a head leave it out
    table         returns the names of the tensors, for a config of this library
    read          returns our config, from the fields of theirs and the tensors in the files
    write         returns the fields of their config, from ours
    unused        patterns of tensors that files may hold and our model does not need: computed
                  buffers, other heads
    check         checks numbers in the files, after the config is read
    weights       returns the tensors of our model with features in the order that transformers has
    """

    name: str
    architecture: str
    model: type[Model]
    prefix: str
    table: Callable[[Any], list[TensorName]]
    read: Reader
    write: Writer
    unused: tuple[str, ...] = ()
    check: Callable[[Any, StoredTensors], None] = lambda config, tensors: None
    weights: Callable[[Model], dict[str, Tensor]] = named_weights

    def config(self, fields: Fields, tensors: StoredTensors) -> Config:
        """Return our config; a LoadError where a field is left that could change the outputs."""
        # An option that `read` did not look at could change the outputs.
        config = self.read(fields, tensors)
        fields.check_all_read()
        return config


ACTIVATIONS = {  # the name in transformers: the name here
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
# Of several names in transformers the one that its own configs use.
THEIR_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu"}


def sizes_of(config: Config, table: Mapping[str, str]) -> dict[str, Any]:
    """Return fields of our config by their names, the other way round than `Fields.sizes`."""
    return {theirs: getattr(config, ours) for theirs, ours in table.items()}


def require_values(config: Config, family: str, **fits: Any) -> None:
    """Raise a ValueError where a field of our config differs from the value, or tuple of values, in
    `fits`.
    """
    for name, value in fits.items():
        given = getattr(config, name)
        # Export refuses what transformers could not compute.
        if given not in (value if isinstance(value, tuple) else (value,)):
            raise ValueError(
                f"{name}={given!r} has no counterpart in {family}, so this model cannot be exported"
            )
