"""Read the log-sum-exp (lse) that torch's fused attention computes and does not return."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode


class SdpaWithLse(TorchFunctionMode):
    """Replace scaled_dot_product_attention, while one attention runs, by the kernel it would
    choose, and keep the lse.

    The kernel is called by its own name with the same arguments, so that the output has the same
    bits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lse: Tensor | None = None
        self.context: Tensor | None = None
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Run all other functions of torch as they are.
        if func is not scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        self.calls += 1
        self.context, lse = attend_with_lse(*args, **(kwargs or {}))
        # With several calls in one attention, no single lse is that of the whole.
        self.lse = lse if self.calls == 1 else None
        return self.context

    def lse_of(self, context: Tensor) -> Tensor | None:
        """Return the lse if `context` is the memory the kernel wrote to.

        It is not where an engine finds a NaN in the kernel's output and computes the attention
        again.
        """
        if self.lse is None or self.context is None:
            return None
        # Compare storages: the context may be a view of what the kernel wrote.
        same_memory = (
            self.context.untyped_storage().data_ptr() == context.untyped_storage().data_ptr()
        )
        return self.lse if same_memory else None


def attend_with_lse(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return the output of scaled_dot_product_attention, and its lse if the chosen kernel computes
    one.
    """
    # torch pads other widths before it calls the kernel.
    if attn_mask is None and query.shape[-1] % 8 == 0:
        device = query.device.type
        # Ask torch which kernel it would run.
        chosen = _choose_backend(
            query, key, value, None, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        kernel = _KERNELS.get((device, chosen))
        # Under autocast torch casts the arguments; a kernel called by its own name does not.
        if kernel is not None and not torch.is_autocast_enabled(device):
            context, lse, *_ = kernel(query, key, value, dropout_p, is_causal, scale)
            lse = lse.detach() if lse.requires_grad else lse
            # cuDNN's lse has one more axis.
            return context, lse if lse.ndim == 3 else lse.view(query.shape[:3])
    # Any other kernel runs as torch chooses, without an lse.
    return scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    ), None


_choose_backend: Any = torch._fused_sdp_choice
_aten = torch.ops.aten
_cpu = _aten._scaled_dot_product_flash_attention_for_cpu.default
_flash = _aten._scaled_dot_product_flash_attention.default
_cudnn = _aten._scaled_dot_product_cudnn_attention.default
# By device and backend: the kernels that return an lse. True asks cuDNN for the lse, False stands
# for no debug mask.
_KERNELS: dict[tuple[str, int], Any] = {
    ("cpu", SDPBackend.FLASH_ATTENTION.value): lambda q, k, v, p, causal, scale: _cpu(
        q, k, v, p, causal, scale=scale
    ),
    ("cuda", SDPBackend.FLASH_ATTENTION.value): lambda q, k, v, p, causal, scale: _flash(
        q, k, v, p, causal, False, scale=scale
    ),
    ("cuda", SDPBackend.CUDNN_ATTENTION.value): lambda q, k, v, p, causal, scale: _cudnn(
        q, k, v, None, True, p, causal, False, scale=scale
    ),
}
