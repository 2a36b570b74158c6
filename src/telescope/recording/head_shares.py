"""Measure the habits of heads: the share of their weight that goes to the token before, the first
token and so on.

The shares are sums over the queries, for each sequence and head, computed in O(n) memory beside a
survey. For a text that grows, new queries are added to the sums.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple
from weakref import ref

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..attention import Attention, Bias, Pairs, prefix, softmax, window
from ..attention.mask import Both, Mask
from ..attention.masks import Causal, Keep, Lengths
from ..attention.padding_queries import RealQueries, first_real_key, real_query_masks
from ..attention.restrict import Renumbered
from ..surveys import Listing, Marks, Summary, listed_weights, masked_rows, share_within

FAR = 64
# Keys that a cache with attention sinks and a sliding window keeps
STREAMING_FIRST = 4
STREAMING_LAST = 256
NAMES = ("itself", "previous", "first", "same", "induction", "far")
"""itself: the query's own position. previous: the position before. first: the first token that is
not padding. same: earlier occurrences of the query's token. induction: the tokens that followed
earlier occurrences of the query's token. far: keys more than FAR positions before the query.
"""
REPEATED = (
    "same",
    "induction",
)  # of these, the queries count that see an earlier occurrence of their own token
COUNTS = ("queries", "repeated")
"""queries: how many queries see a token besides the first, and so have a choice. repeated: how many
of these may see an earlier occurrence of their own token.
"""
NO_TOKEN = -1  # an id that no token has
SMALL = {"cpu": 2**17, "cuda": 2**20}  # scores of all heads; up to so many, whole rows are computed
BLOCK = {"cpu": 2**20, "cuda": 2**26}  # scores in memory at a time where whole rows are computed


class Written(NamedTuple):
    """Which queries of a text were given to the model and which it wrote, and what ends a text that
    it writes.
    """

    given: tuple[tuple[int, int], ...]
    """The stretches of queries that were given, (start, stop) each: the prompt, and what a user
    appended later.
    """
    ends: tuple[int, ...]
    """The token ids that end a text."""

    def unended(self, ids: Int[Tensor, "batch query"]) -> Bool[Tensor, "batch query"] | None:
        """Return which queries are no later than the end of their text; None if all are.

        In a batch, a text that has written its end token is padded until the others end. Alone it
        would have stopped there: neither the end token nor what follows would have been a query.
        """
        if not self.ends or not self.given:
            return None
        is_end = torch.isin(ids, ids.new_tensor(self.ends))
        for start, stop in self.given:
            is_end[:, start:stop] = False
        if not bool(is_end.any()):
            return None
        ended = is_end.int().cummax(1).values.bool()
        for start, _ in self.given[1:]:  # a text goes on where a user appends to it
            ended[:, start:] = is_end[:, start:].int().cummax(1).values.bool()
        return ~ended


class BatchTokens:
    """The tokens of a batch of sequences so far, and what is derived from them, shared by all
    layers of a model.

    The reference to the longer text is weak, so that a growing text is not kept at every length,
    which tests/agreement/test_watch_memory.py, test_a_generation_of_400_tokens, measures. The
    reference to a definition is weak to tell whether the definition still lives: a new definition
    may get the identity of a dead one.
    """

    def __init__(self, ids: Int[Tensor, "batch token"]) -> None:
        self.ids = ids
        self.places: dict[Hashable, tuple[ref[Attention], Places]] = {}
        self._next: tuple[tuple[Tensor, ...], ref[BatchTokens]] | None = None
        self._unended: tuple[Hashable, Tensor | None] | None = None
        self._definitions: dict[Hashable, tuple[Attention, Attention]] = {}

    def followed_by(self, *ids: Int[Tensor, "batch more"]) -> "BatchTokens":
        """Return the text with these tokens appended, the same object for each layer that passes
        the same tensors.
        """
        longer = None
        if self._next is not None and [*map(id, self._next[0])] == [*map(id, ids)]:
            longer = self._next[1]()
        if longer is None:
            longer = BatchTokens(torch.cat([self.ids, *(more.to(self.ids) for more in ids)], 1))
            self._next = (ids, ref(longer))
        return longer

    def without_ended(
        self, attention: Attention, size: tuple[int, int], written: Written
    ) -> Attention:
        """Return the definition in which queries after the end of their text see nothing, one for
        all layers.
        """
        if self._unended is None or self._unended[0] != written:
            self._unended = (written, written.unended(self.ids))
            self._definitions = {}
        real = self._unended[1]
        if real is None:
            return attention
        key = (attention.identity, size)
        if key not in self._definitions:
            own = RealQueries(Keep(real.to(self.ids.device)), real.shape[1] - size[1])
            self._definitions[key] = (
                attention,
                attention.with_extra_mask(own),
            )  # the first is kept alive
        return self._definitions[key][1]

    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor that this object keeps."""
        yield self.ids
        if self._next is not None:
            yield from self._next[0]
        for _, made in self.places.values():
            yield from (made.place, made.first)
            yield from () if made.ids is None else (made.ids,)
            for listing in (made.listed or {}).values():
                yield from listing.tensors


@dataclass(frozen=True, eq=False)
class Places:
    """The positions of a call's queries among its keys, and the keys that belong to each habit."""

    place: Int[Tensor, " query"]
    """The position of each query, counted from the first key that is present."""
    first: Int[Tensor, "#batch"]
    """The first token that is not padding, counted likewise; negative if a cache evicted it."""
    batch: int
    keys: int
    evicted: int
    """How many keys a cache dropped before the first that is present."""
    across: bool
    """Whether the keys come from another sequence, in which a query has no position."""
    causal: bool
    """Whether the mask is known to hide every later key."""
    ids: Int[Tensor, "batch token"] | None
    """The tokens of all keys, evicted ones included, if known; NO_TOKEN before the first."""
    padded: bool = False
    """Whether some tokens do not count; without padding, `first` is 0 or was evicted."""
    listed: dict[str, Listing] | None = None
    """The keys of each habit; None where whole rows are computed."""

    @classmethod
    def of(
        cls,
        attention: Attention,
        *,
        batch: int,
        heads: int,
        size: tuple[int, int],
        positions: tuple[int, ...] | None,
        across: bool,
        text: BatchTokens | None,
        device: torch.device,
        evicted: int = 0,
        lists: bool = True,
    ) -> "Places":
        """Return the places of a call.

        `size` is (queries, keys); it and the definition count evicted keys. `positions` are those
        of the queries, None for the last ones. `lists=False` saves the lists of keys, which only
        `shares` needs.
        """
        text = None if across or text is None or text.ids.shape[1] != size[1] else text
        key = (size, positions, evicted, heads, attention.identity)
        if text is not None and key in text.places and text.places[key][0]() is not None:
            return text.places[key][1]  # a living definition's identity is its own
        if positions is None:
            place = torch.arange(size[1] - size[0], size[1], device=device)
        else:
            place = torch.tensor(positions, dtype=torch.long, device=device)
        first = first_real_key(
            attention, batch=batch, heads=heads, size=size, across=across, device=device
        )
        padded = bool(real_query_masks(attention))
        ids = None if text is None else text.ids.to(device)
        if ids is not None and padded:
            # A text may hold the id of padding as a word; the first token of a text follows no
            # word.
            ids = ids.masked_fill(torch.arange(size[1], device=device) < first[:, None], NO_TOKEN)
        made = cls(
            place=place - evicted,
            first=first - evicted,
            batch=batch,
            keys=size[1] - evicted,
            evicted=evicted,
            across=across,
            causal=_is_causal(attention.mask),
            ids=ids,
            padded=padded,
        )
        scores = batch * heads * len(place) * made.keys
        if lists and attention.normalize is softmax and scores > SMALL.get(device.type, 0):
            made = replace(made, listed=made._lists())
        if text is not None:
            text.places = {
                **(text.places if len(text.places) < 4 else {}),
                key: (ref(attention), made),
            }
        return made

    def _lists(self) -> dict[str, Listing]:
        """Return the keys of each habit for each query."""
        place = self.place
        device = self.place.device
        every, keys = (torch.arange(n, device=device)[None].int() for n in (len(place), self.keys))
        present = (self.first >= 0).int()[None, :, None].expand(1, -1, len(place))
        first = Listing(
            every, self.first.clamp(min=0)[:, None].int(), torch.zeros_like(present), present
        )
        if self.across:
            return {"first": first}
        start, stop = (
            torch.stack(ends)[:, None].clamp(0, self.keys).int()
            for ends in ([place - FAR, place, place - 1], [place + 1, place + 1, place])
        )
        listed = {"near": Listing(every, keys, start, stop), "first": first}
        if not self.causal:
            stop = (place - FAR)[None, None].clamp(0, self.keys).int()
            listed["far"] = Listing(every, keys, torch.zeros_like(stop), stop)
        if self.ids is not None:
            listed |= {"same": self._by_token(0), "induction": self._by_token(1)}
        return listed

    def _by_token(self, back: int) -> Listing:
        """Return, for each query, the keys whose token, or the token `back` positions before, is
        the query's token.

        The keys are sorted by that token, so that those of a query are one stretch, which ends at
        the query.
        """
        assert self.ids is not None
        count = self.ids.shape[1]
        first = max(self.evicted, back)
        position = self.place + self.evicted
        wanted, rows = (self.ids[:, position].long() * count).sort(stable=True, dim=1)
        keys = torch.arange(first, count, device=self.ids.device)
        tokens, which = (self.ids[:, first - back : count - back].long() * count + keys).sort(1)
        start, stop = (
            torch.searchsorted(tokens, wanted + past)[None].int() for past in (0, position[rows])
        )
        return Listing(
            rows.int(), (keys - self.evicted)[which].int(), start, stop, wants_seen=not back
        )

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor that this object keeps."""
        listed = [tensor for listing in (self.listed or {}).values() for tensor in listing.tensors]
        return [self.place, self.first, *listed, *([] if self.ids is None else [self.ids])]

    def marks(self, count: int = 1) -> Marks | None:
        """Return the extra sums an engine computes with its summary, for `count` calls stacked
        along the batch axis.

        Return None where whole rows are computed.
        """
        if self.listed is None or self.across:
            return None
        first = self.first.repeat(count if len(self.first) > 1 else 1)[:, None]
        place = self.place[None]
        single = torch.stack(
            [key.expand(len(first), len(self.place)) for key in (place, place - 1, first)]
        )
        listed = [
            self.listed[name].repeated(count)
            for name in ("same", "induction")
            if name in self.listed
        ]
        return Marks(self.place - FAR, single, tuple(listed))

    def habits(self, rows: slice) -> Bool[Tensor, "name #batch row key"]:
        """Return which keys belong to which habit, for some of the queries."""
        key = torch.arange(self.keys, device=self.place.device)
        place = self.place[None, rows, None]
        same = followed = torch.zeros(1, 1, 1, dtype=torch.bool, device=key.device)
        if self.ids is not None:
            own = self.ids[:, self.place[rows] + self.evicted, None]
            before = self.ids.roll(1, 1)
            same = (self.ids[:, None, self.evicted :] == own) & (key < place)
            followed = (
                (before[:, None, self.evicted :] == own) & (key < place) & (key + self.evicted > 0)
            )
        far = place - key > FAR
        first = key == self.first[:, None, None]
        none = torch.zeros_like(far | first | same)
        habits = (key == place, key == place - 1, first, same, followed, far)
        return torch.stack([none | habit for habit in habits])


def shares(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    summary: Summary,
    places: Places,
) -> Float[Tensor, "batch heads sum"]:
    """Return the shares of NAMES, then COUNTS, summed over the queries that have a choice; float64,
    NaN if unknown.

    The definition is the one over the keys that are present. Several calls may be stacked along the
    batch axis.
    """
    chooses = counted(attention, summary, places)
    unknown = (
        {*NAMES} - {"first"} if places.across else {*REPEATED} if places.ids is None else set()
    )
    if places.listed is None:
        summed = torch.zeros(
            *chooses.shape[:2], len(NAMES) + len(COUNTS), dtype=torch.float64, device=queries.device
        )
        for block in _whole_rows(queries, keys, attention, summary, places, chooses):
            summed += _sums(*block)
    else:
        summed = _sums(*_listed_rows(queries, keys, attention, summary, places, chooses))
    for name in unknown:
        summed[..., NAMES.index(name)] = torch.nan
    return summed


QueryShares = tuple[dict[str, Tensor], Tensor, Tensor | None]
"""The share of each habit by query; which queries have a choice; and which of them see an earlier
occurrence of their token, None if the text is unknown.
"""


def _sums(
    share: dict[str, Float[Tensor, "batch heads query"]],
    chooses: Bool[Tensor, "batch heads query"],
    again: Bool[Tensor, "batch heads query"] | None,
) -> Float[Tensor, "batch heads sum"]:
    """Return the sums over the queries that count, in few operations: a GPU's host would spend its
    time on more.
    """
    some = next(iter(share.values()))
    none = torch.zeros_like(some)
    one = torch.ones_like(some)
    again = torch.zeros_like(chooses) if again is None else again
    every = torch.stack([*(share.get(name, none) for name in NAMES), one, one])
    which = torch.stack(
        [*(again if name in REPEATED else chooses for name in NAMES), chooses, again]
    )
    return every.masked_fill_(~which, 0.0).sum(-1, dtype=torch.float64).movedim(0, -1).contiguous()


def _whole_rows(
    queries: Tensor,
    keys: Tensor,
    attention: Attention,
    summary: Summary,
    places: Places,
    chooses: Tensor,
) -> Iterator[QueryShares]:
    """Yield the shares of blocks of queries, from all of their weights."""
    for rows, weights, habits, seen in _rows(queries, keys, attention, summary, places):
        own = chooses[:, :, rows]
        share = torch.einsum("bhrk,nbrk->nbhr", weights, habits.to(weights.dtype))
        again = own & (seen & habits[NAMES.index("same"), :, None]).any(-1)
        yield dict(zip(NAMES, share, strict=True)), own, again


def _listed_rows(
    queries: Tensor,
    keys: Tensor,
    attention: Attention,
    summary: Summary,
    places: Places,
    chooses: Tensor,
) -> QueryShares:
    """Return the shares of all queries: those that the summary has, and the others from the keys
    that are listed.
    """
    assert summary.lse is not None
    assert places.listed is not None
    count = len(queries) // max(places.batch, 1)
    listed = dict(places.listed)
    again = None
    share: dict[str, Tensor] = {}
    if summary.single is not None and summary.before is not None:
        share |= dict(zip(("itself", "previous", "first"), summary.single.unbind(-1), strict=True))
        share["far"] = summary.before
        listed = {name: listing for name, listing in listed.items() if name in REPEATED}
    if listed and summary.listed is not None and summary.listed_seen is not None:
        again = chooses & summary.listed_seen[..., 0]
        share |= dict(zip(listed, summary.listed.unbind(-1), strict=True))
        listed = {}
    parts = listed_weights(
        queries,
        keys,
        attention,
        summary.lse,
        [listing.repeated(count) for listing in listed.values()],
    )
    for name, found in zip(listed, parts, strict=True):
        if found.seen is not None:
            again = chooses & found.seen
        if name != "near":
            share[name] = found.share[0]
            continue
        near, share["itself"], share["previous"] = found.share
        if places.causal:  # every visible key is near or far
            share["far"] = (_weight_of_keys(attention, summary.lse) - near).clamp(min=0.0)
    return share, chooses, again


def streaming_share(
    engine: str,
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    lse: Float[Tensor, "batch heads query"] | None,
    places: Places,
) -> Float[Tensor, "batch heads query"] | None:
    """Return the share of each query's weight on the first and the last tokens; None if the
    normaliser is not softmax.

    Several calls may be stacked along the batch axis.
    """
    if lse is None:
        return None
    first: Mask = prefix(max(0, STREAMING_FIRST - places.evicted))
    if places.padded:
        stop = (places.first + STREAMING_FIRST).clamp(0, places.keys)
        first = Lengths(_repeated(stop, len(queries)))
    return share_within(engine, queries, keys, attention, lse, window(STREAMING_LAST) | first)


def counted(
    attention: Attention, summary: Summary, places: Places
) -> Bool[Tensor, "batch heads query"]:
    """Return which queries have a choice: they see a key, and stand after the first token."""
    entropy = summary.entropy
    lse = summary.lse
    device = summary.entropy.device
    batch, heads, rows = entropy.shape
    counts = entropy >= 0  # NaN if a weight is negative
    if summary.top_keys.shape[-1]:
        counts = counts & (summary.top_keys[..., 0] >= 0)
    elif lse is not None and attention.sink is None:
        counts = counts & (lse > -torch.inf)
    else:
        at = Pairs.block(
            range(rows), range(0), of=(rows, places.keys), batch=batch, heads=heads, device=device
        )
        counts = counts & ~attention.mask.spans(at, places.keys).empty[..., 0]
    if places.across:
        return counts
    after = places.place > places.first[:, None]
    return counts & _repeated(after, batch)[:, None].to(device)


def _weight_of_keys(
    attention: Attention, lse: Float[Tensor, "batch heads query"]
) -> Float[Tensor, "batch heads query"]:
    """Return the total weight that each query gives to keys: 1, or what the sink leaves; 0 if it
    sees none.
    """
    if attention.sink is None:
        return (lse > -torch.inf).to(lse.dtype)
    sink = torch.as_tensor(attention.sink, dtype=lse.dtype, device=lse.device).reshape(-1, 1)
    return 1.0 - torch.exp(sink - lse)


def _rows(
    queries: Tensor, keys: Tensor, attention: Attention, summary: Summary, places: Places
) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """Yield blocks of whole rows: which rows, their weights, the keys of each habit, and the keys
    they see.
    """
    batch, heads, rows, _ = queries.shape
    columns = keys.shape[-2]
    if rows == 1:  # what the keys receive are the weights of the one query
        at = Pairs.block(
            range(1),
            range(columns),
            of=(1, columns),
            batch=batch,
            heads=heads,
            device=queries.device,
        )
        seen = attention.mask.sees(at)
        if isinstance(attention.bias, Bias):
            seen = seen & (attention.bias(at) > -torch.inf)
        one = slice(0, 1)
        yield one, summary.received[:, :, None], _repeated(places.habits(one), batch, 1), seen
        return
    most = BLOCK.get(queries.device.type, BLOCK["cuda"])
    height = max(
        1,
        most // max(1, batch * heads * columns * attention.score.numbers_per_score(queries, keys)),
    )
    for start in range(0, rows, height):
        block = slice(start, min(start + height, rows))
        number = torch.arange(block.start, block.stop, device=queries.device)
        masked = masked_rows(
            queries, keys, attention, number, range(columns), range(batch), range(heads)
        )
        seen = masked > -torch.inf
        if summary.lse is None:
            weights = attention.weights(masked)
        else:
            weights = torch.exp(
                masked - summary.lse[:, :, block, None].to(masked.dtype)
            ).masked_fill_(~seen, 0.0)
        yield block, weights, _repeated(places.habits(block), batch, 1), seen


def _repeated(tensor: Tensor, batch: int, axis: int = 0) -> Tensor:
    """Repeat or expand a tensor along `axis` to the size `batch`, for calls stacked along the batch
    axis.
    """
    count = tensor.shape[axis]
    if count in (1, batch):
        return tensor.expand(*tensor.shape[:axis], batch, *tensor.shape[axis + 1 :])
    return tensor.repeat(*[1] * axis, batch // count, *[1] * (tensor.ndim - axis - 1))


def _is_causal(mask: Mask) -> bool:
    """Return whether the mask is known to hide every key after a query."""
    if isinstance(mask, Both):
        return any(map(_is_causal, mask.masks))
    return _is_causal(mask.mask) if isinstance(mask, Renumbered) else isinstance(mask, Causal)
