"""torch's fused attention, for every definition it can express without an n x n mask."""

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from ..attention import Attention, Mask, Pairs, causal, everyone, softmax


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
    if rows == 1 or attention.mask.keys_alone or (attention.mask == causal and rows == columns):
        return None
    return f"the mask {attention.mask!r} would be a {rows} x {columns} tensor"


def attend(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    values: Float[Tensor, "batch key_heads key d_v"],
    attention: Attention,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads query d_v"]:
    scale, d_v = attention.scale_for(keys.shape[-1]), values.shape[-1]
    queries, keys = attention.score.as_dot(queries, keys)
    if scale <= 0.0:
        queries, scale = queries * scale, 1.0  # a kernel scales its -inf too, which must stay -inf
    width = max(keys.shape[-1], d_v)
    queries, keys, values = _widen(queries, width), _widen(keys, width), _widen(values, width)

    seen, blind = _row(queries, keys, attention.mask)
    context = scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=seen,
        dropout_p=dropout,
        is_causal=attention.mask == causal and queries.shape[-2] > 1,
        scale=scale,
        enable_gqa=queries.shape[1] != keys.shape[1],
    )[..., :d_v]
    return context if blind is None else context.masked_fill(blind, 0.0)


def _widen(tensor: Float[Tensor, "batch heads position d"], width: int) -> Float[Tensor, "batch heads position width"]:
    """Fused kernels want one width. Zeros change neither q·k nor the first d_v features of the context."""
    return tensor if tensor.shape[-1] == width else pad(tensor, (0, width - tensor.shape[-1]))


def _row(
    queries: Float[Tensor, "batch heads query width"], keys: Float[Tensor, "batch key_heads key width"], mask: Mask
) -> tuple[Bool[Tensor, "batch heads query key"] | None, Bool[Tensor, "#batch #heads 1 1"] | None]:
    """The one row of the mask that all queries share, and which sequences and heads see nothing at all.

    Those are shown everything and zeroed afterwards: kernels differ in what they make of an empty row and its gradient.
    """
    if mask in (everyone, causal):
        return None, None  # causal is is_causal, and hides nothing from the one query that stands at the last key
    batch, heads, rows, _ = queries.shape
    columns = keys.shape[-2]
    at = Pairs.block(range(1), range(columns), of=(1, columns), batch=batch, heads=heads, device=queries.device)
    seen = mask.sees(at)
    blind = ~seen.any(-1, keepdim=True)
    return (seen | blind).expand(batch, heads, rows, columns), blind
