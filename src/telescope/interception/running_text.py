"""The text that a model reads and writes: which of its tokens count, where its prompt ends, and
what ends it.

One rule holds for every number: a sentence in a padded batch has the numbers of the sentence alone.
This module decides which queries, keys and predictions count, for recordings, edits and effects.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..attention import Attention, Keep, Mask, Pairs, find_padding
from ..layers import told_real
from ..recording.attention_call import AttentionCall


class RealTokens(NamedTuple):
    """The tokens that count of the sequence that the queries of a call belong to."""

    mask: Mask | None
    """Sees the tokens that count; None if all do."""
    tokens: int
    """How many tokens the sequence has so far. The last query of the call is the last of them."""

    def table(
        self, batch: int, heads: int, device: torch.device
    ) -> Bool[Tensor, "batch token"] | None:
        """Return whether each token counts; None if all do."""
        if self.mask is None:
            return None
        at = Pairs.block(
            range(1),
            range(self.tokens),
            of=(1, self.tokens),
            batch=batch,
            heads=heads,
            device=device,
        )
        return self.mask.sees(at).any(1)[:, 0].expand(batch, self.tokens)


class RunningText:
    """Follow the text of one model through its forward passes.

    Padding is told by the mask of each self-attention. The queries of a cross-attention are the
    tokens of the self-attention that ran before it. Tokens are given to the model, the prompt, or
    written by it; `reading_prompt` tells which where a library says so, and else several tokens at
    once are given, and one at a time is written.
    """

    def __init__(self) -> None:
        self._latest: SelfAttentionTokens | None = None
        self._asked: tuple[int, int, torch.device, RealTokens] | None = None
        self.is_reading_prompt = False
        self.prompt_ids: Int[Tensor, "batch token"] | None = None
        """The whole prompt that is being read, maybe in several forward passes; None if it is not
        known.
        """
        self._ends: tuple[int, ...] | None = None

    @contextmanager
    def reading_prompt(
        self, ids: Int[Tensor, "batch token"] | None, ends: Sequence[int]
    ) -> Iterator[None]:
        """Take the forward passes of the block as reading one prompt; later ones write, until an id
        of `ends`.
        """
        self.is_reading_prompt = True
        self.prompt_ids = ids
        self._ends = tuple(ends)
        try:
            yield
        finally:
            self.is_reading_prompt = False
            self.prompt_ids = None

    def ends(self, call: AttentionCall) -> tuple[int, ...] | None:
        """Return the ids that end the text which the call's queries write; None if the queries
        belong to the prompt.

        To be asked after `real_tokens`.
        """
        if self.is_reading_prompt:
            return None
        queries, keys = call.size
        if call.is_cross_attention:
            known = self._latest
            same_pass = known is not None and known.sequences == (len(call.queries), queries)
            begins = queries > 1 if known is None or not same_pass else known.begins
        else:
            begins = queries == keys
        if begins or (self._ends is None and queries > 1):
            return None
        return self._ends or ()

    def real_tokens(self, call: AttentionCall) -> RealTokens:
        """Return the tokens that count of the sequence of the call's queries; to be asked for each
        call, in order.
        """
        found = self._find(call)
        batch, heads = call.queries.shape[:2]
        self._asked = batch, heads, call.queries.device, found
        return found

    def real_predictions(self, batch: int, tokens: int) -> Bool[Tensor, "batch token"] | None:
        """Return at which of the latest tokens a prediction counts; None if at all, or if that is
        not known.

        Ask after a forward pass. What a model returns belongs to the last tokens of its last
        attention.
        """
        if self._asked is None:
            return None
        sequences, heads, device, found = self._asked
        if found.mask is None or sequences != batch or found.tokens < tokens:
            return None
        table = found.table(batch, heads, device)
        return None if table is None else table[:, found.tokens - tokens :]

    def _find(self, call: AttentionCall) -> RealTokens:
        queries, keys = call.size
        batch, heads = call.queries.shape[:2]
        told = told_real()
        if told is not None and len(told) != batch:
            told = None
        if call.is_cross_attention:
            known = self._latest
            if known is not None and known.sequences == (batch, queries):
                return known.real
            if told is None:
                return RealTokens(None, queries)
            return RealTokens(Keep(told.to(call.queries.device)), told.shape[1])
        if queries == keys and not self.is_reading_prompt:
            self._ends = None  # another text, which no `generate` writes
        key = (call.attention.identity, call.size, batch, heads, None if told is None else id(told))
        if self._latest is None or self._latest.key != key:
            device = call.queries.device
            mask = find_padding(
                call.attention, batch=batch, heads=heads, size=call.size, device=device
            )
            if told is not None:
                kept = _last_tokens(told, keys, device)
                mask = kept if mask is None else mask & kept
            begins = queries == keys
            real = RealTokens(mask, keys)
            self._latest = SelfAttentionTokens(
                key, (call.attention, told), (batch, queries), begins, real
            )
        return self._latest.real


class SelfAttentionTokens(NamedTuple):
    """The tokens of the latest self-attention, found once for all layers of one definition."""

    key: Any
    kept_alive: tuple[Attention, Tensor | None]
    """So that no other object gets an identity that is part of `key`."""
    sequences: tuple[int, int]
    """Batch and queries."""
    begins: bool
    """Whether the text begins with these queries."""
    real: RealTokens


def _last_tokens(told: Bool[Tensor, "batch some"], tokens: int, device: torch.device) -> Keep:
    """Return the mask of all tokens of a text, of which `told` are the last."""
    keep = torch.ones(len(told), tokens, dtype=torch.bool, device=device)
    count = min(tokens, told.shape[1])
    keep[:, tokens - count :] = told[:, told.shape[1] - count :].to(device)
    return Keep(keep)
