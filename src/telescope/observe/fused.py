"""torch's fused attention as a model calls it, and its lse, which torch computes and does not hand out."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode


class Fused(TorchFunctionMode):
    """While one attention runs: the same kernel with the same arguments, called by its own name."""

    def __init__(self) -> None:
        super().__init__()
        self.lse: Tensor | None = None
        self.context: Tensor | None = None
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        self.calls += 1
        self.context, lse = _attend(*args, **(kwargs or {}))
        self.lse = lse if self.calls == 1 else None
        return self.context

    def lse_of(self, context: Tensor) -> Tensor | None:
        """The lse, if that is what the kernel wrote: an engine that distrusts a NaN computes all of it again."""
        if self.lse is None or self.context is None:
            return None
        written, given = (it.untyped_storage().data_ptr() for it in (self.context, context))
        return self.lse if written == given else None


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
    options: dict[str, Any] = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    plain = attn_mask is None and not torch.is_autocast_enabled(query.device.type)
    if plain and query.shape[-1] % 8 == 0:  # of other widths, torch fills the features up first
        choice: Any = torch._fused_sdp_choice
        kernel = _KERNELS.get((query.device.type, SDPBackend(choice(query, key, value, None, dropout_p, **options))))
        if kernel is not None:
            context, lse = kernel(query, key, value, dropout_p, is_causal, scale)[:2]
            return context, lse.detach().reshape(query.shape[:3])  # cuDNN's has one more axis
    return scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, **options), None


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
