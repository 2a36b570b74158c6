"""The recorded calls of an attention, one class for each value of `ts.watch(keep=...)`.

`RecordedCall` is what all have in common, `SummariesCall` keeps the numbers of a survey, `QueriesKeysCall` queries and
keys, `StepsCall` values and the residual stream too.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, SupportsIndex

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import Attention
from ..attention.padding_queries import include_padding_queries
from ..attention.restrict import key_heads_of, restrict_to_heads, restrict_to_queries
from ..attention.values import tensors
from ..engines import torch_modes
from ..survey import Summary, Survey, survey, survey_unchecked
from ..survey.extend import Size
from ..survey.summary import compute_dtype
from ..trace.trace import Tokens, Trace, trace
from ..words import whole_number
from .attention_call import AttentionCall, QuerySelection, all_queries, seems_cross_attention
from .continuation import continues, fingerprints, same_bits
from .head_shares import COUNTS, NAMES, BatchTokens, Places, shares
from .storage import GrowingTensor, Store, StoredParts, StoredTensor, on_device
from .survey_queue import SurveyDestination, SurveyQueue, SurveyResult

TOP = 8
CROSS = ("cross", "cross_attn", "encoder_attn", "EncDecAttention", "crossattention")  # if a recording has no `across`
MapSize = tuple[int, int]


@dataclass(frozen=True)
class KeepOptions:
    """What a recording keeps of each call, and where; see `ts.watch`."""

    top: int = TOP
    map: MapSize | None = None
    queries: QuerySelection = all_queries
    store: Store = on_device


@dataclass
class CallFacts:
    """Everything known about a call besides its tensors."""

    name: str
    heads: tuple[int, ...]
    """The number of each head in the model."""
    dropout: float
    attention: Attention
    size: Size
    """The number of queries and of keys."""
    rows: list[int] | None
    """The queries that were kept; None is all."""
    shape: tuple[int, int, int, int]
    """batch, key heads, d_q, d_k"""
    dtype: torch.dtype
    device: torch.device
    """The device on which the model ran."""
    engine: str | None = None
    recorded: MapSize | None = None
    """The size of the map that was kept."""
    across: bool | None = None
    """Whether queries and keys come from two sequences; None in a recording that does not say."""


class RecordedCall(ABC):
    """What was kept of one call of an attention.

    Calls that continue a sequence, as decoding token by token does, are appended to the first and count as one call.
    """

    keep: ClassVar[str]
    fingerprints_of_keys_come_late: ClassVar[bool] = False
    """Whether the survey computes the fingerprints of the keys, and not the constructor."""

    facts: CallFacts
    _parts: StoredParts
    _fingerprints: list[GrowingTensor]
    """Of each of `AttentionCall.identifying_tensors`."""
    _first_query: Tensor | None = None
    """Tells sequences apart whose keys are equal, as in cross-attention."""

    def __init__(self, name: str, call: AttentionCall, options: KeepOptions, queue: SurveyQueue) -> None:
        call = call.with_evicted_keys()
        self.options, self.kind = options, call.kind
        (batch, key_heads, _, d_k), d_q = call.keys.shape, call.queries.shape[-1]
        self.facts = CallFacts(
            name=name,
            heads=call.heads,
            dropout=call.dropout,
            attention=call.attention.clone(),
            size=call.size,
            rows=None if options.queries is all_queries else [],
            shape=(batch, key_heads, d_q, d_k),
            dtype=call.queries.dtype,
            device=call.queries.device,
            across=call.is_cross_attention,
        )
        self._parts = StoredParts(options.store)
        if call.attention.mask.same_for_all_queries:
            self._first_query = call.queries[:, :, :1].detach().clone()
        identifying = call.identifying_tensors[1:] if self.fingerprints_of_keys_come_late else call.identifying_tensors
        self._fingerprints = [GrowingTensor(fingerprints(tensor), 2, owned=True) for tensor in identifying]
        self._store_first(self._select_queries(call, 0), queue)
        self._store_ids(call, 0)

    @classmethod
    def opened(cls, facts: CallFacts, parts: Mapping[str, StoredTensor]) -> "RecordedCall":
        """Return a call that was read from a file; nothing can be appended to such a call."""
        call = cls.__new__(cls)
        call.facts, call._parts, call._fingerprints = facts, StoredParts(on_device, parts), []
        return call

    # ------------------------------------------------------------------------------------------------------ growing

    def is_continued_by(self, call: AttentionCall, *, same_run: bool) -> bool:
        """Return whether `call` is the rest of this one.

        Over the same keys, `call` may also begin another sequence: if it belongs to another run of the model, or if
        its first query is the one this call began with.
        """
        self._wait()
        if (
            call.kind != self.kind
            or not (call.size[1] > self.size[1] or (same_run and self._began_with_another_query(call)))
            or not continues(self.attention, self.size, call)
        ):
            return False
        old = slice(0, self.size[1] - call.evicted)
        return all(
            same_bits(known.tensor[:, :, call.evicted :], fingerprints(now[:, :, old]))
            for known, now in zip(self._fingerprints, call.identifying_tensors, strict=True)
        )

    def _began_with_another_query(self, call: AttentionCall) -> bool:
        return self._first_query is not None and not same_bits(self._first_query, call.queries[:, :, :1])

    def append(self, call: AttentionCall) -> None:
        """Append a call for which `is_continued_by` is true."""
        queries, keys = self.size
        self._store_more(self._select_queries(call, queries), keys - call.evicted)
        self._store_ids(call, queries)
        for known, new in zip(self._fingerprints, call.identifying_tensors, strict=True):
            known.append(fingerprints(new[:, :, keys - call.evicted :]))
        self.facts.size = (queries + call.size[0], call.size[1])
        if call.attention != self.attention:
            self.facts.attention = call.attention.clone()

    @abstractmethod
    def _store_first(self, call: AttentionCall, queue: SurveyQueue) -> None:
        """Store the first queries of a sequence."""

    @abstractmethod
    def _store_more(self, call: AttentionCall, known: int) -> None:
        """Store queries that continue the sequence; the first `known` of the call's keys are stored already."""

    @classmethod
    @abstractmethod
    def expected_bytes(cls, call: AttentionCall, options: KeepOptions) -> int:
        """Return how many bytes would be kept of the call."""

    def _select_queries(self, call: AttentionCall, before: int) -> AttentionCall:
        """Return the call with the queries that are to be kept; `before` queries came earlier."""
        if self.facts.rows is None:
            return call
        which = self.options.queries(call.size[0], before)
        self.facts.rows += [before + row for row in which]
        return call.select_queries(torch.tensor(which, dtype=torch.long))

    def _store_ids(self, call: AttentionCall, before: int) -> None:
        """Store the token ids, as long as those of every query are known."""
        if before == 0 and call.key_ids is not None:
            self._parts.grow("key_ids", call.key_ids, 1, owned=True)
        if call.query_ids is not None and (before == 0 or "query_ids" in self._parts):
            self._parts.grow("query_ids", call.query_ids, 1, owned=True)
        else:
            self._parts.pop("query_ids", None)

    # ------------------------------------------------------------------------------------------------------ reading

    @abstractmethod
    def survey(self, *, top: int | None = None, map: MapSize | None = None) -> Survey:
        """Return the survey of all heads; see `ts.survey`."""

    @abstractmethod
    def shares(self, places: Places) -> Float[Tensor, "batch heads sum"]:
        """Return the share of each habit of each head, summed over the queries; see `head_shares.shares`."""

    def head(self, number: SupportsIndex) -> Survey:
        """Return the survey of one head, by its number in the model; -1 is the last head that was kept."""
        return self.survey().head(self.head_index(number))

    def head_index(self, number: SupportsIndex) -> int:
        """Return the index of a head among those kept; raise a ValueError that lists the heads if it was not kept.

        `number` is the head's number in the model; a negative number counts from the last head that was kept.
        """
        number, count = whole_number("head", number), len(self.heads)
        if -count <= number < 0:
            return count + number
        if number not in self.heads:
            negative = f", and -{count} to -1 count from the last" if count else ""
            kept = ", ".join(map(str, self.heads))
            raise ValueError(f'there is no head {number} of "{self.name}"; kept are {kept}{negative}')
        return self.heads.index(number)

    def trace(self, tokens: Tokens | None = None) -> Trace:
        """Return every step; see `ts.trace`. The random dropout of a training step is not applied."""
        raise self._not_kept("trace()", "steps")

    @property
    def parts(self) -> dict[str, StoredTensor]:
        """The tensors that are kept, by name."""
        self._wait()
        return self._parts

    @abstractmethod
    def _wait(self) -> None:
        """Wait until `_parts` and `_fingerprints` are complete."""

    @property
    def name(self) -> str:
        """The name of the attention in the model."""
        return self.facts.name

    @property
    def heads(self) -> tuple[int, ...]:
        """The number of each head in the model."""
        return self.facts.heads

    @property
    def size(self) -> Size:
        """The number of queries and of keys."""
        return self.facts.size

    @property
    def across(self) -> bool:
        """Whether queries and keys come from two sequences, as in the cross-attention of a decoder."""
        if self.facts.across is not None:
            return self.facts.across
        named = self.name.rpartition(".")[2] in CROSS
        return named or "key_ids" in self._parts or seems_cross_attention(self.attention, self.size)

    @property
    def attention(self) -> Attention:
        """The definition, over all queries."""
        return self.facts.attention

    @property
    def dropout(self) -> float:
        """The probability with which the model dropped weights."""
        return self.facts.dropout

    @property
    def rows(self) -> list[int]:
        """The numbers of the queries that were kept."""
        return list(range(self.size[0])) if self.facts.rows is None else self.facts.rows

    @property
    def queries(self) -> Float[Tensor, "batch heads query d_q"]:
        """The queries; keep="summaries" does not keep them."""
        raise self._not_kept("queries", "queries-keys")

    @property
    def keys(self) -> Float[Tensor, "batch key_heads key d_k"]:
        """The keys; keep="summaries" does not keep them."""
        raise self._not_kept("keys", "queries-keys")

    @property
    def lse(self) -> Float[Tensor, "batch heads query"] | None:
        """ln Σ exp(score) of each query, if kept: part of a summary, or as the engine that ran returned it."""
        return self.parts["lse"].tensor if "lse" in self.parts else None

    @property
    def values(self) -> Float[Tensor, "batch key_heads key d_v"]:
        """The values; only keep="steps" keeps them."""
        raise self._not_kept("values", "steps")

    @property
    def before(self) -> Float[Tensor, "batch query d_model"]:
        """The residual stream before the attention's add & norm."""
        raise self._not_kept("before", "steps")

    @property
    def after(self) -> Float[Tensor, "batch query d_model"]:
        """The residual stream after the attention's add & norm: x + output, normalised in a post-norm model."""
        raise self._not_kept("after", "steps")

    @property
    def query_ids(self) -> Int[Tensor, "batch query"] | None:
        """The token ids of the queries, if the model was given any."""
        return self._ids("query_ids", self.size[0])

    @property
    def key_ids(self) -> Int[Tensor, "batch key"] | None:
        """The token ids of the keys: those of the queries, or of the other sequence."""
        if "key_ids" in self.parts:
            return self._ids("key_ids", self.size[1])
        return self.query_ids if self.size[0] == self.size[1] and not self.across else None

    @property
    def nbytes(self) -> int:
        """How many bytes are kept, in memory or in files."""
        return nbytes_of([self])

    def _other_tensors(self) -> Iterator[Tensor]:
        """Yield the tensors that are kept besides the parts and the fingerprints."""
        yield from tensors(self.attention)
        if self._first_query is not None:
            yield self._first_query

    def _ids(self, name: str, count: int) -> Tensor | None:
        part = self.parts.get(name)
        return None if part is None or part.tensor.shape[1] != count else part.tensor

    def kept_attention(self) -> Attention:
        """Return the definition over the queries that were kept."""
        rows = self.facts.rows
        return (
            self.attention
            if rows is None
            else restrict_to_queries(self.attention, torch.tensor(rows).long(), self.size)
        )

    def _not_kept(self, what: str, keep: str) -> ValueError:
        return ValueError(f'"{self.name}" has no {what}: keep="{self.keep}" did not keep it, keep="{keep}" does')


def nbytes_of(calls: Sequence[RecordedCall]) -> int:
    """Return how many bytes these calls keep, in memory or in files; shared memory is counted once."""
    parts = [part for call in calls for part in (*call.parts.values(), *call._fingerprints)]
    in_files = sum(part.nbytes for part in parts if not isinstance(part, GrowingTensor))
    in_memory = [part.memory for part in parts if isinstance(part, GrowingTensor)]
    views: dict[int, set[tuple[int, int]]] = {}
    storages: dict[int, int] = {}
    for tensor in (*in_memory, *(tensor for call in calls for tensor in call._other_tensors())):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        views.setdefault(storage.data_ptr(), set()).add((int(tensor.storage_offset()), tensor.nbytes))
    return in_files + sum(min(total, sum(size for _, size in views[at])) for at, total in storages.items())


# ------------------------------------------------------------------------------------------------------------ summaries


class SummariesCall(RecordedCall):
    """Keep the numbers of a survey, computed while the model runs; queries and keys are not kept."""

    keep = "summaries"
    fingerprints_of_keys_come_late = True
    _pending: "PendingSummary | None" = None
    """The survey of the first queries, until its result is read."""
    _text: BatchTokens | None = None

    def _store_first(self, call: AttentionCall, queue: SurveyQueue) -> None:
        if call.query_ids is not None:
            self._text = queue.tokens(call.query_ids)
        self._pending = PendingSummary(queue, SummaryDestination(self.facts, self._parts, self._fingerprints))
        queue.add(call._replace(text=self._text), self._pending.destination)

    def _store_more(self, call: AttentionCall, known: int) -> None:
        self._text = None if self._text is None or call.query_ids is None else self._text.followed_by(call.query_ids)
        call = call._replace(text=self._text)
        attention = call.attention_over_present_keys
        seen = survey_unchecked(call.queries, call.keys, attention, top=self.options.top, lse=call.lse)
        self._add_received(seen.summary.received, call.evicted, known)
        summed = self._parts["shares"].tensor
        summed.add_(shares(call.queries, call.keys, attention, seen.summary, call.places).to(summed.device))
        if self._parts.pop("map", None) is not None:  # the rows of a longer text have other borders
            warnings.warn(
                "watch(map=...) keeps the map of a text that is read at once; more was read or generated after it, so "
                'the map is dropped; keep="queries-keys" has maps of the whole text',
                stacklevel=2,
            )
        self.facts.engine, self.facts.recorded = seen.engine, None
        store_rows(self._parts, seen.summary, call.evicted)

    def _add_received(self, more: Float[Tensor, "batch heads key"], evicted: int, known: int) -> None:
        """Add to the sums in float64: there are as many summands as calls."""
        received = self._parts["received"]
        if received.tensor.dtype != torch.float64:
            received = self._parts["received"] = GrowingTensor(received.tensor.double(), 2, self.options.store)
        assert isinstance(received, GrowingTensor)
        received.append(torch.zeros_like(more[:, :, known:]))
        received.tensor[:, :, evicted:].add_(more.to(received.memory.device))

    def _wait(self) -> None:
        """Run the survey if it is still queued, and order the current stream after it."""
        if self._pending is not None:
            queue, destination = self._pending
            if not destination.received:
                queue.flush()
            queue.wait(*(part.tensor for part in (*self._parts.values(), *self._fingerprints)))
            self._pending = None

    def _other_tensors(self) -> Iterator[Tensor]:
        yield from super()._other_tensors()
        if self._text is not None:
            yield from self._text.tensors()

    @classmethod
    def expected_bytes(cls, call: AttentionCall, options: KeepOptions) -> int:
        (batch, heads, queries, _), keys = call.queries.shape, call.size[1]
        number = compute_dtype(call.queries).itemsize
        rows = len(options.queries(queries, 0))
        pooled = 0 if options.map is None else min(options.map[0], rows) * min(options.map[1], keys)
        sums = 8 * (len(NAMES) + len(COUNTS))
        return (
            batch * heads * (number * (2 * rows + keys + options.top * rows + pooled) + 4 * options.top * rows + sums)
        )

    def survey(self, *, top: int | None = None, map: MapSize | None = None) -> Survey:
        """Return the survey that was kept, with at most the `top` and exactly the `map` of `ts.watch`."""
        numbers = {name: part.tensor for name, part in self.parts.items()}
        kept, (batch, key_heads, d_q, d_k) = numbers["top_keys"].shape[-1], self.facts.shape
        top = kept if top is None else top
        if not 0 <= top <= kept:
            raise ValueError(f'"{self.name}" has the top {kept} of each query, not {top}; watch(..., top=...) sets it')
        if map is not None and map != self.facts.recorded:
            raise self._not_kept(f"map of {map[0]} x {map[1]}", "queries-keys")
        heads, rows = numbers["entropy"].shape[1:]
        return Survey(
            queries=torch.empty(batch, heads, rows, d_q, dtype=self.facts.dtype, device="meta"),
            keys=torch.empty(batch, key_heads, self.size[1], d_k, dtype=self.facts.dtype, device="meta"),
            values=None,
            attention=self.kept_attention(),
            engine=self.facts.engine or "",
            summary=Summary(
                lse=numbers.get("lse"),
                received=numbers["received"].to(numbers["entropy"].dtype, copy=True),  # later calls add in place
                entropy=numbers["entropy"],
                top_weights=numbers["top_weights"][..., :top],
                top_keys=numbers["top_keys"][..., :top],
                map=numbers.get("map"),
            ),
            recorded=self.facts.recorded,
            context=None,
        )

    def shares(self, places: Places) -> Float[Tensor, "batch heads sum"]:
        """Return the sums as they were computed; NaN in a recording of a version that did not keep them."""
        part = self.parts.get("shares")
        if part is not None:
            return part.tensor
        heads = (self.facts.shape[0], len(self.heads))
        return torch.full((*heads, len(NAMES) + len(COUNTS)), torch.nan, dtype=torch.float64)


class SummaryDestination(SurveyDestination):
    """Store the result of a queued survey in the parts of a SummariesCall.

    The queue refers to this object and not to the call, and this object refers to neither: without a reference cycle,
    the memory of a recording is freed as soon as the last reference to the recording is gone.
    """

    def __init__(self, facts: CallFacts, parts: StoredParts, fingerprints: list[GrowingTensor]) -> None:
        self.facts, self.parts, self.fingerprints = facts, parts, fingerprints
        self.received = False

    def receive(self, result: SurveyResult) -> None:
        self.received, summary = True, result.summary
        self.fingerprints.insert(0, GrowingTensor(result.fingerprints, 2, owned=True))
        self.facts.engine = result.engine
        self.facts.recorded = None if summary.map is None else (summary.map.shape[-2], summary.map.shape[-1])
        self.parts.grow("received", summary.received, owned=True)
        self.parts.grow("shares", result.shares)
        if summary.map is not None:
            self.parts.grow("map", summary.map, owned=True)
        store_rows(self.parts, summary, 0)


class PendingSummary(NamedTuple):
    """A survey that was handed to a queue."""

    queue: SurveyQueue
    destination: SummaryDestination


def store_rows(parts: StoredParts, summary: Summary, evicted: int) -> None:
    """Store the numbers of each query; keys are counted from the first one ever, evicted keys included."""
    if summary.lse is not None:
        parts.grow("lse", summary.lse, owned=True)
    parts.grow("entropy", summary.entropy, owned=True)
    parts.grow("top_weights", summary.top_weights, owned=True)
    keys = torch.where(summary.top_keys < 0, -1, summary.top_keys + evicted) if evicted else summary.top_keys
    parts.grow("top_keys", keys, owned=True)


# ----------------------------------------------------------------------------------------------------- queries and keys


class QueriesKeysCall(RecordedCall):
    """Keep queries and keys; surveys, rows and maps are computed on request, on the model's device."""

    keep = "queries-keys"
    _surveys: dict[tuple[int, Size], Survey] | None = None
    _heads: dict[int, Survey] | None = None

    def _store_first(self, call: AttentionCall, queue: SurveyQueue) -> None:
        if call.lse is not None:
            self._parts.grow("lse", call.lse)
        self._parts.grow("queries", call.queries)
        self._parts.grow("keys", call.keys)

    def _store_more(self, call: AttentionCall, known: int) -> None:
        self._surveys = self._heads = None
        if call.lse is not None and "lse" in self._parts:
            self._parts.grow("lse", call.lse)
        else:  # the lse of some of the queries is of no use
            self._parts.pop("lse", None)
        self._parts.grow("queries", call.queries)
        self._parts.grow("keys", call.keys[:, :, known:])

    @classmethod
    def expected_bytes(cls, call: AttentionCall, options: KeepOptions) -> int:
        kept = len(options.queries(call.size[0], 0)) / max(call.size[0], 1)
        lse = 0 if call.lse is None else call.lse.nbytes
        return int((call.queries.nbytes + lse) * kept) + _bytes_with_evicted(call.keys, call.evicted)

    def survey(self, *, top: int | None = None, map: MapSize | None = None) -> Survey:
        """Return the survey of all heads; see `ts.survey`. A survey without a map is computed once."""
        wanted = (TOP if top is None else top, self.size)
        if map is None and self._surveys and wanted in self._surveys:
            return self._surveys[wanted]
        queries, keys = self._to_model_device(self.queries), self._to_model_device(self.keys)
        with torch_modes.without_autocast(queries.device):
            seen = survey(queries, keys, self.kept_attention(), top=wanted[0], map=map)
        self._surveys = {**(self._surveys or {}), wanted: seen}
        return seen

    def head(self, number: SupportsIndex) -> Survey:
        """Return the survey of one head, by its number in the model; the other heads are not computed."""
        place, heads = self.head_index(number), len(self.heads)
        if self._surveys and (TOP, self.size) in self._surveys:
            return self._surveys[TOP, self.size].head(place)
        if self._heads is None or place not in self._heads:
            which = torch.tensor([place])
            key_heads = key_heads_of(which, heads, self.keys.shape[1]).tolist()
            queries = self._to_model_device(self.queries[:, [place]])
            keys = self._to_model_device(self.keys[:, key_heads])
            with torch_modes.without_autocast(queries.device):
                seen = survey(queries, keys, restrict_to_heads(self.kept_attention(), which, heads), top=TOP)
            self._heads = {**(self._heads or {}), place: seen}
        return self._heads[place]

    def shares(self, places: Places) -> Float[Tensor, "batch heads sum"]:
        seen, queries, keys = self.survey(), self._to_model_device(self.queries), self._to_model_device(self.keys)
        with torch_modes.without_autocast(queries.device):
            return shares(queries, keys, self.kept_attention(), seen.summary, places)

    def _wait(self) -> None:
        """Return at once: queries and keys are stored while the model runs."""

    @property
    def queries(self) -> Float[Tensor, "batch heads query d_q"]:
        return self.parts["queries"].tensor

    @property
    def keys(self) -> Float[Tensor, "batch key_heads key d_k"]:
        return self.parts["keys"].tensor

    def _other_tensors(self) -> Iterator[Tensor]:
        """Yield also the tensors of the surveys computed so far, with the queries and keys copied for them."""
        yield from super()._other_tensors()
        for seen in (*(self._surveys or {}).values(), *(self._heads or {}).values()):
            yield from (part for part in (seen.queries, seen.keys, *vars(seen.summary).values()) if part is not None)
            yield from tensors(seen.attention)

    def _to_model_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.facts.device)


class StepsCall(QueriesKeysCall):
    """Keep queries, keys and values, from which every step is computed on request, and the residual stream."""

    keep = "steps"

    def _store_first(self, call: AttentionCall, queue: SurveyQueue) -> None:
        super()._store_first(call, queue)
        self._parts.grow("values", call.values)

    def _store_more(self, call: AttentionCall, known: int) -> None:
        super()._store_more(call, known)
        self._parts.grow("values", call.values[:, :, known:])

    @classmethod
    def expected_bytes(cls, call: AttentionCall, options: KeepOptions) -> int:
        """Return how many bytes would be kept, without the residual stream, whose width an attention cannot tell."""
        return super().expected_bytes(call, options) + _bytes_with_evicted(call.values, call.evicted)

    def add_residual_stream(
        self, before: Float[Tensor, "batch n d_model"], after: Float[Tensor, "batch n d_model"]
    ) -> None:
        """Append the residual stream before and after the add & norm around the latest queries."""
        self._parts.grow("before", before, 1)
        self._parts.grow("after", after, 1)

    def trace(self, tokens: Tokens | None = None) -> Trace:
        """Return every step as it ran, queries at padding included; dropout is not applied."""
        queries, keys, values = map(self._to_model_device, (self.queries, self.keys, self.values))
        with torch.no_grad(), torch_modes.without_autocast(self.facts.device):
            return trace(queries, keys, values, include_padding_queries(self.kept_attention()), tokens)

    @property
    def values(self) -> Float[Tensor, "batch key_heads key d_v"]:
        return self.parts["values"].tensor

    @property
    def before(self) -> Float[Tensor, "batch query d_model"]:
        return self._residual_stream("before")

    @property
    def after(self) -> Float[Tensor, "batch query d_model"]:
        return self._residual_stream("after")

    def _residual_stream(self, name: str) -> Tensor:
        if name not in self.parts:
            raise ValueError(f'"{self.name}" has no residual stream: it was not called by an AddNorm')
        stream = self.parts[name].tensor
        if stream.shape[1] != self.size[0]:
            raise ValueError(
                f'"{self.name}": {stream.shape[1]} positions of the residual stream do not fit its {self.size[0]} '
                "queries; beams run side by side, and a call that was interrupted has no stream"
            )
        return stream


def _bytes_with_evicted(tensor: Tensor, evicted: int) -> int:
    """Return the size of the tensor with a place for each evicted key."""
    batch, heads, keys, width = tensor.shape
    return batch * heads * (evicted + keys) * width * tensor.element_size()


KEEP: dict[str, type[RecordedCall]] = {kind.keep: kind for kind in (SummariesCall, QueriesKeysCall, StepsCall)}
