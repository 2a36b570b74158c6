"""Surveys of several attentions at once. A model's layers mostly ask the same of keys of the same size: put one behind
the other, as more sequences of a batch, they take one start of a GPU's kernels instead of one each."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from ..attention.sequences import of_sequences
from ..engines import autocast
from .follow import marks
from .ran import Ran
from .survey import Summary, read_off

PARTS = ("queries", "keys", "values", "lse")
MOST = 8  # calls
ROOM = {"cpu": 2**22, "cuda": 2**27}  # bytes in which they wait; what is larger takes longer than to start it


class Found(NamedTuple):
    """The survey of a call, and the marks by which it is known again: of the first query, of all keys and values."""

    engine: str
    summary: Summary
    first: Int[Tensor, "batch heads 1"]
    known: tuple[Int[Tensor, "batch key_heads key"], Int[Tensor, "batch key_heads key"]]


Then = Callable[[Found], None]


class Together:
    """Calls that wait for their survey. Who wants one that waits says `now`."""

    def __init__(self, top: int, map: tuple[int, int] | None) -> None:
        self.top, self.map = top, map
        self.waiting: list[Then] = []
        self.kind: Any = None
        self.ran: Ran | None = None
        self.room: tuple[Tensor | None, ...] = ()

    def add(self, ran: Ran, then: Then) -> None:
        """`then` is called with what was found, now or later. What ran is copied: it may be written to by then."""
        parts: list[Tensor | None] = [getattr(ran, name) for name in PARTS]
        most = ROOM.get(ran.queries.device.type, 0)
        fit = min(MOST, most // max(1, sum(part.nbytes for part in parts if part is not None)))
        if fit < 2:
            then(self.found(ran))
            return
        kind = (ran.attention, ran.gone, *((part.shape, part.dtype, part.device) for part in parts if part is not None))
        if kind != self.kind:
            self.now()
        if not self.waiting:
            batch, self.kind, self.ran = len(ran.queries), kind, ran
            self.room = tuple(None if p is None else p.new_empty(fit * batch, *p.shape[1:]) for p in parts)
        for part, room in zip(parts, self.room, strict=True):
            if part is not None and room is not None:
                room[len(self.waiting) * len(part) :][: len(part)].copy_(part)
        self.waiting.append(then)
        if len(self.waiting) == fit:
            self.now()

    def now(self) -> None:
        """Whoever waits is told."""
        waiting, self.waiting = self.waiting, []
        if not waiting:
            return
        assert self.ran is not None
        batch = len(self.ran.queries)
        there: Any = (None if it is None else it[: batch * len(waiting)] for it in self.room)
        which = torch.arange(batch).repeat(len(waiting))
        attention = of_sequences(self.ran.attention, which, batch) if len(waiting) > 1 else self.ran.attention
        whole = self.ran._replace(attention=attention, **dict(zip(PARTS, there, strict=True)))
        self.room, self.kind, self.ran = (), None, None
        with torch.inference_mode(False), torch.no_grad(), autocast.off(whole.queries.device):
            found = self.found(whole)
            for i, then in enumerate(waiting):
                then(_of(found, slice(i * batch, (i + 1) * batch)))

    def found(self, ran: Ran) -> Found:
        """Of one call, or of several as one."""
        size, map = (ran.queries.shape[-2], ran.keys.shape[-2]), None
        if self.map is not None and 0 not in size:
            map = (min(self.map[0], size[0]), min(self.map[1], size[1]))
        seen = read_off(ran.queries, ran.keys, ran.here, top=self.top, lse=ran.lse, map=map)
        return Found(seen.engine, seen.summary, marks(ran.queries[:, :, :1]), (marks(ran.keys), marks(ran.values)))


def _of(found: Found, own: slice) -> Found:
    """What was found of some sequences."""
    kept: dict[str, Any] = {name: some[own] for name, some in vars(found.summary).items() if some is not None}
    keys, values = found.known
    return Found(found.engine, replace(found.summary, **kept), found.first[own], (keys[own], values[own]))
