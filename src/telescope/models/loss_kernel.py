"""The GPU's part of the loss: a row of logits is read once from memory, and its gradient written in its place."""

import triton
import triton.language as tl


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
