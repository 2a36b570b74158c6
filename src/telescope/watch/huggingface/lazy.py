"""A mask of transformers that is not written out: a tensor by its looks, which says any rows of itself."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._pytree import tree_leaves, tree_map

from ...attention import Mask
from .masks import Arguments, MaskOffsets, device_of, settled, some_rows, understood

LOOKS = {"__get__", "size", "dim", "__len__", "is_floating_point", "numel", "stride", "get_device", "__hash__"}
NUMBERS = {"data", "T", "mT", "H", "mH", "real"}  # attributes that are the mask itself, and nothing about it
ALIASES = {"contiguous", "detach"}
LARGEST = 2**26  # of a mask that is written out as a whole, once, as transformers does; 8,192 x 8,192


class LazyMask(Tensor):
    """What `own`, the model's mask function, would give for these arguments.

    A model hands it on to its attentions. torch's own takes a large one some rows at a time. What else is done with it,
    is done with the mask written out.
    """

    own: Callable[..., Tensor]
    given: Arguments
    shared: bool
    """Whether others hold `dense` or a view of it, so that they may write to it."""

    @staticmethod
    def of(own: Callable[..., Tensor], given: Arguments, dtype: torch.dtype) -> "LazyMask":
        given = settled(given)
        place = MaskOffsets.of(given)
        empty = torch.empty((), dtype=dtype, device=device_of(given))
        lazy = empty.expand(place.batch, 1, place.queries, place.keys).as_subclass(LazyMask)
        lazy.own, lazy.given, lazy.shared = own, given, False
        return lazy

    @cached_property
    def understood(self) -> tuple[Mask, int, int]:
        """As a mask of ours, how many of the keys are there, and how many were before them."""
        return understood(self.given)

    @cached_property
    def dense(self) -> Tensor:
        return self.own(**self.given)

    @property
    def overwritten(self) -> bool:
        """Whether the mask was written to, so that only `dense` is valid."""
        return self.shared and not torch.equal(self.dense, self.own(**self.given))

    def rows(self, rows: range) -> Tensor:
        """The mask of these queries."""
        return self.own(**some_rows(self.given, rows))

    @property
    def blocks(self) -> list[range]:
        """Rows that are written out together. A kernel that takes 256 at a time computes the same in any of them."""
        batch, _, queries, keys = self.shape
        height = max(LARGEST // max(batch * keys, 1) // 1024, 1) * 1024
        starts = range(0, max(queries - 768, 1), height)  # of fewer rows a kernel would take fewer at a time
        return [range(start, stop) for start, stop in zip(starts, [*starts[1:], queries], strict=True)]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in LOOKS and getattr(getattr(func, "__self__", None), "__name__", None) not in NUMBERS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if func.__name__ in ALIASES or (func is Tensor.__getitem__ and _covers(args[0], args[1])):
            return args[0]
        if func is Tensor.clone and not args[0].shared:
            return LazyMask.of(args[0].own, args[0].given, args[0].dtype)
        if func is scaled_dot_product_attention:
            return _attend(*args, **(kwargs or {}))
        masks = [it for it in tree_leaves((args, kwargs)) if isinstance(it, LazyMask)]
        args, kwargs = tree_map(lambda it: it.dense if isinstance(it, LazyMask) else it, (args, kwargs or {}))
        result = func(*args, **kwargs)
        memory = {it.untyped_storage().data_ptr() for it in tree_leaves(result) if isinstance(it, Tensor)}
        for mask in masks:
            mask.shared |= func is Tensor.__setitem__ or mask.dense.untyped_storage().data_ptr() in memory
        return result


def _covers(mask: LazyMask, where: Any) -> bool:
    """Whether that is the whole mask: models cut it to as many keys as there are."""
    parts = where if isinstance(where, tuple) else (where,)
    return len(parts) <= 4 and all(
        isinstance(part, slice) and part.indices(size) == (0, size, 1)
        for part, size in zip(parts, mask.shape, strict=False)
    )


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: LazyMask,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
    if attn_mask.numel() <= LARGEST or dropout_p > 0.0 or attn_mask.shared:
        return scaled_dot_product_attention(query, key, value, attn_mask.dense, dropout_p, is_causal, **options)
    parts = [
        scaled_dot_product_attention(query[:, :, rows.start : rows.stop], key, value, attn_mask.rows(rows), **options)
        for rows in attn_mask.blocks
    ]
    return torch.cat(parts, 2)
