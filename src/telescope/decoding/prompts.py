"""What a model goes on from: text, ids, or a tensor of ids, as lists of ids that were looked at."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ..attention import Mask, padding
from ..models import Model

Prompt = str | Sequence[int]
Prompts = Prompt | Sequence[Prompt] | Tensor


def read(model: Model, prompts: Prompts, vocabulary: int, name: str = "prompt") -> list[list[int]]:
    """One list of ids for each prompt. A text needs the model's tokenizer."""
    given: Any = prompts.tolist() if isinstance(prompts, Tensor) else prompts
    one = isinstance(given, str) or (len(given) > 0 and isinstance(given[0], int))
    return [_ids(model, prompt, vocabulary, f"{name} {i}") for i, prompt in enumerate([given] if one else given)]


def _ids(model: Model, prompt: Any, vocabulary: int, name: str) -> list[int]:
    if isinstance(prompt, str):
        if model.tokenizer is None:
            raise ValueError(f"{name} is text, but the model has no tokenizer; give ids, or set model.tokenizer")
        prompt = model.tokenizer.encode(prompt).ids
    ids = prompt.tolist() if isinstance(prompt, Tensor) else prompt
    if not isinstance(ids, Sequence) or not all(type(i) is int for i in ids):
        raise TypeError(f"{name} is {type(prompt).__name__}; a prompt is text, or whole numbers, one for each token")
    if not ids:
        start = model.special.start
        way = "" if start is None else f"; this model starts a text with [{start}]"
        raise ValueError(f"{name} is empty; there must be at least one token to go on from{way}")
    for i in (min(ids), max(ids)):
        if not 0 <= i < vocabulary:
            raise ValueError(f"{name} has the id {i}; the vocabulary is 0 to {vocabulary - 1}")
    return list(ids)


def padded_left(
    prompts: Sequence[Sequence[int]], device: torch.device
) -> tuple[Int[Tensor, "batch n"], list[int] | None]:
    """The prompts as one tensor, and how many of the first tokens of each are padding, if any are."""
    longest = max(map(len, prompts))
    pads = [longest - len(ids) for ids in prompts]
    ids = torch.tensor([[0] * pad + list(ids) for pad, ids in zip(pads, prompts, strict=True)], device=device)
    return ids, pads if any(pads) else None


def padded_right(
    prompts: Sequence[Sequence[int]], device: torch.device
) -> tuple[Int[Tensor, "batch n"], Int[Tensor, " batch"] | None]:
    """The prompts as one tensor, and how many tokens of each are real, if some are not."""
    lengths = [len(ids) for ids in prompts]
    ids = torch.tensor([list(ids) + [0] * (max(lengths) - len(ids)) for ids in prompts], device=device)
    return ids, torch.tensor(lengths, device=device) if len(set(lengths)) > 1 else None


def shown(lengths: Int[Tensor, " batch"] | None) -> Mask | None:
    return None if lengths is None else padding(lengths)
