"""Find padding in a definition, so that the meaningless rows of padding queries stay out of every
statistic.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import and_

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from .biases import FromAdditive, SumOfBiases
from .definition import Attention
from .mask import Both, Mask, everyone
from .masks import Keep, Left, Lengths
from .pairs import Pairs, Spans
from .restrict import Renumbered

ROWS = 1024  # queries of a block in which a mask given as a function or a tensor is evaluated


@dataclass(frozen=True, eq=False)
class RealQueries(Mask):
    """Hide every key from padding queries: those whose own token is hidden by the mask `padding`.

    In self-attention a query and the key at its position are one token, and `ahead` is 0. In
    cross-attention `padding` is over the tokens of the queries' own sequence.

    ahead  how many tokens that sequence has more than there are keys. Both are aligned at the end:
           the last query is its last token, so that the mask stays right while a decoder appends
           queries.
    """

    padding: Mask
    ahead: int = 0

    def sees(self, at: Pairs) -> Bool[Tensor, "#batch #head #query #key"]:
        return self.padding.sees(replace(at, key=at.query + self.ahead if self.ahead else at.query))

    def spans(self, at: Pairs, keys: int) -> Spans:
        real = self.sees(at)
        return Spans(torch.zeros_like(real, dtype=torch.long), real.long() * keys, True)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        self.padding.check(batch=batch, heads=heads, queries=queries, keys=keys + self.ahead)

    def __repr__(self) -> str:
        return "real queries"


@dataclass(frozen=True, eq=False)
class SelectedQueries(RealQueries):
    """Hide every key from queries that a user did not select. They are no padding: keys at their
    positions count.
    """

    def __repr__(self) -> str:
        return "selected queries"


def find_padding(
    attention: Attention, *, batch: int, heads: int, size: tuple[int, int], device: torch.device
) -> Mask | None:
    """Return the mask of the keys that are no padding in a self-attention; None if nothing is
    padding.

    Padding is what a mask made by `padding` hides. In a mask or bias given as a tensor or a
    function, padding is a token that no query may see, not even itself, if every other token sees
    itself and all heads agree. Where heads differ, keys are hidden for other reasons than padding,
    and all queries count as real.
    """
    bias = attention.bias
    parts = _parts(attention.mask)
    found = [part for part in parts if isinstance(_unwrap(part), Lengths | Left | Keep)]
    rules: list[Callable[[Pairs], Tensor]] = [
        part.sees for part in parts if _unwrap(part).is_arbitrary
    ]
    for added in bias.biases if isinstance(bias, SumOfBiases) else (bias,):
        if isinstance(added, FromAdditive):
            rules.append(partial(_is_finite, added))
    for rule in rules:
        keep = _find_unseen_keys(rule, batch, heads, size, device)
        found += [] if keep is None else [Keep(keep)]
    return None if not found else found[0] if len(found) == 1 else Both(tuple(found))


def _is_finite(bias: FromAdditive, at: Pairs) -> Tensor:
    return bias(at) > -torch.inf


def include_padding_queries(attention: Attention) -> Attention:
    """Return the definition without its `RealQueries` mask, so that padding queries count again."""
    parts = _parts(attention.mask)
    rest = [part for part in parts if not isinstance(_unwrap(part), RealQueries)]
    return (
        attention
        if len(rest) == len(parts)
        else replace(attention, mask=reduce(and_, rest, everyone))
    )


def real_query_masks(attention: Attention) -> list[Mask]:
    """Return the parts of the mask by which padding queries see nothing."""
    return [part for part in _parts(attention.mask) if isinstance(_unwrap(part), RealQueries)]


def first_real_key(
    attention: Attention,
    *,
    batch: int,
    heads: int,
    size: tuple[int, int],
    across: bool,
    device: torch.device,
) -> Int[Tensor, " #batch"]:
    """Return the position of the first key that is no padding, for each sequence, or one number for
    all.

    With `across` the keys are another sequence than the queries, and padding is every key that all
    queries are denied. Otherwise padding is what `RealQueries` leaves out.
    """
    parts = _parts(attention.mask)
    real = _real_keys(parts, batch=batch, heads=heads, keys=size[1], across=across, device=device)
    if real is None:
        return torch.zeros(1, dtype=torch.long, device=device)
    return real.int().argmax(-1)


def _real_keys(
    parts: Sequence[Mask], *, batch: int, heads: int, keys: int, across: bool, device: torch.device
) -> Bool[Tensor, "#batch key"] | None:
    """Return which keys are no padding, by the masks that are joined by &; None if none of them
    tells padding.
    """
    at = Pairs.block(range(1), range(keys), of=(1, keys), batch=batch, heads=heads, device=device)
    if across:
        seen = [part.sees(at) for part in parts if part.same_for_all_queries and part != everyone]
    else:
        real = [
            part
            for part in map(_unwrap, parts)
            if isinstance(part, RealQueries) and _is_padding(part)
        ]
        # Tokens before those that a mask knows count as real.
        tokens = [(part, at.key + part.ahead) for part in real]
        seen = [
            part.padding.sees(replace(at, key=token.clamp(min=0))) | (token < 0)
            for part, token in tokens
        ]
    return reduce(and_, seen).any(1)[:, 0] if seen else None


def real_tokens(
    attention: Attention,
    *,
    batch: int,
    heads: int,
    size: tuple[int, int],
    across: bool,
    device: torch.device,
) -> tuple[Bool[Tensor, "batch query"], Bool[Tensor, "batch key"]]:
    """Return which queries and which keys of a recorded definition are tokens that count.

    Queries are left out by `RealQueries`. Keys are, in self-attention, the tokens of the queries
    and of those before them; in cross-attention, every key that some query may see by the masks
    that are the same for all queries.
    """
    queries, keys = size
    rows = torch.ones(batch, queries, dtype=torch.bool, device=device)
    at = Pairs.block(range(queries), range(0), of=size, batch=batch, heads=heads, device=device)
    for part in filter(_is_padding, real_query_masks(attention)):
        rows = rows & part.sees(at).any(1)[..., 0]
    parts = _parts(attention.mask)
    columns = _real_keys(parts, batch=batch, heads=heads, keys=keys, across=across, device=device)
    if columns is None:
        columns = torch.ones(batch, keys, dtype=torch.bool, device=device)
    return rows, columns.expand(batch, keys)


def _is_padding(real: Mask) -> bool:
    """Return whether the queries that a `RealQueries` mask hides are padding."""
    return not isinstance(_unwrap(real), SelectedQueries)


def _parts(mask: Mask) -> tuple[Mask, ...]:
    """Return the masks that are joined by &."""
    return mask.masks if isinstance(mask, Both) else (mask,)


def _unwrap(mask: Mask) -> Mask:
    """Return the mask of the full attention from which a restricted one was made."""
    return _unwrap(mask.mask) if isinstance(mask, Renumbered) else mask


def _find_unseen_keys(
    sees: Callable[[Pairs], Tensor],
    batch: int,
    heads: int,
    size: tuple[int, int],
    device: torch.device,
) -> Bool[Tensor, "batch key"] | None:
    """Return False for each token that no query may see, itself included; None if nothing counts as
    padding.
    """
    queries, keys = size
    first = size[1] - size[0]
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
        return None  # where tokens see others and not themselves, a hidden key need not be padding
    keep = torch.ones(batch, keys, dtype=torch.bool, device=device)
    keep[:, first:] = seen
    return None if bool(keep.all()) else keep
