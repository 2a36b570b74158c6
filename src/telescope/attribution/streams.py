"""Find the tokens of recorded calls in the log of a residual stream, and who wrote what was there."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..anatomy import Modules
from .following import FollowedPass, LostError, State, Written
from .log import LOGITS, NORM, READS, StreamLog, StreamPass
from .projections import Position, Projected, Side, sides_of

NEAR = 16  # rows around the one that is asked for, in which sums are checked


class Spot(NamedTuple):
    """One token in one pass: what a module was given there."""

    followed: FollowedPass
    state: State
    row: int
    """The row of the token among those that are kept."""

    def authors(self) -> Written:
        """Return who wrote the state, and what."""
        return self.followed.authors(self.state, self.row)

    def vector(self) -> Float[Tensor, " d_model"]:
        return self.followed.read(self.state, [self.row])[0]


class CallColumns(NamedTuple):
    """A recorded call, by what the log knows of it."""

    name: str
    number: int
    """Among the calls of the attention in the recording."""
    size: tuple[int, int]
    """The number of queries and of keys."""
    across: bool


class Streams:
    """The residual streams of one recording, for one sequence of the batch."""

    def __init__(self, log: StreamLog, sequence: int) -> None:
        model = log.model()
        if model is None:
            raise LostError(
                "the model that was recorded is gone, and the residual stream is read with its "
                "weights; keep the model as long as the recording"
            )
        self.log = log
        self.sequence = sequence
        self.modules = Modules.of(model)
        self._followed: dict[tuple[int, int], FollowedPass] = {}
        self._sides: dict[str, dict[str, Side]] = {}

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Run modules of the model without noting that they ran."""
        before = self.log.is_paused
        self.log.is_paused = True
        try:
            with torch.no_grad():
                yield
        finally:
            self.log.is_paused = before

    # ------------------------------------------------------------------------------- where a token is

    def query(self, call: CallColumns, column: int) -> Spot:
        """Return what an attention was given at one of its queries.

        column   of the query among all queries of the call, padding included
        """
        for noted in reversed(self.log.passes):
            place = noted.calls.get((call.name, call.number))
            if place is None or noted.length is None:
                continue
            if not 0 <= column - place.first < noted.length:
                continue
            row = _row(noted, column - place.first)
            if row is None:
                break
            return Spot(self.follow(noted, row), State(place.event, False), row)
        raise LostError(
            f'"{call.name}" has no residual stream at position {column}: record it with '
            'keep="steps" and, where queries= selects positions, with this one; what compiled code '
            "runs has none"
        )

    def key(self, call: CallColumns, column: int) -> Spot:
        """Return what an attention was given at one of its keys."""
        if not call.across:
            queries, keys = call.size
            return self.query(call, column - (keys - queries))
        # The other sequence is the end of a stack that ran before.
        for noted in reversed(self._before(call)):
            if noted.length != call.size[1]:
                continue
            row = _row(noted, column)
            if row is not None:
                followed = self.follow(noted, row)
                return Spot(followed, followed.states[-1], row)
        raise LostError(
            f'"{call.name}" reads another sequence, whose residual stream was not recorded; leave '
            "out layers=, and run what encodes it inside of the block"
        )

    def _before(self, call: CallColumns) -> list[StreamPass]:
        passes = self.log.passes
        own = [i for i, one in enumerate(passes) if (call.name, call.number) in one.calls]
        return passes[: own[0]] if own else []

    def end(self, call: CallColumns, column: int) -> Spot:
        """Return the last state of the stream at one query: what its final norm returned."""
        spot = self.query(call, column)
        noted = spot.followed.noted
        found = [one for one in spot.followed.states if noted.events[one.event].kind != LOGITS]
        last = found[-1]
        if noted.events[last.event].kind == READS:
            raise LostError(
                "the model has no norm behind its last layer, and what leaves that is not noted"
            )
        return Spot(spot.followed, last, spot.row)

    def follow(self, noted: StreamPass, row: int) -> FollowedPass:
        """Return the sums of a pass, checked around a row."""
        near = row // NEAR
        key = (id(noted), near)
        if key not in self._followed:
            shapes = [kept.tensor for event in noted.events for kept in event.kept()]
            rows = range(near * NEAR, min((near + 1) * NEAR, shapes[0].shape[1]))
            with self.reading():
                self._followed[key] = FollowedPass(
                    noted,
                    self.modules,
                    shapes[0].dtype,
                    self.sequence,
                    rows,
                    projections=self.log.projections,
                    heads=self.log.heads,
                    attentions={*self.log.layers.values()},
                )
        return self._followed[key]

    # ------------------------------------------------------------------------------------ projections

    def sides(self, name: str) -> dict[str, Side]:
        """Return the query and key projections of an attention."""
        if name not in self._sides:
            self._sides[name] = sides_of(name, self.modules[self.log.layers[name]])
        return self._sides[name]

    def project(
        self, name: str, side: str, head: int, spot: Spot, ran: Mapping[str, Tensor]
    ) -> tuple[Written, Projected]:
        """Return who wrote what one side of an attention was given at a token, and what the query
        or key of a head has of each.

        head   of the queries, or of the keys
        ran    the recorded queries and keys of all heads at this token, where they are known
        """
        with self.reading():
            written = spot.authors()
            x = spot.vector()
            position = Position(
                name, self.sides(name), dict.fromkeys(ran, x), ran, spot.followed.dtype
            )
            return written, position.project(side, head, written)


def _row(noted: StreamPass, row: int) -> int | None:
    if noted.rows is None:
        return row
    return noted.rows.index(row) if row in noted.rows else None


def is_norm_output(followed: FollowedPass, state: State) -> bool:
    """Return whether a state is what a norm returned."""
    return state.is_output and followed.noted.events[state.event].kind == NORM
