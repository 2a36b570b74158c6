"""Prompts: what an attention read first, so that spans count from the beginning while a model generates.

A step of generation shows one query and the keys of all tokens. Which text each sequence began with, and where its
padding ends, is remembered from the call that read the prompt.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..attention import Attention, Pairs
from ..attention.padding_queries import RealQueries, find_padding, first_real_key
from ..attention.restrict import WrittenMask
from ..recording.attention_call import AttentionCall
from ..watch.token_inputs import TokenInputs


@dataclass(eq=False)
class Prompt:
    """The sequences that an attention read in the call that began them."""

    batch: int
    queries: int
    keys: int
    key_ids: Int[Tensor, "batch key"] | None
    query_ids: Int[Tensor, "batch query"] | None
    first: tuple[int, ...] | None
    """The position of the first key of each sequence that is no padding; None if there is no padding in front."""
    signature: Float[Tensor, "batch features"] | None
    """Sums of the keys, by which a sequence is found again among the rows of a later call."""
    means: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    """The mean context of each head, by the id of the edit that asked for it and the set of values."""
    ranges: dict[Any, Any] = field(default_factory=dict)
    """The spans that were found, by the edit that asked for them."""

    def rows_of(self, call: AttentionCall) -> list[int] | None:
        """Return which sequence of the prompt each row of a later call continues; None if they are the same.

        Beams are more rows than there were sequences, and finished sequences are dropped. Raise a ValueError where
        the keys of the prompt are no longer in the cache, so that rows cannot be told apart.
        """
        batch = len(call.keys)
        if self.batch == 1 or self.signature is None:
            return None if batch == self.batch else [0] * batch
        if call.evicted:
            if batch == self.batch:
                return None
            raise ValueError(
                "an edit that differs between the sequences of a batch cannot follow them through a cache that drops "
                "keys; run one sequence at a time"
            )
        now = signature_of(call.keys[:, :, : self.keys])
        distances = torch.cdist(now, self.signature.to(now.device))
        rows: list[int] = distances.argmin(-1).tolist()
        return None if rows == list(range(self.batch)) else rows


def signature_of(keys: Float[Tensor, "batch key_heads key d_k"]) -> Float[Tensor, "batch features"]:
    """Return the sums over the keys, in float64; prompts that differ have other sums."""
    weights = torch.linspace(1.0, 2.0, keys.shape[2], dtype=torch.float64, device=keys.device)
    return torch.einsum("bhkd,k->bhd", keys.detach().double(), weights).flatten(1)


@dataclass(eq=False)
class Place:
    """Where a call stands in its sequences."""

    prompt: Prompt
    begins: bool
    """Whether the call read the prompt."""
    positions: list[int] | None
    """In cross-attention, the position of each query in its own sequence; None if nobody asked for it."""
    _rows: tuple[list[int] | None] | None = None

    def rows(self, call: AttentionCall) -> list[int] | None:
        """Return `Prompt.rows_of`, computed once for a call."""
        if self._rows is None:
            self._rows = (None if self.begins else self.prompt.rows_of(call),)
        return self._rows[0]


class PromptTracker:
    """Tell the prompt of each attention, and the positions of the queries of a cross-attention."""

    def __init__(self, tokens: TokenInputs) -> None:
        self.tokens = tokens
        self._prompts: dict[str, Prompt] = {}
        self._first: tuple[Any, Attention, tuple[int, ...] | None] | None = None
        self._self_call: tuple[int | Tensor, int] | None = None  # first position and queries of a self-attention
        self._recurrent = (-1, 0, 0, 0)  # the latest input, the tokens before it, its length, the calls since

    def note(self, call: AttentionCall) -> None:
        """Note a call of any attention: a decoder's cross-attention stands at the positions of its self-attention."""
        if not call.is_cross_attention:
            queries, keys = call.size
            mask = call.attention.mask
            end = mask.numbering.length if isinstance(mask, WrittenMask) else keys
            self._self_call = end - queries, queries

    def place(self, name: str, call: AttentionCall, *, with_positions: bool) -> Place:
        """Return where a call stands; to be called once for each call, after `note`.

        A call reads a prompt if it reads a sequence from the beginning. A call of an attention of which no prompt was
        seen, since the block was entered later, counts as one.
        """
        across, batch, (queries, keys) = call.is_cross_attention, len(call.keys), call.size
        known = self._prompts.get(name)
        positions = self._positions_across(call) if across and with_positions else None
        if across:
            query_ids, key_ids = self.tokens.of_call(name, batch, call.size, True, beams=True)
            restarts = positions is not None and bool(positions) and positions[0] == 0
            begins = known is None or key_ids is not None or known.keys != keys or restarts
            if begins and key_ids is None and known is not None and (known.keys, known.batch) == (keys, batch):
                key_ids = known.key_ids  # another text written from the same source
        else:
            is_written = isinstance(call.attention.mask, WrittenMask)
            begins = known is None or (queries == keys and not call.evicted and not is_written)
            query_ids = self.tokens.of_call(name, batch, call.size, False)[0] if begins else None
            key_ids = query_ids if queries == keys else None
        if known is None or begins:
            first = self._first_real(call, across)
            signature = signature_of(call.keys) if batch > 1 else None
            known = self._prompts[name] = Prompt(batch, queries, keys, key_ids, query_ids, first, signature)
        return Place(known, begins, positions)

    def _positions_across(self, call: AttentionCall) -> list[int]:
        """Return the position of each query of a cross-attention in its own sequence.

        Beams of one source may stand side by side as queries of one sequence, each at the same positions.
        """
        rows = call.size[0]
        first, period = self._recurrent_place(rows)
        if self._self_call is not None:
            first, period = int(self._self_call[0]), self._self_call[1]
        return [first + row % period for row in range(rows)]

    def _recurrent_place(self, rows: int) -> tuple[int, int]:
        """Return the position of the first query, and how many belong to one beam, in a decoder of recurrent layers.

        Count the target tokens that were read since the source, and the calls since the latest of them: a decoder that
        feeds its output back attends once for each token.
        """
        number, before, length, calls = self._recurrent
        latest = self.tokens.latest[0] if self.tokens.latest else None
        if latest is not None and latest.number != number:
            before = 0 if latest.number > number + 1 else before + length  # a source was read in between, or not
            number, length, calls = latest.number, latest.ids.shape[1], 0
        self._recurrent = number, before, length, calls + 1
        return (before + calls, 1) if rows < length else (before, max(length, 1))

    def _first_real(self, call: AttentionCall, across: bool) -> tuple[int, ...] | None:
        """Return the first key of each sequence that is no padding; computed once for all layers."""
        key = (call.attention.identity, call.size, across)
        if self._first is None or self._first[0] != key:
            self._first = key, call.attention, _find_first(call.without_unwritten_keys(), across)
        return self._first[2]


def real_queries(call: AttentionCall) -> Bool[Tensor, "#batch 1 query 1"] | None:
    """Return which queries of a self-attention are no padding; None if all count."""
    if call.is_cross_attention:
        return None
    (batch, heads), device, size = call.queries.shape[:2], call.queries.device, call.size
    padding = find_padding(call.attention, batch=batch, heads=heads, size=size, device=device)
    if padding is None:
        return None
    at = Pairs.block(range(size[0]), range(0), of=size, batch=batch, heads=heads, device=device)
    return RealQueries(padding).sees(at).any(1, keepdim=True)


def _find_first(call: AttentionCall, across: bool) -> tuple[int, ...] | None:
    (batch, heads), device, size = call.queries.shape[:2], call.queries.device, call.size
    if across:
        first = first_real_key(call.attention, batch=batch, heads=heads, size=size, across=True, device=device)
    else:
        padding = find_padding(call.attention, batch=batch, heads=heads, size=size, device=device)
        if padding is None:
            return None
        at = Pairs.block(range(1), range(size[1]), of=(1, size[1]), batch=batch, heads=heads, device=device)
        first = padding.sees(at).any(1)[:, 0].int().argmax(-1)
    numbers = first.tolist()
    return tuple(numbers * batch if len(numbers) == 1 else numbers) if any(numbers) else None
