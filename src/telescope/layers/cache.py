"""Key-value caches for decoding. The caller owns a cache and passes it to the model; layers store
no state.

cache = model.cache(batch=2, room=256)
logits = model(prompt, cache=cache)            # prompt: (2, n) tokens, read at once
logits = model(token, cache=cache)             # token: (2, 1), one more for each sequence
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ..attention import Attention, Mask, Rotation, identity_key, padding, restrict_to_written_keys
from .attend import Positions


@dataclass(frozen=True, eq=False)
class CachePosition:
    """The cache slots and the positions of the tokens of one call, computed once for all layers.

    Attributes:
        start: the slot of the first token, which is the number of keys before it; for a cache of
            fixed shape, a tensor (n,) with the slot of each token.
        positions: the position of each token in its own sequence, where these are not start, start
            + 1, ...
        rotation: the rotation of queries and keys at these positions, for layers with rotary
            positions.
        written: memo of `LayerCache.hide_unwritten`, so that layers with equal definitions share
            one object.

    Example:
        >>> from telescope.layers import CachePosition
        >>> CachePosition(start=3).start
        3
    """

    start: int | Int[Tensor, " n"] = 0
    positions: Positions | None = None
    rotation: Rotation | None = None
    # Owned by one step of a model, and dies with it.
    written: dict[Any, Attention] = field(default_factory=dict, repr=False)


@dataclass(eq=False)
class LayerCache:
    """The keys and values of one attention layer: tensors allocated for `room` tokens and written
    in place.

    Attributes:
        keys: (batch, key_heads, room, d_k).
        values: (batch, key_heads, room, d_v).

    Example:
        >>> import torch
        >>> from telescope.layers import LayerCache
        >>> cache = LayerCache(torch.empty(1, 2, 8, 4), torch.empty(1, 2, 8, 4))
        >>> keys, values = cache.append(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4))
        >>> keys.shape  # of the 8 slots, the 3 that are written
        torch.Size([1, 2, 3, 4])
        >>> # Two beams of the one sequence
        >>> cache.reorder(torch.tensor([0, 0]), filled=3)
        >>> cache.keys.shape
        torch.Size([2, 2, 8, 4])
    """

    keys: Float[Tensor, "batch key_heads room d_k"]
    values: Float[Tensor, "batch key_heads room d_v"]

    def append(
        self,
        keys: Float[Tensor, "batch key_heads n d_k"],
        values: Float[Tensor, "batch key_heads n d_v"],
        start: int | Int[Tensor, " n"] = 0,
    ) -> tuple[Float[Tensor, "batch key_heads all d_k"], Float[Tensor, "batch key_heads all d_v"]]:
        """Write keys and values of n tokens and return views of the cache.

        Args:
            start: the slot of the first token: the views end with the last one. Or a tensor with
                the slot of each token: the views are the whole cache, and `hide_unwritten` masks
                the rest.
            keys, values: (batch, key_heads, n, d_k) and (batch, key_heads, n, d_v).

        Returns:
            The keys and the values that are in the cache now.

        Raises:
            ValueError: where the tokens do not fit.
        """
        if not isinstance(start, int):
            # A fixed shape: slots are given by a tensor, and nothing depends on its value.
            self.keys.index_copy_(2, start, keys.to(self.keys.dtype))
            self.values.index_copy_(2, start, values.to(self.values.dtype))
            return self.keys, self.values
        stop = start + keys.shape[2]
        room = self.keys.shape[2]
        if stop > room:
            raise ValueError(
                f"the cache has room={room}, but these tokens reach up to {stop}; make it with "
                f"room={stop}"
            )
        # In place: views handed out before stay valid.
        self.keys[:, :, start:stop] = keys
        self.values[:, :, start:stop] = values
        return self.keys[:, :, :stop], self.values[:, :, :stop]

    def _hide_unwritten(self, attention: Attention, at: CachePosition) -> Attention:
        """Return the definition for the keys that `append` returned: slots that are not written yet
        are masked.
        """
        if isinstance(at.start, int):
            return attention
        if torch.compiler.is_compiling():  # the compiler removes repeated computations by itself
            return restrict_to_written_keys(attention, self.keys.shape[2], at.start[-1] + 1)
        key = identity_key(attention)
        if key not in at.written:
            at.written[key] = restrict_to_written_keys(
                attention, self.keys.shape[2], at.start[-1] + 1
            )
        return at.written[key]

    def reorder(self, index: Int[Tensor, " new_batch"], filled: int, since: int = 0) -> None:
        """Copy sequence index[i] to sequence i, for slots from `since` to `filled`; earlier slots
        are equal already.

        Args:
            index: for each new sequence, the number of the old one.
            filled: how many slots are written.
            since: slots before this one are equal already, and not copied.
        """
        self.keys = _reorder_batch(self.keys, index, filled, since)
        self.values = _reorder_batch(self.values, index, filled, since)


class Cache:
    """The caches of all attention layers of a model, and the number of tokens in them.

    Models make their caches: `model.cache(batch, room)`.

    Attributes:
        rooms: one LayerCache for each layer.
        length: the number of tokens written, an int; after `fixed()` a tensor.
        pads: how many of the first slots of each sequence are padding, (batch,); None where there
            is no padding.

    Raises:
        ValueError: where `pads` has another length than the batch, or a number below 0.

    Example:
        >>> import torch
        >>> from telescope.models import GPT, GPTConfig
        >>> model = GPT(GPTConfig(vocabulary=10, d_model=8, heads=2, blocks=1)).eval()
        >>> cache = model.cache(batch=1, room=16)
        >>> logits = model(torch.tensor([[3, 1, 4]]), cache=cache)
        >>> cache.length, cache.room
        (3, 16)
        >>> # 2 · 1 layer · 1 sequence · 2 heads · 16 tokens · d_k = 4, float32
        >>> cache.batch, cache.nbytes
        (1, 1024)
        >>> cache.start(1), cache.positions(2).tolist(), cache.mask() is None
        (3, [3, 4], True)
        >>> cache.reorder(torch.tensor([0, 0]))  # two beams of the one sequence
        >>> cache.batch, len([*cache.tensors()])
        (2, 2)
        >>> cache.advance(1)  # a model does so at the end of a step
        >>> cache.fixed().length.item()
        4
    """

    def __init__(
        self, rooms: Sequence[LayerCache], pads: Int[Tensor, " batch"] | Sequence[int] | None = None
    ) -> None:
        self.rooms = list(rooms)
        # A tensor after `fixed()`, which a captured step reads and writes.
        self.length: int | Int[Tensor, ""] = 0
        self.pads: Tensor | None = None
        if pads is None:
            return
        self.pads = torch.as_tensor(pads, device=self.rooms[0].keys.device)
        if self.pads.shape != (self.batch,) or bool((self.pads < 0).any()):
            raise ValueError(
                f"pads={self.pads.tolist()} does not fit a batch of {self.batch}: one number each, "
                "none below 0"
            )

    def __getitem__(self, layer: int) -> LayerCache:
        return self.rooms[layer]

    @property
    def batch(self) -> int:
        """The number of sequences."""
        return self.rooms[0].keys.shape[0]

    @property
    def room(self) -> int:
        """The number of tokens that fit into each sequence."""
        return self.rooms[0].keys.shape[2]

    @property
    def nbytes(self) -> int:
        """The bytes of all keys and values: 2 · layers · batch · key heads · room · d_k numbers,
        where d_v is d_k.
        """
        return sum(room.keys.nbytes + room.values.nbytes for room in self.rooms)

    def fixed(self) -> "Cache":
        """Fix the shapes of all later steps, so that a CUDA graph can capture a step, and return
        the cache itself.

        Every layer then attends to the whole cache, with the slots that are not written yet masked.
        `length` becomes a tensor on the cache's device, so that no step waits for the GPU.
        """
        if isinstance(self.length, int):
            self.length = torch.tensor(self.length, device=self.rooms[0].keys.device)
            for room in self.rooms:  # a masked NaN would still reach the output, as 0 · NaN
                room.keys[:, :, int(self.length) :] = 0.0
                room.values[:, :, int(self.length) :] = 0.0
        return self

    def start(self, n: int) -> int | Int[Tensor, " n"]:
        """Return the slot of the next token or, after `fixed()`, the slots of the next n tokens;
        see CachePosition.

        Args:
            n: how many tokens come next.
        """
        if isinstance(self.length, int):
            return self.length
        return self.length + torch.arange(n, device=self.length.device)

    def positions(self, n: int) -> Positions:
        """Return the positions of the next n tokens in their own sequences: (n,), or (batch, n)
        with `pads`.

        Args:
            n: how many tokens come next.
        """
        # Without the padding in front, so that the first real token is at 0.
        slots = self.length + torch.arange(n, device=self.rooms[0].keys.device)
        return slots if self.pads is None else (slots - self.pads[:, None]).clamp(min=0)

    def mask(self, other: Mask | None = None) -> Mask | None:
        """Return the mask that hides padding on the left, combined with `other` by &; None if
        nothing is hidden.

        Args:
            other: a mask for the same call; None is none.
        """
        if self.pads is None:
            return other
        real = padding(left=self.pads)
        return real if other is None else other & real

    def advance(self, n: int) -> None:
        """Add n to the number of tokens; a model calls this at the end of its step.

        Args:
            n: how many tokens were written.
        """
        if isinstance(self.length, int):
            self.length += n
        else:
            self.length.add_(n)  # in place: a captured step reads this tensor

    def reorder(self, index: Int[Tensor, " new_batch"], since: int = 0) -> None:
        """Replace sequence i by sequence index[i], for every i: for beams that survive, or a batch
        that shrinks.

        Args:
            since: how many first tokens sequences i and index[i] have in common, for every i; these
                are not copied.
            index: for each new sequence, the number of the old one.
        """
        # After `fixed()` the length is not read: the whole cache is moved.
        filled = self.length if isinstance(self.length, int) else self.room
        for room in self.rooms:
            room.reorder(index, filled, since)
        if self.pads is not None:
            self.pads = self.pads.index_select(0, index)

    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor that a step writes into."""
        for room in self.rooms:
            yield from (room.keys, room.values)
        if isinstance(self.length, Tensor):
            yield self.length


def _reorder_batch(
    kept: Shaped[Tensor, "batch key_heads room d"],
    index: Int[Tensor, " new_batch"],
    filled: int,
    since: int,
) -> Shaped[Tensor, "new_batch key_heads room d"]:
    """Return `kept` with its sequences in the order of `index`; only slots below `filled` are
    copied.

    Where the batch keeps its size this happens in place, so that a captured step finds its tensors.
    """
    # In place where the batch keeps its size: a captured step finds its tensors.
    if len(index) == kept.shape[0]:
        kept[:, :, since:filled] = kept[:, :, since:filled].index_select(0, index)
        return kept
    # A batch that shrinks gets new tensors; unwritten slots stay uninitialised.
    whole = kept.new_empty(len(index), *kept.shape[1:])
    whole[:, :, :filled] = kept[:, :, :filled].index_select(0, index)
    return whole
