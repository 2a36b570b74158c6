"""Find the tokens of recorded calls in the log of a residual stream, and who wrote there."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..anatomy import Modules
from .following import FollowedPass, Written
from .log import State, StreamLog, StreamPass
from .norms import TOLERANCE, LostError
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


class End(NamedTuple):
    """The end of the stream at one token, and the matrix that turns it into logits."""

    spot: Spot
    factor: float
    weight: Float[Tensor, "vocabulary d_model"]
    bias: Tensor | None


class Around(NamedTuple):
    """The residual stream before an attention and after its output was added."""

    before: Float[Tensor, "batch query d_model"]
    after: Float[Tensor, "batch query d_model"]


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

    # ----------------------------------------------------------------------------- where a token is

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

    def around(self, call: CallColumns) -> "Around":
        """Return the residual stream before and after an attention, at the kept queries."""
        before = []
        after = []
        for noted in self.log.passes:
            place = noted.calls.get((call.name, call.number))
            if place is None:
                continue
            followed = self.follow(noted, 0)
            states = followed.stream_around(State(place.event, False), call.name)
            found = [followed.noted.kept(state) for state in states]
            before.append(found[0].tensor)
            after.append(found[1].tensor)
        if not before:
            raise LostError(
                f'"{call.name}" has no residual stream: what compiled code runs is not noted'
            )
        return Around(torch.cat(before, 1), torch.cat(after, 1))

    def is_beside(self, name: str, other: str) -> bool:
        """Return whether two attentions ran in one pass: in one stack of layers."""
        return any(
            any(key[0] == name for key in one.calls) and any(key[0] == other for key in one.calls)
            for one in self.log.passes
        )

    def end(self, call: CallColumns, column: int) -> "End":
        """Return what the unembedding is given at one query: the last state of its stack."""
        model: Any = self.modules[""]
        spot = self.query(call, column)
        followed = spot.followed
        last = followed.states[-1]
        own_head = getattr(model, "head_weight", None)
        if isinstance(own_head, Tensor):
            if call.name.startswith("encoder."):
                raise LostError(
                    f'"{call.name}" is of the encoder, whose end gives no logits; ask an attention '
                    "of the decoder"
                )
            bias = getattr(model, "head_bias", None)
            return End(Spot(followed, last, spot.row), 1.0, own_head, bias)
        module: Any = None if self.log.unembedding is None else self.modules[self.log.unembedding]
        weight = getattr(module, "weight", None)
        if not isinstance(weight, Tensor) or not weight.is_floating_point():
            raise LostError(
                f"{type(model).__name__} has no unembedding, a matrix that turns the end of its "
                "residual stream into logits"
            )
        factor = self._end_factor(followed, last)
        return End(Spot(followed, last, spot.row), factor, weight, getattr(module, "bias", None))

    def _end_factor(self, followed: FollowedPass, last: State) -> float:
        """Return the number by which the last state is multiplied before it is unembedded."""
        noted = followed.noted
        path = self.log.unembedding
        if noted.end is None:
            raise LostError(
                f'"{path}" was not given a position whose residual stream was kept, so what comes '
                "before it is not known; leave out queries=, or let them hold the last position; "
                "of two stacks, ask the decoder"
            )
        kept = noted.end.tensor.shape[1]
        count = min(kept, NEAR)
        total = noted.kept(last).tensor.shape[1]
        given = noted.end.rows(self.sequence, range(kept - count, kept))
        state = followed.read(last, range(total - count, total))
        factor = float((given * state).sum() / state.square().sum().clamp(min=1e-300))
        if not bool((given - factor * state).norm() <= TOLERANCE[followed.dtype] * given.norm()):
            raise LostError(
                f'between its last norm and "{path}" the model computes more than a product, so '
                "that its logits are no sums over what was written"
            )
        return factor

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

    # ---------------------------------------------------------------------------------- projections

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
