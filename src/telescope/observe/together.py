"""Surveys of several attentions at once. A model's layers mostly ask the same of keys of the same size: put one behind
the other, as more sequences of a batch, they take one start of a GPU's kernels instead of one each."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..attention import softmax
from ..attention.sequences import of_sequences
from ..attention.values import Value
from ..engines import autocast
from .ran import Ran
from .survey import Summary, read_off
from .survey.beside import Moment, beside, moment

PARTS = ("queries", "keys", "lse")
MOST = 8  # calls
ROOM = {"cpu": 2**22, "cuda": 2**26}  # bytes in which they wait; what is larger takes longer than to start it


class Found(NamedTuple):
    engine: str
    summary: Summary


Then = Callable[[Found], None]
Parts = list[Tensor | None]


class Room:
    """Memory in which calls wait side by side. It is written again when what was in it has been read."""

    def __init__(self) -> None:
        self.shapes: Any = None
        self.parts: tuple[Tensor | None, ...] = ()
        self.read: Moment | None = None

    def make(self, parts: Parts, fit: int) -> None:
        """Room for so many calls of this kind."""
        shapes = [fit, *(None if part is None else (part.shape, part.dtype, part.device) for part in parts)]
        if self.read is not None:
            self.read.wait()
        if shapes != self.shapes:
            self.shapes = shapes
            self.parts = tuple(None if p is None else p.new_empty(fit * len(p), *p.shape[1:]) for p in parts)

    def put(self, parts: Parts, place: int) -> None:
        for part, room in zip(parts, self.parts, strict=True):
            if part is not None and room is not None:
                room[place * len(part) :][: len(part)].copy_(part)

    def take(self, count: int) -> dict[str, Any]:
        """Its first `count` sequences; the lse is kept, and so a copy."""
        queries, keys, lse = (None if it is None else it[:count] for it in self.parts)
        return {"queries": queries, "keys": keys, "lse": None if lse is None else lse.clone()}


class Together:
    """Calls that wait for their survey. Who wants one says `now`.

    Where numbers alone say who sees whom, a GPU surveys them beside what the model goes on with: one room is read while
    the other is filled.
    """

    def __init__(self, top: int, map: tuple[int, int] | None) -> None:
        self.top, self.map = top, map
        self.waiting: list[Then] = []
        self.kind: Any = None
        self.ran: Ran | None = None
        self.rooms = Room(), Room()
        self.told: dict[torch.device, Moment] = {}

    def add(self, ran: Ran, then: Then) -> None:
        """`then` is called with what was found, now or later. What ran is copied: it may be written to by then."""
        parts: Parts = [getattr(ran, name) for name in PARTS]
        fit = min(MOST, ROOM.get(ran.queries.device.type, 0) // max(1, sum(p.nbytes for p in parts if p is not None)))
        if fit < (1 if _apart(ran) else 2):
            then(self.found(ran))
            return
        kind = (ran.attention, ran.gone, *((part.shape, part.dtype, part.device) for part in parts if part is not None))
        if kind != self.kind:
            self._start()
        if not self.waiting:
            self.kind, self.ran, self.rooms = kind, ran, self.rooms[::-1]
            self.rooms[0].make(parts, fit)
        self.rooms[0].put(parts, len(self.waiting))
        self.waiting.append(then)
        if len(self.waiting) == fit:
            self._start()

    def now(self) -> None:
        """Whoever waits is told."""
        self._start()
        self.wait()
        self.rooms = Room(), Room()

    def wait(self, *tensors: Tensor) -> None:
        """What they were told, such as these, can be read here, and what it was read from be written to."""
        for device, told in self.told.items():
            told.wait(*(tensor for tensor in tensors if tensor.device == device))

    def _start(self) -> None:
        waiting, self.waiting = self.waiting, []
        if not waiting:
            return
        assert self.ran is not None
        ran, room, batch, device = self.ran, self.rooms[0], len(self.ran.queries), self.ran.queries.device
        self.kind, self.ran = None, None
        attention = ran.attention
        if len(waiting) > 1:
            attention = of_sequences(attention, torch.arange(batch).repeat(len(waiting)), batch)
        with torch.inference_mode(False), torch.no_grad(), autocast.off(device):
            with beside(ran.queries) if _apart(ran) else nullcontext():
                found = self.found(ran._replace(attention=attention, **room.take(batch * len(waiting))))
                for i, then in enumerate(waiting):
                    then(_of(found, slice(i * batch, (i + 1) * batch)))
                room.read = moment(device)
            if room.read is not None:
                self.told[device] = room.read

    def found(self, ran: Ran) -> Found:
        """Of one call, or of several as one."""
        size, map = (ran.queries.shape[-2], ran.keys.shape[-2]), None
        if self.map is not None and 0 not in size:
            map = (min(self.map[0], size[0]), min(self.map[1], size[1]))
        seen = read_off(ran.queries, ran.keys, ran.here, top=self.top, lse=ran.lse, map=map)
        return Found(seen.engine, seen.summary)


def _of(found: Found, own: slice) -> Found:
    """What was found of some sequences."""
    kept: dict[str, Any] = {name: some[own] for name, some in vars(found.summary).items() if some is not None}
    return found._replace(summary=replace(found.summary, **kept))


def _apart(ran: Ran) -> bool:
    """Whether it may be surveyed while the model goes on: it cannot write to what the definition is made of."""
    return ran.queries.is_cuda and _of_numbers(ran.attention)


def _of_numbers(value: Any) -> bool:
    if isinstance(value, Value):
        return all(_of_numbers(getattr(value, field.name)) for field in fields(cast(Any, value)))
    if isinstance(value, tuple):
        return all(map(_of_numbers, value))
    return value is None or value is softmax or isinstance(value, (bool, int, float, str))
