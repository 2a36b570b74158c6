"""A mask of transformers that is written out only where it is read.

Written out, the mask of 128k tokens takes 16 GiB. A model only passes its mask on to its
attentions, which need either a few rows of it or its description. So the mask is a tensor subclass
without numbers, which has a shape, dtype and device, and intercepts every other operation. Without
it tests/agreement/test_watch_huggingface.py, test_memory_grows_with_n, fails.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._pytree import tree_leaves, tree_map

from .masks import (
    Arguments,
    MaskDescription,
    MaskOffsets,
    describe_mask,
    device_of,
    fixed_arguments,
    select_rows,
)

# Functions that read none of the mask's numbers.
METADATA = {
    "__get__",
    "size",
    "dim",
    "__len__",
    "is_floating_point",
    "numel",
    "stride",
    "get_device",
    "__hash__",
}
# Attributes that hold the mask's numbers, read by __get__ too.
CONTENT = {"data", "T", "mT", "H", "mH", "real"}
# Functions whose result is the mask itself.
ALIASES = {"contiguous", "detach"}
# Elements of a mask that is written out as a whole, as transformers does: 8,192 x 8,192.
LARGEST = 2**26


class LazyMask(Tensor):
    """The tensor that the model's mask function `own` would return for these arguments, (batch, 1,
    query, key).

    torch's attention reads a large mask some rows at a time. Any other operation is applied to the
    mask written out.
    """

    own: Callable[..., Tensor]
    arguments: Arguments
    shared: bool
    """Whether `dense` or a view of it was handed out, so that others may write to it."""

    @staticmethod
    def of(own: Callable[..., Tensor], arguments: Arguments, dtype: torch.dtype) -> "LazyMask":
        """Return the mask that own(**arguments) would write out."""
        arguments = fixed_arguments(arguments)
        offsets = MaskOffsets.of(arguments)
        # A single element, expanded: the mask has its shape and takes no memory.
        empty = torch.empty((), dtype=dtype, device=device_of(arguments))
        lazy = empty.expand(offsets.batch, 1, offsets.queries, offsets.keys).as_subclass(LazyMask)
        lazy.own = own
        lazy.arguments = arguments
        lazy.shared = False
        return lazy

    @cached_property
    def description(self) -> MaskDescription:
        """The mask as a mask of Telescope, valid unless the mask was overwritten."""
        return describe_mask(self.arguments)

    @cached_property
    def dense(self) -> Tensor:
        """The mask written out as a whole."""
        return self.own(**self.arguments)

    @property
    def overwritten(self) -> bool:
        """Whether someone wrote to `dense`, so that only `dense` is valid."""
        return self.shared and not torch.equal(self.dense, self.own(**self.arguments))

    def rows(self, rows: range) -> Tensor:
        """Return the rows of these queries, written out."""
        return self.own(**select_rows(self.arguments, rows))

    @property
    def blocks(self) -> list[range]:
        """The rows that are written out together.

        Blocks are multiples of 1,024 rows, except the last: a kernel that takes 256 rows at a time
        computes the same bits in such a block as in the whole. With fewer than 768 rows a kernel
        would take fewer at a time.
        """
        batch, _, queries, keys = self.shape
        # As many multiples of 1,024 rows as LARGEST elements hold.
        height = max(LARGEST // max(batch * keys, 1) // 1024, 1) * 1024
        # A rest of at most 768 rows joins the block before it.
        starts = range(0, max(queries - 768, 1), height)
        return [
            range(start, stop) for start, stop in zip(starts, [*starts[1:], queries], strict=True)
        ]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Answer questions for shape, dtype and device without numbers.
        if (
            func.__name__ in METADATA
            and getattr(getattr(func, "__self__", None), "__name__", None) not in CONTENT
        ):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        # Return the same mask where an operation leaves the mask as it is.
        if func.__name__ in ALIASES or (
            func is Tensor.__getitem__ and _selects_all(args[0], args[1])
        ):
            return args[0]
        # The copy of a mask that nobody wrote to is not written out, either.
        if func is Tensor.clone and not args[0].shared:
            return LazyMask.of(args[0].own, args[0].arguments, args[0].dtype)
        if func is scaled_dot_product_attention:
            return _attend(*args, **(kwargs or {}))

        # Apply any other operation to the mask written out.
        masks = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, LazyMask)]
        args, kwargs = tree_map(
            lambda leaf: leaf.dense if isinstance(leaf, LazyMask) else leaf, (args, kwargs or {})
        )
        result = func(*args, **kwargs)

        # Note whether the written mask, or a view of it, was handed out or written to.
        returned = {
            leaf.untyped_storage().data_ptr()
            for leaf in tree_leaves(result)
            if isinstance(leaf, Tensor)
        }
        for mask in masks:
            mask.shared |= (
                func is Tensor.__setitem__ or mask.dense.untyped_storage().data_ptr() in returned
            )
        return result


def _selects_all(mask: LazyMask, index: Any) -> bool:
    """Return whether mask[index] is the whole mask: models cut their mask to the number of keys."""
    parts = index if isinstance(index, tuple) else (index,)
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
    """Run scaled_dot_product_attention, a large mask in blocks of rows.

    With dropout the mask is written out as a whole: blocks would draw other random numbers.
    """
    options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
    # Small masks are written out as a whole, and so are those that somebody may have written to.
    if attn_mask.numel() <= LARGEST or dropout_p > 0.0 or attn_mask.shared:
        return scaled_dot_product_attention(
            query, key, value, attn_mask.dense, dropout_p, is_causal, **options
        )
    parts = [
        scaled_dot_product_attention(
            query[:, :, rows.start : rows.stop], key, value, attn_mask.rows(rows), **options
        )
        for rows in attn_mask.blocks
    ]
    return torch.cat(parts, 2)
