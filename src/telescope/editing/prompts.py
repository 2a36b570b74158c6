"""Prompts: what an attention was given to read, so that spans count from the beginning while a
model generates.

A step of generation shows one query and the keys of all tokens. Which text each sequence began
with, and where its padding ends, is remembered from the calls that read the prompt: one, or several
if it is read in chunks.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..attention import WrittenMask, first_real_key
from ..interception import RealTokens, Text
from ..recording import AttentionCall

First = tuple[int, ...] | None
"""The position of the first token of each sequence that is no padding; None if there is no padding
in front.
"""


@dataclass(eq=False)
class Prompt:
    """The sequences that an attention was given to read."""

    batch: int
    queries: int
    """How many queries the whole prompt has, as far as is known."""
    keys: int
    """How many keys the whole prompt has, as far as is known."""
    key_ids: Int[Tensor, "batch key"] | None
    query_ids: Int[Tensor, "batch query"] | None
    first: First
    """Of the keys."""
    first_query: First
    """Of the queries' own sequence."""
    signature: Float[Tensor, "batch features"] | None
    """Sums of the first keys, by which a sequence is found again among the rows of a later call;
    None of a single sequence, and where the keys were not seen.
    """
    signed: int
    """Of how many keys `signature` is."""
    means: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    """The mean context of each head, by the id of the edit that asked for it and the set of values.
    """
    ranges: dict[Any, Any] = field(default_factory=dict)
    """The spans that were found, by the edit that asked for them."""

    def grow(self, call: AttentionCall, ids: Tensor | None, announced: Tensor | None) -> None:
        """Add the queries of a call that reads more of the prompt.

        ids        the tokens of the call's queries, if known
        announced  the tokens of the whole prompt, if `generate` has said what it reads
        """
        queries, keys = call.size
        across = call.is_cross_attention
        # `generate` may announce the whole prompt; otherwise the prompt grows call by call.
        if announced is not None:
            self.queries = announced.shape[1]
            self.query_ids = announced
        else:
            self.queries += queries
            self.query_ids = _joined(self.query_ids, ids)
        # In cross-attention the keys are the source, which is read at once.
        if not across:
            self.keys = max(keys, self.queries)
            self.key_ids = self.query_ids if self.queries == self.keys else None
        # Spans were found in the shorter prompt.
        self.ranges.clear()

    def sign(self, keys: Float[Tensor, "batch key_heads room d_k"]) -> None:
        """Take the first of these keys as those of the prompt."""
        self.signature = signature_of(keys[:, :, : self.signed])

    def rows_of(self, call: AttentionCall) -> list[int] | None:
        """Return which sequence of the prompt each row of a later call continues; None if they are
        the same.

        Beams are more rows than there were sequences, and finished sequences are dropped. Raise a
        ValueError where the keys of the prompt are no longer in the cache, so that rows cannot be
        told apart.
        """
        # Of a single sequence, every row is a continuation.
        batch = len(call.keys)
        if self.batch == 1:
            return None if batch == 1 else [0] * batch
        if self.signature is None:
            raise ValueError(
                "an edit that differs between the sequences of a batch cannot follow them: "
                "compiled code has read their prompt, and its cache was not seen; pass "
                "past_key_values, or call the model as it was before torch.compile"
            )
        # A cache that has dropped the first keys leaves nothing to compare.
        if call.evicted:
            if batch == self.batch:
                return None
            raise ValueError(
                "an edit that differs between the sequences of a batch cannot follow them through "
                "a cache that drops "
                "keys; run one sequence at a time"
            )

        # Match each row with the prompt whose first keys are nearest.
        now = signature_of(call.keys[:, :, : self.signed])
        distances = torch.cdist(now, self.signature.to(now.device))
        if batch == self.batch and bool((distances.diagonal() <= distances.amin(-1)).all()):
            return None  # sequences may be equal, and still be edited in different ways
        rows: list[int] = distances.argmin(-1).tolist()
        return rows


def _joined(before: Tensor | None, more: Tensor | None) -> Tensor | None:
    return None if before is None or more is None else torch.cat([before, more], 1)


def signature_of(keys: Float[Tensor, "batch key_heads key d_k"]) -> Float[Tensor, "batch features"]:
    """Return the sums over the keys, in float64; prompts that differ have other sums."""
    # Weights that grow with the position tell apart the same keys in another order.
    weights = torch.linspace(1.0, 2.0, keys.shape[2], dtype=torch.float64, device=keys.device)
    return torch.einsum("bhkd,k->bhd", keys.detach().double(), weights).flatten(1)


@dataclass(eq=False)
class Place:
    """Where a call stands in its sequences."""

    prompt: Prompt
    reads_prompt: bool
    """Whether the call reads the prompt, or a part of it."""
    reads_all: bool
    """Whether the call reads all of the prompt."""
    positions: list[int] | None
    """In cross-attention, the position of each query in its own sequence; None if nobody asked for
    it.
    """
    real: RealTokens
    """Which tokens count of the sequence that the queries belong to."""
    _rows: tuple[list[int] | None] | None = None

    def real_queries(self, call: AttentionCall) -> Bool[Tensor, "batch 1 query 1"] | None:
        """Return which queries of the call count; None if all do."""
        batch, heads, queries = call.queries.shape[:3]
        table = self.real.table(batch, heads, call.queries.device)
        return None if table is None else table[:, None, table.shape[1] - queries :, None]

    def rows(self, call: AttentionCall) -> list[int] | None:
        """Return `Prompt.rows_of`, computed once for a call."""
        # A tuple of one, since None is a result, too.
        if self._rows is None:
            self._rows = (None if self.reads_prompt else self.prompt.rows_of(call),)
        return self._rows[0]


class PromptTracker:
    """Tell the prompt of each attention, and the positions of the queries of a cross-attention."""

    def __init__(self, text: Text) -> None:
        self.tokens = text.inputs
        self.text = text
        self._prompts: dict[str, Prompt] = {}
        # First position and number of queries of the latest self-attention.
        self._self_call: tuple[int | Tensor, int] | None = None
        # Number of the latest input, tokens before it, its length, calls since.
        self._recurrent = (-1, 0, 0, 0)

    def note(self, call: AttentionCall) -> None:
        """Note a call of any attention: a decoder's cross-attention stands at the positions of its
        self-attention.
        """
        # Show `Text` every call in order: a cross-attention has the queries of the call before.
        self.text.real_tokens(call.without_unwritten_keys())
        if not call.is_cross_attention:
            queries, keys = call.size
            mask = call.attention.mask
            # In a cache of fixed size, the text ends before the last key.
            end = mask.numbering.length if isinstance(mask, WrittenMask) else keys
            self._self_call = end - queries, queries

    def place(self, name: str, call: AttentionCall, *, with_positions: bool) -> Place:
        """Return where a call stands; to be called once for each call, after `note`.

        A call reads a prompt if it reads a sequence from the beginning, or goes on with a prompt
        that is read in chunks. A call of an attention of which no prompt was seen, since the block
        was entered later, counts as one.
        """
        across = call.is_cross_attention
        batch = len(call.keys)
        queries, keys = call.size
        known = self._prompts.get(name)
        positions = self._positions_across(call) if across and with_positions else None
        written = call.without_unwritten_keys()
        real = self.text.real_tokens(written)
        # `ends` returns None for queries that belong to the prompt.
        is_given = self.text.ends(written) is None
        if across:
            query_ids, key_ids = self.tokens.of_call(name, batch, call.size, True, beams=True)
            # A text begins at the first position, or with another source.
            restarts = positions is not None and bool(positions) and positions[0] == 0
            begins = known is None or key_ids is not None or known.keys != keys or restarts
            if (
                begins
                and key_ids is None
                and known is not None
                and (known.keys, known.batch) == (keys, batch)
            ):
                # Another text is written from the same source.
                key_ids = known.key_ids
        else:
            # A text begins where the queries are all tokens of which there are keys.
            is_written = isinstance(call.attention.mask, WrittenMask)
            begins = known is None or (queries == keys and not call.evicted and not is_written)
            query_ids = (
                self.tokens.of_call(name, batch, call.size, False)[0]
                if begins or is_given
                else None
            )
            key_ids = query_ids if queries == keys else None

        # Find where the padding in front ends, of the keys and of the queries' own sequence.
        first = self._first_real(call, real, across)
        first_query = (
            _first_of(real.table(batch, call.queries.shape[1], call.keys.device))
            if across
            else first
        )

        # Begin a prompt, or go on with one that is read in chunks.
        if known is None or begins:
            known = self._begin(call, query_ids, key_ids, first, first_query)
            self._prompts[name] = known
        elif is_given:
            known.grow(call, query_ids, self.text.prompt_ids)
            known.first = first
            known.first_query = first_query

        # Tell whether this call alone reads the prompt, by its queries in cross-attention.
        whole = keys if not across else queries
        reads_all = begins and whole == (known.queries if across else known.keys)
        return Place(known, begins or is_given, reads_all, positions, real)

    def _begin(
        self,
        call: AttentionCall,
        query_ids: Tensor | None,
        key_ids: Tensor | None,
        first: First,
        first_query: First,
    ) -> Prompt:
        """Return the prompt that a call begins; all of it where `generate` has said what it is
        about to read.
        """
        batch = len(call.keys)
        queries, keys = call.size
        # Use an announced prompt that has as many sequences as the call.
        announced = self.text.prompt_ids
        if announced is not None and len(announced) == len(call.queries):
            if call.is_cross_attention:
                query_ids = announced
                queries = announced.shape[1]
            elif announced.shape[1] >= keys:
                query_ids = key_ids = announced
                queries = keys = announced.shape[1]
        # A single sequence needs no signature: every later row continues it.
        signature = signature_of(call.keys) if batch > 1 else None
        signed = call.keys.shape[2]
        return Prompt(
            batch, queries, keys, key_ids, query_ids, first, first_query, signature, signed
        )

    def _positions_across(self, call: AttentionCall) -> list[int]:
        """Return the position of each query of a cross-attention in its own sequence.

        Beams of one source may stand side by side as queries of one sequence, each at the same
        positions.
        """
        rows = call.size[0]
        # Count the recurrent step in any case; a self-attention, if any ran, tells the position.
        first, period = self._recurrent_place(rows)
        if self._self_call is not None:
            first = int(self._self_call[0])
            period = self._self_call[1]
        return [first + row % period for row in range(rows)]

    def _recurrent_place(self, rows: int) -> tuple[int, int]:
        """Return the position of the first query, and how many belong to one beam, in a decoder of
        recurrent layers.

        Count the target tokens that were read since the source, and the calls since the latest of
        them: a decoder that feeds its output back attends once for each token.
        """
        number, before, length, calls = self._recurrent
        latest = self.tokens.latest[0] if self.tokens.latest else None
        if latest is not None and latest.number != number:
            # If numbers were skipped, a source was read in between, and another text begins.
            before = 0 if latest.number > number + 1 else before + length
            number = latest.number
            length = latest.ids.shape[1]
            calls = 0
        self._recurrent = number, before, length, calls + 1
        # With fewer rows than tokens, a decoder attends once for each token.
        return (before + calls, 1) if rows < length else (before, max(length, 1))

    def _first_real(self, call: AttentionCall, real: RealTokens, across: bool) -> First:
        """Return the first key of each sequence that is no padding; computed once for all
        layers.
        """
        key = ("first real", call.attention._identity, call.size, across)
        written = call.without_unwritten_keys()
        return call.once(key, lambda: _find_first(written, real, across), call.attention)


def _find_first(call: AttentionCall, real: RealTokens, across: bool) -> First:
    batch, heads = call.queries.shape[:2]
    device = call.queries.device
    size = call.size
    # The mask of self-attention tells the padding of its text; a source has only a mask of keys.
    if not across:
        return _first_of(real.table(batch, heads, device))
    first = first_real_key(
        call.attention, batch=batch, heads=heads, size=size, across=True, device=device
    )
    numbers = first.tolist()
    # Repeat one number for all sequences; zeros alone mean that there is no padding in front.
    return tuple(numbers * batch if len(numbers) == 1 else numbers) if any(numbers) else None


def _first_of(real: Bool[Tensor, "batch token"] | None) -> First:
    """Return the first token of each sequence that counts; of a sequence without one, the token
    after the last.
    """
    if real is None:
        return None
    # argmax finds the first True; a row without one begins after its end.
    first = torch.where(real.any(1), real.int().argmax(1), real.shape[1]).tolist()
    return tuple(first) if any(first) else None
