"""torch's fused attention, for every definition that it can express without an n x n mask.

On a CPU, a mask that differs from query to query, or a bias, is passed for one block of queries at
a time. On a GPU such blocks are too small to be fast, and other engines run these definitions.
"""

from contextlib import nullcontext
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from ..attention import (
    Attention,
    Causal,
    Context,
    Keys,
    Queries,
    Values,
    has_data,
    key_heads_of,
    tensors,
)
from ..attention import causal as causal_mask
from . import exact, torch_modes
from .exact import ScoreTable, repeat_key_heads, score_table
from .hidden_keys import HeadGroup, KernelCall, has_hidden_rectangles, kernel_calls

# Queries, and keys or values, padded to one width.
Rows = Float[Tensor, "batch heads query width"]
Columns = Float[Tensor, "batch key_heads key width"]

# Pairs of a query and a key up to which finding the key ranges costs more than it saves.
SMALL = 2**14
# Scores up to which one table, of 32 MiB at most, beats one table per block.
WHOLE = 2**23
# Queries of a block: the best of 64 to 512 (two Neoverse cores, 8 heads, 1,024 and 4,096 tokens,
# three masks).
ROWS = 128

# Since torch 2.11 cuDNN's gradient of a masked attention can be NaN where all scores of a query are
# below -88, such as with 64 keys (pytorch/pytorch#196678). The loss of a translator became NaN with
# cuDNN after some thousand steps; with these backends it did not.
SOUND_GRADIENTS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def cannot(
    queries: Tensor, keys: Tensor, values: Tensor, attention: Attention, dropout: float = 0.0
) -> str | None:
    """Return why this engine cannot run the call, or None if it can."""
    if attention._kernel_obstacle is not None:
        return attention._kernel_obstacle
    if attention.softcap is not None:
        return "it has no softcap"
    if attention.sink is not None:
        return "it has no sink"
    # Kernels disagree about empty tensors, and refuse some.
    if 0 in (*queries.shape, *keys.shape, values.shape[-1]):
        return "there is nothing to compute"
    if attention.bias is not None and queries.device.type != "cpu":
        return "it has no bias"
    if (
        queries.device.type == "cpu"
        or _fits_one_call(queries, keys, attention)
        or without_hidden_keys(queries, keys, attention) is not None
    ):
        return torch_modes.transform_obstacle()
    size = f"{queries.shape[-2]} x {keys.shape[-2]}"
    return f"the mask {attention.mask!r} would be a {size} tensor"


def is_one_plain_call(queries: Tensor, keys: Tensor, values: Tensor, attention: Attention) -> bool:
    """Return whether `attend_plain` can run the call: a self-attention on a CPU that torch's kernel
    takes as it is.

    The kernel takes some 14 µs for a sentence, and the tests that fit every definition four times
    as long. Tensors of one shape and a definition without parts of its own pass them all: these few
    tests are the same ones.
    """
    return (
        type(queries) is type(keys) is type(values) is Tensor
        and isinstance(attention, Attention)
        and queries.layout is keys.layout is values.layout is torch.strided
        and not (queries.is_nested or keys.is_nested or values.is_nested)  # these have no shape
        and queries.shape == keys.shape == values.shape
        and queries.ndim == 4
        and queries.dtype == keys.dtype == values.dtype
        and queries.is_cpu
        and keys.is_cpu
        and values.is_cpu
        and queries.is_floating_point()
        and has_data(queries)
        and queries.numel() > 0
        and attention._is_torchs_own
        and not torch.is_autocast_enabled("cpu")
        and torch_modes.transform_obstacle() is None
    )


def attend_plain(
    queries: Tensor, keys: Tensor, values: Tensor, attention: Attention, dropout: float
) -> Tensor:
    """Return the context of a call that `is_one_plain_call`."""
    is_causal = isinstance(attention.mask, Causal)
    scale = attention.scale_for(keys.shape[-1])
    return scaled_dot_product_attention(
        queries, keys, values, None, dropout, is_causal, scale=scale
    )


def attend(
    queries: Queries, keys: Keys, values: Values, attention: Attention, dropout: float = 0.0
) -> Context:
    """Return the context, (batch, heads, query, d_v)."""
    scale = attention.scale_for(keys.shape[-1])
    d_v = values.shape[-1]
    rows = queries.shape[-2]
    columns = keys.shape[-2]
    queries, keys = attention.score.as_dot(queries, keys)
    # The kernel would scale the mask's -inf too.
    if scale <= 0.0:
        queries = queries * scale
        scale = 1.0
    # Fused kernels want queries, keys and values equally wide.
    width = max(keys.shape[-1], d_v)
    queries = _pad_features(queries, width)
    keys = _pad_features(keys, width)
    values = _pad_features(values, width)

    groups = without_hidden_keys(queries, keys, attention)
    if groups is not None:
        # Hidden rectangles: calls over the keys that remain, without a mask.
        context = _by_heads(queries, keys, values, groups, scale, dropout)
    elif (
        _fits_one_call(queries, keys, attention)
        or torch_modes.sizes_are_open(queries, keys)
        or rows * columns <= SMALL
    ):
        context = _fused(
            queries, keys, values, rows, columns, (rows, columns), attention, scale, dropout
        )
    else:
        # A mask that differs from query to query: one block of queries at a time.
        context = _by_blocks(queries, keys, values, attention, scale, dropout)
    return context if d_v == width else context[..., :d_v]


def _fits_one_call(queries: Tensor, keys: Tensor, attention: Attention) -> bool:
    """Return whether one kernel call does: the kernel has the mask built in, or all queries share
    one row of it.
    """
    # A single query takes one row of any mask.
    if queries.shape[-2] == 1:
        return True
    if attention.bias is not None:
        return False
    return attention.mask.same_for_all_queries or (
        attention.mask == causal_mask and queries.shape[-2] == keys.shape[-2]
    )


def without_hidden_keys(
    queries: Tensor, keys: Tensor, attention: Attention
) -> tuple[HeadGroup, ...] | None:
    """Return the kernel calls for an attention from which rectangles are hidden; None where a mask
    is the better way.

    A single query takes one row of a mask, which costs less than to gather its keys, and so do a
    few pairs.
    """
    rows = queries.shape[-2]
    columns = keys.shape[-2]
    if rows == 1 or attention.bias is not None or not has_hidden_rectangles(attention.mask):
        return None
    if torch_modes.sizes_are_open(queries, keys) or not has_data(queries):
        return None
    if queries.device.type == "cpu" and rows * columns <= SMALL:
        return None
    return kernel_calls(attention.mask, rows, columns, queries.shape[1])


def _by_heads(
    queries: Rows,
    keys: Columns,
    values: Columns,
    groups: tuple[HeadGroup, ...],
    scale: float,
    dropout: float,
) -> Rows:
    """Run each group of heads with the key heads it shares, and put the heads in order."""
    # The usual case: all heads are edited alike.
    if len(groups) == 1:
        return _by_calls(queries, keys, values, groups[0].calls, scale, dropout)
    # Each group runs with the key heads it shares, and the heads are put in order.
    count = queries.shape[1]
    contexts = []
    for group in groups:
        shared = key_heads_of(torch.tensor(group.heads), count, keys.shape[1]).tolist()
        own = queries[:, list(group.heads)], keys[:, shared], values[:, shared]
        contexts.append(_by_calls(*own, group.calls, scale, dropout))
    # Heads come out group by group.
    order = [head for group in groups for head in group.heads]
    return torch.cat(contexts, dim=1)[:, [order.index(head) for head in range(count)]]


def _by_calls(
    queries: Rows,
    keys: Columns,
    values: Columns,
    calls: tuple[KernelCall, ...],
    scale: float,
    dropout: float,
) -> Rows:
    """Run each call over the keys that its queries may see, and put the rows in order."""
    parts: dict[int, Tensor] = {}
    for call in calls:
        own = _gather(queries, call.rows)
        if not call.keys:  # these queries may see nothing: zeros, with zeros as gradient
            context = own.masked_fill(torch.ones((), dtype=torch.bool, device=own.device), 0.0)
        else:
            # Keys side by side; the kernel sees a shorter sequence.
            seen = _gather(keys, call.keys), _gather(values, call.keys)
            context = _kernel(own, *seen, causal=call.causal, scale=scale, dropout=dropout)
        # Where each run of the computed rows begins in the result.
        offsets = [0, *accumulate(map(len, call.rows))]
        begins = [(run.start, offset) for run, offset in zip(call.rows, offsets, strict=False)]
        for kept in call.kept:
            run, offset = max(begin for begin in begins if begin[0] <= kept.start)
            place = offset + kept.start - run
            parts[kept.start] = context[:, :, place : place + len(kept)]
    # Side by side in the memory order (batch, query, heads, width), in which models join the heads.
    rows = [parts[start].transpose(1, 2) for start in sorted(parts)]
    return (torch.cat(rows, dim=1) if len(rows) > 1 else rows[0]).transpose(1, 2)


def _gather(tensor: Float[Tensor, "batch heads n width"], ranges: tuple[range, ...]) -> Tensor:
    """Return the tensor cut to these ranges of its third axis; a view for one range."""
    parts = [tensor[:, :, part.start : part.stop] for part in ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _kernel(
    queries: Tensor, keys: Tensor, values: Tensor, *, causal: bool, scale: float, dropout: float
) -> Tensor:
    """Call torch's kernel without a mask, or causally with the last query at the last key."""
    rows = queries.shape[-2]
    columns = keys.shape[-2]
    options: dict[str, Any] = {"dropout_p": dropout, "scale": scale}
    grouped = queries.shape[1] != keys.shape[1]
    # The kernel's own causal mask fits a square alone: it aligns the first query with the first
    # key.
    if not causal or rows == 1 or rows == columns:
        return scaled_dot_product_attention(
            queries, keys, values, is_causal=causal and rows > 1, enable_gqa=grouped, **options
        )
    if queries.is_cuda:
        # Late: it imports torch's compiler, for seconds.
        from torch.nn.attention.bias import causal_lower_right

        if grouped and queries.element_size() > 2:  # the kernel for float32 knows no groups
            keys = repeat_key_heads(keys, queries)
            values = repeat_key_heads(values, queries)
            grouped = False
        lower_right: Any = causal_lower_right(rows, columns)
        return scaled_dot_product_attention(
            queries, keys, values, attn_mask=lower_right, enable_gqa=grouped, **options
        )
    return _by_blocks(queries, keys, values, Attention(mask=causal_mask), scale, dropout)


def _by_blocks(
    queries: Rows,
    keys: Columns,
    values: Columns,
    attention: Attention,
    scale: float,
    dropout: float,
) -> Rows:
    """Run each block of queries with the keys it sees, or all at once where few keys would be
    skipped.

    With many scores the table of a block is not kept for the backward pass, but made again.
    """
    batch, heads, count, _ = queries.shape
    columns = keys.shape[-2]
    of = (count, columns)
    scores = batch * heads * count * columns
    ranges = exact.find_key_ranges(queries, keys, attention)
    blocks = [range(first, min(first + ROWS, count)) for first in range(0, count, ROWS)]
    # The kernel needs at least one key: a block that sees nothing gets a hidden one.
    seen = [exact.range_of_block(ranges, block, columns) or range(1) for block in blocks]
    run = partial(_fused, of=of, attention=attention, scale=scale, dropout=dropout)
    # Where less than a quarter of the keys can be skipped, one call is faster than many.
    if scores <= WHOLE and sum(map(len, seen)) * 4 > len(blocks) * columns * 3:
        return run(queries, keys, values, range(count), range(columns))
    # With many scores the table of a block is made again in the backward pass, not kept.
    recompute = (
        scores > WHOLE
        and _needs_gradient(queries, keys, values, attention)
        and torch_modes.can_checkpoint()
    )
    contexts = []
    for own, rows, shown in zip(torch.split(queries, ROWS, dim=2), blocks, seen, strict=True):
        part = slice(shown.start, shown.stop)
        inputs = (own, keys[:, :, part], values[:, :, part])
        block = partial(run, rows=rows, columns=shown)
        contexts.append(torch_modes.run_block(block, inputs, recompute, dropout))
    return torch.cat(contexts, dim=2)


def _fused(
    queries: Rows,
    keys: Columns,
    values: Columns,
    rows: int | range,
    columns: int | range,
    of: tuple[int, int],
    attention: Attention,
    scale: float,
    dropout: float,
) -> Rows:
    """Call torch's kernel for the given rows and columns of a matrix of size `of` = (queries,
    keys).

    `rows` and `columns` are ranges, or numbers that stand for all. `queries`, `keys` and `values`
    are cut to them.
    """
    # A causal square needs no table: the kernel has that mask built in.
    square = (
        not isinstance(rows, range)
        and attention.bias is None
        and attention.mask == causal_mask
        and of[0] == of[1]
    )
    added, empty_rows, nonfinite, far = (
        ScoreTable(None, None) if square else score_table(queries, rows, columns, of, attention)
    )
    if added is not None and queries.device.type != "cpu":
        # GPU kernels take no broadcast mask.
        added = added.expand(*queries.shape[:3], keys.shape[-2])
    options: dict[str, Any] = {
        "attn_mask": added,
        "dropout_p": dropout,
        # torch's own causal mask aligns the first query with the first key
        "is_causal": torch_modes.constant(square and of[0] != 1),
        "scale": scale,
        "enable_gqa": torch_modes.constant(queries.shape[1] != keys.shape[1]),
    }
    sound = queries.is_cuda and not square and _needs_gradient(queries, keys, values, attention)
    with sdpa_kernel(SOUND_GRADIENTS) if sound else nullcontext():
        context = scaled_dot_product_attention(queries, keys, values, **options)
    # The caller sees the NaN and recomputes.
    if nonfinite or (far and _needs_gradient(queries, keys, values, attention)):
        return torch.full_like(context, torch.nan)
    return context if empty_rows is None else context.masked_fill(empty_rows, 0.0)


def _needs_gradient(queries: Tensor, keys: Tensor, values: Tensor, attention: Attention) -> bool:
    """Return whether autograd needs a gradient of an input or of a learned bias."""
    # A learned bias needs its gradient too.
    inputs = (queries, keys, values, *tensors(attention.bias))
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)


def _pad_features(
    tensor: Float[Tensor, "batch heads position d"], width: int
) -> Float[Tensor, "batch heads position width"]:
    """Return `tensor` padded with zeros to `width` features: fused kernels need queries, keys and
    values equally wide.

    Zeros change neither q·k nor the first d_v features of the context.
    """
    return tensor if tensor.shape[-1] == width else pad(tensor, (0, width - tensor.shape[-1]))
