"""The Triton kernel of the loss: reads each row of logits from memory once and overwrites it with
its gradient.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # logits of a row that are read at a time


@torch.library.custom_op("telescope::differentiate_logits", mutates_args=["logits"])
def differentiate_in_place(
    logits: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    vocabulary: int,
    ignore: int,
    smoothing: float,
) -> Tensor:
    """Return the loss of each position in float32, and overwrite the logits with their gradient.

    logits is (n, width), of which the first `vocabulary` columns count; the rest becomes zero. A
    target equal to `ignore` has no loss and no gradient.
    """
    losses = logits.new_empty(len(logits), dtype=torch.float32)
    # A power of two, as the kernel needs; small rows get a small block and few warps.
    block = min(BLOCK, max(64, 1 << (logits.shape[-1] - 1).bit_length()))
    differentiate[(len(logits),)](
        logits, bias, targets, losses, logits.stride(0), vocabulary, logits.shape[-1], ignore,
        smoothing,
        BLOCK=block, num_warps=max(1, block // 512), enable_fp_fusion=True,
    )  # fmt: skip
    return losses


@differentiate_in_place.register_fake
def _(
    logits: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    vocabulary: int,
    ignore: int,
    smoothing: float,
) -> Tensor:
    return logits.new_empty(len(logits), dtype=torch.float32)


@triton.jit
def differentiate(
    LOGITS, BIAS, TARGETS, LOSSES, stride, vocabulary, width, ignore, smoothing,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write -log p_target = ln Σ exp(z) - z_target of one row to LOSSES, and its gradient over the
    row's logits z.

    With smoothing z_target becomes (1 - smoothing) · z_target + smoothing · mean(z). The gradient
    is softmax(z) minus the target distribution. The second loop finds the row in the GPU's cache.
    """
    row = tl.program_id(0).to(tl.int64)  # its offset may pass 2^31
    z_row = LOGITS + row * stride
    columns = tl.arange(0, BLOCK)
    target = tl.load(TARGETS + row)
    target_share = 1.0 - smoothing
    smooth_share = smoothing / vocabulary

    # Add up exp(z - largest), and rescale the sum when the largest z so far grows.
    largest = float("-inf")
    total = 0.0
    z_target = 0.0
    z_sum = 0.0
    for n in range(0, vocabulary, BLOCK):
        column = n + columns
        z = _read(z_row, BIAS, column, column < vocabulary)
        new_largest = tl.maximum(largest, tl.max(z, 0))
        total = total * tl.exp(largest - new_largest) + tl.sum(tl.exp(z - new_largest), 0)
        z_target += tl.sum(tl.where(column == target, z, 0.0), 0)
        z_sum += tl.sum(tl.where(column < vocabulary, z, 0.0), 0)
        largest = new_largest

    # The loss of the row.
    lse = largest + tl.log(total)
    counts = tl.where(target == ignore, 0.0, 1.0)
    tl.store(
        LOSSES + row,
        tl.where(target == ignore, 0.0, lse - target_share * z_target - smooth_share * z_sum),
    )
    # The gradient, in place of the logits; columns beyond the vocabulary become zero.
    for n in range(0, width, BLOCK):
        column = n + columns
        inside = column < vocabulary
        z = _read(z_row, BIAS, column, inside)
        d = (
            tl.exp(z - lse) - tl.where(column == target, target_share, 0.0) - smooth_share
        ) * counts
        tl.store(
            z_row + column,
            tl.where(inside, d, 0.0).to(LOGITS.dtype.element_ty),
            mask=column < width,
        )


@triton.jit
def _read(z_row, BIAS, column, inside):
    """Return logits plus bias in float32; -inf outside of the vocabulary."""
    z = tl.load(z_row + column, mask=inside, other=float("-inf")).to(tl.float32)
    return z if BIAS is None else z + tl.load(BIAS + column, mask=inside, other=0.0).to(tl.float32)
