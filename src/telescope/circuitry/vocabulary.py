"""Products over the whole vocabulary, in blocks of tokens."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

ROWS = 4096  # tokens of the vocabulary that are multiplied at a time
WIDTH = 256  # rows of the stream that pass through the vocabulary at a time, for many heads


def through_vocabulary(
    rows: Float[Tensor, "row d_model"],
    embedding: Float[Tensor, "vocabulary d_model"],
    unembedding: Float[Tensor, "vocabulary d_model"],
) -> Float[Tensor, "row d_model"]:
    """Return Σ_t (rows · e_t) u_tᵀ over all tokens t: embedding and unembedding, summed up."""
    total = rows.new_zeros(len(rows), unembedding.shape[1])
    pairs = zip(torch.split(embedding, ROWS), torch.split(unembedding, ROWS), strict=True)
    for read, written in pairs:
        total += (rows @ read.to(rows).mT) @ written.to(rows)
    return total


class Pair(NamedTuple):
    """What a head reads of an embedding, and what it writes for an unembedding."""

    read: Float[Tensor, "rank d_model"]
    written: Float[Tensor, "rank d_model"]


def small_products(
    pairs: Sequence[Callable[[], Pair]],
    embedding: Float[Tensor, "vocabulary d_model"],
    unembedding: Float[Tensor, "vocabulary d_model"],
) -> list[Float[Tensor, "rank rank"]]:
    """Return read · (Σ_t e_t u_tᵀ) · writtenᵀ of each pair, which is read when its turn comes.

    These are rank x rank, and have the eigenvalues of the vocabulary x vocabulary matrix
    U writtenᵀ · read Eᵀ that are not 0: those of AB are those of BA.
    """
    d_model = embedding.shape[1]
    first = pairs[0]()
    # A few heads pass through the vocabulary themselves.
    if len(pairs) * len(first.read) <= d_model:
        found = []
        for pair in pairs:
            read, written = pair()
            found.append(through_vocabulary(read, embedding, unembedding) @ written.mT)
        return found
    # For many heads the sum over the tokens is formed once, in blocks of its rows.
    like = first.read
    sums: dict[int, Tensor] = {}
    for start in range(0, d_model, WIDTH):
        stop = min(start + WIDTH, d_model)
        identity = like.new_zeros(stop - start, d_model)
        identity[:, start:stop] = torch.eye(stop - start, dtype=like.dtype, device=like.device)
        block = through_vocabulary(identity, embedding, unembedding)
        for i, pair in enumerate(pairs):
            read, written = pair()
            product = read[:, start:stop] @ (block @ written.mT)
            sums[i] = sums[i] + product if i in sums else product
    return [sums[i] for i in range(len(pairs))]
