"""Where the queries and keys of a call stand in their text, and which keys belong to each habit."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from weakref import ref

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..attention import (
    Attention,
    Both,
    Causal,
    Keep,
    Mask,
    RealQueries,
    Renumbered,
    first_real_key,
    real_query_masks,
    softmax,
)
from ..surveys import Listing, Marks
from ..token_kinds import Space
from .table import FAR, KEY_RULES, OFFSETS, AtOffset, FarKeys, FirstToken, KeyRule, TokenMatch

NO_TOKEN = -1  # an id that no token has
SMALL = {"cpu": 2**17, "cuda": 2**20}  # scores of all heads; up to so many, whole rows are computed
MOST_PLACES = 4  # definitions whose places a text keeps: a model has few, and each is as long as it

MATCHES = {name: rule.back for name, rule in KEY_RULES.items() if isinstance(rule, TokenMatch)}
SINGLE = tuple(name for name, rule in KEY_RULES.items() if isinstance(rule, AtOffset | FirstToken))
"""The habits of one key, in the order of `Marks.single`."""


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
        # Only a token that the model wrote ends its text: a prompt may hold the same token.
        for start, stop in self.given:
            is_end[:, start:stop] = False
        if not bool(is_end.any()):
            return None
        # From its first end token on, a text has ended.
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
        # Compare identities: `_next` keeps the tensors alive, so that no id is used twice.
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
        # Forget what was derived from another division into given and written tokens.
        if self._unended is None or self._unended[0] != written:
            self._unended = (written, written.unended(self.ids))
            self._definitions = {}
        real = self._unended[1]
        if real is None:
            return attention
        key = (attention._identity, size)
        if key not in self._definitions:
            # Tokens and keys are aligned at their ends; see `RealQueries`.
            own = RealQueries(Keep(real.to(self.ids.device)), real.shape[1] - size[1])
            # Keep the first definition alive: a new one must not get its identity.
            self._definitions[key] = (attention, attention.with_extra_mask(own))
        return self._definitions[key][1]

    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor that this object keeps."""
        yield self.ids
        if self._next is not None:
            yield from self._next[0]
        for _, made in self.places.values():
            yield from made.tensors


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
    positions: Sequence[int] = ()
    """The positions of the queries on the host, counted from the first key ever."""
    space: Space | None = None
    """Where the tokens lie on images and in time, if that is known."""

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
        space: Space | None = None,
    ) -> "Places":
        """Return the places of a call.

        `size` is (queries, keys); it and the definition count evicted keys. `positions` are those
        of the queries, None for the last ones. `lists=False` saves the lists of keys, which only
        `shares` needs.
        """
        # A text is of use only if its tokens are the keys of this call.
        text = None if across or text is None or text.ids.shape[1] != size[1] else text
        key = (size, positions, evicted, heads, attention._identity, space)
        if text is not None and key in text.places and text.places[key][0]() is not None:
            return text.places[key][1]  # a living definition's identity is its own

        # Count positions over all keys; the evicted ones are subtracted below.
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
            causal=is_causal(attention.mask),
            ids=ids,
            padded=padded,
            positions=range(size[1] - size[0], size[1]) if positions is None else positions,
            space=None if across else space,
        )

        # For few scores whole rows are computed, which needs no lists.
        scores = batch * heads * len(place) * made.keys
        if lists and attention.normalize is softmax and scores > SMALL.get(device.type, 0):
            made = replace(made, listed=made._lists())

        # Keep the places for the next layer; if there are too many, start again.
        if text is not None:
            text.places = {
                **(text.places if len(text.places) < MOST_PLACES else {}),
                key: (ref(attention), made),
            }
        return made

    def _lists(self) -> dict[str, Listing]:
        """Return the keys of each habit for each query."""
        place = self.place
        device = place.device
        every, keys = (torch.arange(n, device=device)[None].int() for n in (len(place), self.keys))
        # The first token is one key for each query, or none where a cache evicted it.
        present = (self.first >= 0).int()[None, :, None].expand(1, -1, len(place))
        first = Listing(
            every, self.first.clamp(min=0)[:, None].int(), torch.zeros_like(present), present
        )
        if self.across:
            return {"first": first}

        # One listing has all keys near the query, and each key at an offset as a set of its own.
        # Later keys change nothing: only under a causal mask is the rest taken to be far.
        offsets = OFFSETS.values()
        starts = [place - FAR, *(place + offset for offset in offsets)]
        stops = [place + 1 + max(0, *offsets), *(place + offset + 1 for offset in offsets)]
        start, stop = (
            torch.stack(ends)[:, None].clamp(0, self.keys).int() for ends in (starts, stops)
        )
        listed = {"near": Listing(every, keys, start, stop), "first": first}
        # Without a causal mask the rest may be later keys, so that far keys need a list.
        if not self.causal:
            stop = (place - FAR)[None, None].clamp(0, self.keys).int()
            listed["far"] = Listing(every, keys, torch.zeros_like(stop), stop)
        if self.ids is not None:
            listed |= {name: self._by_token(back) for name, back in MATCHES.items()}
        return listed

    def _by_token(self, back: int) -> Listing:
        """Return, for each query, the keys whose token, or the token `back` positions before, is
        the query's token.

        The keys are sorted by that token, so that those of a query are one stretch, which ends at
        the query.
        """
        assert self.ids is not None
        count = self.ids.shape[1]
        # Leave out evicted keys, and keys that have no token `back` positions before.
        first = max(self.evicted, back)
        position = self.place + self.evicted
        # token * count + position, one integer, sorts by token and then by position.
        wanted, rows = (self.ids[:, position].long() * count).sort(stable=True, dim=1)
        keys = torch.arange(first, count, device=self.ids.device)
        tokens, which = (self.ids[:, first - back : count - back].long() * count + keys).sort(1)
        # A query's stretch begins at the first key of its token and ends before the query.
        start, stop = (
            torch.searchsorted(tokens, wanted + past)[None].int() for past in (0, position[rows])
        )
        return Listing(
            rows.int(), (keys - self.evicted)[which].int(), start, stop, wants_seen=not back
        )

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor that this object keeps."""
        listed = [tensor for listing in (self.listed or {}).values() for tensor in listing._tensors]
        return [self.place, self.first, *listed, *([] if self.ids is None else [self.ids])]

    def marks(self, count: int = 1) -> Marks | None:
        """Return the extra sums an engine computes with its summary, for `count` calls stacked
        along the batch axis.

        Return None where whole rows are computed.
        """
        if self.listed is None or self.across:
            return None
        # One first token serves all stacked calls; several are repeated call after call.
        first = self.first.repeat(count if len(self.first) > 1 else 1)[:, None]
        single = torch.stack(
            [
                (self.place + OFFSETS[name] if name in OFFSETS else first).expand(
                    len(first), len(self.place)
                )
                for name in SINGLE
            ]
        )
        listed = [self.listed[name]._repeated(count) for name in MATCHES if name in self.listed]
        return Marks(self.place - FAR, single, tuple(listed))

    def habits(self, rows: slice) -> Bool[Tensor, "name #batch row key"]:
        """Return which keys belong to which habit, for some of the queries."""
        key = torch.arange(self.keys, device=self.place.device)
        habits = [self._members(rule, key, rows) for rule in KEY_RULES.values()]
        # A habit that is the same for all sequences has a batch of 1: expand it to the others'.
        batch = next(iter({*map(len, habits)} - {1}), 1)
        size = (batch, len(self.place[rows]), self.keys)
        return torch.stack([habit.expand(size) for habit in habits])

    def _members(
        self, rule: KeyRule, key: Int[Tensor, " key"], rows: slice
    ) -> Bool[Tensor, "#batch #row key"]:
        """Return which keys belong to one habit."""
        place = self.place[None, rows, None]
        match rule:
            case AtOffset(offset):
                return key == place + offset
            case FirstToken():
                return key == self.first[:, None, None]
            case FarKeys():
                return place - key > FAR
            case TokenMatch(back):
                if self.ids is None:
                    # Without token ids nothing matches; `habit_sums` sets these sums to NaN.
                    return torch.zeros_like(key == place)
                own = self.ids[:, self.place[rows] + self.evicted, None]
                # Shift the tokens, so that each key has the token `back` positions before.
                tokens = self.ids.roll(back, 1)[:, None, self.evicted :]
                # The shift wraps around: the first `back` keys have no such token.
                return (tokens == own) & (key < place) & (key + self.evicted >= back)


def is_causal(mask: Mask) -> bool:
    """Return whether the mask is known to hide every key after a query."""
    if isinstance(mask, Both):
        return any(map(is_causal, mask.masks))
    return is_causal(mask.mask) if isinstance(mask, Renumbered) else isinstance(mask, Causal)
