"""torch's fused attention as the model calls it, and its lse, which torch computes and does not hand out."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from .lazy import LARGEST, LazyMask


class Fused(TorchFunctionMode):
    """While a model's own attention function runs: the same kernel with the same arguments, called by its own name.

    A mask that is not written out is written out some rows at a time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lse: Tensor | None = None
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        self.calls += 1
        context, lse = _attend(*args, **(kwargs or {}))
        self.lse = lse if self.calls == 1 else None
        return context


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor | None]:
    options: dict[str, Any] = {"dropout_p": dropout_p, "scale": scale, "enable_gqa": enable_gqa}
    if isinstance(attn_mask, LazyMask):
        if attn_mask.numel() > LARGEST and dropout_p == 0.0:
            parts = [
                scaled_dot_product_attention(
                    query[:, :, rows.start : rows.stop], key, value, attn_mask.rows(rows), **options
                )
                for rows in attn_mask.blocks
            ]
            return torch.cat(parts, 2), None
        attn_mask = attn_mask.dense
    plain = attn_mask is None and not torch.is_autocast_enabled(query.device.type)
    if plain and query.shape[-1] % 8 == 0:  # of other widths, torch fills the features up first
        choice: Any = torch._fused_sdp_choice
        backend = choice(query, key, value, None, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        kernel = _KERNELS.get((query.device.type, SDPBackend(backend)))
        if kernel is not None:
            context, lse = kernel(query, key, value, dropout_p, is_causal, scale)[:2]
            return context, lse.detach().reshape(query.shape[:3])  # cuDNN's has one more axis
    return scaled_dot_product_attention(query, key, value, attn_mask, is_causal=is_causal, **options), None


_aten = torch.ops.aten
_KERNELS = {
    ("cpu", SDPBackend.FLASH_ATTENTION): lambda q, k, v, p, causal, scale: (
        _aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, p, causal, scale=scale)
    ),
    ("cuda", SDPBackend.FLASH_ATTENTION): lambda q, k, v, p, causal, scale: _aten._scaled_dot_product_flash_attention(
        q, k, v, p, causal, False, scale=scale
    ),
    ("cuda", SDPBackend.CUDNN_ATTENTION): lambda q, k, v, p, causal, scale: _aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, True, p, causal, False, scale=scale
    ),
}
