"""What is known of a family of Hugging Face's: its config, its tensors, and what becomes of them here."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ....files.errors import LoadError
from ....files.safetensors import Tensors
from ...config import Config
from ...model import Model
from ..tensor_names import TensorName, weights_of

# Fields that do not change the numbers of a model.
# fmt: off
HARMLESS = frozenset({
    # how it was trained and is fine-tuned
    "architectures", "classif_dropout", "classifier_dropout", "finetuning_task", "gradient_checkpointing", "id2label",
    "init_std", "initializer_range", "label2id", "num_labels", "pretraining_tp", "problem_type",
    "task_specific_params",
    # how text is generated
    "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "length_penalty", "max_length",
    "max_new_tokens", "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences",
    "prefix", "remove_invalid_values", "renormalize_logits", "repetition_penalty", "suppress_tokens", "temperature",
    "tokenizer_class", "top_k", "top_p", "typical_p", "use_cache",
    # how it was written, and what its calls return
    "chunk_size_feed_forward", "custom_pipelines", "dtype", "name_or_path", "output_attentions",
    "output_hidden_states", "output_past", "output_scores", "return_dict", "return_dict_in_generate",
    "tf_legacy_loss", "torch_dtype", "torchscript", "transformers_version",
})
# fmt: on


class Fields:
    """The fields of a family's config.json. One that is left out has the default that it has in transformers."""

    def __init__(self, config: Mapping[str, Any], *, file: str, family: str) -> None:
        self.file = file
        self.family = family
        self._rest = dict(config)

    def whole(self, name: str, default: int | None = None) -> int:
        value = self._take(name, default)
        if type(value) is not int or value < 1:
            raise self.wrong(name, value, "a whole number from 1 on")
        return value

    def optional(self, name: str, default: int | None = None) -> int | None:
        """A whole number, or null."""
        if self._rest.get(name, default) is not None:
            return self.whole(name, default)
        self._rest.pop(name, None)
        return None

    def number(self, name: str, default: float | None = None) -> float:
        value = self._take(name, default)
        if type(value) not in (int, float) or abs(value) > 1e300:
            raise self.wrong(name, value, "a number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._rest.pop(name, default)
        if type(value) is not bool:
            raise self.wrong(name, value, "true or false")
        return value

    def one_of(self, name: str, default: str, choices: Mapping[str, Any]) -> Any:
        """What we call their choice."""
        value = self._rest.pop(name, default)
        if not isinstance(value, str) or value not in choices:
            raise self.wrong(name, value, " or ".join(f'"{choice}"' for choice in choices))
        return choices[value]

    def inner(self, name: str) -> "Fields":
        """The fields of a field; none, if it is null."""
        value = self._rest.pop(name, None)
        if not isinstance(value, dict | None):
            raise self.wrong(name, value, "an object")
        return Fields(value or {}, file=f"{self.file}: {name}", family=self.family)

    def sequence(self, name: str) -> list[Any] | None:
        value = self._rest.pop(name, None)
        if not isinstance(value, list | None):
            raise self.wrong(name, value, "a list")
        return value

    def always(self, **values: Any) -> None:
        """Options that our models do not have, and the value at which they change nothing."""
        for name, value in values.items():
            given = self._rest.pop(name, value)
            if given is not None and given != value:
                raise self.wrong(name, given, json.dumps(value))

    def ignore(self, *names: str) -> None:
        """Fields of this family that do not change the numbers."""
        for name in names:
            self._rest.pop(name, None)

    def done(self) -> None:
        """Nothing is left that could change the numbers: an option that is off, an id, a note of some tool cannot."""
        for name, value in self._rest.items():
            off = value is None or value in (False, [], {})
            note = name.endswith("_token_id") or name.startswith(("_", "unsloth_")) or "." in name
            if not (off or note or name in HARMLESS):
                raise LoadError(
                    f"{self.file}: {name}={json.dumps(value)} is no option of {self.family} that is known here; "
                    "if it does not change the numbers, take it out of the file"
                )

    def _take(self, name: str, default: Any) -> Any:
        if name not in self._rest and default is None:
            raise LoadError(f"{self.file} does not say {name}, which {self.family} needs")
        return self._rest.pop(name, default)

    def __bool__(self) -> bool:
        return bool(self._rest)

    def wrong(self, name: str, value: Any, fits: str) -> LoadError:
        return LoadError(f"{self.file}: {name}={json.dumps(value)} is not supported for {self.family}; {fits} is")


Reader = Callable[[Fields, Tensors], Config]
Writer = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True)
class Family:
    """`read` makes our config of theirs, given the tensors that there are; `write` makes theirs of ours.

    The names of the table are those of a model with its head; the file of one without leaves the `prefix` out.
    """

    name: str  # model_type
    architecture: str
    model: type[Model]
    prefix: str
    table: Callable[[Any], list[TensorName]]
    read: Reader
    write: Writer
    unused: tuple[str, ...] = ()  # what may be in a file too: buffers that can be computed, heads that ours has not
    check: Callable[[Any, Tensors], None] = lambda config, tensors: None  # what only the numbers can tell
    weights: Callable[[Model], dict[str, Tensor]] = weights_of  # ours, in the order of features that theirs have

    def config(self, fields: Fields, there: Tensors) -> Config:
        config = self.read(fields, there)
        fields.done()
        return config


ACTIVATIONS = {  # theirs: ours
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
THEIR_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu"}


def only(config: Config, family: str, **fits: Any) -> None:
    """Refuse to export a config that this family has no field for: each of these has the value, or one of them."""
    for name, value in fits.items():
        given = getattr(config, name)
        if given not in (value if isinstance(value, tuple) else (value,)):
            raise ValueError(f"{name}={given!r} has no counterpart in {family}, so this model cannot be exported")
