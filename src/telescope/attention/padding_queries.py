"""Leave padding queries out: the rows of padding positions, which mean nothing, are hidden from every statistic."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from .biases import FromAdditive
from .definition import Attention
from .mask import Both, Mask, everyone
from .masks import Keep, Left, Lengths
from .pairs import Pairs, Spans
from .restrict import Renumbered

ROWS = 1024  # of a mask that is a function or a tensor, looked at together


@dataclass(frozen=True, eq=False)
class RealQueries(Mask):
    """Real tokens see everything, and padding sees nothing: a query is padding if `padding` hides the key it stands at.

    For self-attention, in which a query and the key at its position are one token.
    """

    padding: Mask

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        return self.padding.sees(replace(at, key=at.query))

    def spans(self, at: Pairs, keys: int) -> Spans:
        real = self.sees(at)
        return Spans(torch.zeros_like(real, dtype=torch.long), real.long() * keys, True)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        self.padding.check(batch=batch, heads=heads, queries=queries, keys=keys)

    def __repr__(self) -> str:
        return "real queries"


def padding_in(
    attention: Attention, *, batch: int, heads: int, size: tuple[int, int], device: torch.device
) -> Mask | None:
    """Return the mask of the keys that are no padding, as far as the definition of a self-attention tells; None where
    nothing is padding.

    Padding is what a mask made by `padding` hides; of a mask or bias given as a tensor or a function, a token that
    nobody may see, not even itself, if every other token sees itself and the heads agree about all of it: a rule of
    each head's own hides keys for other reasons, and then all queries count.
    """
    bias, parts = attention.bias, _parts(attention.mask)
    known = [part for part in parts if isinstance(_inner(part), Lengths | Left | Keep)]
    rules: list[Callable[[Pairs], Tensor]] = [part.sees for part in parts if _inner(part).given]
    if isinstance(bias, FromAdditive):
        rules.append(lambda at: bias(at) > -torch.inf)
    for rule in rules:
        keep = _unseen(rule, batch, heads, size, device)
        known += [] if keep is None else [Keep(keep)]
    return None if not known else known[0] if len(known) == 1 else Both(tuple(known))


def of_all_queries(attention: Attention) -> Attention:
    """Return the definition as it was before padding queries were left out."""
    parts = _parts(attention.mask)
    rest = [part for part in parts if not isinstance(_inner(part), RealQueries)]
    return attention if len(rest) == len(parts) else replace(attention, mask=reduce(and_, rest, everyone))


def first_key(
    attention: Attention, *, batch: int, heads: int, size: tuple[int, int], across: bool, device: torch.device
) -> Int[Tensor, " #batch"]:
    """Return the position of the first key that is no padding, for each sequence; of one for all where they agree.

    `across`: the keys are another sequence, whose padding nobody sees. Else padding is what RealQueries leaves out.
    """
    parts = _parts(attention.mask)
    if across:
        hiding = [part for part in parts if part.keys_alone and part != everyone]
    else:
        hiding = [part.padding for part in map(_inner, parts) if isinstance(part, RealQueries)]
    if not hiding:
        return torch.zeros(1, dtype=torch.long, device=device)
    at = Pairs.block(range(1), range(size[1]), of=(1, size[1]), batch=batch, heads=heads, device=device)
    real = reduce(and_, (part.sees(at) for part in hiding)).any(1)[:, 0]
    return real.int().argmax(-1)


def _parts(mask: Mask) -> tuple[Mask, ...]:
    return mask.masks if isinstance(mask, Both) else (mask,)


def _inner(mask: Mask) -> Mask:
    """The mask of the whole, of a part of which it was taken."""
    return _inner(mask.mask) if isinstance(mask, Renumbered) else mask


def _unseen(
    sees: Callable[[Pairs], Tensor], batch: int, heads: int, size: tuple[int, int], device: torch.device
) -> Bool[Tensor, "batch key"] | None:
    """Return False for each token that no query may see, itself included; None if every token is seen."""
    (queries, keys), first = size, size[1] - size[0]
    at = Pairs.block(range(queries), range(0), of=size, batch=batch, heads=heads, device=device)
    itself = sees(replace(at, key=at.query)).any(1)[..., 0].expand(batch, queries)
    if bool(itself.all()):
        return None
    seen = itself.clone()
    columns = range(first, keys)
    for row in range(0, queries, ROWS):
        rows = range(row, min(row + ROWS, queries))
        block = sees(Pairs.block(rows, columns, of=size, batch=batch, heads=heads, device=device))
        if bool((block != block[:, :1]).any()):
            return None
        seen |= block.expand(*block.shape[:3], queries)[:, 0].any(1)
    if bool((seen & ~itself).any()):
        return None  # a rule under which tokens look at others and not at themselves says nothing about padding
    keep = torch.ones(batch, keys, dtype=torch.bool, device=device)
    keep[:, first:] = seen
    return None if bool(keep.all()) else keep
