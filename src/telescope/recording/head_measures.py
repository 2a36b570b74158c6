"""Measure the heads of a recorded call: the numerators and denominators of every column of
`recording.heads()`.
"""

from dataclasses import dataclass
from math import nan

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..measures import COLUMNS, MEASURES, NO_TOKEN, SUMS, HeadRows, IsMark, Places, counted
from ..surveys import Summary
from .recorded_call import RecordedCall
from .sources import Segments
from .summaries_call import SummariesCall

Sums = tuple[Float[Tensor, " heads"], Float[Tensor, " heads"]]
"""Numerator and denominator, summed over the sequences of a call."""


@dataclass(frozen=True)
class CallMeasures:
    """Every measure of every head of a call, so that calls can be added up; on the CPU.

    NaN where a measure has no meaning or is not known.
    """

    sums: dict[str, Sums]
    largest_logit: Float[Tensor, " heads"]
    segments: Float[Tensor, "segment heads"]
    """The weight that each segment receives; its denominator is that of `sink`."""


def measure(
    call: RecordedCall, is_mark: IsMark | None, segments: Segments | None = None
) -> CallMeasures:
    """Measure every head of a call on the model's device, wherever the numbers are stored.

    On a CPU this would take longer than the model took on its GPU.
    """
    # Survey the call, or take the summary that was kept.
    seen = call.survey().summary
    # A call of summaries has its sums already, and needs no lists of keys.
    places = call.places(lists=not isinstance(call, SummariesCall))
    rows = _rows(call, seen, places, is_mark)

    # Everything that the summary of the survey has, then what only a recorded call knows.
    found = {
        name: tuple(part.sum(0) for part in MEASURES[name].sums(rows))
        for name in COLUMNS
        if name in rows.shares or (MEASURES[name].of is not None and MEASURES[name].per is not None)
    }
    found["streaming"] = (_streaming(call, rows.counted), rows.counts["queries"].sum(0))
    found["retrieval"] = _retrieval(call, seen, places)
    # The largest logit is a maximum, not a quotient of sums.
    logits = torch.full((len(call.heads),), nan, dtype=torch.float64)
    if rows.logits.numel():
        logits = MEASURES["largest_logit"].mean(rows).double()
    # The weight of segments has the denominator of "sink": all weight that was given.
    by_segment = torch.zeros(0, len(call.heads))
    if segments is not None:
        by_segment = _by_segment(call, rows.received, segments)
    # Copy to the CPU only after all work of the GPU has been launched.
    sums = {name: (above.cpu(), below.cpu()) for name, (above, below) in found.items()}
    return CallMeasures(sums, logits.cpu(), by_segment.cpu())


def _rows(call: RecordedCall, seen: Summary, places: Places, is_mark: IsMark | None) -> HeadRows:
    """Return what measures are summed from, on the model's device."""
    device = call.facts.device
    received = seen.received.to(device, torch.float64)
    sums = call.shares(places).to(device).unbind(-1)
    chooses = counted(call.kept_attention(), seen, places).to(device)
    # With top=0 no largest weights were kept, and those that count stand for those that see.
    has_top = bool(seen.top_keys.shape[-1])
    return HeadRows(
        received=received,
        entropy=seen.entropy.to(device),
        peak=seen.top_weights[..., 0].to(device) if has_top else None,
        lse=None if seen.lse is None else seen.lse.to(device),
        seen=(seen.top_keys[..., 0] >= 0).to(device) if has_top else chooses,
        counted=chooses,
        first=places.first.to(device),
        shares=dict(zip(SUMS, sums, strict=True)),
        punctuation=_punctuation(call, received, is_mark),
    )


def _by_segment(
    call: RecordedCall, received: Float[Tensor, "batch heads key"], segments: Segments
) -> Float[Tensor, "segment heads"]:
    """Return the weight that each segment receives; segments count the tokens of each sequence,
    without its padding.
    """
    found = received.new_zeros(len(segments.names), received.shape[1])
    numbers = torch.arange(len(segments.names), device=received.device)[:, None]
    for sequence, own in enumerate(received):
        # Segments number the tokens of a text; skip its padding.
        keys = call.text_columns(sequence).keys
        member = segments.ids[: len(keys)].to(received.device) == numbers
        # One product adds the keys of each segment, for all heads.
        found += member.double() @ own[:, keys.start : keys.stop].mT
    return found


def _streaming(call: RecordedCall, chooses: Tensor) -> Float[Tensor, " heads"]:
    """Return the weight within the first and the last keys, summed over the queries that have a
    choice.
    """
    # In cross-attention no key is near a query.
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
    # Without tokens, weights or an order of the text, nothing is known.
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

    # Only generated tokens count, if some were; else all but the first, which no query wrote.
    first = (
        call.facts.prompt
        if call.facts.prompt is not None and call.facts.prompt < call.size[0]
        else 1
    )
    # The query at row r writes the token r + 1, which must be known.
    kept = torch.tensor(call.rows, device=device)
    which = ((kept + 1 >= first) & (kept + 1 < call.size[0])).nonzero().flatten()
    if not len(which):
        return unknown
    rows = kept[which]
    wanted = written[:, rows + 1]
    peak = seen.top_keys[:, :, which, 0].long()

    # Compare the token under the largest weight with the token that was written.
    found = read.gather(1, peak.clamp(min=0).flatten(1)).view_as(peak) == wanted[:, None]
    # A copy must stand no later than the query; a source is known as a whole.
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
    # token * count + position, sorted, finds a token's first key by one binary search.
    ordered = (read.long() * count + torch.arange(count, device=read.device)).sort(1).values
    from_first = wanted.long() * count + first.clamp(min=0)[:, None]
    # The search may end behind the last key: clamp, and compare the token below.
    earliest = ordered.gather(1, torch.searchsorted(ordered, from_first).clamp(max=count - 1))
    same = (earliest // count == wanted) & (earliest >= from_first)
    return same if last is None else same & (earliest % count <= last)


def _punctuation(
    call: RecordedCall, received: Float[Tensor, "batch heads key"], is_mark: IsMark | None
) -> Float[Tensor, "batch heads"] | None:
    """Return the weight that punctuation receives; None without a tokenizer or token ids."""
    if is_mark is None or call.key_ids is None:
        return None
    ids = call.key_ids.to(received.device)
    # Test each token of the text once, however often the token occurs.
    marks = [number for number in torch.unique(ids).tolist() if is_mark(number)]
    at_mark = torch.isin(ids, ids.new_tensor(marks))
    return (received * at_mark[:, None]).sum(2)
