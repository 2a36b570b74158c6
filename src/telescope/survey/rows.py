"""Single rows of the matrix, exact, for whoever asks: they cost as much as the keys are many, and no more."""

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import Attention, Pairs, dot
from .summary import precision

KEYS = 2**16  # how many keys are turned to float32 at once


def masked_rows(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    rows: Int[Tensor, " row"],
    columns: range,
    batch: range,
    heads: range,
) -> Float[Tensor, "some_batch some_heads row column"]:
    """The masked scores of these rows and columns, in these sequences and heads."""
    size, exact = (queries.shape[-2], keys.shape[-2]), precision(queries)
    asking = queries[_slice(batch), :, rows].to(exact)
    parts = []
    for start in range(columns.start, columns.stop, KEYS):
        part = range(start, min(start + KEYS, columns.stop))
        at = Pairs.block(range(len(rows)), part, of=size, batch=batch, heads=heads, device=queries.device)
        at = replace(at, row=rows[None, None, :, None], query=rows[None, None, :, None] + (size[1] - size[0]))
        asked = keys[_slice(batch), :, _slice(part)]
        scaled = attention.scaled(_scores(asking, asked, attention, heads), keys)
        parts.append(attention.masked(attention.biased(attention.capped(scaled), at), at))
    return torch.cat(parts, -1) if parts else asking.new_zeros(len(batch), len(heads), len(rows), 0)


def _scores(queries: Tensor, keys: Tensor, attention: Attention, heads: range) -> Tensor:
    """Of these heads alone where that can be: a score may hold numbers for each head, so it is asked about all."""
    score, group = attention.score, queries.shape[1] // (keys.shape[1] or 1)
    if not score.is_dot_product:
        return score(queries, keys.to(queries.dtype))[:, _slice(heads)]
    queries, keys = score.as_dot(queries, keys)
    queries = queries[:, _slice(heads)]
    shared = keys[:, heads.start // group : -(-heads.stop // group)]
    if heads.step > 1:  # heads apart: each with the keys that it has
        shared = torch.stack([keys[:, head // group] for head in heads], 1)
    return dot(queries, shared.to(queries.dtype))


def _slice(some: range) -> slice:
    return slice(some.start, some.stop, some.step)
