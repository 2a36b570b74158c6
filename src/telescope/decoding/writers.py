"""The one thing that decoding asks of a model: a writer, which takes the next tokens and says what may follow them.

To make another model write, register its writer: @start.register on a function (model: Mine, prompts, room, beams).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import Mask, padding
from ..layers import Cache
from ..models import GPT, LuongCache, LuongMemory, LuongTranslator, Model, Transformer, TransformerCache
from .ready import ready

Logits = Float[Tensor, "rows vocabulary"]


Prompt = str | Sequence[int]
Prompts = Prompt | Sequence[Prompt] | Tensor


class Writer(ABC):
    """A model in the middle of some texts, one in each row, several rows to a prompt where there are beams.

    logits   what may follow the prompts: (batch, vocabulary)
    """

    model: Any
    cache: Any
    logits: Logits

    def step(self, tokens: Int[Tensor, " rows"]) -> Logits:
        """What may follow when these are written."""
        return self._after(tokens[:, None])

    def reorder(self, rows: Int[Tensor, " new_rows"], sources: Int[Tensor, " new_batch"] | None = None) -> None:
        """Row i goes on from what row rows[i] has written. `sources` are those that are left, if some are given up."""
        self._move(rows)
        if sources is not None:
            self._keep(sources)

    def _move(self, rows: Int[Tensor, " new_rows"]) -> None:
        self.cache.reorder(rows)

    def fix(self) -> list[Tensor] | None:
        """From here on all shapes stay the same: the tensors that say where a step is, or None if they cannot."""
        return None

    def _after(self, ids: Int[Tensor, "rows n"]) -> Logits:
        logits: Tensor = self.model.logits(self._hidden(ids)[:, -1:])
        return logits[:, 0]

    @abstractmethod
    def _hidden(self, ids: Int[Tensor, "rows n"]) -> Float[Tensor, "rows n d_model"]:
        """What the model makes of these, after all that is in the cache."""

    @abstractmethod
    def _keep(self, sources: Int[Tensor, " new_batch"]) -> None:
        """What is kept of the sources themselves."""


class CachedWriter(Writer):
    """Keys and values are kept of every token. Rows that go on from another row share a past with it, often most of it:
    on a CPU it is known how much, and only the rest is moved."""

    cache: Cache
    _by: Int[Tensor, "rows tokens"] | None = None  # in which row each token was written

    def fix(self) -> list[Tensor]:
        length = self.cache.fixed().length
        assert isinstance(length, Tensor)
        return [length]

    def _move(self, rows: Int[Tensor, " new_rows"]) -> None:
        if rows.device.type != "cpu" or not isinstance(self.cache.length, int):
            self.cache.reorder(rows)
            return
        here = torch.arange(self.cache.batch)[:, None]
        before = here[:, :0] if self._by is None else self._by
        by = torch.cat([before, here.expand(-1, self.cache.length - before.shape[1])], dim=1)
        self._by = by.index_select(0, rows)
        alike = int((self._by == by).all(0).long().cumprod(0).sum()) if len(rows) == len(by) else 0
        self.cache.reorder(rows, alike)


class GPTWriter(CachedWriter):
    """The prompts are padded on the left, so that all of them end in the same column."""

    cache: Cache

    def __init__(self, model: GPT, prompts: Sequence[Sequence[int]], room: int, beams: int) -> None:
        ids, pads = padded_left(prompts, model.embedding.weight.device)
        self.model = ready(model, rows=len(prompts) * beams, steps=room)
        self.cache = model.cache(len(prompts), _aligned(model, ids.shape[1] + room, ids.device), pads)
        self.logits = self._after(ids)

    def _hidden(self, ids: Int[Tensor, "rows n"]) -> Float[Tensor, "rows n d_model"]:
        hidden: Tensor = self.model.hidden(ids, cache=self.cache)
        return hidden

    def _keep(self, sources: Int[Tensor, " new_batch"]) -> None:
        """A prompt is the beginning of its rows, and was moved with them."""


def _aligned(model: GPT | Transformer, room: int, device: torch.device) -> int:
    """A GPU's kernels want whole tiles of keys, but no more than there are positions."""
    if device.type != "cuda":
        return room
    whole, most = room + -room % 64, model.longest if isinstance(model, GPT) else model.config.max_positions
    return min(whole, max(room, most)) if model.config.positions == "learned" else whole


class TransformerWriter(CachedWriter):
    """The keys and values of a source are there once, for all its rows."""

    cache: TransformerCache

    def __init__(self, model: Transformer, prompts: Sequence[Sequence[int]], room: int, beams: int) -> None:
        ids, self.lengths = padded_right(prompts, model.embedding.weight.device)
        mask = shown(self.lengths)
        self.model = ready(model, rows=len(prompts) * beams, steps=room)
        self.cache = self.model.cache(self.model.encode(ids, mask), mask, _aligned(model, room + 1, ids.device))
        self.logits = self._after(_starts(model, ids))

    def _hidden(self, ids: Int[Tensor, "rows n"]) -> Float[Tensor, "rows n d_model"]:
        hidden: Tensor = self.model.decode(ids, cache=self.cache)
        return hidden

    def _keep(self, sources: Int[Tensor, " new_batch"]) -> None:
        self.cache.memory = [
            (keys.index_select(0, sources), values.index_select(0, sources)) for keys, values in self.cache.memory
        ]
        self.lengths = None if self.lengths is None else self.lengths[sources]
        self.cache.memory_mask = shown(self.lengths)


class LuongWriter(Writer):
    """The states of a source are there once, for all its rows."""

    cache: LuongCache

    def __init__(self, model: LuongTranslator, prompts: Sequence[Sequence[int]], room: int, beams: int) -> None:
        ids, self.lengths = padded_right(prompts, model.embedding.weight.device)
        mask = shown(self.lengths)
        self.model = ready(model, rows=len(prompts) * beams, steps=room)
        self.cache = self.model.cache(self.model.encode(ids, mask), mask)
        self.logits = self._after(_starts(model, ids))

    def _hidden(self, ids: Int[Tensor, "rows n"]) -> Float[Tensor, "rows n d_model"]:
        hidden: Tensor = self.model.decode(ids, cache=self.cache)
        return hidden

    def _keep(self, sources: Int[Tensor, " new_batch"]) -> None:
        memory = self.cache.memory
        self.cache.memory = LuongMemory(
            memory.states.index_select(0, sources),
            memory.hidden.index_select(1, sources),
            memory.cell.index_select(1, sources),
        )
        self.lengths = None if self.lengths is None else self.lengths[sources]
        self.cache.memory_mask = shown(self.lengths)


def _starts(model: Model, ids: Int[Tensor, "batch n"]) -> Int[Tensor, "batch 1"]:
    return torch.full_like(ids[:, :1], must_start(model))


def must_start(model: Model) -> int:
    """The token with which a translation starts."""
    if model.special.start is None:
        raise ValueError(
            "the model does not say which token a text starts with; set model.special = ts.models.Special(start=...)"
        )
    return model.special.start


# ------------------------------------------------------------------------------------------------------- which writer


@singledispatch
def start(model: Model, prompts: Sequence[Sequence[int]], room: int, beams: int = 1) -> Writer:
    """The writer that has read these prompts, with room for so many tokens behind each."""
    must_write(model)
    raise AssertionError


def must_write(model: Model) -> None:
    """Raise a TypeError if no writer is registered for it."""
    if start.dispatch(type(model)) is start.dispatch(object):
        kinds = ", ".join(kind.__name__ for kind in start.registry if kind is not object)
        raise TypeError(f"{type(model).__name__} does not write; {kinds} do")


@start.register
def _(model: GPT, prompts: Sequence[Sequence[int]], room: int, beams: int = 1) -> Writer:
    return GPTWriter(model, prompts, room, beams)


@start.register
def _(model: Transformer, prompts: Sequence[Sequence[int]], room: int, beams: int = 1) -> Writer:
    return TransformerWriter(model, prompts, room, beams)


@start.register
def _(model: LuongTranslator, prompts: Sequence[Sequence[int]], room: int, beams: int = 1) -> Writer:
    return LuongWriter(model, prompts, room, beams)


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
