"""Extend a survey while decoding: decide whether its rows are still valid, and append the new
ones.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..attention import Attention, Bias, Pairs, Spans, softmax
from .summary import Summary

Size = tuple[int, int]  # queries, keys


def can_reuse_rows(
    before: Attention, now: Attention, old: Size, new: Size, queries: Tensor, keys: Tensor
) -> bool:
    """Return whether all old rows are unchanged, and the new rows can be computed without them.

    `before` is the definition of a matrix of size `old`, `now` that of the longer one of size
    `new`. `queries` and `keys` are the old ones, of which only the shapes and the device count.
    """
    batch, heads, _, d_q = queries.shape
    if (
        now.normalize is not softmax
        or replace(now, mask=before.mask, bias=before.bias) != before
        or not _same_bias(before.bias, now.bias, old)
        or new[1] - old[1]
        != new[0] - old[0]  # the last query stands at the last key, so the old queries would move
    ):
        return False
    try:
        now.check(
            batch=batch,
            heads=heads,
            queries=new[0] - old[0],
            keys=new[1],
            d_q=d_q,
            d_k=keys.shape[-1],
        )
    except ValueError:  # it has numbers for each query, so the new queries cannot be computed alone
        return False
    old_spans = _spans(before, old, old[0], queries)
    new_spans = _spans(now, new, old[0], queries)
    if now.mask == before.mask:
        return bool((new_spans.empty | (new_spans.stop <= old[1])).all())
    return old_spans.whole and new_spans.whole and _same_spans(old_spans, new_spans)


def append_rows(old: Summary, new: Summary) -> Summary:
    """Return the summary of the old rows followed by the new ones; each key receives the sum of
    both.
    """
    assert old.lse is not None
    assert new.lse is not None
    more = new.received.shape[-1] - old.received.shape[-1]
    return Summary(
        lse=torch.cat([old.lse, new.lse], -1),
        received=pad(old.received, (0, more)) + new.received,
        entropy=torch.cat([old.entropy, new.entropy], -1),
        top_weights=torch.cat([old.top_weights, new.top_weights], -2),
        top_keys=torch.cat([old.top_keys, new.top_keys], -2),
        map=None,
    )


def _same_bias(before: object, now: object, old: Size) -> bool:
    """Return whether both add the same to the old pairs."""
    return (
        now.agrees(before, old)
        if isinstance(now, Bias) and isinstance(before, Bias)
        else now == before
    )


def _spans(attention: Attention, of: Size, rows: int, queries: Tensor) -> Spans:
    """Return the spans of keys that the first `rows` queries see in a matrix of this size."""
    batch, heads = queries.shape[:2]
    at = Pairs.block(range(rows), range(0), of=of, batch=batch, heads=heads, device=queries.device)
    return attention.mask.spans(at, of[1])


def _same_spans(one: Spans, other: Spans) -> bool:
    both_empty = one.empty & other.empty
    return bool((both_empty | ((one.start == other.start) & (one.stop == other.stop))).all())
