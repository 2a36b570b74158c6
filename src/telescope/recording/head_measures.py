"""Measure the heads of recorded calls: the numerators and denominators of every column of
`recording.heads()`.

Calls that are alike, as those of most layers are, are joined along the axis of heads and measured
as one: the number of kernel launches does not grow with the number of layers. The numbers of all
calls reach the host in one copy.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..measures import COLUMNS, MEASURES, NO_TOKEN, SUMS, HeadRows, IsMark, Places, counted
from ..surveys import Summary, to_host
from .recorded_call import RecordedCall
from .sources import Segments
from .storage import StoredTensor, as_one
from .summaries_call import SummariesCall

QUOTIENTS = {name: MEASURES[name].per or "" for name in COLUMNS if MEASURES[name].per is not None}
"""The measures that are quotients of two sums, and what each is divided by."""
DENOMINATORS = tuple(dict.fromkeys(QUOTIENTS.values()))
# Bytes of the calls that are measured as one: more do not fit into the cache of a CPU, and a GPU
# reads as many in about the time in which its host launches the kernels once more. A CPU measures
# 28 layers of 12 heads after 4,096 tokens in 66 ms, with 2**22 and 2**26 bytes in 84 and 105 ms.
JOINED_BYTES = {"cpu": 2**24, "cuda": 2**29}


@dataclass(frozen=True, eq=False)
class HeadSums:
    """Every measure of the heads of some calls, call after call; float64 on the CPU.

    NaN where a measure has no meaning or is not known.
    """

    above: Float[Tensor, "quotient head"]
    """The numerators of QUOTIENTS, summed over the queries and the sequences of a call."""
    below: Float[Tensor, "denominator head"]
    """The sums of DENOMINATORS."""
    largest_logit: Float[Tensor, " head"]
    segments: Float[Tensor, "segment head"]
    """The weight that each segment receives; its denominator is "given"."""


def measure_heads(
    calls: Sequence[RecordedCall], is_mark: IsMark | None, segments: Segments | None = None
) -> HeadSums:
    """Measure every head of some calls on the model's device, wherever the numbers are stored.

    On a CPU this would take longer than the model took on its GPU.
    """
    texts = CallTexts(calls, is_mark)
    order: dict[torch.device, list[int]] = {}
    found: dict[torch.device, list[Tensor]] = {}
    for which in _alike(calls, texts):
        # What depends on the text and the definition alone is the same for all of these calls.
        first = calls[which[0]]
        shared = SharedFacts.of(first, texts.marks(which[0], first._facts.device), segments)
        order.setdefault(first._facts.device, []).extend(which)
        found.setdefault(first._facts.device, []).extend(
            _measure([calls[i] for i in some], shared) for some in _stretches(which, first)
        )

    # Copy to the CPU only after all work of the GPU has been launched, and all numbers at once.
    counts = [len(QUOTIENTS), len(DENOMINATORS), 1, len(segments.names) if segments else 0]
    nothing = torch.zeros(sum(counts), 0, dtype=torch.float64, device="cpu")
    numbers = torch.cat([nothing, *(torch.cat(parts, 1).cpu() for parts in found.values())], 1)

    # Bring the heads into the order of the calls.
    measured = [i for which in order.values() for i in which]
    each = torch.split(numbers, [len(calls[i].heads) for i in measured], 1)
    place = dict(zip(measured, each, strict=True))
    numbers = torch.cat([nothing, *(place[i] for i in range(len(calls)))], 1)
    above, below, logits, by_segment = torch.split(numbers, counts)
    return HeadSums(above, below, logits[0], by_segment)


class CallTexts:
    """The token ids of recorded calls, each text once, and which of its tokens are punctuation."""

    def __init__(self, calls: Sequence[RecordedCall], is_mark: IsMark | None) -> None:
        own = [(call.query_ids, call.key_ids) for call in calls]
        # Layers that read one text share its tensor, or have a copy each.
        tensors = {_memory(ids): ids for pair in own for ids in pair if ids is not None}
        shapes = {(ids.shape, ids.device) for ids in tensors.values()}
        number: dict[Hashable, int] = {None: -1}
        self._ids: list[Int[Tensor, "batch token"]] = []
        if is_mark is None and len(shapes) == len(tensors):
            # No two can be one text, and nobody asks for the tokens.
            number |= {memory: i for i, memory in enumerate(tensors)}
        else:
            number |= self._number(tensors)
        self.numbers = [tuple(number[_memory(ids)] for ids in pair) for pair in own]
        """Of each call, the number of the text of its queries, and of its keys; -1 is none."""
        self._is_mark = is_mark
        self._marks: dict[tuple[int, torch.device], Tensor] = {}

    def _number(self, tensors: dict[Hashable, Tensor]) -> dict[Hashable, int]:
        """Return the number of the text in each tensor: tensors of equal ids are one text."""
        texts: dict[Hashable, int] = {}
        number: dict[Hashable, int] = {}
        for key, ids in zip(tensors, to_host([*tensors.values()]), strict=True):
            # Equal texts have equal bytes.
            content = (ids.shape, ids.numpy().tobytes())
            number[key] = texts.setdefault(content, len(texts))
            if number[key] == len(self._ids):
                self._ids.append(ids)
        return number

    def marks(self, call: int, device: torch.device) -> Bool[Tensor, "batch key"] | None:
        """Return which keys of a call are punctuation; None without a tokenizer or token ids."""
        text = self.numbers[call][1]
        if self._is_mark is None or text < 0:
            return None
        if (text, device) not in self._marks:
            # Test each token of the text once, however often the token occurs.
            tokens = self._ids[text].flatten().tolist()
            is_mark = {token: self._is_mark(token) for token in set(tokens)}
            marks = torch.tensor([is_mark[token] for token in tokens], dtype=torch.bool)
            self._marks[text, device] = marks.view_as(self._ids[text]).to(device)
        return self._marks[text, device]


def _memory(ids: Tensor | None) -> Hashable:
    """Return where a tensor of ids lies; None for none."""
    return None if ids is None else (ids.data_ptr(), ids.shape, ids.stride(), ids.device)


def _alike(calls: Sequence[RecordedCall], texts: CallTexts) -> list[list[int]]:
    """Return the numbers of the calls that can be measured as one."""
    by_identity: dict[int, Hashable] = {}
    alike: dict[Hashable, list[int]] = {}
    for i, call in enumerate(calls):
        facts = call._facts
        parts = call._kept
        attention = facts.attention
        # A definition without tensors is compared by value, others by the identity of theirs.
        # Layers mostly share one object, and a hash of its fields takes long: number the objects.
        if id(attention) not in by_identity:
            by_identity[id(attention)] = (
                attention if attention._has_no_tensors else attention._identity
            )
        kind = (
            type(call),
            facts.device,
            facts.dtype,
            facts.size,
            None if facts.rows is None else tuple(facts.rows),
            call.across,
            facts.prompt,
            facts.written,
            by_identity[id(attention)],
            texts.numbers[i],
            frozenset((name, part.shape) for name, part in parts.items()),
            # A mask may tell heads apart, and knows those of one call.
            i if _asks_mask(call, parts) else None,
        )
        alike.setdefault(kind, []).append(i)
    return [*alike.values()]


def _stretches(which: list[int], call: RecordedCall) -> Iterator[list[int]]:
    """Yield the numbers of calls like this one, at most JOINED_BYTES of them at a time."""
    # For each number of a query or a key, some copies in float64 exist at a time.
    queries, keys = call.size
    each = 8 * call._facts.shape[0] * len(call.heads) * (4 * queries + 3 * keys)
    most = JOINED_BYTES.get(call._facts.device.type, JOINED_BYTES["cuda"]) // max(each, 1)
    for start in range(0, len(which), max(most, 1)):
        yield which[start : start + max(most, 1)]


def _asks_mask(call: RecordedCall, parts: Mapping[str, StoredTensor]) -> bool:
    """Return whether only the mask tells which queries see a key; see `counted`."""
    kept = parts["top_keys"].shape[-1] if "top_keys" in parts else 1
    return not kept and ("lse" not in parts or call.attention.sink is not None)


class WrittenTokens(NamedTuple):
    """The tokens that were written and may have an earlier copy, for the measure "retrieval"."""

    which: "slice | Int[Tensor, ' row']"
    """The kept queries that wrote them: a slice where all queries were kept."""
    tokens: Int[Tensor, "batch row"]
    has_copy: Bool[Tensor, "batch row"]
    keys: Int[Tensor, "batch key"]
    """The tokens of the keys; NO_TOKEN at padding of a source."""


@dataclass(frozen=True, eq=False)
class SharedFacts:
    """What calls that are alike share, computed once."""

    call: RecordedCall
    """One of them, for its definition."""
    places: Places
    at_mark: Float[Tensor, "batch key one"] | None
    written: WrittenTokens | None
    members: list[tuple[range, Float[Tensor, "segment key"]]]
    """Of each sequence its own keys, and which of them belong to each segment; empty without
    segments.
    """

    @classmethod
    def of(
        cls,
        call: RecordedCall,
        at_mark: Bool[Tensor, "batch key"] | None,
        segments: Segments | None,
    ) -> "SharedFacts":
        """Return what the calls that are like this one share."""
        # A call of summaries has its sums already, and needs no lists of keys.
        places = call._places(lists=not isinstance(call, SummariesCall))
        return cls(
            call=call,
            places=places,
            at_mark=None if at_mark is None else at_mark.double()[..., None],
            written=_written_tokens(call, places),
            members=[] if segments is None else _members(call, segments),
        )


def _measure(calls: Sequence[RecordedCall], shared: SharedFacts) -> Float[Tensor, "number head"]:
    """Measure calls that are alike, and return the rows of `HeadSums`, one below the other."""
    seen = _joined_summary(calls)
    rows = _rows(calls, seen, shared)

    # What only a recorded call knows, then everything that the summary of the survey has.
    unknown = torch.full_like(rows.counts["given"], nan)
    copied, written = _retrieval(seen.top_keys, rows.seen, shared.written) or (unknown, unknown)
    streaming = _streaming(calls, rows.counted)
    above = {"streaming": unknown if streaming is None else streaming, "retrieval": copied}
    above |= {name: MEASURES[name].sums(rows)[0] for name in QUOTIENTS if name not in above}
    below = rows.counts | {"written": written}
    numbers = [above[name] for name in QUOTIENTS] + [below[name] for name in DENOMINATORS]
    parts = [torch.stack(numbers).sum(1)]

    # The largest logit is a maximum, not a quotient of sums.
    logits = MEASURES["largest_logit"].mean(rows) if rows.logits.numel() else unknown.sum(0)
    parts.append(logits.double()[None])
    # One product adds the keys of each segment, for all heads; all weight is the denominator.
    if shared.members:
        each = [
            member @ own[:, keys.start : keys.stop].mT
            for own, (keys, member) in zip(rows.received, shared.members, strict=True)
        ]
        parts.append(torch.stack(each).sum(0))
    return torch.cat(parts)


def _joined_summary(calls: Sequence[RecordedCall]) -> Summary:
    """Return the summaries of calls along the axis of heads, on the model's device, with the
    largest weight of each query alone.
    """
    seen = [call._summary() for call in calls]
    device = calls[0]._facts.device
    lses = [own.lse for own in seen if own.lse is not None]
    return Summary(
        lse=_joined(lses, device) if lses else None,
        received=_joined([own.received for own in seen], device),
        entropy=_joined([own.entropy for own in seen], device),
        top_weights=_joined_largest([own.top_weights for own in seen], device),
        top_keys=_joined_largest([own.top_keys for own in seen], device),
        map=None,
    )


def _joined(
    parts: Sequence[Float[Tensor, "batch heads *rest"]], device: torch.device
) -> Float[Tensor, "batch heads *rest"]:
    """Return tensors along the axis of heads, on a device."""
    joined = _view_of_all(parts)
    if joined is None:
        joined = parts[0] if len(parts) == 1 else torch.cat([*parts], 1)
    return joined.to(device)


def _joined_largest(
    parts: Sequence[Float[Tensor, "batch heads query top"]], device: torch.device
) -> Float[Tensor, "batch heads query one"]:
    """Return the first of the top of each query, of tensors along the axis of heads."""
    joined = _view_of_all(parts)
    if joined is None:
        return _joined([part[..., :1] for part in parts], device)
    return joined[..., :1].to(device)


def _view_of_all(
    parts: Sequence[Float[Tensor, "batch heads *rest"]],
) -> Float[Tensor, "batch heads *rest"] | None:
    """Return a view of tensors along the axis of heads; None if only a copy has them so."""
    # Layers that were surveyed together lie one after the other: of one sequence, heads do, too.
    whole = as_one(parts) if len(parts) > 1 and len(parts[0]) == 1 else None
    return None if whole is None else whole.flatten(0, 2)[None]


def _rows(calls: Sequence[RecordedCall], seen: Summary, shared: SharedFacts) -> HeadRows:
    """Return what measures are summed from, on the model's device."""
    places = shared.places
    received = seen.received.double()
    sums = _joined([call._shares(places) for call in calls], received.device).unbind(-1)
    # With top=0 no largest weights were kept, and those that count stand for those that see.
    has_top = bool(seen.top_keys.shape[-1])
    call = shared.call
    chooses = counted(call.attention if has_top else call._attention_of_kept(), seen, places)
    return HeadRows(
        received=received,
        entropy=seen.entropy,
        peak=seen.top_weights[..., 0] if has_top else None,
        lse=seen.lse,
        seen=seen.top_keys[..., 0] >= 0 if has_top else chooses,
        counted=chooses,
        first=places.first,
        shares=dict(zip(SUMS, sums, strict=True)),
        # One product adds the keys that are punctuation, for all heads.
        punctuation=None if shared.at_mark is None else (received @ shared.at_mark)[..., 0],
    )


def _members(
    call: RecordedCall, segments: Segments
) -> list[tuple[range, Float[Tensor, "segment key"]]]:
    """Return the keys of each sequence, and which of them belong to each segment; segments count
    the tokens of each sequence, without its padding.
    """
    ids = segments.ids.to(call._facts.device)
    member = (ids == torch.arange(len(segments.names), device=ids.device)[:, None]).double()
    every = [own.keys for own in call._all_text_columns()]
    return [(keys, member[:, : len(keys)]) for keys in every]


def _streaming(
    calls: Sequence[RecordedCall], chooses: Bool[Tensor, "batch heads query"]
) -> Float[Tensor, "batch heads"] | None:
    """Return the weight within the first and the last keys, summed over the queries that have a
    choice; None if it was not kept.
    """
    # In cross-attention no key is near a query.
    shares = [None if call.across else call._streaming() for call in calls]
    known = [share for share in shares if share is not None]
    if not known:
        return None
    share = _joined(known, chooses.device)
    return share.masked_fill(~chooses, 0.0).sum(2, dtype=torch.float64)


def _written_tokens(call: RecordedCall, places: Places) -> WrittenTokens | None:
    """Return the tokens that a call wrote; None if they, or the order of the text, are not known.

    The query of a token is the one before it. Of a text that was generated, only the generated
    tokens count. Padding counts neither as written nor as a copy.
    """
    device = call._facts.device
    written = call.query_ids
    read = call.key_ids
    if written is None or read is None or not (places.causal or call.across):
        return None
    written = written.to(device)
    read = read.to(device)
    if call.across:  # a source may hold the id of padding as a word
        read = read.masked_fill(~call._real_tokens()[1].to(device), NO_TOKEN)

    # Only generated tokens count, if some were; else all but the first, which no query wrote.
    prompt = call._facts.prompt
    first = prompt if prompt is not None and prompt < call.size[0] else 1
    # The query at row r writes the token r + 1, which must be known.
    start, stop = max(first - 1, 0), call.size[0] - 1
    kept = call._facts.rows
    which: slice | Tensor
    if kept is None or len(kept) == call.size[0]:
        # A slice selects neighbours, and the host need not wait for a GPU.
        which = slice(start, stop)
        rows = torch.arange(start, max(start, stop), device=device)
    else:
        chosen = [i for i, row in enumerate(kept) if start <= row < stop]
        which = torch.tensor(chosen, dtype=torch.long, device=device)
        rows = torch.tensor(kept, dtype=torch.long, device=device)[which]
    if not len(rows):
        return None

    # A copy must stand no later than the query; a source is known as a whole.
    tokens = written[:, rows + 1]
    last = None if call.across else rows + (call.size[1] - call.size[0])
    has_copy = _occurs(read, tokens, places.first, last)
    return WrittenTokens(which, tokens, has_copy, read)


def _retrieval(
    top_keys: Int[Tensor, "batch heads query top"],
    seen: Bool[Tensor, "batch heads query"],
    written: WrittenTokens | None,
) -> tuple[Float[Tensor, "batch heads"], Float[Tensor, "batch heads"]] | None:
    """Return how many written tokens have the largest weight on an earlier copy, and how many have
    an earlier copy; None where that is not known.
    """
    if written is None or not top_keys.shape[-1]:
        return None
    which = written.which
    peak = top_keys[:, :, which, 0].clamp(min=0).long()
    # Compare the token under the largest weight with the token that was written.
    found = written.keys.gather(1, peak.flatten(1)).view_as(peak) == written.tokens[:, None]
    counts = written.has_copy[:, None] & seen[:, :, which]
    # The token after the last real one is padding.
    if isinstance(which, slice):
        counts = counts & seen[:, :, which.start + 1 : which.stop + 1]
    return (found & counts).sum(2).double(), counts.sum(2).double()


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
