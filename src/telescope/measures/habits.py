"""Sum the habits of heads while a model runs: the weight that goes to the token before, the first
token and so on.

The sums are over the queries, for each sequence and head, computed in O(n) memory beside a survey.
For a text that grows, new queries are added to the sums.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..attention import Attention, Bias, Lengths, Mask, Pairs, prefix, window
from ..surveys import Summary, listed_weights, masked_rows, share_within
from .places import MATCHES, SINGLE, Places
from .space import space_sums
from .table import (
    COUNTS,
    KEY_RULES,
    OFFSETS,
    SPACE_SUMS,
    STREAMING_FIRST,
    STREAMING_LAST,
    is_repeated,
)

BLOCK = {"cpu": 2**20, "cuda": 2**26}  # scores in memory at a time where whole rows are computed
NAMES = tuple(KEY_RULES)


def head_sums(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    summary: Summary,
    places: Places,
) -> Float[Tensor, "batch heads sum"]:
    """Return SUMS: those of `habit_sums`, then how far heads look where tokens lie on images or in
    time, and NaN elsewhere.
    """
    habits = habit_sums(queries, keys, attention, summary, places)
    if places.space is None:
        more = habits.new_full((*habits.shape[:2], len(SPACE_SUMS)), torch.nan)
    else:
        sees = sees_key(attention, summary, places)
        more = space_sums(queries, keys, attention, summary, places, sees)
    return torch.cat([habits, more], -1)


def habit_sums(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention,
    summary: Summary,
    places: Places,
) -> Float[Tensor, "batch heads sum"]:
    """Return the share of each habit, summed over the queries that have a choice, and how
    many these are; float64, NaN if unknown.

    The definition is the one over the keys that are present. Several calls may be stacked along the
    batch axis.
    """
    chooses = counted(attention, summary, places)
    if places.listed is None:
        # No lists of keys: few scores, or no softmax. Compute whole rows, block by block.
        summed = torch.zeros(
            *chooses.shape[:2], len(NAMES) + len(COUNTS), dtype=torch.float64, device=queries.device
        )
        for block in _whole_rows(queries, keys, attention, summary, places, chooses):
            summed += _sums(*block)
    else:
        # Compute only the weights of the keys that belong to a habit.
        summed = _sums(*_listed_rows(queries, keys, attention, summary, places, chooses))
    # A query has no position among the keys of another sequence; without token ids none is known
    # to be repeated.
    for i, name in enumerate(NAMES):
        if (places.across and name != "first") or (places.ids is None and is_repeated(name)):
            summed[..., i] = torch.nan
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
    # A habit without a share adds zeros; `habit_sums` sets the unknown ones to NaN.
    none = torch.zeros_like(some)
    one = torch.ones_like(some)
    again = torch.zeros_like(chooses) if again is None else again
    # The last two planes count: the queries that choose, and those whose token is repeated.
    every = torch.stack([*(share.get(name, none) for name in NAMES), one, one])
    which = torch.stack(
        [*(again if is_repeated(name) else chooses for name in NAMES), chooses, again]
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
        # One product for all habits: n is the habit, b the text, h the head, r the row, k the key.
        share = torch.einsum("bhrk,nbrk->nbhr", weights, habits.to(weights.dtype))
        # A query is repeated if it sees an earlier key with its own token.
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
    # How many calls are stacked along the batch axis.
    count = len(queries) // max(places.batch, 1)
    listed = dict(places.listed)
    again = None
    share: dict[str, Tensor] = {}

    # Take what the survey has summed already, and leave only the matches of tokens to list.
    if summary.single is not None and summary.before is not None:
        share |= dict(zip(SINGLE, summary.single.unbind(-1), strict=True))
        share["far"] = summary.before
        listed = {name: listed[name] for name in MATCHES if name in listed}

    # Take the matches, too, if the survey has summed them.
    if listed and summary.listed is not None and summary.listed_seen is not None:
        # The first match is "same", whose keys tell which tokens are repeated.
        again = chooses & summary.listed_seen[..., 0]
        share |= dict(zip(listed, summary.listed.unbind(-1), strict=True))
        listed = {}

    # Compute the weights of the keys that no survey has summed.
    parts = listed_weights(
        queries,
        keys,
        attention,
        summary.lse,
        [listing._repeated(count) for listing in listed.values()],
    )
    for name, found in zip(listed, parts, strict=True):
        # Only the listing of "same" tells whether one of its keys is seen.
        if found.seen is not None:
            again = chooses & found.seen
        if name != "near":
            share[name] = found.share[0]
            continue
        # The first set of "near" is all near keys, the others are one key at an offset each.
        near, *single = found.share
        share |= dict(zip(OFFSETS, single, strict=True))
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
    # A cache evicts from the start of a text: fewer of its first tokens remain.
    first: Mask = prefix(max(0, STREAMING_FIRST - places.evicted))
    # With padding, the first tokens end at another key in each sequence.
    if places.padded:
        stop = (places.first + STREAMING_FIRST).clamp(0, places.keys)
        first = Lengths(_repeated(stop, len(queries)))
    return share_within(engine, queries, keys, attention, lse, window(STREAMING_LAST) | first)


def counted(
    attention: Attention, summary: Summary, places: Places
) -> Bool[Tensor, "batch heads query"]:
    """Return which queries have a choice: they see a key, and stand after the first token."""
    counts = sees_key(attention, summary, places)
    if places.across:
        return counts

    # The first token has no choice: under a causal mask it sees itself alone.
    after = places.place > places.first[:, None]
    return counts & _repeated(after, len(counts))[:, None].to(counts.device)


def sees_key(
    attention: Attention, summary: Summary, places: Places
) -> Bool[Tensor, "batch heads query"]:
    """Return which queries see a key; those at padding see none."""
    entropy = summary.entropy
    lse = summary.lse
    device = summary.entropy.device
    batch, heads, rows = entropy.shape
    counts = entropy >= 0  # NaN if a weight is negative
    # Ask the cheapest source that knows whether a query sees a key: kept keys, lse, or the mask.
    if summary.top_keys.shape[-1]:
        counts = counts & (summary.top_keys[..., 0] >= 0)
    elif lse is not None and attention.sink is None:
        # A sink would keep lse finite for a query that sees no key.
        counts = counts & (lse > -torch.inf)
    else:
        at = Pairs.block(
            range(rows), range(0), of=(rows, places.keys), batch=batch, heads=heads, device=device
        )
        counts = counts & ~attention.mask.spans(at, places.keys).empty[..., 0]
    return counts


def _weight_of_keys(
    attention: Attention, lse: Float[Tensor, "batch heads query"]
) -> Float[Tensor, "batch heads query"]:
    """Return the total weight that each query gives to keys: 1, or what the sink leaves; 0 if it
    sees none.
    """
    if attention.sink is None:
        return (lse > -torch.inf).to(lse.dtype)
    # The sink takes exp(sink - lse) of each row, and the keys the rest.
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
        # A bias of minus infinity hides a key as a mask does.
        if isinstance(attention.bias, Bias):
            seen = seen & (attention.bias(at) > -torch.inf)
        one = slice(0, 1)
        yield one, summary.received[:, :, None], _repeated(places.habits(one), batch, 1), seen
        return

    # Form as many rows at a time as BLOCK allows.
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
            # Where a row sees no key, -inf - lse is NaN: the fill makes it 0.
            weights = torch.exp(
                masked - summary.lse[:, :, block, None].to(masked.dtype)
            ).masked_fill_(~seen, 0.0)
        yield block, weights, _repeated(places.habits(block), batch, 1), seen


def _repeated(tensor: Tensor, batch: int, axis: int = 0) -> Tensor:
    """Repeat or expand a tensor along `axis` to the size `batch`, for calls stacked along the batch
    axis.
    """
    count = tensor.shape[axis]
    # Expanding copies nothing.
    if count in (1, batch):
        return tensor.expand(*tensor.shape[:axis], batch, *tensor.shape[axis + 1 :])
    # Stacked calls repeat the batch, call after call.
    return tensor.repeat(*[1] * axis, batch // count, *[1] * (tensor.ndim - axis - 1))
