"""Measure the heads of a recorded call: the numerators and denominators of every column of
`recording.heads()`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from math import nan
from string import punctuation

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..surveys import Summary
from .head_shares import COUNTS, NAMES, NO_TOKEN, Places, counted
from .recorded_call import RecordedCall
from .segments import Segments
from .summaries_call import SummariesCall

Decode = Callable[[list[int]], str]
IsMark = Callable[[int], bool]  # whether a token id is punctuation


@dataclass(frozen=True)
class Measures:
    """The numerators and denominators of each measure, for every head of a call, so that calls can
    be added up.

    NaN where a habit has no meaning or is not known.
    """

    sums: dict[str, Float[Tensor, " heads"]]
    counts: dict[str, Float[Tensor, " heads"]]
    largest_logit: Float[Tensor, " heads"]
    """The largest score of any query; NaN where it is not known."""
    segments: Float[Tensor, "segment heads"] = field(default_factory=lambda: torch.zeros(0, 0))
    """The weight that each segment receives; its denominator is that of `sink`."""


def measure(
    call: RecordedCall, is_mark: IsMark | None, segments: Segments | None = None
) -> Measures:
    """Measure every head of a call on the model's device, wherever the numbers are stored.

    On a CPU this would take longer than the model took on its GPU.
    """
    seen = call.survey().summary
    device = call.facts.device
    places = call.places(lists=not isinstance(call, SummariesCall))
    shares = call.shares(places)
    received, entropy = (
        numbers.to(device, torch.float64) for numbers in (seen.received, seen.entropy)
    )
    chooses = counted(call.kept_attention(), seen, places).to(device)
    sums = dict(zip((*NAMES, *COUNTS), shares.to(device).sum(0).T, strict=True))
    choosing = chooses.sum((0, 2)).double()
    repeated = sums.pop("repeated")
    given = received.sum((0, 2))
    del sums["queries"]
    sums["sink"] = _sink(received, places.first)
    sums["punctuation"] = _punctuation(call, received, is_mark)
    sums["spread"] = entropy.exp().masked_fill(~chooses, 0.0).sum((0, 2))
    counts = dict.fromkeys(NAMES, choosing) | {"same": repeated, "induction": repeated}
    counts |= {"sink": given, "punctuation": given, "spread": choosing}
    sums["streaming"] = _streaming(call, chooses)
    counts["streaming"] = choosing
    sums["retrieval"], counts["retrieval"] = _retrieval(call, seen, places)
    logits = torch.full((len(call.heads),), nan, dtype=torch.float64)
    if seen.lse is not None and seen.top_weights.shape[-1] and seen.lse.numel():
        logits = (seen.lse + seen.top_weights[..., 0].log()).double().amax((0, 2))
    by_segment = torch.zeros(0, len(call.heads))
    if segments is not None:
        by_segment = _by_segment(call, received, segments)
    sums, counts = (
        {name: numbers.cpu() for name, numbers in each.items()} for each in (sums, counts)
    )
    return Measures(sums, counts, logits.cpu(), by_segment.cpu())


def _by_segment(
    call: RecordedCall, received: Float[Tensor, "batch heads key"], segments: Segments
) -> Float[Tensor, "segment heads"]:
    """Return the weight that each segment receives; segments count the tokens of each sequence,
    without its padding.
    """
    found = received.new_zeros(len(segments.names), received.shape[1])
    numbers = torch.arange(len(segments.names), device=received.device)[:, None]
    for sequence, own in enumerate(received):
        keys = call.text_columns(sequence).keys
        member = segments.ids[: len(keys)].to(received.device) == numbers
        found += member.double() @ own[:, keys.start : keys.stop].mT
    return found


def _streaming(call: RecordedCall, chooses: Tensor) -> Float[Tensor, " heads"]:
    """Return the weight within the first and the last keys, summed over the queries that have a
    choice.
    """
    share = None if call.across else call.streaming()
    if share is None:
        return torch.full((len(call.heads),), nan, dtype=torch.float64)
    return share.to(chooses.device).double().masked_fill(~chooses, 0.0).sum((0, 2))


def _retrieval(
    call: RecordedCall, seen: Summary, places: Places
) -> tuple[Float[Tensor, " heads"], Float[Tensor, " heads"]]:
    """Return how many written tokens have the largest weight on an earlier copy, and how many have
    an earlier copy.

    The query of a token is the one before it. Of a text that was generated, only the generated
    tokens count. Padding counts neither as written nor as a copy.
    """
    heads = len(call.heads)
    device = seen.top_keys.device
    unknown = (
        torch.full((heads,), nan, dtype=torch.float64),
        torch.zeros(heads, dtype=torch.float64),
    )
    written = call.query_ids
    read = call.key_ids
    if (
        written is None
        or read is None
        or not seen.top_keys.shape[-1]
        or not (places.causal or call.across)
    ):
        return unknown
    written = written.to(device)
    read = read.to(device)
    if call.across:  # a source may hold the id of padding as a word
        read = read.masked_fill(~call.real_tokens()[1].to(device), NO_TOKEN)
    first = (
        call.facts.prompt
        if call.facts.prompt is not None and call.facts.prompt < call.size[0]
        else 1
    )
    kept = torch.tensor(call.rows, device=device)
    which = ((kept + 1 >= first) & (kept + 1 < call.size[0])).nonzero().flatten()
    if not len(which):
        return unknown
    rows = kept[which]
    wanted = written[:, rows + 1]
    peak = seen.top_keys[:, :, which, 0].long()
    found = read.gather(1, peak.clamp(min=0).flatten(1)).view_as(peak) == wanted[:, None]
    last = None if call.across else rows + (call.size[1] - call.size[0])
    counts = _occurs(read, wanted, places.first.to(device), last)[:, None] & (peak >= 0)
    if len(kept) == call.size[0]:  # the token after the last real one is padding
        counts = counts & (seen.top_keys[:, :, which + 1, 0] >= 0)
    return (found & counts).sum((0, 2)).double(), counts.sum((0, 2)).double()


def _occurs(
    read: Int[Tensor, "batch key"],
    wanted: Int[Tensor, "batch row"],
    first: Int[Tensor, "#batch"],
    last: Int[Tensor, " row"] | None,
) -> Tensor:
    """Return whether each wanted token is among the keys from `first` on, up to `last` or to the
    last of all.
    """
    count = read.shape[1]
    ordered = (read.long() * count + torch.arange(count, device=read.device)).sort(1).values
    from_first = wanted.long() * count + first.clamp(min=0)[:, None]
    earliest = ordered.gather(1, torch.searchsorted(ordered, from_first).clamp(max=count - 1))
    same = (earliest // count == wanted) & (earliest >= from_first)
    return same if last is None else same & (earliest % count <= last)


def _sink(
    received: Float[Tensor, "batch heads key"], first: Int[Tensor, "#batch"]
) -> Float[Tensor, " heads"]:
    """Return the weight of the key that receives most, the first token left out, summed over the
    batch.
    """
    key = torch.arange(received.shape[-1], device=received.device)
    others = received.masked_fill((key == first.to(received.device)[:, None])[:, None], 0.0)
    return others.amax(-1).sum(0) if others.shape[-1] else others.sum((0, 2))


def _punctuation(
    call: RecordedCall, received: Float[Tensor, "batch heads key"], is_mark: IsMark | None
) -> Float[Tensor, " heads"]:
    """Return the weight that punctuation receives; NaN without a tokenizer or token ids."""
    if is_mark is None or call.key_ids is None:
        return received.new_full((received.shape[1],), torch.nan)
    ids = call.key_ids.to(received.device)
    marks = [number for number in torch.unique(ids).tolist() if is_mark(number)]
    at_mark = torch.isin(ids, ids.new_tensor(marks))
    return (received * at_mark[:, None]).sum((0, 2))


def punctuation_test(decode: Decode) -> IsMark:
    """Return a function that tells whether a token is punctuation; each token is decoded once for
    all layers.
    """
    return cache(lambda number: _is_mark(decode([number])))


def _is_mark(text: str) -> bool:
    bare = text.strip(" \t\r\nĠ▁Ċ")
    return bool(text) and all(letter in punctuation + "…–—«»“”‘’„" for letter in bare)
