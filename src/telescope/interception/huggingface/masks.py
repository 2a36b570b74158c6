"""Translate the mask functions of transformers into masks of Telescope.

A function that is not known by name becomes a `FunctionMask`, which calls the function for blocks
of pairs.
"""

from collections.abc import Callable, Mapping
from functools import cached_property, reduce
from operator import and_, or_
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._pytree import tree_leaves, tree_map
from transformers import masking_utils

from ...attention import (
    Bias,
    Causal,
    Documents,
    Mask,
    causal,
    everyone,
    window,
)
from ..mask_tensors import FunctionMask, MaskFunction, pad_to, padding_mask
from .transformers_internals import closure_variables, mask_function_name

Arguments = Mapping[str, Any]
"""The keyword arguments of an entry of transformers' mask interface."""


class MaskDescription(NamedTuple):
    """Which keys each query may see, as masks and biases of Telescope."""

    mask: Mask
    keys: int
    """How many of the keys are written: a cache of fixed size is longer."""
    evicted: int = 0
    """How many keys a cache dropped before the first of these."""
    bias: Bias | None = None


class MaskOffsets(NamedTuple):
    """The size of a mask, and the positions of query 0 and key 0: earlier ones are no longer in the
    cache.
    """

    batch: int
    queries: int
    keys: int
    query: Any
    """An int, or for a cache of fixed size a tensor: to read its number, a host would wait."""
    key: int

    @classmethod
    def of(cls, arguments: Arguments) -> "MaskOffsets":
        """Read the offsets from the arguments of a mask function of any version of transformers."""
        if "q_length" in arguments:
            queries = arguments["q_length"]
            query = arguments.get("q_offset", 0)
        else:  # before 5.0 the positions themselves are passed
            queries = len(arguments["cache_position"])
            query = arguments["cache_position"][0]
        key = int(arguments.get("kv_offset", 0))
        return cls(arguments["batch_size"], queries, arguments["kv_length"], query, key)


def describe_mask(arguments: Arguments) -> MaskDescription:
    """Describe the mask that transformers would write out for these arguments.

    The unwritten end of a cache of fixed size is left out if the mask is causal, which hides it.
    """
    offsets = MaskOffsets.of(arguments)
    offsets = offsets._replace(query=int(offsets.query))
    # Keys up to the last query; a cache of fixed size is longer.
    written = offsets.query + offsets.queries - offsets.key
    parts = intersected(arguments.get("mask_function", masking_utils.causal_mask_function))
    is_causal = any(mask_function_name(part) == "causal_mask_function" for part in parts)
    keys = min(written, offsets.keys) if is_causal else offsets.keys
    present = offsets._replace(keys=keys)
    mask = reduce(and_, (_translate(part, present, is_causal) for part in parts))
    # Padding is passed besides the mask function, and counts from the first token of the text.
    if arguments.get("attention_mask") is not None:
        mask = mask & padding_mask(pad_to(arguments["attention_mask"], offsets.key + keys))
    return MaskDescription(mask, keys, offsets.key)


def intersected(function: MaskFunction) -> list[MaskFunction]:
    """Return the mask functions of which this one is the intersection."""
    if mask_function_name(function) != "and_masks":
        return [function]
    return [
        part
        for joined in closure_variables(function)["mask_functions"]
        for part in intersected(joined)
    ]


def _translate(function: MaskFunction, offsets: MaskOffsets, is_causal: bool) -> Mask:
    """Return a mask function as a mask; `is_causal` if another part of the whole mask hides the
    future.
    """
    # How far the last query is ahead of the last key.
    ahead = offsets.query + offsets.queries - offsets.key - offsets.keys
    try:
        known = _translate_known(function, closure_variables(function), offsets, is_causal)
    except KeyError:  # in another version the closure has other variables
        known = None
    # Our masks place the last query at the last key.
    if known is None or (ahead and not known.same_for_all_queries):
        return FunctionMask(function, ahead)
    return known


def _translate_known(
    function: MaskFunction, variables: dict[str, Any], offsets: MaskOffsets, is_causal: bool
) -> Mask | None:
    """Return a mask function as a mask, or None if the function is not known by name."""
    keys = offsets.key + offsets.keys
    match mask_function_name(function):
        case "causal_mask_function":
            return causal
        case "bidirectional_mask_function":
            return everyone
        case "and_masks":
            parts = intersected(function)
            # Parts of an intersection may leave it to one of them to hide the future.
            hidden = is_causal or any(
                mask_function_name(part) == "causal_mask_function" for part in parts
            )
            return reduce(and_, (_translate(part, offsets, hidden) for part in parts))
        case "or_masks":
            # Each part of a union has to hide the future by itself.
            return reduce(
                or_, (_translate(part, offsets, False) for part in variables["mask_functions"])
            )
        case "sliding_window_overlay":  # by itself it does not hide the future
            near = window(variables["sliding_window"])
            return near if is_causal else near | ~Causal()
        case "sliding_window_bidirectional_overlay":
            # Ours is |i - j| < size, and this window includes the distance itself.
            return window(variables["sliding_window"] + 1)
        case "chunked_overlay":
            # Chunks count from the first token of each sequence that is no padding.
            positions = torch.arange(keys, device=variables["left_padding"].device)
            from_first = positions - variables["left_padding"][:, None]
            return Documents(from_first.div(variables["chunk_size"], rounding_mode="floor").long())
        case "padding_mask_function":
            return padding_mask(pad_to(variables["padding_mask"], keys))
        case "packed_sequence_mask_function":
            return Documents(variables["packed_sequence_mask"].long()[:, :keys])
        case "blockwise_overlay":
            # -1 is no block; another number for queries keeps them from matching such keys.
            ids: Int[Tensor, "batch key"] = variables["block_sequence_ids"].long()
            query_ids = ids[:, offsets.query : offsets.query + offsets.queries]
            return Documents(ids[:, :keys], query_ids.masked_fill(query_ids < 0, -2))
    return None


# --------------------------------------------------------------------- arguments of a mask function


def fixed_arguments(arguments: Arguments) -> dict[str, Any]:
    """Return the arguments with a copy of q_offset: a cache of fixed size passes a tensor, and
    adds to it later.
    """
    offset = arguments.get("q_offset")
    return (
        {**arguments, "q_offset": offset.clone()} if isinstance(offset, Tensor) else {**arguments}
    )


def select_rows(arguments: Arguments, rows: range) -> dict[str, Any]:
    """Return the arguments for these queries alone, for a mask that is always written out."""
    # Select the queries by number or, before 5.0, by their positions.
    if "q_length" in arguments:
        chosen = {"q_length": len(rows), "q_offset": arguments.get("q_offset", 0) + rows.start}
    else:
        chosen = {"cache_position": arguments["cache_position"][rows.start : rows.stop]}
    # Rows of a mask are written out even where the whole mask could be left out.
    return {
        **arguments,
        **chosen,
        "allow_is_causal_skip": False,
        "allow_is_bidirectional_skip": False,
    }


def device_of(arguments: Arguments) -> torch.device:
    """Return the device on which the mask would be written."""
    if arguments.get("device") is not None:
        return torch.device(arguments["device"])
    return (
        arguments["cache_position"].device if "cache_position" in arguments else torch.device("cpu")
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
    def of(
        own: Callable[..., Tensor],
        arguments: Arguments,
        dtype: torch.dtype,
        dense: Tensor | None = None,
    ) -> "LazyMask":
        """Return the mask that own(**arguments) would write out; `dense`, if that was done."""
        arguments = fixed_arguments(arguments)
        offsets = MaskOffsets.of(arguments)
        shape = (offsets.batch, 1, offsets.queries, offsets.keys)
        if dense is not None and dense.shape == shape and dense.dtype == dtype:
            # The mask that was written stands for itself: a model that writes waits for this.
            lazy = dense.as_subclass(LazyMask)
        else:
            # A single element, expanded: the mask has its shape and takes no memory.
            empty = torch.empty((), dtype=dtype, device=device_of(arguments))
            lazy = empty.expand(shape).as_subclass(LazyMask)
        lazy.own = own
        lazy.arguments = arguments
        lazy.shared = False
        if dense is not None:
            vars(lazy)["dense"] = dense
        return lazy

    def with_own_padding(self) -> "LazyMask":
        """Return the mask with a copy of the padding that it was given."""
        padding = self.arguments.get("attention_mask")
        own = padding.clone() if isinstance(padding, Tensor) else padding
        return LazyMask.of(self.own, {**self.arguments, "attention_mask": own}, self.dtype)

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
