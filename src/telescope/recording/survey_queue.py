"""Surveys of several attentions at once. A model's layers mostly ask the same of keys of the same size: put one behind
the other, as more sequences of a batch, they take one start of a GPU's kernels instead of one each."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import Attention, softmax
from ..attention.restrict import of_sequences
from ..attention.values import identity, leaves
from ..engines import torch_modes
from ..survey import Summary, read_off
from ..survey.device import StreamEvent, beside, moment, read_here
from .attention_call import AttentionCall
from .continuation import marks
from .head_shares import BatchTokens, Places, shares

MOST = 8  # calls
ROOM = {"cpu": 2**22, "cuda": 2**26}  # bytes in which they wait; what is larger takes longer than to start it


class SurveyInputs(NamedTuple):
    """What a survey is read from, of those that the model goes on with."""

    queries: Tensor
    keys: Tensor

    def of(self, change: Callable[[Tensor], Tensor]) -> "SurveyInputs":
        return SurveyInputs(change(self.queries), change(self.keys))

    @property
    def shapes(self) -> tuple[Any, ...]:
        return tuple((part.shape, part.dtype, part.device) for part in self)


class SurveyResult(NamedTuple):
    engine: str
    summary: Summary
    keys: Int[Tensor, "batch key_heads key"]
    """Their marks, by which they are known again."""
    shares: Float[Tensor, "batch heads sum"]
    """What the heads do by habit, summed over the queries."""

    def each(self, count: int) -> "list[SurveyResult]":
        """What was found of each of so many calls."""
        parts = ([None] * count if part is None else part.chunk(count) for part in vars(self.summary).values())
        each = zip(zip(*parts, strict=True), self.keys.chunk(count), self.shares.chunk(count), strict=True)
        return [SurveyResult(self.engine, Summary(*own), keys, shares) for own, keys, shares in each]


class QueuedSurvey(NamedTuple):
    lse: Tensor | None
    then: Callable[[SurveyResult], None]


class StagingBuffer:
    """Memory in which calls wait side by side. It is written again when what was in it has been read."""

    def __init__(self) -> None:
        self.made: Any = None
        self.read: StreamEvent | None = None

    def make(self, fit: int, like: SurveyInputs) -> None:
        """For so many calls like this."""
        if self.read is not None:
            self.read.wait()
        if self.made != (fit, like.shapes):
            self.made = (fit, like.shapes)
            self.parts = like.of(lambda part: _room(fit, part))
            self.places = [self.some(i, i + 1) for i in range(fit)]

    def some(self, first: int, stop: int) -> SurveyInputs:
        """Of these calls."""
        if stop - first == self.made[0]:
            return self.parts
        batch = len(self.parts.queries) // self.made[0]
        return self.parts.of(lambda part: part[first * batch : stop * batch])

    def put(self, place: int, parts: SurveyInputs) -> None:
        for room, part in zip(self.places[place], parts, strict=True):
            room.copy_(part)


class SurveyQueue:
    """Calls that wait for their survey. Who wants one says `now`.

    Where numbers alone say who sees whom, a GPU surveys them beside what the model goes on with: one room is read while
    the other is filled.
    """

    def __init__(self, top: int, map: tuple[int, int] | None) -> None:
        self.top, self.map = top, map
        self.waiting: list[QueuedSurvey] = []
        self.kind: Any = None
        self.known: Attention | None = None
        self.places: Places | None = None
        self.text: BatchTokens | None = None
        self.fit, self.apart = 0, False
        self.attention: dict[int, Attention] = {}
        """The definition of so many calls as one."""
        self.rooms = StagingBuffer(), StagingBuffer()
        self.told: dict[torch.device, StreamEvent] = {}

    def add(self, ran: AttentionCall, then: Callable[[SurveyResult], None]) -> None:
        """`then` is called with what was found, now or later. What may be written to by then is copied; the lse is
        nobody else's."""
        parts = SurveyInputs(ran.queries, ran.keys)
        about = ran.attention if ran.attention.fixed else identity(ran.attention)
        kind = (about, ran.lse is None, parts.shapes, ran.text, ran.positions, ran.looks_across)
        if kind != self.kind:
            self._start()
            size = ran.queries.nbytes + ran.keys.nbytes
            self.fit = min(MOST, ROOM.get(ran.queries.device.type, 0) // max(1, size))
            self.kind, self.apart, self.attention = kind, _apart(parts, ran.attention), {1: ran.attention.copied()}
            self.known = ran.attention  # kept, so that nothing else gets its identity
            self.places = ran.places
        assert self.places is not None
        if self.fit < (1 if self.apart else 2):
            then(self.found(parts, ran.lse, ran.attention, self.places))
            return
        if not self.waiting:
            self.rooms = self.rooms[::-1]
            self.rooms[0].make(self.fit, parts)
        self.rooms[0].put(len(self.waiting), parts)
        self.waiting.append(QueuedSurvey(ran.lse, then))
        if len(self.waiting) == self.fit:
            self._start()

    def text_of(self, ids: Int[Tensor, "batch token"]) -> BatchTokens:
        """The text of these tokens, one for all layers that are given the same."""
        if self.text is None or self.text.ids is not ids:
            self.text = BatchTokens(ids)
        return self.text

    def now(self) -> None:
        """Whoever waits is told."""
        if self.waiting:
            device = self.rooms[0].parts.queries.device
            with torch_modes.recording_mode(device):
                self._start()
        self.wait()
        self.rooms, self.kind, self.known, self.places, self.attention = (
            (StagingBuffer(), StagingBuffer()),
            None,
            None,
            None,
            {},
        )
        self.text = None

    def wait(self, *tensors: Tensor) -> None:
        """What they were told, such as these, can be read here, and what it was read from be written to."""
        for device, told in self.told.items():
            told.wait(*(tensor for tensor in tensors if tensor.device == device))

    def _start(self) -> None:
        waiting, self.waiting = self.waiting, []
        if not waiting:
            return
        _, _, ((shape, _, device), _), *_ = self.kind
        assert self.places is not None
        batch, count, room = shape[0], len(waiting), self.rooms[0]
        if count not in self.attention:
            self.attention[count] = of_sequences(self.attention[1], torch.tensor([*range(batch)] * count), batch)
        whole, given = room.some(0, count), [call.lse for call in waiting if call.lse is not None]
        with beside(whole.queries) if self.apart else nullcontext():
            read_here(*given, *self.places.tensors)
            lse = None if not given else given[0] if count == 1 else torch.cat(given)
            found = self.found(whole, lse, self.attention[count], self.places)
            for call, own in zip(waiting, found.each(count) if count > 1 else [found], strict=True):
                call.then(own)
            room.read = moment(device)
        if room.read is not None:
            self.told[device] = room.read

    def found(self, parts: SurveyInputs, lse: Tensor | None, attention: Attention, places: Places) -> SurveyResult:
        """Of one call, or of several as one."""
        size, map = (parts.queries.shape[-2], parts.keys.shape[-2]), None
        if self.map is not None and 0 not in size:
            map = (min(self.map[0], size[0]), min(self.map[1], size[1]))
        asked = places.marks(len(parts.queries) // max(places.batch, 1)) if parts.queries.device.type == "cpu" else None
        seen = read_off(*parts, attention, top=self.top, lse=lse, map=map, marks=asked)
        return SurveyResult(
            seen.engine, seen.summary, marks(parts.keys), shares(*parts, attention, seen.summary, places)
        )


def _room(fit: int, like: Tensor) -> Tensor:
    """Of heads or of tokens one behind the other, as there: what lies alike is soon copied."""
    batch, heads, tokens, width = like.shape
    if like.stride(1) < like.stride(2):
        return like.new_empty(fit * batch, tokens, heads, width).transpose(1, 2)
    return like.new_empty(fit * batch, heads, tokens, width)


def _apart(parts: SurveyInputs, attention: Attention) -> bool:
    """Whether it may be surveyed while the model goes on, which could write to anything but numbers."""
    numbers = all(leaf is None or leaf is softmax or isinstance(leaf, int | float) for leaf in leaves(attention))
    return parts.queries.is_cuda and numbers
