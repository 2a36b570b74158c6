"""The contexts of recorded attentions, computed again from queries, keys and values, on the engine
that fits: nothing n x n where a text is long.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import include_padding_queries, key_heads_of, restrict_to_heads
from ..engines import attend, torch_modes
from ..recording import RecordedCall, Watched
from .edits import Block


def recorded_context(
    recorded: RecordedCall, places: Sequence[int]
) -> Float[Tensor, "sequence chosen query d_v"]:
    """Return the context of some heads, by their indices among the recorded ones, on the device of
    the model.
    """
    which = torch.tensor(list(places))
    heads = len(recorded.heads)
    key_heads = key_heads_of(which, heads, recorded.keys.shape[1]).tolist()
    # Queries at padding run as they did; whether they count is decided elsewhere.
    attention = include_padding_queries(recorded.attention)
    device = recorded._facts.device
    with torch.no_grad(), torch_modes.without_autocast(device):
        return attend(
            recorded.queries[:, list(places)].to(device),
            recorded.keys[:, key_heads].to(device),
            recorded.values[:, key_heads].to(device),
            restrict_to_heads(attention, which, heads),
        )


def key_head_places(recorded: RecordedCall, places: Sequence[int]) -> list[int]:
    """Return the recorded key head of each of some heads."""
    group = len(recorded.heads) // recorded.keys.shape[1]
    return [place // group for place in places]


def check_whole(kind: str, recorded: RecordedCall, *, needs_values: bool = True) -> None:
    """Raise a ValueError if a recorded call lacks what contexts are computed from."""
    name = recorded.name
    if recorded._facts.rows is not None:
        raise ValueError(
            f'{kind}: the recording of "{name}" keeps some queries only; record without queries='
        )
    if needs_values and recorded._value_sets > 1:
        raise ValueError(
            f'{kind}: "{name}" multiplies its weights by {recorded._value_sets} sets of values, '
            'which cannot be taken apart again; patch its "weights", "queries" or "keys"'
        )


class ContextPool(NamedTuple):
    """The contexts of one attention at every counted position of every call."""

    contexts: Float[Tensor, "position chosen d_v"]
    mean: Float[Tensor, "chosen d_v"]


class RecordedContexts:
    """The recorded contexts that the edits of one block use, each computed once."""

    def __init__(self, block: Block) -> None:
        self._contexts: dict[tuple[int, tuple[int, ...]], Tensor] = {}
        self._pools: dict[tuple[int, tuple[int, ...]], ContextPool] = {}
        self._alive: list[object] = []
        """Whose identities are keys."""

    def context(self, recorded: RecordedCall, places: Sequence[int]) -> Tensor:
        """Return `recorded_context`."""
        key = (id(recorded), tuple(places))
        if key not in self._contexts:
            self._contexts[key] = recorded_context(recorded, places)
            self._alive.append(recorded)
        return self._contexts[key]

    def pool(self, kind: str, watched: Watched, places: Sequence[int]) -> ContextPool:
        """Return the contexts of some heads at all positions that count, and their mean."""
        key = (id(watched), tuple(places))
        if key in self._pools:
            return self._pools[key]
        # Queries that are padding, or stand after the end of their text, do not count.
        parts = []
        for recorded in watched.calls:
            check_whole(kind, recorded)
            real = recorded._real_tokens()[0]
            contexts = recorded_context(recorded, places).transpose(1, 2)
            parts.append(contexts[real.to(contexts.device)])
        contexts = torch.cat(parts)
        if not len(contexts):
            raise ValueError(f'{kind}: no query that was recorded of "{watched.name}" counts')
        pool = ContextPool(contexts, contexts.double().mean(0).to(contexts.dtype))
        self._alive.append(watched)
        self._pools[key] = pool
        return pool
