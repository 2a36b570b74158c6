"""The share of each query's weight inside a mask: exp(lse inside of the mask - lse), at the cost of
the mask's area.
"""

from dataclasses import dataclass, replace
from itertools import product

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..attention import Attention, Both, Either, Mask, Pairs, Spans, everyone
from . import chunked
from .dispatch import ENGINES

MAX_TERMS = 16  # of a mask that is taken apart into spans


def share_within(
    engine: str,
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    lse: Float[Tensor, "batch heads query"],
    mask: Mask,
) -> Float[Tensor, "batch heads query"]:
    """Return the part of each query's weight that goes to keys that `mask` lets it see. The
    normaliser is softmax.

    Only pairs inside of the mask are computed if it is made of spans, joined by & and |.
    """
    share = torch.zeros_like(lse)
    for part in disjoint_parts(attention.mask & mask, queries, keys):
        inside = log_sum_exp(engine, queries, keys, replace(attention, mask=part, sink=None))
        share += torch.exp(inside.to(lse.dtype) - lse).masked_fill(lse == -torch.inf, 0.0)
    return share


def log_sum_exp(
    engine: str, queries: Tensor, keys: Tensor, attention: Attention
) -> Float[Tensor, "batch heads query"]:
    """Return ln Σ exp(score) by the engine of this name, or by `chunked` where it cannot."""
    chosen = ENGINES[engine]
    chosen = chosen if chosen.cannot(queries, keys, attention) is None else chunked
    if hasattr(chosen, "log_sum_exp"):
        lse: Tensor = chosen.log_sum_exp(queries, keys, attention)
    else:
        lse = chosen.summarize(queries, keys, attention, None, 0, None).lse
    return lse


@dataclass(frozen=True, eq=False)
class RowSpans(Mask):
    """Each query sees the keys from `start` to `stop`."""

    start: Int[Tensor, "#batch #head query 1"]
    stop: Int[Tensor, "#batch #head query 1"]

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        spans = self.spans(at, 0)
        return (at.key >= spans.start) & (at.key < spans.stop)

    def spans(self, at: Pairs, keys: int) -> Spans:
        start, stop = (
            at.pick(ends[..., 0], "batch", "head", "row") for ends in (self.start, self.stop)
        )
        return Spans(start, stop, True)


def disjoint_parts(mask: Mask, queries: Tensor, keys: Tensor) -> list[Mask]:
    """Return masks that share no pair and together are `mask`: spans where it is made of spans,
    else itself.
    """
    terms = _terms(mask)
    batch, heads, rows, _ = queries.shape
    columns = keys.shape[-2]
    at = Pairs.block(
        range(rows), range(0), of=(rows, columns), batch=batch, heads=heads, device=queries.device
    )
    if len(terms) < 2 or len(terms) > MAX_TERMS or mask.spans(at, columns).whole:
        return [mask]
    spans = [term.spans(at, columns) for term in terms]
    if not all(span.whole for span in spans) or any(span.start.shape[1] > 1 for span in spans):
        return [mask]
    start, stop = (
        torch.stack([part.expand(batch, 1, rows, 1) for part in ends])
        for ends in ([span.start for span in spans], [span.stop for span in spans])
    )
    start, order = torch.where(start < stop, start, columns).sort(0)
    stop = stop.gather(0, order)
    covered = torch.zeros_like(start[0])
    parts: list[Mask] = []
    for first, last in zip(start, stop, strict=True):
        first = torch.maximum(first, covered)
        last = torch.maximum(first, last)
        covered = last
        parts.append(RowSpans(first, last))
    return parts


def _terms(mask: Mask) -> list[Mask]:
    """Return masks of which `mask` is the union, without | as far as & can be distributed over
    it.
    """
    if isinstance(mask, Either):
        return [term for part in mask.masks for term in _terms(part)]
    if isinstance(mask, Both):
        found: list[Mask] = []
        for parts in product(*map(_terms, mask.masks)):
            term: Mask = everyone
            for part in parts:
                term = term & part
            found.append(term)
            if len(found) > MAX_TERMS:
                break
        return found
    return [mask]
