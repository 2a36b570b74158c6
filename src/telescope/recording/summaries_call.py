"""`SummariesCall`, for keep="summaries": the numbers of a survey, computed while the model runs."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor

from ..measures import SUMS, BatchTokens, Places
from ..surveys import Summary, Survey, compute_dtype
from .attention_call import AttentionCall, CallFacts, KeepOptions, MapSize
from .continuation import WaitingRows, fingerprints
from .recorded_call import RecordedCall
from .staging import SurveyInputs
from .storage import GrowingTensor, StoredParts, append_each, as_one
from .survey_queue import GrowingCall, SurveyDestination, SurveyQueue, SurveyResult

MAX_WAITING = 16  # queries of a call that waits: more are surveyed at once


class SummariesCall(RecordedCall, GrowingCall):
    """Keep the numbers of a survey, computed while the model runs; queries and keys are not
    kept.
    """

    keep = "summaries"
    _has_queries = False
    _fingerprints_of_keys_come_late = True
    _pending: "PendingSummary | None" = None
    """The survey of the first queries, until its result is read."""
    _text: BatchTokens | None = None
    _waiting: WaitingRows | None = None
    """The latest queries, which are surveyed together when somebody reads, or when there are many.
    """
    _dropped_map = False

    def _store_first(self, call: AttentionCall, queue: SurveyQueue) -> None:
        # All layers share one text, and what is derived from its tokens.
        if call.query_ids is not None:
            ids = call.query_ids
            self._text = call.once(("tokens", id(ids)), lambda: BatchTokens(ids), ids)
        # The destination receives the numbers now, or when the queue runs.
        self._pending = PendingSummary(
            queue, SummaryDestination(self._facts, self._parts, self._fingerprints)
        )
        queue.add(call._replace(text=self._text), self._pending.destination)

    def _append(self, call: AttentionCall) -> None:
        """Append a call for which `is_continued_by` is true: now, or later together with those that
        follow.
        """
        # The rows of a longer text have other borders in a map.
        if self._options.map is not None and not self._dropped_map:
            self._dropped_map = True
            warnings.warn(
                "watch(map=...) keeps the map of a text that is read at once; more was read or "
                "generated after it, so "
                'the map is dropped; keep="queries-keys" has maps of the whole text',
                stacklevel=2,
            )

        # Survey now if there are many queries, or if the caller does not vouch for the keys.
        is_many = call.queries.shape[-2] > MAX_WAITING and not call.are_steps
        if not call.follows or is_many:
            self._wait()
            super()._append(call)
            return
        if self._waiting is not None and not self._waiting.has_room_for(call):
            self._queue.survey_waiting()  # of all layers: each has as many

        # Note the queries; their numbers come when somebody reads, or when many wait.
        self._note_written(call)
        before, known = self.size
        if self._waiting is None:
            self._waiting = WaitingRows(call, known - call.evicted)
            self._queue.waiting.append(self)
        else:
            self._waiting.add(call)
        if self._facts.rows is not None:
            self._waiting.keep(self._selected_rows(call, before))
        self._store_norms(call, known - call.evicted)
        self._grow(call)

    def _finish(self) -> None:
        if self._text is not None:
            self._text.places.clear()  # the lists of keys are as long as the text

    def due_rows(self) -> AttentionCall:
        waiting = self._waiting
        assert waiting is not None
        call = waiting.as_one_call()
        # Tokens are of use only if those of all waiting queries are known.
        ids = [part for part in waiting.ids if part is not None]
        if self._text is not None and len(ids) == len(waiting.ids):
            call = self._with_text(call, self._text.followed_by(*ids))
        if self._facts.rows is None:
            return call
        return self._without_unselected(call).select_queries(torch.tensor(waiting.rows).long())

    def receive_rows(self, result: SurveyResult) -> None:
        # Numbers of the first queries have to be there before others are added.
        self._wait_for_first()
        waiting = self._waiting
        self._waiting = None
        assert waiting is not None
        # Rows waited because the caller vouched for the keys: check that now.
        if not _are_unchanged([self], result, waiting.evicted, waiting.known):
            raise RuntimeError(
                f'the cached keys of "{self.name}" were changed while the model wrote, in a way '
                "that cannot be seen "
                'from outside; keep="queries-keys" copies each key when it is written'
            )
        _add_rows([self], result, waiting.evicted, waiting.known)
        self._fingerprints[0].append(result.fingerprints[:, :, waiting.known :])
        self._end_waiting(waiting)

    @classmethod
    def receive_together(cls, calls: "Sequence[SummariesCall]", result: SurveyResult) -> bool:
        each = []
        for call in calls:
            call._wait_for_first()
            assert call._waiting is not None
            each.append(call._waiting)
        evicted = each[0].evicted
        known = each[0].known
        # Alike in everything that decides what is stored, and where.
        kept = {(*call._parts, call._parts["received"].shape) for call in calls}
        if len(kept) > 1 or any(waiting.known != known for waiting in each):
            return False
        # One comparison for all of them: each would wait for a GPU.
        if not _are_unchanged(calls, result, evicted, known):
            return False
        for call in calls:
            call._waiting = None
        _add_rows(calls, result, evicted, known)
        append_each([call._fingerprints[0] for call in calls], result.fingerprints[:, :, known:])
        _share_ids(calls, each)
        for call, waiting in zip(calls, each, strict=True):
            call._end_waiting(waiting)
        return True

    def _end_waiting(self, waiting: WaitingRows) -> None:
        """Store the tokens of rows that waited, and what the survey does not tell of them."""
        call = waiting.as_one_call()
        ids = [part for part in waiting.ids if part is not None]
        known_ids = self._text is not None and len(ids) == len(waiting.ids)
        self._text = self._text.followed_by(*ids) if self._text is not None and known_ids else None

        # The sizes count the waiting queries already.
        if "query_ids" not in self._parts or self._parts["query_ids"].shape[1] < self.size[0]:
            self._store_ids(call.query_ids, self.size[0] - waiting.count)
        # Those of the keys came with the survey.
        for stored, now in zip(self._fingerprints[1:], call.identifying_tensors[1:], strict=True):
            stored.append(fingerprints(now[:, :, waiting.known :]))

    def _store_more(self, call: AttentionCall, known: int) -> None:
        # A gap in the tokens leaves the rest of the text without them.
        self._text = (
            None
            if self._text is None or call.query_ids is None
            else self._text.followed_by(call.query_ids)
        )
        call = call if self._text is None else self._with_text(call, self._text)
        _add_rows([self], self._survey(call), call.evicted, known)

    def _with_text(self, call: AttentionCall, text: BatchTokens) -> AttentionCall:
        """Return a call that continues the sequence with its tokens, without queries after the end
        of their text.
        """
        written = self._facts.written
        if not written.ends:
            return call._replace(text=text)
        return call._replace(
            text=text, attention=text.without_ended(call.attention, call.size, written)
        )

    def _survey(self, call: AttentionCall) -> SurveyResult:
        """Survey the queries of a call that continues the sequence."""
        inputs = SurveyInputs(call.queries, call.keys)
        attention = call.attention_over_present_keys
        return self._queue.run_survey(inputs, call.lse, attention, call.places)

    def _wait(self) -> None:
        """Run the surveys that are still due, and order the current stream after them."""
        self._wait_for_first()
        if self._waiting is not None:
            self._queue.survey_waiting()

    def _wait_for_first(self) -> None:
        """Run the survey of the first queries if it is still queued, and order the current stream
        after it.
        """
        if self._pending is not None:
            queue, destination = self._pending
            # A survey that has been launched needs no flush.
            if not destination.received:
                queue.flush()
            # The current stream waits, and the host does not.
            if queue.finished:
                queue.wait(*(part.tensor for part in (*self._parts.values(), *self._fingerprints)))
            self._pending = None

    def _other_tensors(self) -> Iterator[Tensor]:
        yield from super()._other_tensors()
        if self._text is not None:
            yield from self._text.tensors()
        if self._waiting is not None:
            yield from self._waiting.tensors()

    @classmethod
    def _expected_bytes(cls, call: AttentionCall, options: KeepOptions) -> int:
        batch, heads, queries, _ = call.queries.shape
        keys = call.size[1]
        number = compute_dtype(call.queries).itemsize
        rows = len(options.queries(queries, 0))
        pooled = 0 if options.map is None else min(options.map[0], rows) * min(options.map[1], keys)
        # Sums are float64.
        sums = 8 * len(SUMS)
        # Top keys take 4 bytes each; all other numbers have the type of the computation.
        return (
            batch
            * heads
            * (
                number * (2 * rows + keys + options.top * rows + pooled)
                + 4 * options.top * rows
                + sums
            )
        )

    def survey(self, *, top: int | None = None, map: MapSize | None = None) -> Survey:
        """Return the survey that was kept, with at most the `top` and exactly the `map` of
        `ts.watch`.
        """
        numbers = self._summary()
        kept = numbers.top_keys.shape[-1]
        batch, key_heads, d_q, d_k = self._facts.shape
        top = kept if top is None else top
        if not 0 <= top <= kept:
            raise ValueError(
                f'"{self.name}" has the top {kept} of each query, not {top}; watch(..., top=...) '
                "sets it"
            )
        if map is not None and map != self._facts.recorded:
            raise self._not_kept(f"map of {map[0]} x {map[1]}", "queries-keys")

        # Queries and keys were not kept: tensors without memory tell their shapes.
        heads, rows = numbers.entropy.shape[1:]
        return Survey(
            queries=torch.empty(batch, heads, rows, d_q, dtype=self._facts.dtype, device="meta"),
            keys=torch.empty(
                batch, key_heads, self.size[1], d_k, dtype=self._facts.dtype, device="meta"
            ),
            values=None,
            attention=self._attention_of_kept(),
            engine=self._facts.engine or "",
            summary=replace(
                numbers,
                # A copy, since later calls add in place.
                received=numbers.received.to(numbers.entropy.dtype, copy=True),
                top_weights=numbers.top_weights[..., :top],
                top_keys=numbers.top_keys[..., :top],
            ),
            recorded=self._facts.recorded,
            context=None,
        )

    def _summary(self) -> Summary:
        """Return the numbers as they are kept: what keys receive is float64 where a text grew, and
        changes with it.
        """
        parts = self._kept
        return Summary(
            lse=parts["lse"].tensor if "lse" in parts else None,
            received=parts["received"].tensor,
            entropy=parts["entropy"].tensor,
            top_weights=parts["top_weights"].tensor,
            top_keys=parts["top_keys"].tensor,
            map=parts["map"].tensor if "map" in parts else None,
        )

    def _shares(self, places: Places) -> Float[Tensor, "batch heads sum"]:
        """Return the sums as they were computed; NaN in a recording of a version that did not keep
        them.
        """
        part = self._kept.get("shares")
        if part is not None:
            return part.tensor
        heads = (self._facts.shape[0], len(self.heads))
        return torch.full((*heads, len(SUMS)), torch.nan, dtype=torch.float64)


class SummaryDestination(SurveyDestination):
    """Store the result of a queued survey in the parts of a SummariesCall.

    The queue refers to this object and not to the call, and this object refers to neither: without
    a reference cycle, the memory of a recording is freed as soon as the last reference to the
    recording is gone.
    """

    def __init__(
        self, facts: CallFacts, parts: StoredParts, fingerprints: list[GrowingTensor]
    ) -> None:
        self.facts = facts
        self.parts = parts
        self.fingerprints = fingerprints
        self.received = False

    def receive(self, result: SurveyResult) -> None:
        self.received = True
        summary = result.summary
        # Fingerprints of the keys come first, then those of the values, if any.
        self.fingerprints.insert(0, GrowingTensor(result.fingerprints, 2, owned=True))
        self.facts.engine = result.engine
        self.facts.recorded = (
            None if summary.map is None else (summary.map.shape[-2], summary.map.shape[-1])
        )
        # The survey hands its tensors over, so that they are not copied.
        self.parts.grow("received", summary.received, owned=True)
        self.parts.grow("shares", result.shares, owned=True)
        if summary.map is not None:
            self.parts.grow("map", summary.map, owned=True)
        if result.sample is not None:
            for name, part in result.sample._asdict().items():
                self.parts.grow(f"sample.{name}", part, 0, owned=True)
        store_rows([self.parts], summary, 0)


class PendingSummary(NamedTuple):
    """A survey that was handed to a queue."""

    queue: SurveyQueue
    destination: SummaryDestination


def _are_unchanged(
    calls: Sequence[SummariesCall], result: SurveyResult, evicted: int, known: int
) -> bool:
    """Return whether the keys of calls that were recorded earlier, the first `known` of those that
    were surveyed, have not changed since.
    """
    stored = [call._fingerprints[0].tensor[:, :, evicted:] for call in calls]
    before = stored[0] if len(stored) == 1 else torch.cat(stored)
    return torch.equal(before, result.fingerprints[:, :, :known])


def _share_ids(calls: Sequence[SummariesCall], each: Sequence[WaitingRows]) -> None:
    """Store the ids of rows that waited once for all calls that share the ids before and these."""
    stored = [call._parts.get("query_ids") for call in calls]
    first = stored[0]
    ids = [tuple(map(id, waiting.ids)) for waiting in each]
    more = each[0].as_one_call().query_ids
    if not isinstance(first, GrowingTensor) or more is None or len(set(ids)) > 1:
        return
    if any(not isinstance(one, GrowingTensor) or one.memory is not first.memory for one in stored):
        return
    # Without room for more tokens: of calls that go on alone, none writes where others read.
    longer = torch.cat([first.tensor, more.to(first.memory.device)], 1)
    for call in calls:
        call._parts["query_ids"] = GrowingTensor(longer, 1, call._options.store, owned=True)


def _add_rows(
    calls: Sequence[SummariesCall], result: SurveyResult, evicted: int, known: int
) -> None:
    """Add the survey of more queries to what is kept of calls, which are stacked along its batch
    axis; the first `known` keys are kept already.
    """
    # Sums over queries are added up; the numbers of each query are appended.
    _add_received(calls, result.summary.received, evicted, known)
    _add_to_each([call._parts["shares"].tensor for call in calls], result.shares)
    for call in calls:
        # A map of the shorter text has other borders.
        call._parts.pop("map", None)
        call._facts.engine = result.engine
        call._facts.recorded = None
    store_rows([call._parts for call in calls], result.summary, evicted)


def _add_received(
    calls: Sequence[SummariesCall], more: Float[Tensor, "batch heads key"], evicted: int, known: int
) -> None:
    """Add to the sums in float64: there are as many summands as calls."""
    before = [call._parts["received"].tensor for call in calls]
    if any(one.dtype != torch.float64 for one in before):
        for call, own in zip(calls, torch.stack(before).double().unbind(), strict=True):
            store = call._options.store
            call._parts["received"] = GrowingTensor(own, 2, store, owned=True)
    # New keys begin at 0; then every key gets what the new queries give.
    received = [cast(GrowingTensor, call._parts["received"]) for call in calls]
    append_each(received, torch.zeros_like(more[:, :, known:], dtype=torch.float64))
    _add_to_each([one.tensor[:, :, evicted:] for one in received], more)


def _add_to_each(stored: Sequence[Tensor], more: Tensor) -> None:
    """Add to each tensor, in place, its part of `more`, which has these one after the other along
    the first axis.
    """
    whole = as_one(stored)
    if whole is not None:
        whole.add_(more.view(whole.shape).to(whole.device))
        return
    for one, own in zip(stored, more.to(stored[0].device).chunk(len(stored)), strict=True):
        one.add_(own)


def store_rows(each: Sequence[StoredParts], summary: Summary, evicted: int) -> None:
    """Store the numbers of each query of some calls, which are stacked along the batch axis; keys
    are counted from the first one ever, evicted keys included.
    """
    # Number the keys of the whole text; -1 is still no key.
    keys = (
        torch.where(summary.top_keys < 0, -1, summary.top_keys + evicted)
        if evicted
        else summary.top_keys
    )
    numbers = {
        "lse": summary.lse,
        "streaming": summary.within,
        "entropy": summary.entropy,
        "top_weights": summary.top_weights,
        "top_keys": keys,
    }
    for name, more in numbers.items():
        if more is None:
            continue
        if len(each) == 1:
            each[0].grow(name, more, owned=True)
            continue
        known = [parts[name] for parts in each if name in parts]
        if len(known) == len(each):
            append_each(cast(list[GrowingTensor], known), more)
            continue
        for parts, own in zip(each, more.chunk(len(each)), strict=True):
            parts.grow(name, own, owned=True)
