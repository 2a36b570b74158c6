"""The GPU's part of the loss: a row of logits is read once from memory, and its gradient written in its place."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # logits that are read at a time


@torch.library.custom_op("telescope::differentiate_logits", mutates_args=["logits"])
def in_place(
    logits: Tensor, bias: Tensor | None, targets: Tensor, vocabulary: int, ignore: int, smoothing: float
) -> Tensor:
    """The loss of each position; its gradient takes the place of the logits."""
    losses = logits.new_empty(len(logits), dtype=torch.float32)
    block = min(BLOCK, max(64, 1 << (logits.shape[-1] - 1).bit_length()))
    differentiate[(len(logits),)](
        logits, bias, targets, losses, logits.stride(0), vocabulary, logits.shape[-1], ignore, smoothing,
        BLOCK=block, num_warps=max(1, block // 512), enable_fp_fusion=True,
    )  # fmt: skip
    return losses


@in_place.register_fake
def _(logits: Tensor, bias: Tensor | None, targets: Tensor, vocabulary: int, ignore: int, smoothing: float) -> Tensor:
    return logits.new_empty(len(logits), dtype=torch.float32)


@triton.jit
def differentiate(
    LOGITS, BIAS, TARGETS, LOSSES, stride, vocabulary, width, ignore, smoothing,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """-log p_target = ln Σ exp(z) - z_target, in which `smoothing` of z_target is the mean of all z; its gradient is
    softmax(z) less what was wanted. The second reading of a row finds it in the cache."""
    row = tl.program_id(0).to(tl.int64)
    z_row, columns = LOGITS + row * stride, tl.arange(0, BLOCK)
    target = tl.load(TARGETS + row)
    kept, even = 1.0 - smoothing, smoothing / vocabulary

    largest, total, wanted, every = float("-inf"), 0.0, 0.0, 0.0
    for n in range(0, vocabulary, BLOCK):
        column = n + columns
        z = _read(z_row, BIAS, column, column < vocabulary)
        grown = tl.maximum(largest, tl.max(z, 0))
        total = total * tl.exp(largest - grown) + tl.sum(tl.exp(z - grown), 0)
        wanted += tl.sum(tl.where(column == target, z, 0.0), 0)
        every += tl.sum(tl.where(column < vocabulary, z, 0.0), 0)
        largest = grown

    lse, mine = largest + tl.log(total), tl.where(target == ignore, 0.0, 1.0)
    tl.store(LOSSES + row, tl.where(target == ignore, 0.0, lse - kept * wanted - even * every))
    for n in range(0, width, BLOCK):
        column = n + columns
        word = column < vocabulary
        z = _read(z_row, BIAS, column, word)
        d = (tl.exp(z - lse) - tl.where(column == target, kept, 0.0) - even) * mine
        tl.store(z_row + column, tl.where(word, d, 0.0).to(LOGITS.dtype.element_ty), mask=column < width)


@triton.jit
def _read(z_row, BIAS, column, word):
    z = tl.load(z_row + column, mask=word, other=float("-inf")).to(tl.float32)
    return z if BIAS is None else z + tl.load(BIAS + column, mask=word, other=0.0).to(tl.float32)
