"""torch's fused attention, for every definition it can express without an n x n mask.

A mask that differs from query to query goes to it a block of queries at a time, on a CPU; a GPU wants larger pieces.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from ..attention import Attention, Pairs, causal, everyone, softmax
from ..attention.written import WrittenMask
from . import spans

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
    if attention.bias is not None:
        return "it has no bias"
    if attention.sink is not None:
        return "it has no sink"
    if 0 in (*queries.shape, *keys.shape, values.shape[-1]):
        return "there is nothing to compute"
    if _one_mask(queries, keys, attention) or queries.device.type == "cpu":
        return None
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
    queries, keys, values = _widen(queries, width), _widen(keys, width), _widen(values, width)

    if _one_mask(queries, keys, attention):
        context = _fused(queries, keys, values, range(rows), range(columns), (rows, columns), attention, scale, dropout)
    else:
        context = _by_blocks(queries, keys, values, attention, scale, dropout)
    return context[..., :d_v]


def _one_mask(queries: Tensor, keys: Tensor, attention: Attention) -> bool:
    """Whether the kernel knows the mask, or one row of it does for all queries."""
    rows, columns = queries.shape[-2], keys.shape[-2]
    return rows == 1 or attention.mask.keys_alone or (attention.mask == causal and rows == columns)


def _by_blocks(
    queries: Float[Tensor, "batch heads query width"],
    keys: Float[Tensor, "batch key_heads key width"],
    values: Float[Tensor, "batch key_heads key width"],
    attention: Attention,
    scale: float,
    dropout: float,
) -> Float[Tensor, "batch heads query width"]:
    """Each block with the keys it looks at. Its mask is not kept for the backward pass, but made again."""
    of, looks = (queries.shape[-2], keys.shape[-2]), spans.looks(queries, keys, attention)
    contexts = []
    for first, mine in zip(range(0, of[0], ROWS), torch.split(queries, ROWS, dim=2), strict=True):
        rows = range(first, first + mine.shape[2])
        seen = spans.seen(looks, rows, of[1]) or range(1)  # of nothing the kernel makes nothing: it gets a hidden key
        inputs = mine, keys[:, :, seen.start : seen.stop], values[:, :, seen.start : seen.stop]
        run = partial(_fused, rows=rows, columns=seen, of=of, attention=attention, scale=scale, dropout=dropout)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
            contexts.append(checkpoint(run, *inputs, use_reentrant=False, preserve_rng_state=dropout > 0.0))
        else:
            contexts.append(run(*inputs))
    return torch.cat(contexts, dim=2)


def _fused(
    queries: Float[Tensor, "batch heads query width"],
    keys: Float[Tensor, "batch key_heads key width"],
    values: Float[Tensor, "batch key_heads key width"],
    rows: range,
    columns: range,
    of: tuple[int, int],
    attention: Attention,
    scale: float,
    dropout: float,
) -> Float[Tensor, "batch heads query width"]:
    square = attention.mask == causal and of[0] == of[1] == len(rows)  # is_causal knows no other alignment
    seen, blind = (None, None) if square else _known_mask(queries, rows, columns, of, attention)
    with _kernels(queries, keys, values, square):
        context = scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=seen,
            dropout_p=dropout,
            is_causal=square and len(rows) > 1,
            scale=scale,
            enable_gqa=queries.shape[1] != keys.shape[1],
        )
    return context if blind is None else context.masked_fill(blind, 0.0)


def _kernels(queries: Tensor, keys: Tensor, values: Tensor, square: bool) -> AbstractContextManager[object]:
    """All of torch's, but where a gradient is wanted only those whose gradient is right."""
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (queries, keys, values))
    return sdpa_kernel(SOUND_GRADIENTS) if learns and queries.is_cuda and not square else nullcontext()


def _known_mask(
    queries: Float[Tensor, "batch heads query width"],
    rows: range,
    columns: range,
    of: tuple[int, int],
    attention: Attention,
) -> tuple[Shaped[Tensor, "batch heads query key"] | None, Bool[Tensor, "#batch #heads #query 1"] | None]:
    """As `_mask`. That of a cache of fixed size serves all layers, and as the kernel wants it: added to the scores."""
    if not isinstance(attention.mask, WrittenMask) or torch.compiler.is_compiling():
        return _mask(queries, rows, columns, of, attention)
    known = attention.mask.known
    asked = queries.shape[:2], rows, columns, of, queries.dtype, queries.device
    if asked not in known:
        seen, blind = _mask(queries, rows, columns, of, attention)
        assert seen is not None
        known[asked] = torch.zeros_like(seen, dtype=queries.dtype).masked_fill(~seen, -torch.inf), blind
    added, blind = known[asked]
    return added, blind


def _mask(
    queries: Float[Tensor, "batch heads query width"],
    rows: range,
    columns: range,
    of: tuple[int, int],
    attention: Attention,
) -> tuple[Bool[Tensor, "batch heads query key"] | None, Bool[Tensor, "#batch #heads #query 1"] | None]:
    """Who may see whom, one row where that does for all, and which queries see nothing at all.

    Those are shown everything and zeroed afterwards: kernels differ in what they make of an empty row and its gradient.
    """
    if attention.mask == everyone:
        return None, None
    batch, heads = queries.shape[:2]
    some = range(rows.stop - 1, rows.stop) if attention.mask.keys_alone else rows
    at = Pairs.block(some, columns, of=of, batch=batch, heads=heads, device=queries.device)
    seen = attention.mask.sees(at)
    blind = ~seen.any(-1, keepdim=True)
    return (seen | blind).expand(batch, heads, len(rows), len(columns)), blind


def _widen(tensor: Float[Tensor, "batch heads position d"], width: int) -> Float[Tensor, "batch heads position width"]:
    """Fused kernels want one width. Zeros change neither q·k nor the first d_v features of the context."""
    return tensor if tensor.shape[-1] == width else pad(tensor, (0, width - tensor.shape[-1]))
