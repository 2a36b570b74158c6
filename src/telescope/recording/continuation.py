"""Decide whether a call of an attention continues the call before it, as decoding token by token
does.
"""

from collections.abc import Iterator, Sequence
from functools import cache

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ..attention import Attention, include_padding_queries, real_query_masks, real_tokens, softmax
from ..surveys import Size, can_reuse_rows
from ..surveys.fused import fingerprint
from .attention_call import AttentionCall

KEYS = 2**14  # keys fingerprinted at once: each of their features takes 64 bits meanwhile


def continues(before: Attention, old: Size, call: AttentionCall) -> bool:
    """Return whether one attention over all queries computes the same as the earlier call and this
    one.

    The caller checks that the earlier keys are unchanged. Either every query of the call brings a
    key, and no earlier query sees a new key (a decoder's self-attention); or the call is one more
    query, or several more steps, over the same keys (a decoder's cross-attention).
    """
    queries, keys = call.size
    now = call.attention
    # The size of one attention that has the queries of both calls.
    whole = (old[0] + queries, keys)
    # Self-attention: each query brought a key, and earlier rows stay as they were.
    if keys == old[1] + queries:
        return call.fits(*whole) and can_reuse_rows(
            before, now, old, whole, call.queries, call.keys
        )

    # Cross-attention: more steps over the same keys, under a definition without positions.
    bare = include_padding_queries(now)
    return (
        keys == old[1]
        and (queries == 1 or call.are_steps)
        and bare == include_padding_queries(before)
        and bare.normalize is softmax
        and bare.bias is None
        and bare.mask.same_for_all_queries
        and _same_real_queries(before, now, old, whole, call)
    )


def _same_real_queries(
    before: Attention, now: Attention, old: Size, whole: Size, call: AttentionCall
) -> bool:
    """Return whether both definitions leave out the same of the earlier queries as padding."""
    # Without padding there is nothing to compare.
    if not real_query_masks(before) and not real_query_masks(now):
        return True
    batch, heads = call.queries.shape[:2]
    device = call.queries.device
    was, _ = real_tokens(before, batch=batch, heads=heads, size=old, across=True, device=device)
    # Compare what both say of the earlier queries alone.
    stays, _ = real_tokens(now, batch=batch, heads=heads, size=whole, across=True, device=device)
    return torch.equal(was, stays[:, : old[0]])


def same_bits(one: Shaped[Tensor, "..."], other: Shaped[Tensor, "..."]) -> bool:
    """Return whether two tensors are equal bit by bit; a NaN equals itself."""
    return torch.equal(_as_integers(one), _as_integers(other))


def fingerprints(
    tensor: Float[Tensor, "batch key_heads key d"], engine: str = ""
) -> Int[Tensor, "batch key_heads key"]:
    """Return a 64-bit fingerprint of each key, computed from all of its bits; in one pass where the
    engine that has surveyed the keys is a compiled one for CPUs.

    The fingerprint recognises a key whose tensor is no longer kept. Each feature is multiplied by
    an odd factor of its own, so that a change of one feature always changes the fingerprint.
    """
    integers = _as_integers(tensor)
    factors = _factors(integers.shape[-1], integers.device)
    if engine == "fused" and integers.dtype == torch.int32:
        return fingerprint(integers, factors)
    # Integer products overflow, which only drops high bits: the sum is still a fingerprint.
    if integers.shape[-2] <= KEYS:
        return (integers * factors).sum(-1)
    return torch.cat([(part * factors).sum(-1) for part in torch.split(integers, KEYS, dim=-2)], -1)


@cache
def _factors(count: int, device: torch.device) -> Int[Tensor, " count"]:
    # A fixed seed gives the same factors in every process: fingerprints can be compared.
    odd = (
        torch.randint(-(2**62), 2**62, (count,), generator=torch.Generator().manual_seed(0)) * 2 + 1
    )
    return odd.to(device)


def _as_integers(tensor: Tensor) -> Tensor:
    """View the bits of a floating-point tensor as int32, or as int16 where the last axis is no
    multiple of 32 bits.

    Not as int64: multiplied by the factors, a difference in the highest bits alone would leave few
    bits of the product. The choice depends on the width alone, so that a key has one fingerprint
    whatever its memory layout.
    """
    size = tensor.element_size()
    # Rows of an odd number of 16-bit features are no whole number of int32.
    if tensor.shape[-1] * size % 4:
        return tensor.view(torch.int16)
    # A view as int32 needs rows that are contiguous and begin at multiples of 32 bits.
    steps = (tensor.storage_offset(), *tensor.stride()[:-1])
    aligned = size == 4 or (tensor.stride(-1) == 1 and all(step * size % 4 == 0 for step in steps))
    return (tensor if aligned else tensor.clone(memory_format=torch.contiguous_format)).view(
        torch.int32
    )


ROOM = 128  # queries that wait at most; a call with more of them is surveyed at once


class WaitingRows:
    """The queries of calls that follow one another, and the keys that all of them need.

    first   the first of these calls
    known   how many of its keys belong to earlier calls
    """

    def __init__(self, first: AttentionCall, known: int) -> None:
        batch, heads, queries, width = first.queries.shape
        self.known = known
        self.evicted = first.evicted
        # Make room for all queries that may wait: a step then copies, and allocates nothing. Steps
        # that come together wait as they are.
        room = queries if first.are_steps else max(ROOM, queries)
        self.queries = first.queries.new_empty(batch, heads, room, width)
        # A view for each query, made once and not in every step.
        self.places = () if first.are_steps else torch.split(self.queries, 1, 2)
        self.count = 0
        self.rows: list[int] = []
        """Which of the waiting queries are to be kept."""
        self.ids: list[Int[Tensor, "batch query"] | None] = []
        self.last = first
        # Keys whose memory may be written to again have to be copied.
        self.copies = (
            ()
            if first.keys_stay
            else tuple(GrowingCopy(part) for part in first.identifying_tensors)
        )
        self._add_query(first)

    def has_room_for(self, call: AttentionCall) -> bool:
        """Return whether a call that follows can be added."""
        has_room = self.count + call.queries.shape[-2] <= self.queries.shape[-2]
        return has_room and call.keys_stay == self.last.keys_stay

    def add(self, call: AttentionCall) -> None:
        """Add a call that follows the last one."""
        if self.copies:
            # Only the keys since the last call are new.
            more = call.size[1] - self.last.size[1]
            for copy, part in zip(self.copies, call.identifying_tensors, strict=True):
                copy.append(part[:, :, part.shape[2] - more :])
        self.last = call
        self._add_query(call)

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these queries of the last call added."""
        first = self.count - self.last.queries.shape[-2]
        self.rows += [first + row for row in rows]

    def _add_query(self, call: AttentionCall) -> None:
        stop = self.count + call.queries.shape[-2]
        # Decoding adds one query at a time: use the view that was made before.
        if self.places and stop == self.count + 1:
            self.places[self.count].copy_(call.queries)
        else:
            self.queries[:, :, self.count : stop] = call.queries
        self.ids.append(call.query_ids)
        self.count = stop

    def as_one_call(self) -> AttentionCall:
        """Return all queries as one call over the keys of the last one, without an lse."""
        keys = self.last.keys
        values = self.last.values
        if self.copies:
            # The model may have written to its own tensors since.
            keys, *rest = (copy.tensor for copy in self.copies)
            values = rest[0] if rest else values
        return self.last._replace(
            queries=self.queries[:, :, : self.count],
            keys=keys,
            values=values,
            lse=None,
            evicted=self.evicted,
            query_ids=_joined(self.ids),
        )

    def tensors(self) -> Iterator[Tensor]:
        """Yield the memory that is held beside the model's own."""
        yield self.queries
        yield from (copy.memory for copy in self.copies)


class GrowingCopy:
    """A copy of a tensor (batch, heads, token, feature) to which the tokens of later calls are
    appended.
    """

    def __init__(self, first: Shaped[Tensor, "batch heads token feature"]) -> None:
        batch, heads, self.count, width = first.shape
        self.memory = first.new_empty(batch, heads, self.count + ROOM, width)
        self.memory[:, :, : self.count] = first

    def append(self, more: Shaped[Tensor, "batch heads token feature"]) -> None:
        self.memory[:, :, self.count : self.count + more.shape[2]] = more
        self.count += more.shape[2]

    @property
    def tensor(self) -> Float[Tensor, "batch heads token feature"]:
        return self.memory[:, :, : self.count]


def _joined(ids: Sequence[Tensor | None]) -> Int[Tensor, "batch query"] | None:
    # A gap in the ids leaves the text unknown.
    known = [part for part in ids if part is not None]
    if len(known) < len(ids):
        return None
    return known[0] if len(known) == 1 else torch.cat(known, 1)
