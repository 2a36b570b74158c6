"""What heads do by habit, summed while they are surveyed: how much of their weight goes where, without any n x n.

Kept are sums over the queries, for each sequence and head; a text that grows adds to them.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from weakref import ref

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..attention import Attention, Bias, Pairs, softmax
from ..attention.mask import Both, Mask
from ..attention.masks import Causal
from ..attention.padding_queries import first_key
from ..attention.restrict import Renumbered
from ..attention.values import identity
from ..survey import Marks, Summary
from ..survey.exact_rows import masked_rows
from ..survey.within import Listing, within

FAR = 64
NAMES = ("itself", "previous", "first", "same", "induction", "far")
"""itself: the query's own position. previous: the one before. first: the first token that is no padding. same: the
query's own token, earlier. induction: what followed the query's own token, earlier. far: more than FAR tokens back."""
COUNTS = ("queries", "repeated")
"""queries: those with something to choose from, which see a token besides the first. repeated: those of them that may
see an earlier occurrence of their own token."""
SMALL = 2**16  # pairs: of so few, all are looked at
BLOCK = {"cpu": 2**20, "cuda": 2**26}  # scores that are held at a time where whole rows are needed


class BatchTokens:
    """The tokens of a batch of sequences, as far as they are read. What is derived from them serves every layer."""

    def __init__(self, ids: Int[Tensor, "batch token"]) -> None:
        self.ids = ids
        self.places: dict[Hashable, tuple[ref[Attention], Places]] = {}
        self._next: tuple[Tensor, ref[BatchTokens]] | None = None  # weak: a text that grows is not kept at every length

    def followed_by(self, ids: Int[Tensor, "batch more"]) -> "BatchTokens":
        """The text with these tokens behind it, the same object for every layer that was given the same ids."""
        longer = None if self._next is None or self._next[0] is not ids else self._next[1]()
        if longer is None:
            longer = BatchTokens(torch.cat([self.ids, ids.to(self.ids)], 1))
            self._next = (ids, ref(longer))
        return longer

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor that is kept with it."""
        yield self.ids
        if self._next is not None:
            yield self._next[0]
        for _, made in self.places.values():
            yield from (made.place, made.first)
            yield from () if made.ids is None else (made.ids,)
            for listing in (made.listed or {}).values():
                yield from listing.tensors


@dataclass(frozen=True, eq=False)
class Places:
    """Where the queries of a call stand among its keys, and where the keys of each habit are."""

    place: Int[Tensor, " query"]
    """Of each query, counted from the first key that is here."""
    first: Int[Tensor, "#batch"]
    """The first token that is no padding; below 0 where a cache has let it go."""
    batch: int
    keys: int
    gone: int
    """How many keys a cache has let go."""
    across: bool
    """Whether the keys are another sequence, in which a query has no position."""
    back: bool
    """Whether no query sees what comes after it."""
    ids: Int[Tensor, "batch token"] | None
    """The tokens of all keys, those that are gone included, where they are known."""
    listed: dict[str, Listing] | None = None
    """None where whole rows are looked at."""

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
        gone: int = 0,
        lists: bool = True,
    ) -> "Places":
        """Of `size` = (queries, keys), and a definition, in which keys that are gone are counted; `positions` are those
        of the queries, where these are not the last ones. Without `lists` it is of no use to `shares`."""
        text = None if across or text is None or text.ids.shape[1] != size[1] else text
        key = (size, positions, gone, heads, identity(attention))
        if text is not None and key in text.places and text.places[key][0]() is not None:
            return text.places[key][1]  # while a definition is alive, nothing else gets the identity of its tensors
        if positions is None:
            place = torch.arange(size[1] - size[0], size[1], device=device)
        else:
            place = torch.tensor(positions, dtype=torch.long, device=device)
        first = first_key(attention, batch=batch, heads=heads, size=size, across=across, device=device)
        ids = None if text is None else text.ids.to(device)
        back = _looks_back(attention.mask)
        made = cls(place - gone, first - gone, batch, size[1] - gone, gone, across, back, ids)
        if lists and attention.normalize is softmax and len(place) * made.keys > SMALL:
            made = replace(made, listed=made._listed())
        if text is not None:
            text.places = {**(text.places if len(text.places) < 4 else {}), key: (ref(attention), made)}
        return made

    def _listed(self) -> dict[str, Listing]:
        place, device = self.place, self.place.device
        every, keys = (torch.arange(n, device=device)[None].int() for n in (len(place), self.keys))
        here = (self.first >= 0).int()[None, :, None].expand(1, -1, len(place))
        first = Listing(every, self.first.clamp(min=0)[:, None].int(), torch.zeros_like(here), here)
        if self.across:
            return {"first": first}
        start, stop = (
            torch.stack(ends)[:, None].clamp(0, self.keys).int()
            for ends in ([place - FAR, place, place - 1], [place + 1, place + 1, place])
        )
        listed = {"near": Listing(every, keys, start, stop), "first": first}
        if not self.back:
            stop = (place - FAR)[None, None].clamp(0, self.keys).int()
            listed["far"] = Listing(every, keys, torch.zeros_like(stop), stop)
        if self.ids is not None:
            listed |= {"same": self._by_token(0), "induction": self._by_token(1)}
        return listed

    def _by_token(self, back: int) -> Listing:
        """Keys in the order of their tokens, or of the tokens `back` before them. A query's stretch is that of its own
        token, up to its own position."""
        assert self.ids is not None
        count, first, position = self.ids.shape[1], max(self.gone, back), self.place + self.gone
        asking, rows = (self.ids[:, position] * count).sort(stable=True, dim=1)
        keys = torch.arange(first, count, device=self.ids.device)
        tokens, which = (self.ids[:, first - back : count - back] * count + keys).sort(1)
        start, stop = (torch.searchsorted(tokens, asking + past)[None].int() for past in (0, position[rows]))
        return Listing(rows.int(), (keys - self.gone)[which].int(), start, stop, asks=not back)

    @property
    def tensors(self) -> list[Tensor]:
        listed = [tensor for listing in (self.listed or {}).values() for tensor in listing.tensors]
        return [self.place, self.first, *listed, *([] if self.ids is None else [self.ids])]

    def marks(self, count: int = 1) -> Marks | None:
        """What an engine is to tell beside its summary, of as many batches, one behind the other; None where whole rows
        are looked at."""
        if self.listed is None or self.across:
            return None
        first, place = self.first.repeat(count if len(self.first) > 1 else 1)[:, None], self.place[None]
        single = torch.stack([it.expand(len(first), len(self.place)) for it in (place, place - 1, first)])
        return Marks(self.place - FAR, single)

    def chosen(self, rows: slice) -> Bool[Tensor, "name #batch row key"]:
        """Which keys are of which habit, for some of the queries."""
        key, place = torch.arange(self.keys, device=self.place.device), self.place[None, rows, None]
        same = followed = torch.zeros(1, 1, 1, dtype=torch.bool, device=key.device)
        if self.ids is not None:
            asking, before = self.ids[:, self.place[rows] + self.gone, None], self.ids.roll(1, 1)
            same = (self.ids[:, None, self.gone :] == asking) & (key < place)
            followed = (before[:, None, self.gone :] == asking) & (key < place) & (key + self.gone > 0)
        far, first = place - key > FAR, key == self.first[:, None, None]
        nowhere = torch.zeros_like(far | first | same)
        return torch.stack([nowhere | it for it in (key == place, key == place - 1, first, same, followed, far)])


def shares(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    summary: Summary,
    places: Places,
) -> Float[Tensor, "batch heads sum"]:
    """Return the sums over the queries that count: of the shares of NAMES, then COUNTS; float64, NaN where not known.

    The definition is that of the keys that are here. Several batches may stand one behind the other.
    """
    chooses = counted(attention, summary, places)
    total = torch.zeros(*chooses.shape[:2], len(NAMES) + len(COUNTS), dtype=torch.float64, device=queries.device)

    def add(name: str, share: Tensor, which: Tensor) -> None:
        total[..., NAMES.index(name)] += share.masked_fill(~which, 0.0).sum(-1, dtype=torch.float64)

    total[..., len(NAMES)] = chooses.sum(-1)
    if places.listed is None:
        for rows, weights, chosen, seen in _rows(queries, keys, attention, summary, places):
            some, share = chooses[:, :, rows], torch.einsum("bhrk,nbrk->nbhr", weights, chosen.to(weights.dtype))
            again = some & (seen & chosen[NAMES.index("same"), :, None]).any(-1)
            total[..., -1] += again.sum(-1)
            for name, part in zip(NAMES, share, strict=True):
                add(name, part, again if name in ("same", "induction") else some)
    else:
        assert summary.lse is not None
        again, count, listed = chooses, len(queries) // max(places.batch, 1), dict(places.listed)
        if summary.single is not None and summary.before is not None:
            for i, name in enumerate(("itself", "previous", "first")):
                add(name, summary.single[..., i], chooses)
            add("far", summary.before, chooses)
            listed = {name: listing for name, listing in listed.items() if name in ("same", "induction")}
        parts = within(queries, keys, attention, summary.lse, [it.repeated(count) for it in listed.values()])
        for name, found in zip(listed, parts, strict=True):
            if name == "near":
                near, itself, previous = found.share
                add("itself", itself, chooses)
                add("previous", previous, chooses)
                if places.back:  # all that it sees is near or far
                    add("far", (_seen(attention, summary.lse) - near).clamp(min=0.0), chooses)
                continue
            if found.seen is not None:
                again = chooses & found.seen
                total[..., -1] = again.sum(-1)
            add(name, found.share[0], again if name in ("same", "induction") else chooses)
    unknown = NAMES if places.across else ("same", "induction") if places.ids is None else ()
    for name in unknown:
        if name != "first":
            total[..., NAMES.index(name)] = torch.nan
    return total


def counted(attention: Attention, summary: Summary, places: Places) -> Bool[Tensor, "batch heads query"]:
    """Which queries have something to choose from: they see something, and stand behind the first token."""
    entropy, lse, device = summary.entropy, summary.lse, summary.entropy.device
    (batch, heads, rows), counts = entropy.shape, entropy >= 0  # a weight below zero makes it NaN
    if summary.top_keys.shape[-1]:
        counts = counts & (summary.top_keys[..., 0] >= 0)
    elif lse is not None and attention.sink is None:
        counts = counts & (lse > -torch.inf)
    else:
        at = Pairs.block(range(rows), range(0), of=(rows, places.keys), batch=batch, heads=heads, device=device)
        counts = counts & ~attention.mask.spans(at, places.keys).empty[..., 0]
    if places.across:
        return counts
    after = places.place > places.first[:, None]
    return counts & _repeated(after, batch)[:, None].to(device)


def _seen(attention: Attention, lse: Float[Tensor, "batch heads query"]) -> Float[Tensor, "batch heads query"]:
    """The weight that a query gives to keys: all of it, or what the sink leaves."""
    if attention.sink is None:
        return (lse > -torch.inf).to(lse.dtype)
    sink = torch.as_tensor(attention.sink, dtype=lse.dtype, device=lse.device).reshape(-1, 1)
    return 1.0 - torch.exp(sink - lse)


def _rows(
    queries: Tensor, keys: Tensor, attention: Attention, summary: Summary, places: Places
) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """Whole rows, some at a time, where there are few or the normaliser needs them: which, their weights, which keys
    are of which habit, and which they see."""
    (batch, heads, rows, _), columns = queries.shape, keys.shape[-2]
    if rows == 1:  # what the keys receive is what the one query gives
        at = Pairs.block(range(1), range(columns), of=(1, columns), batch=batch, heads=heads, device=queries.device)
        seen = attention.mask.sees(at)
        if isinstance(attention.bias, Bias):
            seen = seen & (attention.bias(at) > -torch.inf)
        one = slice(0, 1)
        yield one, summary.received[:, :, None], _repeated(places.chosen(one), batch, 1), seen
        return
    most = BLOCK.get(queries.device.type, BLOCK["cuda"])
    height = max(1, most // max(1, batch * heads * columns * attention.score.size(queries, keys)))
    for start in range(0, rows, height):
        some = slice(start, min(start + height, rows))
        number = torch.arange(some.start, some.stop, device=queries.device)
        masked = masked_rows(queries, keys, attention, number, range(columns), range(batch), range(heads))
        seen = masked > -torch.inf
        if summary.lse is None:
            weights = attention.weights(masked)
        else:
            weights = torch.exp(masked - summary.lse[:, :, some, None].to(masked.dtype)).masked_fill_(~seen, 0.0)
        yield some, weights, _repeated(places.chosen(some), batch, 1), seen


def _repeated(tensor: Tensor, batch: int, axis: int = 0) -> Tensor:
    """For several batches, one behind the other."""
    count = tensor.shape[axis]
    if count in (1, batch):
        return tensor.expand(*tensor.shape[:axis], batch, *tensor.shape[axis + 1 :])
    return tensor.repeat(*[1] * axis, batch // count, *[1] * (tensor.ndim - axis - 1))


def _looks_back(mask: Mask) -> bool:
    """Whether it is known to hide what comes after a query."""
    if isinstance(mask, Both):
        return any(map(_looks_back, mask.masks))
    return _looks_back(mask.mask) if isinstance(mask, Renumbered) else isinstance(mask, Causal)
