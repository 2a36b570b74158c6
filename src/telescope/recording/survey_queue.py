"""Batch the surveys of several layers into one kernel launch.

The layers of a model mostly have one definition and keys of one size. Stacked along the batch axis,
several layers take one launch of the GPU's kernels instead of one each.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import Attention, identity_key, leaves, restrict_to_sequences, softmax
from ..engines import torch_modes
from ..measures import (
    Places,
    RowSample,
    head_sums,
    sample_rows,
    streaming_share,
)
from ..surveys import StreamEvent, Summary, record_event, record_use, side_stream, survey_unchecked
from .attention_call import AttentionCall, KeepOptions
from .continuation import fingerprints
from .staging import MAX_CALLS, StagingBuffer, SurveyInputs, most_at_once


class SurveyResult(NamedTuple):
    """The survey of one call, or of several calls stacked along the batch axis."""

    engine: str
    summary: Summary
    fingerprints: Int[Tensor, "batch key_heads key"]
    """Of the keys; see `continuation.fingerprints`."""
    shares: Float[Tensor, "batch heads sum"]
    """The share of each habit of each head, summed over the queries; see `measures.head_sums`."""
    sample: RowSample | None = None

    def split(self, count: int) -> "list[SurveyResult]":
        """Return the results of the `count` calls that are stacked in this one."""
        # Each field has the batch first, or was not asked for and is None.
        parts = (
            [None] * count if part is None else part.chunk(count)
            for part in vars(self.summary).values()
        )
        samples = [None] * count if self.sample is None else self.sample.split(count)
        each = zip(
            zip(*parts, strict=True),
            self.fingerprints.chunk(count),
            self.shares.chunk(count),
            samples,
            strict=True,
        )
        return [
            SurveyResult(self.engine, Summary(*own), prints, shares, rows)
            for own, prints, shares, rows in each
        ]


class SurveyDestination(ABC):
    """An object that stores the result of a queued survey.

    The queue holds a strong reference to the destination until the survey has run. A destination
    that refers neither to the queue nor to an object that does keeps the two out of a reference
    cycle.
    """

    @abstractmethod
    def receive(self, result: SurveyResult) -> None:
        """Store the result; on a GPU, in the stream in which the survey was launched."""


class GrowingCall(ABC):
    """A recorded call of which rows wait; see continuation.py."""

    @abstractmethod
    def due_rows(self) -> AttentionCall:
        """Return the rows that wait, as one call."""

    @abstractmethod
    def receive_rows(self, result: SurveyResult) -> None:
        """Store the survey of the rows that waited."""

    @classmethod
    @abstractmethod
    def receive_together(cls, calls: Sequence[Any], result: SurveyResult) -> bool:
        """Store the survey of the rows that waited of several calls, stacked along the batch axis;
        return False if each has to store its own.
        """


class SurveyQueue:
    """Batch the surveys of several layers into one kernel launch. `flush()` runs what is queued.

    Where a definition consists of numbers alone, a GPU runs the survey on a second stream,
    concurrently with the model: one staging buffer is read while the other is filled.
    """

    def __init__(self, options: KeepOptions) -> None:
        self.top = options.top
        self.map = options.map
        self.streaming = "streaming" in options.also
        self.sample = options.sample
        self.queued: list[QueuedSurvey] = []
        self.kind: Any = None  # calls of one kind are surveyed together
        # Kept alive, so that no other definition gets its identity.
        self.original: Attention | None = None
        self.places: Places | None = None
        self.capacity = 0
        self.concurrent = False
        # The definition of so many calls stacked along the batch axis.
        self.stacked: dict[int, Attention] = {}
        self.buffers = StagingBuffer(), StagingBuffer()  # the first is being filled
        self.waiting: list[GrowingCall] = []  # the calls that have rows that wait
        self._refers = False
        """Whether nobody writes to calls that are added before they are surveyed."""
        self.collect_steps: Callable[[], object] | None = None
        """Records the steps that wait in the buffers of compiled code."""
        # The end of the last survey on each device.
        self.finished: dict[torch.device, StreamEvent] = {}

    def collect(self) -> None:
        """Have the steps recorded that compiled code has left behind."""
        if self.collect_steps is not None:
            self.collect_steps()

    @contextmanager
    def referring(self) -> Iterator[None]:
        """Take no copies of the calls that are added while the block runs: nobody writes to them
        before it ends, and their surveys are launched by then.
        """
        self._launch_rest()
        self._refers = True
        try:
            yield
        finally:
            self._refers = False
            self._launch_rest()

    def add(self, call: AttentionCall, destination: SurveyDestination) -> None:
        """Queue the survey of a call; `destination` receives the result now or later.

        Queries, keys and the definition are copied, since the model may write to them. The lse is
        not: no one else holds its memory.
        """
        inputs = SurveyInputs(call.queries, call.keys)
        # Compare a definition without tensors by value, others by the identity of their tensors.
        definition = (
            call.attention if call.attention._has_no_tensors else identity_key(call.attention)
        )
        # Calls of one kind can be stacked.
        kind = (
            definition,
            call.lse is None,
            inputs.layout,
            call.text,
            call.positions,
            call.is_cross_attention,
            call.space,
        )

        # Another kind ends the batch: launch what is queued, and prepare for this kind.
        if kind != self.kind:
            self._launch()
            size = call.queries.nbytes + call.keys.nbytes
            self.capacity = most_at_once(call.queries.device, size)
            self.kind = kind
            self.concurrent = can_run_concurrently(inputs, call.attention)
            self.stacked = {1: call.attention._clone()}
            self.original = call.attention
            self.places = call.places
        self._enqueue(call, inputs, destination)

    def _enqueue(
        self, call: AttentionCall, inputs: SurveyInputs, destination: SurveyDestination
    ) -> None:
        assert self.places is not None
        # Too large to copy, or nothing gained by stacking: survey now.
        if self.capacity < (1 if self.concurrent else 2):
            destination.receive(
                self.run_survey(inputs, call.lse, call.attention, self.places, self.map)
            )
            return
        if self._refers:
            self.queued.append(QueuedSurvey(call.lse, destination, inputs))
        else:
            if not self.queued:
                self._begin_batch(self.capacity, inputs)
            self.buffers[0].put(len(self.queued), inputs)
            self.queued.append(QueuedSurvey(call.lse, destination))
        if len(self.queued) == self.capacity:
            self._launch()

    def _begin_batch(self, count: int, like: SurveyInputs) -> None:
        """Make room for so many calls in the other buffer, since this one may still be read."""
        self.buffers = self.buffers[::-1]
        self.buffers[0].allocate(count, like)

    def survey_waiting(self) -> None:
        """Survey all rows that wait, those of several layers at once where these are alike.

        Where memory runs out, fewer layers are surveyed at once. If one layer does not fit, its
        rows go on waiting.
        """
        most = max(MAX_CALLS.values())
        while self.waiting:
            # Calls stay in the list until their survey has succeeded.
            calls = self._alike_waiting(most)
            try:
                result = self._survey_stacked(calls)
            except torch.OutOfMemoryError:
                if len(calls) == 1:
                    # One layer alone is too large.
                    raise
                most = len(calls) // 2
                continue
            count = len(calls)
            with torch_modes.recording_mode(calls[0].queries.device):
                waiting = self.waiting[:count]
                if count > 1 and type(waiting[0]).receive_together(waiting, result):
                    del self.waiting[:count]
                    continue
                for own in result.split(count) if count > 1 else [result]:
                    self.waiting.pop(0).receive_rows(own)

    def _alike_waiting(self, most: int) -> list[AttentionCall]:
        """Return the rows that wait of the first call, and of the calls after it that can be
        surveyed with them.
        """
        first = self.waiting[0].due_rows()
        alike = [first]
        most = min(
            most, most_at_once(first.queries.device, first.queries.nbytes + first.keys.nbytes)
        )
        for call in self.waiting[1:most]:
            rows = call.due_rows()
            # Results are assigned in order, so that the first call that differs ends the batch.
            if rows.survey_kind != first.survey_kind:
                break
            alike.append(rows)
        return alike

    def _survey_stacked(self, calls: Sequence[AttentionCall]) -> SurveyResult:
        """Survey calls that are alike, stacked along the batch axis."""
        first = calls[0]
        count = len(calls)
        with torch_modes.recording_mode(first.queries.device):
            attention = first.attention_over_present_keys
            places = first.places
            # One call needs no copy.
            if count == 1:
                inputs = SurveyInputs(first.queries, first.keys)
                return self.run_survey(inputs, None, attention, places)

            # Stack the calls; the definition repeats its sequences for each.
            batch = len(first.queries)
            inputs = SurveyInputs(
                torch.cat([call.queries for call in calls]),
                torch.cat([call.keys for call in calls]),
            )
            stacked = restrict_to_sequences(attention, torch.tensor([*range(batch)] * count), batch)
            return self.run_survey(inputs, None, stacked, places)

    def flush(self) -> None:
        """Run every queued survey, wait for the results, and free the staging buffers."""
        self._launch_rest()

        # Order the current stream after the surveys, and free what only they need.
        self.wait()
        self.buffers = StagingBuffer(), StagingBuffer()
        self.kind = None
        self.original = None
        self.places = None
        self.stacked = {}

    def wait(self, *tensors: Tensor) -> None:
        """Order the current stream after every survey launched so far.

        After `wait`, results (pass those that will be read here as `tensors`) may be read and the
        surveys' inputs written to. The host does not block.
        """
        for device, end in self.finished.items():
            end.wait(*(tensor for tensor in tensors if tensor.device == device))

    def _launch_rest(self) -> None:
        """Survey what is queued, in results that outlive the model's run."""
        if self.queued:
            _, _, ((_, _, device), _), *_ = self.kind
            with torch_modes.recording_mode(device):
                self._launch()

    def _launch(self) -> None:
        """Survey all queued calls as one."""
        queued = self.queued
        self.queued = []
        if not queued:
            return

        # The kind has shape, type and device of queries and of keys.
        _, _, ((shape, _, device), _), *_ = self.kind
        assert self.places is not None
        batch = shape[0]
        count = len(queued)
        # Stack the definition once for each number of calls.
        if count not in self.stacked:
            self.stacked[count] = restrict_to_sequences(
                self.stacked[1], torch.tensor([*range(batch)] * count), batch
            )

        # Survey on the second stream, if the model may go on meanwhile.
        inputs = self._stacked_inputs(queued)
        lses = [call.lse for call in queued if call.lse is not None]
        with side_stream(inputs.queries) if self.concurrent else nullcontext():
            # The second stream reads these tensors: their memory must not be reused before.
            record_use(*lses, *self.places.tensors, *(queued[0].inputs or ()))
            lse = None if not lses else lses[0] if count == 1 else torch.cat(lses)
            result = self.run_survey(inputs, lse, self.stacked[count], self.places, self.map)
            for call, own in zip(
                queued, result.split(count) if count > 1 else [result], strict=True
            ):
                call.destination.receive(own)
            # The buffer is filled again only after this point.
            end = record_event(device)
        self.buffers[0].last_read = end
        if end is not None:
            self.finished[device] = end

    def _stacked_inputs(self, queued: "Sequence[QueuedSurvey]") -> SurveyInputs:
        """Return the queries and keys of queued calls, stacked along the batch axis."""
        given = [call.inputs for call in queued if call.inputs is not None]
        if not given:
            return self.buffers[0].slots(0, len(queued))
        # One call needs no copy.
        if len(given) == 1:
            return given[0]
        self._begin_batch(len(given), given[0])
        return self.buffers[0].put_all(given)

    def run_survey(
        self,
        inputs: SurveyInputs,
        lse: Tensor | None,
        attention: Attention,
        places: Places,
        map: tuple[int, int] | None = None,
    ) -> SurveyResult:
        """Survey one call, or several that are stacked along the batch axis, with a map of at most
        this size.
        """
        # A map has no more rows than queries, and no more columns than keys.
        size = (inputs.queries.shape[-2], inputs.keys.shape[-2])
        map = None if map is None or 0 in size else (min(map[0], size[0]), min(map[1], size[1]))
        # On a CPU, the survey sums habits on its way; elsewhere `head_sums` does it below.
        on_cpu = inputs.queries.device.type == "cpu"
        count = len(inputs.queries) // max(places.batch, 1)
        seen = survey_unchecked(
            *inputs,
            attention,
            top=self.top,
            lse=lse,
            map=map,
            marks=places.marks(count) if on_cpu else None,
        )
        summary = seen.summary
        if self.streaming and not places.across:
            share = streaming_share(seen.engine, *inputs, attention, seen.lse, places)
            summary = replace(summary, within=share)
        return SurveyResult(
            seen.engine,
            summary,
            self._fingerprints(inputs.keys, seen.engine),
            head_sums(*inputs, attention, summary, places),
            sample_rows(*inputs, attention, summary, across=places.across) if self.sample else None,
        )

    def _fingerprints(self, keys: Tensor, engine: str) -> Int[Tensor, "batch key_heads key"]:
        """Return the fingerprints of the keys; zeros while rows are sampled, when each text is one
        call.
        """
        if self.sample:
            return keys.new_zeros(keys.shape[:3], dtype=torch.int64)
        return fingerprints(keys, engine)


class QueuedSurvey(NamedTuple):
    """A call that waits for its survey."""

    lse: Tensor | None
    destination: SurveyDestination
    inputs: SurveyInputs | None = None
    """If nobody writes to these before the survey; else they lie in the staging buffer."""


def can_run_concurrently(inputs: SurveyInputs, attention: Attention) -> bool:
    """Return whether a GPU may survey while the model goes on: only if the definition holds nothing
    but numbers.

    The model could write to a tensor of the definition before the survey has read that tensor.
    """
    numbers = all(
        leaf is None or leaf is softmax or isinstance(leaf, int | float)
        for leaf in leaves(attention)
    )
    return inputs.queries.is_cuda and numbers
