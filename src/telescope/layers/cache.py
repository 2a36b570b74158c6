"""What attention keeps of the tokens it has seen: their keys and values. State is passed, never stored in a layer.

cache = model.cache(batch=2, room=256)
logits = model(prompt, cache=cache)            # (2, n) tokens are read at once
logits = model(token, cache=cache)             # (2, 1): one more
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ..attention import Attention, Mask, padding
from ..attention.positions import Rotation
from ..attention.restrict import written
from ..attention.values import identity


@dataclass(frozen=True, eq=False)
class CachePosition:
    """Where the tokens of a call stand, worked out once for all layers.

    start      how many keys there are before them; a tensor (n,) says the slot of each, for a cache of fixed shape
    positions  where they stand in their own sequences, if not from `start` on
    rotation   what turns queries and keys at these positions, in layers with rotary positions
    written    each attention over a cache of fixed shape, once for all layers that have it
    """

    start: int | Int[Tensor, " n"] = 0
    positions: Int[Tensor, "*batch n"] | None = None
    rotation: Rotation | None = None
    written: dict[Any, Attention] = field(default_factory=dict, repr=False)


@dataclass(eq=False)
class LayerCache:
    """Room for the keys and values of one attention. Writing is in place."""

    keys: Float[Tensor, "batch key_heads room d_k"]
    values: Float[Tensor, "batch key_heads room d_v"]

    def append(
        self,
        keys: Float[Tensor, "batch key_heads n d_k"],
        values: Float[Tensor, "batch key_heads n d_v"],
        start: int | Int[Tensor, " n"] = 0,
    ) -> tuple[Float[Tensor, "batch key_heads all d_k"], Float[Tensor, "batch key_heads all d_v"]]:
        """Write these from `start` on. Returns all up to the last of them or, with a slot for each, the whole room."""
        if not isinstance(start, int):
            self.keys.index_copy_(2, start, keys.to(self.keys.dtype))
            self.values.index_copy_(2, start, values.to(self.values.dtype))
            return self.keys, self.values
        stop, room = start + keys.shape[2], self.keys.shape[2]
        if stop > room:
            raise ValueError(
                f"the cache has room={room}, but these tokens reach up to {stop}; make it with room={stop}"
            )
        self.keys[:, :, start:stop] = keys
        self.values[:, :, start:stop] = values
        return self.keys[:, :, :stop], self.values[:, :, :stop]

    def seen(self, attention: Attention, at: CachePosition) -> Attention:
        """The attention over what `append` gave: of a whole room only what is written."""
        if isinstance(at.start, int):
            return attention
        if torch.compiler.is_compiling():  # it finds by itself what is computed twice
            return written(attention, self.keys.shape[2], at.start[-1] + 1)
        known = identity(attention)
        if known not in at.written:
            at.written[known] = written(attention, self.keys.shape[2], at.start[-1] + 1)
        return at.written[known]

    def reorder(self, index: Int[Tensor, " new_batch"], filled: int, since: int = 0) -> None:
        """Sequence i becomes what sequence index[i] was; those before `since` are alike already."""
        self.keys = _reordered(self.keys, index, filled, since)
        self.values = _reordered(self.values, index, filled, since)


class Cache:
    """The rooms of all attentions of a model, and how far they are written.

    length   how many tokens are in; after `fixed()` a tensor
    pads     how many of the first slots of each sequence are padding, if any
    """

    def __init__(self, rooms: Sequence[LayerCache], pads: Int[Tensor, " batch"] | Sequence[int] | None = None) -> None:
        self.rooms = list(rooms)
        self.length: int | Int[Tensor, ""] = 0
        self.pads = None if pads is None else torch.as_tensor(pads, device=self.rooms[0].keys.device)
        if self.pads is not None and (self.pads.shape != (self.batch,) or bool((self.pads < 0).any())):
            raise ValueError(
                f"pads={self.pads.tolist()} does not fit a batch of {self.batch}: one number each, none below 0"
            )

    def __getitem__(self, layer: int) -> LayerCache:
        return self.rooms[layer]

    @property
    def batch(self) -> int:
        return self.rooms[0].keys.shape[0]

    @property
    def room(self) -> int:
        """How many tokens fit."""
        return self.rooms[0].keys.shape[2]

    @property
    def nbytes(self) -> int:
        """2 · layers · batch · key heads · room · d_k numbers, where d_v is d_k."""
        return sum(room.keys.nbytes + room.values.nbytes for room in self.rooms)

    def fixed(self) -> "Cache":
        """From here on no shape changes from step to step, and nothing waits for the GPU: a step can be captured.

        Every attention is over the whole room, in which what is not written yet is hidden.
        """
        if isinstance(self.length, int):
            self.length = torch.tensor(self.length, device=self.rooms[0].keys.device)
            for room in self.rooms:  # a hidden NaN is still one: 0 · NaN
                room.keys[:, :, int(self.length) :] = 0.0
                room.values[:, :, int(self.length) :] = 0.0
        return self

    def start(self, n: int) -> int | Int[Tensor, " n"]:
        """Where the next n tokens go; see Place."""
        if isinstance(self.length, int):
            return self.length
        return self.length + torch.arange(n, device=self.length.device)

    def positions(self, n: int) -> Int[Tensor, "*batch n"]:
        """Where the next n tokens stand in their own sequences: (n,), or (batch, n) if some are padded."""
        slots = self.length + torch.arange(n, device=self.rooms[0].keys.device)
        return slots if self.pads is None else (slots - self.pads[:, None]).clamp(min=0)

    def mask(self, beside: Mask | None = None) -> Mask | None:
        """Who may be seen: not the padding in front."""
        if self.pads is None:
            return beside
        real = padding(left=self.pads)
        return real if beside is None else beside & real

    def advance(self, n: int) -> None:
        """n more tokens are in. A model says so at the end of its step."""
        if isinstance(self.length, int):
            self.length += n
        else:
            self.length.add_(n)  # in place: a captured step goes on from it

    def reorder(self, index: Int[Tensor, " new_batch"], since: int = 0) -> None:
        """Sequence i goes on from what sequence index[i] has seen: beams that survive, or a batch that shrinks.

        `since` says how many of their first tokens the two have in common, for every i: they are not moved.
        """
        filled = self.length if isinstance(self.length, int) else self.room
        for room in self.rooms:
            room.reorder(index, filled, since)
        if self.pads is not None:
            self.pads = self.pads.index_select(0, index)

    def tensors(self) -> Iterator[Tensor]:
        """Everything that a step writes into."""
        for room in self.rooms:
            yield from (room.keys, room.values)
        if isinstance(self.length, Tensor):
            yield self.length


def _reordered(
    kept: Shaped[Tensor, "batch key_heads room d"], index: Int[Tensor, " new_batch"], filled: int, since: int
) -> Shaped[Tensor, "new_batch key_heads room d"]:
    """In place where the size stays, so that a captured step finds it; only what is written is moved."""
    if len(index) == kept.shape[0]:
        kept[:, :, since:filled] = kept[:, :, since:filled].index_select(0, index)
        return kept
    whole = kept.new_empty(len(index), *kept.shape[1:])
    whole[:, :, :filled] = kept[:, :, :filled].index_select(0, index)
    return whole
