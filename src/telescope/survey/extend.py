"""Going on with a survey while decoding: whether its rows still hold, and how new ones are put to them."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..attention import Attention, Bias, Pairs, softmax
from ..attention.pairs import Spans
from .summary import Summary

Size = tuple[int, int]  # queries, keys


def holds(before: Attention, now: Attention, old: Size, new: Size, queries: Tensor, keys: Tensor) -> bool:
    """Whether every old row is as it was, and the new rows can be computed without them."""
    batch, heads, _, d_q = queries.shape
    if (
        now.normalize is not softmax
        or replace(now, mask=before.mask, bias=before.bias) != before
        or not _agree(before.bias, now.bias, old)
        or new[1] - old[1] != new[0] - old[0]  # the last query stands at the last key: the old ones would move
    ):
        return False
    try:
        now.check(batch=batch, heads=heads, queries=new[0] - old[0], keys=new[1], d_q=d_q, d_k=keys.shape[-1])
    except ValueError:  # it holds numbers for each query: the new ones are no attention of their own
        return False
    then, after = _spans(before, old, old[0], queries), _spans(now, new, old[0], queries)
    if now.mask == before.mask:
        return bool((after.empty | (after.stop <= old[1])).all())
    return then.whole and after.whole and _same(then, after)


def joined(old: Summary, new: Summary) -> Summary:
    """The rows of both, and what the keys received from both."""
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


def _agree(before: object, now: object, old: Size) -> bool:
    """Whether both add the same to the old pairs."""
    return now.agrees(before, old) if isinstance(now, Bias) and isinstance(before, Bias) else now == before


def _spans(attention: Attention, of: Size, rows: int, queries: Tensor) -> Spans:
    """Where the first `rows` queries look in a matrix of this size."""
    batch, heads = queries.shape[:2]
    at = Pairs.block(range(rows), range(0), of=of, batch=batch, heads=heads, device=queries.device)
    return attention.mask.spans(at, of[1])


def _same(one: Spans, other: Spans) -> bool:
    nothing = one.empty & other.empty
    return bool((nothing | ((one.start == other.start) & (one.stop == other.stop))).all())
