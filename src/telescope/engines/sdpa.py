"""torch's fused attention, for every definition it can express without an n x n mask.

On a CPU, a mask that differs from query to query, or a bias, goes to it a block of queries at a time; a GPU wants
larger pieces.
"""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from ..attention import Attention, causal, softmax
from ..attention.values import tensors
from . import key_ranges, torch_modes
from .tables import ScoreTable, table

SMALL = 2**14  # pairs of a query and a key, beyond which it pays to ask where queries look
WHOLE = 2**23  # scores up to which one table for all of them, of 32 MiB at most, is better than many small ones
ROWS = 128  # of a block: the best of 64 to 512 (two Neoverse cores, 8 heads, 1,024 and 4,096 tokens, three masks)

# Since torch 2.11 cuDNN's gradient of a masked attention can be NaN, of 64 keys for one, where a query's scores are all
# below -88 (pytorch/pytorch#196678). A translator's training went NaN by cuDNN after some thousand steps, not by these.
SOUND_GRADIENTS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def cannot(queries: Tensor, keys: Tensor, values: Tensor, attention: Attention, dropout: float = 0.0) -> str | None:
    """Why this engine cannot run it, or None."""
    rows, columns = queries.shape[-2], keys.shape[-2]
    if not attention.score.is_dot_product:
        return f"the score {attention.score.formula} is no dot product"
    if attention.normalize is not softmax:
        return f"it normalises by softmax, not by {getattr(attention.normalize, '__name__', attention.normalize)}"
    if attention.softcap is not None:
        return "it has no softcap"
    if attention.sink is not None:
        return "it has no sink"
    if 0 in (*queries.shape, *keys.shape, values.shape[-1]):
        return "there is nothing to compute"
    if attention.bias is not None and queries.device.type != "cpu":
        return "it has no bias"
    if queries.device.type == "cpu" or _one_mask(queries, keys, attention):
        return torch_modes.transform_obstacle()
    return f"the mask {attention.mask!r} would be a {rows} x {columns} tensor"


def attend(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    values: Float[Tensor, "batch key_heads key d_v"],
    attention: Attention,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads query d_v"]:
    scale, d_v, rows, columns = attention.scale_for(keys.shape[-1]), values.shape[-1], queries.shape[-2], keys.shape[-2]
    queries, keys = attention.score.as_dot(queries, keys)
    if scale <= 0.0:
        queries, scale = queries * scale, 1.0  # a kernel scales its -inf too, which must stay -inf
    width = max(keys.shape[-1], d_v)
    if not queries.shape[-1] == values.shape[-1] == width:
        queries, keys, values = _widen(queries, width), _widen(keys, width), _widen(values, width)

    if _one_mask(queries, keys, attention) or torch_modes.sizes_are_open(queries, keys) or rows * columns <= SMALL:
        context = _fused(queries, keys, values, rows, columns, (rows, columns), attention, scale, dropout)
    else:
        context = _by_blocks(queries, keys, values, attention, scale, dropout)
    return context if d_v == width else context[..., :d_v]


def _one_mask(queries: Tensor, keys: Tensor, attention: Attention) -> bool:
    """Whether the kernel knows the mask, or one row of it does for all queries."""
    if queries.shape[-2] == 1:
        return True
    if attention.bias is not None:
        return False
    return attention.mask.keys_alone or (attention.mask == causal and queries.shape[-2] == keys.shape[-2])


def _by_blocks(
    queries: Float[Tensor, "batch heads query width"],
    keys: Float[Tensor, "batch key_heads key width"],
    values: Float[Tensor, "batch key_heads key width"],
    attention: Attention,
    scale: float,
    dropout: float,
) -> Float[Tensor, "batch heads query width"]:
    """Each block with the keys it looks at, or all at once where that is not much more. Unless there are few scores,
    the table of a block is not kept for the backward pass, but made again."""
    (batch, heads, count, _), columns = queries.shape, keys.shape[-2]
    of, looks, scores = (
        (count, columns),
        key_ranges.key_ranges(queries, keys, attention),
        batch * heads * count * columns,
    )
    blocks = [range(first, min(first + ROWS, count)) for first in range(0, count, ROWS)]
    # of nothing the kernel makes nothing: it gets a hidden key
    seen = [key_ranges.range_of_block(looks, block, columns) or range(1) for block in blocks]
    if scores <= WHOLE and sum(map(len, seen)) * 4 > len(blocks) * columns * 3:
        return _fused(queries, keys, values, range(count), range(columns), of, attention, scale, dropout)
    again = scores > WHOLE and _learns(queries, keys, values, attention) and torch_modes.can_checkpoint()
    contexts = []
    for mine, rows, some in zip(torch.split(queries, ROWS, dim=2), blocks, seen, strict=True):
        inputs = mine, keys[:, :, some.start : some.stop], values[:, :, some.start : some.stop]
        run = partial(_fused, rows=rows, columns=some, of=of, attention=attention, scale=scale, dropout=dropout)
        if again:
            contexts.append(checkpoint(run, *inputs, use_reentrant=False, preserve_rng_state=dropout > 0.0))
        else:
            contexts.append(run(*inputs))
    return torch.cat(contexts, dim=2)


def _fused(
    queries: Float[Tensor, "batch heads query width"],
    keys: Float[Tensor, "batch key_heads key width"],
    values: Float[Tensor, "batch key_heads key width"],
    rows: int | range,
    columns: int | range,
    of: tuple[int, int],
    attention: Attention,
    scale: float,
    dropout: float,
) -> Float[Tensor, "batch heads query width"]:
    """`rows` of all queries, `of` how many queries and keys there are; a number stands for all of them."""
    square = not isinstance(rows, range) and attention.bias is None and attention.mask == causal and of[0] == of[1]
    added, blind, broken, far = ScoreTable(None, None) if square else table(queries, rows, columns, of, attention)
    if added is not None and queries.device.type != "cpu":
        added = added.expand(*queries.shape[:3], keys.shape[-2])  # as GPU kernels want it
    how: dict[str, Any] = {
        "attn_mask": added,
        "dropout_p": dropout,
        "is_causal": bool(square and of[0] != 1),  # it knows no other alignment
        "scale": scale,
        "enable_gqa": queries.shape[1] != keys.shape[1],
    }
    if queries.is_cuda and not square and _learns(queries, keys, values, attention):
        with sdpa_kernel(SOUND_GRADIENTS):
            context = scaled_dot_product_attention(queries, keys, values, **how)
    else:
        context = scaled_dot_product_attention(queries, keys, values, **how)
    if broken or (far and _learns(queries, keys, values, attention)):  # the caller sees the NaN and recomputes
        return torch.full_like(context, torch.nan)
    return context if blind is None else context.masked_fill(blind, 0.0)


def _learns(queries: Tensor, keys: Tensor, values: Tensor, attention: Attention) -> bool:
    """Whether a gradient is wanted, of one of these or of a learned bias."""
    inputs = (queries, keys, values, *tensors(attention.bias))
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)


def _widen(tensor: Float[Tensor, "batch heads position d"], width: int) -> Float[Tensor, "batch heads position width"]:
    """Fused kernels want one width. Zeros change neither q·k nor the first d_v features of the context."""
    return tensor if tensor.shape[-1] == width else pad(tensor, (0, width - tensor.shape[-1]))
