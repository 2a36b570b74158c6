"""torch's fused attention as a model calls it, and its lse, which torch computes and does not hand out."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode


class SdpaWithLse(TorchFunctionMode):
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
    if attn_mask is None and query.shape[-1] % 8 == 0:  # of other widths, torch fills the features up first
        device = query.device.type
        chosen = _choice(query, key, value, None, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        kernel = _KERNELS.get((device, chosen))
        if kernel is not None and not torch.is_autocast_enabled(device):
            context, lse, *_ = kernel(query, key, value, dropout_p, is_causal, scale)
            lse = lse.detach() if lse.requires_grad else lse
            return context, lse if lse.ndim == 3 else lse.view(query.shape[:3])  # cuDNN's has one more axis
    return scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    ), None


_choice: Any = torch._fused_sdp_choice
_aten = torch.ops.aten
_on_cpu = _aten._scaled_dot_product_flash_attention_for_cpu.default
_flash = _aten._scaled_dot_product_flash_attention.default
_cudnn = _aten._scaled_dot_product_cudnn_attention.default
_KERNELS: dict[tuple[str, int], Any] = {
    ("cpu", SDPBackend.FLASH_ATTENTION.value): lambda q, k, v, p, causal, scale: _on_cpu(
        q, k, v, p, causal, scale=scale
    ),
    ("cuda", SDPBackend.FLASH_ATTENTION.value): lambda q, k, v, p, causal, scale: _flash(
        q, k, v, p, causal, False, scale=scale
    ),
    ("cuda", SDPBackend.CUDNN_ATTENTION.value): lambda q, k, v, p, causal, scale: _cudnn(
        q, k, v, None, True, p, causal, False, scale=scale
    ),
}
