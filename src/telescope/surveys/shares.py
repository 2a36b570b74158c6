"""The weight inside of a mask, of listed keys, and of every key of a cache, exactly and without
forming the matrix.

The weight inside of a mask is exp(lse inside of the mask - lse), at the cost of the mask's area.
The keys listed for a query are a stretch of a list in which keys stand in any order: the 64 keys
before the query in the order of the text, or earlier occurrences of its token in the order of the
tokens. The cost grows with the number of listed pairs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce as fold
from itertools import islice, product
from operator import and_
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import pad

from ..attention import Attention, Both, Either, Mask, Pairs, Spans, dot, everyone
from ..words import hint
from . import triton
from .blocks import as_dot, is_power_of_two, row_pairs
from .dispatch import log_sum_exp, summarize
from .launch import run, survey_listed
from .matrix import Matrix
from .requests import TILE, Extras, Listing
from .summary import Keys, PerKey, PerQuery, Queries, compute_dtype

MAX_TERMS = 16  # of a mask that is taken apart into spans
SCORES = {"cpu": 2**20, "cuda": 2**26}  # how many numbers of listed pairs are held at a time
KEY_SCORES = ("received", "largest", "carried")
REDUCE = ("mean", "max", "sum")


# ---------------------------------------------------------------------- the weight inside of a mask


def share_within(
    engine: str,
    queries: Queries,
    keys: Keys,
    attention: Attention,
    lse: PerQuery,
    mask: Mask,
) -> PerQuery:
    """Return the part of each query's weight that goes to keys that `mask` lets it see. The
    normaliser is softmax.

    Only pairs inside of the mask are computed if it is made of spans, joined by & and |.
    """
    # Parts that share no pair are added up; each is an attention of its own, without the sink.
    share = torch.zeros_like(lse)
    for part in disjoint_parts(attention.mask & mask, queries, keys):
        inside = log_sum_exp(engine, queries, keys, replace(attention, mask=part, sink=None))
        share += torch.exp(inside.to(lse.dtype) - lse).masked_fill(lse == -torch.inf, 0.0)
    return share


@dataclass(frozen=True, eq=False)
class SpansOfRows(Mask):
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
    # Spans of whole rows, the same for all heads, can be cut against one another.
    terms = _terms(mask)
    batch, _, rows, _ = queries.shape
    columns = keys.shape[-2]
    at = row_pairs(queries, keys)
    if len(terms) < 2 or len(terms) > MAX_TERMS or mask.spans(at, columns).whole:
        return [mask]
    spans = [term.spans(at, columns) for term in terms]
    if not all(span.whole for span in spans) or any(span.start.shape[1] > 1 for span in spans):
        return [mask]
    start, stop = (
        torch.stack([getattr(span, end).expand(batch, 1, rows, 1) for span in spans])
        for end in ("start", "stop")
    )
    # In the order of their first keys, each span gives up what the spans before it cover.
    start, order = torch.where(start < stop, start, columns).sort(0)
    stop = stop.gather(0, order)
    covered = torch.zeros_like(start[0])
    parts: list[Mask] = []
    for first, last in zip(start, stop, strict=True):
        first = torch.maximum(first, covered)
        last = torch.maximum(first, last)
        covered = last
        parts.append(SpansOfRows(first, last))
    return parts


def _terms(mask: Mask) -> list[Mask]:
    """Return masks of which `mask` is the union, without | as far as & can be distributed over
    it.
    """
    if isinstance(mask, Either):
        return [term for part in mask.masks for term in _terms(part)]
    if isinstance(mask, Both):  # (a | b) & c is a & c | b & c
        combined = product(*map(_terms, mask.masks))
        # One more than allowed tells the caller that there are too many.
        return [fold(and_, parts, everyone) for parts in islice(combined, MAX_TERMS + 1)]
    return [mask]


# -------------------------------------------------------------------------------------- listed keys


class ListedWeights(NamedTuple):
    """What one listing sums up to."""

    share: Float[Tensor, "set batch heads query"]
    """The weight that each query gives to its listed keys."""
    seen: Bool[Tensor, "batch heads query"] | None
    """Whether the query may see a key of the first set, if the listing wants that."""


def listed_weights(
    queries: Queries,
    keys: Keys,
    attention: Attention,
    lse: PerQuery,
    listings: Iterable[Listing],
) -> Iterator[ListedWeights]:
    """Yield the weight that every query gives to its listed keys, for one listing after the other.

    The normaliser must be softmax, and lse that of the same attention.
    """
    matrix = None
    if triton.cannot(queries, keys, attention) is None:
        matrix = Matrix.of(queries, keys, attention, triton.MEMORY)
    for listing in listings:
        # The kernel would need a mask or bias of any other kind as a table of all pairs.
        if matrix is None or matrix.has_tables or not listing.keys.shape[-1]:
            yield _by_tiles(queries, keys, attention, lse, listing)
        else:
            yield _by_kernel(matrix, lse, listing)


def _by_kernel(matrix: Matrix, lse: Tensor, listing: Listing) -> ListedWeights:
    share = lse.new_empty(len(listing.start), *lse.shape, dtype=torch.float32)
    seen = lse.new_empty(lse.shape, dtype=torch.bool) if listing.wants_seen else None
    # Without a table and without a search, a band takes no memory: one has all rows.
    (band,) = matrix.bands()
    lists = (tensor.contiguous() for tensor in listing._tensors)
    run(survey_listed, band, lse.float().contiguous(), *lists, share, seen)
    return ListedWeights(share, seen)


def _by_tiles(
    queries: Tensor, keys: Tensor, attention: Attention, lse: Tensor, listing: Listing
) -> ListedWeights:
    """Compute the same in plain PyTorch.

    Queries and keys are put into the order of the lists and cut into tiles. The tiles that hold a
    listed pair are multiplied, as many at a time as SCORES allows, for all heads together.
    """
    work = _TiledLists(queries, keys, attention, lse, listing)
    tiles = _for_each_sequence(listing._tiles, listing.start.shape[1], len(queries))
    for some in torch.split(tiles, work.at_once):
        work.add(*some.T)
    return work.result()


class _TiledLists:
    """Queries, keys and lse in the order of a listing, cut into tiles, and sums of their weights.

    A tile has TILE rows and `width` keys; each sequence has `high` tiles of rows and `wide` of
    keys.
    """

    def __init__(
        self, queries: Tensor, keys: Tensor, attention: Attention, lse: Tensor, listing: Listing
    ) -> None:
        self.attention = attention
        self.listing = listing
        self.batch, self.heads, self.rows, _ = queries.shape
        self.shift = keys.shape[-2] - self.rows  # the position of row 0, counted in keys
        self.is_dot = attention.score.is_dot_product
        self.scale = attention.scale_for(keys.shape[-1])
        dtype = compute_dtype(queries)
        inner = attention.score.numbers_per_score(queries, keys)
        if self.is_dot:
            queries, keys = as_dot(attention, queries, keys, dtype)
            if is_power_of_two(self.scale):
                queries = queries.to(dtype) * self.scale
                self.scale = 1.0

        # Cut what is listed into tiles.
        slots = listing.keys.shape[-1]
        sets = len(listing.start)
        self.width = max(1, min(TILE, slots))
        self.listed_rows = listing.rows.expand(self.batch, -1).long()
        listed_keys = listing.keys.expand(self.batch, -1).long()
        self.queries = _cut(queries, self.listed_rows, TILE, dtype)
        self.keys = _cut(keys, listed_keys, self.width, dtype)
        self.row, self.key = (
            _cut(part[:, None, :, None], None, size, torch.long)[:, 0, :, 0]
            for part, size in ((self.listed_rows, TILE), (listed_keys, self.width))
        )
        logs = lse.masked_fill(lse == -torch.inf, 0.0)[..., None]
        self.lse = _cut(logs, self.listed_rows, TILE, dtype)
        by_sequence = (
            ends.expand(sets, self.batch, self.rows).permute(1, 0, 2)[..., None]
            for ends in (listing.start, listing.stop)
        )
        self.spans = [_cut(ends, None, TILE, torch.int32)[..., 0] for ends in by_sequence]

        # Sums over the keys, for each tile of rows.
        self.high = -(-self.rows // TILE)
        self.wide = -(-slots // self.width)
        size = (self.batch * self.high, sets, self.heads, TILE)
        self.share = self.queries.new_zeros(size)
        self.seen = self.queries.new_zeros(size[0], 1, *size[2:], dtype=torch.int32)
        features = self.queries.shape[-1] + self.keys.shape[-1]
        per_tile = self.heads * TILE * (2 * self.width * inner + features)
        most = SCORES.get(queries.device.type, SCORES["cuda"])
        self.at_once = max(1, most // max(per_tile, 1))

    def add(self, b: Tensor, m: Tensor, n: Tensor) -> None:
        """Add the weights of some tiles: sequence, tile of rows and tile of keys."""
        attention = self.attention
        down = b * self.high + m
        across = b * self.wide + n
        row = self.row[down][:, None, :, None]
        at = Pairs(
            batch=b[:, None, None, None],
            head=torch.arange(self.heads, device=b.device)[None, :, None, None],
            row=row,
            query=row + self.shift,
            key=self.key[across][:, None, None],
        )
        # Where the keys of each row begin and end in this tile.
        start, stop = (
            ends[down][..., None] - n[:, None, None, None] * self.width for ends in self.spans
        )
        slot = torch.arange(self.width, device=b.device)
        hidden = ((slot < start[:, :1]) | (slot >= stop[:, :1])) | ~attention.mask.sees(at)

        # Compute the scores, and from them the weights.
        score = dot if self.is_dot else attention.score
        scores = score(self.queries[down], self.keys[across])
        scores = scores if self.scale == 1.0 else scores.mul_(self.scale)
        scores = attention.biased(attention.capped(scores), at)
        if self.listing.wants_seen:
            visible = ~hidden if attention.bias is None else ~hidden & (scores > -torch.inf)
            found = visible.any(-1).int()[:, None].expand(-1, 1, self.heads, -1)
            self.seen.index_add_(0, down, found)
        # Hidden afterwards: exp of -inf takes several times as long.
        weights = scores.sub_(self.lse[down]).exp_().masked_fill_(hidden, 0.0)

        # The first set is a stretch of keys; each other set is one of them.
        self.share[:, :1].index_add_(0, down, weights.sum(-1)[:, None])
        for i in range(1, len(self.listing.start)):
            own = start[:, i, None]
            in_tile = (start < stop)[:, i, None] & (own >= 0) & (own < self.width)
            where = own.clamp(0, self.width - 1).long().expand(*weights.shape[:3], 1)
            self.share[:, i].index_add_(0, down, (weights.gather(-1, where) * in_tile)[..., 0])

    def result(self) -> ListedWeights:
        """Return the sums of all tiles added."""
        seen = self._in_order(self.seen > 0)[0] if self.listing.wants_seen else None
        return ListedWeights(self._in_order(self.share), seen)

    def _in_order(self, tiled: Tensor) -> Tensor:
        """Return (set, batch, heads, query), queries in their own order."""
        by_sequence = tiled.view(self.batch, self.high, *tiled.shape[1:]).permute(0, 2, 3, 1, 4)
        listed = by_sequence.flatten(3)[..., : self.rows]
        where = self.listed_rows[:, None, None].expand_as(listed)
        return torch.zeros_like(listed).scatter_(-1, where, listed).transpose(0, 1)


def _cut(
    tensor: Shaped[Tensor, "batch heads position feature"],
    order: Int[Tensor, "batch slot"] | None,
    size: int,
    dtype: torch.dtype,
) -> Shaped[Tensor, "tile heads size feature"]:
    """Return positions in this order, cut into tiles of `size`, the last one padded with zeros."""
    # Gathering is a copy of all queries or keys: not where they stand in order already.
    if order is not None and not _is_range(order, tensor.shape[2]):
        tensor = torch.stack(
            [one.index_select(1, which) for one, which in zip(tensor, order, strict=True)]
        )
    # Pad to whole tiles, and bring the tiles to the front.
    tensor = pad(tensor, (0, 0, 0, -tensor.shape[2] % size)).to(dtype)
    batch, heads, _, features = tensor.shape
    tiled = tensor.reshape(batch, heads, tensor.shape[2] // size, size, features).transpose(1, 2)
    return tiled.reshape(-1, heads, size, features)


def _is_range(order: Int[Tensor, "batch slot"], count: int) -> bool:
    """Return whether every position stands in its own slot; False on a GPU, where reading the order
    would block.
    """
    if order.device.type != "cpu":
        return False
    return order.shape[1] == count and bool((order == torch.arange(count)).all())


def _for_each_sequence(
    tiles: Int[Tensor, "tile 3"], listed: int, batch: int
) -> Int[Tensor, "more 3"]:
    """Return the tiles of every sequence, where `listed` is 1 and the tiles are those of all."""
    if listed == batch:
        return tiles
    # Repeat the tiles, with the number of each sequence in front.
    every = torch.arange(batch, device=tiles.device).repeat_interleave(len(tiles))
    return torch.cat([every[:, None], tiles.repeat(batch, 1)[:, 1:]], 1)


# ----------------------------------------------------------------------------------- scores of keys


def check_rules(score: str, reduce: str) -> None:
    """Raise a ValueError if one of the two is unknown."""
    if score not in KEY_SCORES:
        raise ValueError(f'there is no score="{score}"; {hint(str(score), KEY_SCORES)}')
    if reduce not in REDUCE:
        raise ValueError(f'there is no reduce="{reduce}"; {hint(str(reduce), REDUCE)}')


def key_scores(
    queries: Queries,
    keys: Keys,
    attention: Attention,
    *,
    score: str = "received",
    reduce: str = "mean",
    norms: PerKey | None = None,
) -> Float[Tensor, "batch key_heads key"]:
    """Return a score for each key of each key head, in memory that grows with n and not with n².

    score    "received": the weight the key gets, the mean of the queries that may see it;
             "largest": the largest weight it gets;
             "carried": "received" times `norms`, such as ‖W_O v‖
    reduce   how the query heads that share a key head are reduced: "mean", "max" or "sum"

    Example:
        >>> import telescope as ts, torch
        >>> from telescope.surveys import key_scores
        >>> zeros = torch.zeros(1, 2, 4, 8)
        >>> key_scores(zeros, zeros[:, :1], ts.Attention(), score="largest").tolist()
        [[[0.25, 0.25, 0.25, 0.25]]]
    """
    check_rules(score, reduce)
    if score == "carried" and norms is None:
        raise ValueError('score="carried" needs norms, one for each head and key')
    with torch.no_grad():
        asked = Extras(largest=score == "largest")
        seen = summarize(queries, keys, attention, top=0, extras=asked)[1]
        found = seen.largest_weight
        if found is None:
            # The mean over the rows that may see the key: from `first` on.
            rows = queries.shape[-2]
            columns = keys.shape[-2]
            first = torch.arange(columns, device=keys.device) - (columns - rows)
            found = seen.received / (rows - first.clamp(min=0)).clamp(min=1)
            found = found if norms is None else found * norms.to(found.dtype)
        # Query heads that share a key head are neighbours.
        grouped = found.view(len(found), keys.shape[1], -1, keys.shape[-2])
        if reduce == "max":
            return grouped.amax(2)
        return grouped.mean(2) if reduce == "mean" else grouped.sum(2)
