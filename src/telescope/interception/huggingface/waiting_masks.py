"""Masks of calls that wait: which of them mean the same when the calls are recorded later, and
those that compiled code has made.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import masking_utils

from ...attention import leaves
from .masks import LazyMask, intersected
from .transformers_internals import mask_function_name, weights_are_requested

# Mask functions that say which keys a query sees whatever the other queries are.
STEADY = {"causal_mask_function", "sliding_window_overlay", "chunked_overlay"}


# Options whose tensors are part of a definition.
DEFINING = frozenset({"s_aux", "position_bias", "cu_seq_lens_q"})


def is_plain(mask: Any, options: dict[str, Any]) -> bool:
    """Return whether a call may wait by its mask and its options: none is a tensor that others may
    write to, and nobody asks for its weights.
    """
    # Asked in each step of each layer: most options are of other names.
    if not DEFINING.isdisjoint(options) and any(options.get(name) is not None for name in DEFINING):
        return False
    if mask is not None and (not isinstance(mask, LazyMask) or mask.shared):
        return False
    return not weights_are_requested(options)


def is_steady(mask: Any) -> bool:
    """Return whether a mask of one query, not written out, describes earlier queries of the text,
    too.
    """
    if not isinstance(mask, LazyMask) or mask.overwritten:
        return False
    parts = intersected(mask.arguments.get("mask_function", masking_utils.causal_mask_function))
    names = {mask_function_name(part) for part in parts}
    return names <= STEADY and "causal_mask_function" in names


def stays(mask: Any) -> bool:
    """Return whether a mask means the same whatever anybody writes to: its description holds
    numbers alone.
    """
    if not isinstance(mask, LazyMask):
        return mask is None or isinstance(mask, GraphMask)
    described = vars(mask).get("description")
    if described is None or described.bias is not None or mask.shared:
        return False
    return all(leaf is None or isinstance(leaf, int | float) for leaf in leaves(described.mask))


def causal_mask(implementation: str, like: Tensor) -> LazyMask | None:
    """Return the causal mask of a text that ends with its last query, in the shape and dtype of a
    mask; None if an implementation takes no such mask.
    """
    if implementation not in ("sdpa", "eager") or like.shape[1] != 1:
        return None
    batch, _, queries, keys = like.shape
    arguments = {
        "batch_size": batch,
        "q_length": queries,
        "kv_length": keys,
        "q_offset": keys - queries,
        "kv_offset": 0,
        "mask_function": masking_utils.causal_mask_function,
        "attention_mask": None,
        "allow_is_causal_skip": False,
        "device": like.device,
        "dtype": like.dtype,
    }
    own = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS[implementation]
    return LazyMask.of(own, arguments, like.dtype)


def mask_of_steps(mask: Any, implementation: str, queries: Tensor, keys: int) -> Any:
    """Return the mask of the last queries of a text with so many keys, of which the last had this
    mask, as a step of its own.
    """
    count = queries.shape[2]
    if count == 1 or ("flash" in implementation and mask is None):
        return mask
    if mask is not None:
        more = {"q_length": count, "q_offset": keys - count}
        return LazyMask.of(mask.own, {**mask.arguments, **more}, mask.dtype)
    # A single query sees every key: several of them are causal.
    dtype = torch.bool if implementation == "sdpa" else queries.dtype
    like = torch.empty((), dtype=dtype, device=queries.device)
    return causal_mask(implementation, like.expand(len(queries), 1, count, keys))


class GraphMask:
    """A mask that compiled code has made, and that is compared with masks known by name when
    somebody asks: to compare, a host waits for its GPU.
    """

    def __init__(self, written: Tensor, implementation: str, expected: Iterable[LazyMask]) -> None:
        self.written = written
        self._implementation = implementation
        self._expected = tuple(expected)

    @cached_property
    def known(self) -> Tensor:
        """The mask that is equal, not written out; the written one if none is known."""
        # Outside of a graph, a mask that is only causal may not be made at all.
        for one in (*self._expected, causal_mask(self._implementation, self.written)):
            is_alike = one is not None and one.shape == self.written.shape
            if one is not None and is_alike and torch.equal(one.dense, self.written):
                return one
        return self.written


def known_mask(mask: Any) -> Any:
    """Return the mask that a GraphMask is equal to; any other as it is."""
    return mask.known if isinstance(mask, GraphMask) else mask
