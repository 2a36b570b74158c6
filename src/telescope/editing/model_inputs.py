"""`ModelInputs`: the arguments that a model is called with, repeated for many edits."""

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

IDS = ("decoder_input_ids", "target", "input_ids", "ids")
"""The names of arguments that hold tokens, in `transformers` and in Telescope's models, those of a
decoder first.
"""


@dataclass(frozen=True)
class ModelInputs:
    """The arguments of a model, and how to repeat them."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    ids: Tensor | None
    """The token ids that the logits belong to: of a decoder, if there are two inputs."""
    has_decoder: bool = False
    """Whether the model is an encoder-decoder of transformers."""

    @classmethod
    def of(cls, model: nn.Module, inputs: Any, tokenizer: Any) -> "ModelInputs":
        """Read what `effect` is given as inputs."""
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        if isinstance(inputs, str):
            encode = getattr(tokenizer, "encode", None)
            if encode is None:
                raise ValueError(
                    "inputs is text, and the model has no tokenizer; give token ids, or tokenizer="
                )
            encoded = encode(inputs)  # a list of ids, or an Encoding of tokenizers
            inputs = torch.tensor([getattr(encoded, "ids", encoded)], device=device)
        if isinstance(inputs, Mapping):
            has_decoder = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
            return cls((), dict(inputs), _find_ids(inputs), has_decoder)
        args = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
        if any(isinstance(one, int | str) for one in args):
            raise TypeError(
                "inputs is a tensor of token ids, a tuple of arguments, a mapping of them, or a "
                "text"
            )
        ids = _find_ids(dict(zip(signature(model.forward).parameters, args, strict=False)))
        # A forward that names its arguments otherwise: the last that looks like token ids.
        for one in args if ids is None else ():
            if isinstance(one, Tensor) and one.ndim == 2 and not one.is_floating_point():
                ids = one
        return cls(args, {}, ids)

    @property
    def _tensors(self) -> list[Any]:
        return [one for one in (*self.args, *self.kwargs.values()) if one is not None]

    @property
    def batch(self) -> int:
        """The number of sequences."""
        return next((len(one) for one in self._tensors if isinstance(one, Tensor) and one.ndim), 1)

    @property
    def can_repeat(self) -> bool:
        """Whether the inputs are tensors, all of one batch size, or plain settings."""
        return all(
            isinstance(one, int | float | str)
            or (isinstance(one, Tensor) and (not one.ndim or len(one) == self.batch))
            for one in self._tensors
        )

    @property
    def longest(self) -> int:
        """The number of tokens of the longest sequence."""
        return max(
            (one.shape[1] for one in self._tensors if isinstance(one, Tensor) and one.ndim > 1),
            default=1,
        )

    def repeated(self, times: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments, each tensor as often as `times` says, one batch after the other."""

        def repeat(one: Any) -> Any:
            if not isinstance(one, Tensor) or not one.ndim or times == 1:
                return one  # a setting, or a tensor of which one copy is enough
            return one.repeat(times, *[1] * (one.ndim - 1))

        kwargs = {name: repeat(one) for name, one in self.kwargs.items()}
        return tuple(map(repeat, self.args)), kwargs

    @property
    def labels(self) -> Tensor | None:
        """What each position of an encoder-decoder should predict, if it makes its decoder's input
        of that itself.
        """
        given = self.kwargs.get("labels")
        is_source_alone = self.has_decoder and "decoder_input_ids" not in self.kwargs
        return given if isinstance(given, Tensor) and is_source_alone else None


def _find_ids(named: Mapping[str, Any]) -> Tensor | None:
    """Return the token ids among the arguments of a model, by their names; of a decoder, if there
    are two inputs.
    """
    return next((named[name] for name in IDS if isinstance(named.get(name), Tensor)), None)
