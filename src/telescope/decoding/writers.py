"""Writers: the interface between decoding and models. A writer takes the next tokens and returns
the next logits.

To let `generate` and `beam` use another model, register its writer, which is called with the model,
the prompts, max_steps and beams=1: start_writer.register(MyModel, MyWriter).
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from functools import singledispatch
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from ..attention import Mask, padding
from ..files import panics_as_errors
from ..layers import Cache, StackedLinear
from ..models import GPT, LuongCache, LuongTranslator, Model, Transformer, TransformerCache

M = TypeVar("M", bound=nn.Module)

# Matrices of at least MIN_NUMBERS numbers are packed, for at least MIN_STEPS steps. The products of
# GPT-2 (124M) are then 1.6 times as fast with 8 rows, 1.5 times with 40 (two Neoverse cores),
# slower with one. Packing takes as long as 3 to 8 steps.
MIN_NUMBERS = 2**16
MIN_STEPS = 16


def inference_copy(model: M, *, rows: int, steps: int) -> M:
    """Return a copy of the model in `eval` mode, packed if that pays for so many rows and at most
    so many steps.
    """
    # One row is slower with packed matrices, and few steps do not repay packing.
    if rows == 1 or steps < MIN_STEPS or not _can_pack(model):
        return _copy_modules(model, packed=False)
    copied = _copy_modules(model, packed=True)
    W = getattr(model, "head_weight", None)
    if isinstance(W, Tensor) and W.numel() >= MIN_NUMBERS:
        # An attribute of the copy alone: the model keeps its method.
        copied.__dict__["logits"] = PackedLinear(W, getattr(model, "head_bias", None))
    return copied


def _copy_modules(module: M, *, packed: bool) -> M:
    """Return a copy of a module and its children, in `eval` mode, with the same parameters."""
    copied = copy(module)
    children = module._modules.items()
    # A shallow copy shares the dict of modules, which must be its own.
    copied.__dict__["_modules"] = {
        name: None if child is None else _copy_modules(child, packed=packed)
        for name, child in children
    }
    copied.training = False
    if packed and isinstance(module, nn.Linear) and module.weight.numel() >= MIN_NUMBERS:
        copied.__dict__["forward"] = PackedLinear(module.weight, module.bias)
        if isinstance(module, StackedLinear):
            copied.__dict__["project"] = PackedStack(module)
    return copied


class PackedLinear:
    """x Wᵀ + b with W packed once, which oneDNN would otherwise do for every product.

    W is packed at the second call: a matrix that is used twice is used often.
    """

    def __init__(
        self, weight: Float[Tensor, "d_out d_in"], bias: Float[Tensor, " d_out"] | None
    ) -> None:
        self.weight = weight
        self.bias = bias
        self.used = False
        self.packed = None

    def __call__(self, x: Float[Tensor, "*rows d_in"]) -> Float[Tensor, "*rows d_out"]:
        if self.packed is None:
            # The prompt is read with the plain product.
            if not self.used:
                self.used = True
                return linear(x, self.weight, self.bias)
            self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), None)
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return y


class PackedStack:
    """Products with some matrices of a StackedLinear, packed for each combination of names."""

    def __init__(self, stack: StackedLinear) -> None:
        self.stack = stack
        self.products: dict[tuple[str, ...], PackedLinear] = {}

    def __call__(
        self, x: Float[Tensor, "*rows d_in"], *names: str
    ) -> Float[Tensor, "*rows d_some"]:
        if names not in self.products:
            self.products[names] = PackedLinear(*self.stack.rows(*names))
        return self.products[names](x)


def _can_pack(model: nn.Module) -> bool:
    """Return whether all weights are float32 on a CPU, torch can pack, and memory suffices for a
    second copy.
    """
    weights: list[Any] = list(model.parameters())
    if any(W.device.type != "cpu" or W.dtype != torch.float32 for W in weights):
        return False
    # Private operators of torch: looked for, not assumed.
    packs = torch._C._has_mkldnn and all(
        hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise")
    )
    return packs and 2 * sum(W.nbytes for W in weights) < _free_memory()


def _free_memory() -> int:
    """Return the free memory in bytes, or a very large number where the system does not report
    it.
    """
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 2**62


Logits = Float[Tensor, "rows vocabulary"]


Ids = Sequence[Sequence[int]]  # of each prompt
Prompt = str | Sequence[int]
Prompts = Prompt | Sequence[Prompt] | Tensor


TokenIds = Int[Tensor, "rows n"]


class Writer(ABC):
    """A model with a cache of the texts in progress: one in each row; a beam search has several
    rows for each prompt.

    logits  after the prompts: (batch, vocabulary)
    """

    model: Any
    cache: Any
    logits: Logits

    # The row in which each cached token was written; None before the first `reorder`.
    _origins: Int[Tensor, "rows tokens"] | None = None

    def step(self, tokens: Int[Tensor, " rows"]) -> Logits:
        """Append a token to each row, and return the logits of the next token."""
        return self._next_logits(tokens[:, None])

    def reorder(
        self, rows: Int[Tensor, " new_rows"], sources: Int[Tensor, " new_batch"] | None = None
    ) -> None:
        """Let row i continue the text of row rows[i]; keep only the prompts with the indices
        `sources`, if given.
        """
        self._reorder_cache(rows)
        if sources is not None:
            self._keep_sources(sources)

    def fix_shapes(self) -> list[Tensor] | None:
        """Keep all shapes constant from here on, for a CUDA graph.

        Returns the tensors that hold the position of a step, or None if the writer's shapes cannot
        be constant.
        """
        if not isinstance(self.cache, Cache):
            return None
        length = self.cache.fixed().length
        assert isinstance(length, Tensor)
        return [length]

    def _next_logits(self, ids: TokenIds) -> Logits:
        # Only the last token predicts what comes next.
        logits: Tensor = self.model.logits(self._hidden(ids)[:, -1:])
        return logits[:, 0]

    @abstractmethod
    def _hidden(self, ids: TokenIds) -> Float[Tensor, "rows n d_model"]:
        """Append ids to the cache, and return the model's hidden states at these ids."""

    @abstractmethod
    def _keep_sources(self, sources: Int[Tensor, " new_batch"]) -> None:
        """Drop the encoded sources of all other prompts."""

    def _reorder_cache(self, rows: Int[Tensor, " new_rows"]) -> None:
        """Reorder the cache. Rows that continue another row often share most of their past with
        it: on a CPU only the tokens that differ are moved.
        """
        cache = self.cache
        grows = isinstance(cache, Cache) and isinstance(cache.length, int)
        if rows.device.type != "cpu" or not grows:
            cache.reorder(rows)
            return

        # Tokens written since the last call come from their own row.
        own_rows = torch.arange(cache.batch)[:, None]
        before = own_rows[:, :0] if self._origins is None else self._origins
        since = own_rows.expand(-1, cache.length - before.shape[1])
        origins = torch.cat([before, since], dim=1)
        self._origins = origins.index_select(0, rows)

        # The first tokens that no row takes from elsewhere stay where they are.
        unchanged = 0
        if len(rows) == len(origins):
            unchanged = int((self._origins == origins).all(0).long().cumprod(0).sum())
        cache.reorder(rows, unchanged)


class GPTWriter(Writer):
    """The writer of a GPT. Prompts are padded on the left, so that all of them end in the same
    column.
    """

    cache: Cache

    def __init__(self, model: GPT, prompts: Ids, max_steps: int, beams: int = 1) -> None:
        ids, pads = pad_left(prompts, model.embedding.weight.device)
        self.model = inference_copy(model, rows=len(prompts) * beams, steps=max_steps)
        # Room for the prompt and every step.
        room = _cache_size(model, ids.shape[1] + max_steps, ids.device)
        self.cache = model.cache(len(prompts), room, pads)
        self.logits = self._next_logits(ids)

    def _hidden(self, ids: TokenIds) -> Float[Tensor, "rows n d_model"]:
        hidden: Tensor = self.model.hidden(ids, cache=self.cache)
        return hidden

    def _keep_sources(self, sources: Int[Tensor, " new_batch"]) -> None:
        """Do nothing: a prompt is the beginning of its rows, and `reorder` has moved them."""


TranslatorModel = Transformer | LuongTranslator


class TranslatorWriter(Writer):
    """The writer of a Transformer or a LuongTranslator. What the encoder makes of a source is
    cached once, for all its rows.
    """

    cache: TransformerCache | LuongCache

    def __init__(
        self, model: TranslatorModel, prompts: Ids, max_steps: int, beams: int = 1
    ) -> None:
        ids, self.lengths = pad_right(prompts, model.embedding.weight.device)
        mask = padding_mask(self.lengths)
        self.model = inference_copy(model, rows=len(prompts) * beams, steps=max_steps)
        # The target begins with the start token.
        room = _cache_size(model, max_steps + 1, ids.device)
        self.cache = self.model.cache(self.model.encode(ids, mask), mask, room)
        self.logits = self._next_logits(torch.full_like(ids[:, :1], start_token(model)))

    def _hidden(self, ids: TokenIds) -> Float[Tensor, "rows n d_model"]:
        hidden: Tensor = self.model.decode(ids, cache=self.cache)
        return hidden

    def _keep_sources(self, sources: Int[Tensor, " new_batch"]) -> None:
        self.lengths = None if self.lengths is None else self.lengths[sources]
        self.cache.keep_sources(sources, padding_mask(self.lengths))


def _cache_size(model: Model, tokens: int, device: torch.device) -> int:
    """Return the cache's size for so many tokens: on a GPU a multiple of 64 for its kernels, where
    positions allow.
    """
    if device.type != "cuda":
        return tokens
    whole_tiles = tokens + -tokens % 64
    sizes = model.config.to_dict()
    if sizes.get("positions") != "learned":
        return whole_tiles
    positions = model.longest if isinstance(model, GPT) else sizes["max_positions"]
    return min(whole_tiles, max(tokens, positions))


def start_token(model: Model) -> int:
    """Return the id with which a translation starts; raise a ValueError if the model has none."""
    if model.special.start is None:
        raise ValueError(
            "the model has no start token; set model.special = ts.models.Special(start=...)"
        )
    return model.special.start


# -------------------------------------------------------------------------------- choosing a writer


@singledispatch
def start_writer(model: Model, prompts: Ids, max_steps: int, beams: int = 1) -> Writer:
    """Return a writer that has read the prompts, with a cache for `max_steps` more tokens of each
    row.
    """
    check_can_write(model)
    raise AssertionError


def check_can_write(model: Model) -> None:
    """Raise a TypeError if no writer is registered for the model."""
    if start_writer.dispatch(type(model)) is start_writer.dispatch(object):
        kinds = ", ".join(kind.__name__ for kind in start_writer.registry if kind is not object)
        raise TypeError(f"{type(model).__name__} cannot generate text; {kinds} can")


start_writer.register(GPT, GPTWriter)
start_writer.register(Transformer, TranslatorWriter)
start_writer.register(LuongTranslator, TranslatorWriter)


# ------------------------------------------------------------------------------------------ prompts


def read_prompts(
    model: Model, prompts: Prompts, vocabulary: int, name: str = "prompt"
) -> list[list[int]]:
    """Return the ids of each prompt. A text needs the model's tokenizer. Errors call a prompt
    `name`.
    """
    # One prompt or several: a text, or a list that begins with a number, is one.
    given: Any = prompts.tolist() if isinstance(prompts, Tensor) else prompts
    is_one = isinstance(given, str) or (len(given) > 0 and isinstance(given[0], int))
    several = [given] if is_one else given
    return [
        _read_prompt(model, prompt, vocabulary, f"{name} {i}") for i, prompt in enumerate(several)
    ]


def _read_prompt(model: Model, prompt: Any, vocabulary: int, name: str) -> list[int]:
    if isinstance(prompt, str):
        if model.tokenizer is None:
            raise ValueError(
                f"{name} is text, but the model has no tokenizer; give ids, or set model.tokenizer"
            )
        # The tokenizers library may panic, which is no Exception.
        with panics_as_errors(f"{name} makes the tokenizer fail"):
            prompt = model.tokenizer.encode(prompt).ids
    ids = prompt.tolist() if isinstance(prompt, Tensor) else prompt
    if not isinstance(ids, Sequence) or not all(type(i) is int for i in ids):
        raise TypeError(
            f"{name} is {type(prompt).__name__}; a prompt is text, or whole numbers, one for each "
            "token"
        )
    if not ids:
        start = model.special.start
        advice = "" if start is None else f"; this model starts a text with [{start}]"
        raise ValueError(f"{name} is empty; there must be at least one token to go on from{advice}")
    # The two ends stand for all.
    for i in (min(ids), max(ids)):
        if not 0 <= i < vocabulary:
            raise ValueError(f"{name} has the id {i}; the vocabulary is 0 to {vocabulary - 1}")
    return list(ids)


def pad_left(prompts: Ids, device: torch.device) -> tuple[Int[Tensor, "batch n"], list[int] | None]:
    """Return the prompts as one tensor, and the number of padding tokens before each; None if no
    prompt is padded.
    """
    longest = max(map(len, prompts))
    pads = [longest - len(ids) for ids in prompts]
    rows = [[0] * pad + list(ids) for pad, ids in zip(pads, prompts, strict=True)]
    return torch.tensor(rows, device=device), pads if any(pads) else None


def pad_right(
    prompts: Ids, device: torch.device
) -> tuple[Int[Tensor, "batch n"], Int[Tensor, " batch"] | None]:
    """Return the prompts as one tensor, and their lengths; None if no prompt is padded."""
    lengths = [len(ids) for ids in prompts]
    rows = [list(ids) + [0] * (max(lengths) - len(ids)) for ids in prompts]
    padded = len(set(lengths)) > 1
    return torch.tensor(rows, device=device), torch.tensor(
        lengths, device=device
    ) if padded else None


def padding_mask(lengths: Int[Tensor, " batch"] | None) -> Mask | None:
    """Return the mask that hides padding, or None if no source is padded."""
    return None if lengths is None else padding(lengths)
