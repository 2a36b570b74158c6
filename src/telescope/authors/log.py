"""What hooks note of the residual streams of a model while it runs, in the order in which it ran.

An event is one module's turn: what it was given and what it returned, at the positions that are
kept. A pass is the run of one stack of layers over some tokens: a prompt, or one step of a model
that writes. Nothing is computed while the model runs; `following.py` reads the log.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn

READS = "reads"  # an attention is given the stream
HEADS = "heads"  # an output projection is given the contexts of all heads, and writes
NORM = "norm"
WRITE = "write"
EMBEDDING = "embedding"
POSITIONS = "positions"
WRITES = (HEADS, WRITE, EMBEDDING, POSITIONS)


@dataclass(eq=False)
class Kept:
    """A tensor (batch, row, features) as a module was given it or returned it.

    Kept is the model's own tensor, where every row is kept: a version tells whether somebody has
    written to it since.
    """

    tensor: Tensor
    version: int | None

    def rows(self, batch: int, rows: Sequence[int]) -> Tensor:
        """Return some rows of one sequence in float64."""
        if self.version is not None and self.tensor._version != self.version:
            raise ValueError(
                "the model has written to its residual stream since it was recorded; choose "
                "positions with queries=, which are copied"
            )
        own = self.tensor[batch if len(self.tensor) > 1 else 0]
        return own[list(rows)].detach().double()


@dataclass(eq=False)
class Event:
    """One module's turn in a pass."""

    kind: str
    path: str
    given: Kept | None
    returned: Kept | None

    def kept(self) -> list[Kept]:
        return [one for one in (self.given, self.returned) if one is not None]


class State(NamedTuple):
    """A state of the stream: what a module was given, or what a norm returned."""

    event: int
    is_output: bool


@dataclass(eq=False)
class CallPlace:
    """Where a recorded call of an attention stands in a pass."""

    event: int
    """The number of the event in which the attention was given the stream."""
    first: int
    """How many queries of the text came before this pass."""


@dataclass(eq=False)
class StreamPass:
    """The events of one stack of layers in one run."""

    events: list[Event] = field(default_factory=list)
    batch: int = 1
    length: int | None = None
    """How many tokens of each sequence the pass read, once an attention has run."""
    rows: list[int] | None = None
    """Which of them are kept; None is all."""
    calls: dict[tuple[str, int], CallPlace] = field(default_factory=dict)
    """By the name of an attention and the number of its call in the recording."""
    end: Kept | None = None
    """What the unembedding was given: the states of the last tokens, or of all."""
    _known: dict[int, tuple["ReferenceType[Tensor]", Kept]] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        self.events.append(event)

    def kept(self, state: State) -> Kept:
        """Return the tensor of a state."""
        event = self.events[state.event]
        kept = event.returned if state.is_output else event.given
        assert kept is not None
        return kept

    def keep(self, tensor: object) -> Kept | None:
        """Return what is kept of a tensor that a module was given or returned; None of anything
        else.
        """
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            return None
        # One tensor is given to several modules: keep it once.
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        rows = self._as_rows(tensor.detach())
        if rows.ndim != 3 or (self.length is not None and rows.shape[1] != self.length):
            return None
        kept = self._select(Kept(rows, version_of(tensor)))
        self._known[id(tensor)] = ref(tensor), kept
        return kept

    def _as_rows(self, tensor: Tensor) -> Tensor:
        """Return a tensor as (batch, row, features)."""
        if tensor.ndim != 2:
            return tensor
        # The tokens of all sequences below each other, as in OPT.
        if self.length is not None and len(tensor) == self.batch * self.length:
            return tensor.reshape(self.batch, self.length, -1)
        # The embeddings of positions, for all sequences.
        return tensor[None]

    def keep_end(self, tensor: Tensor) -> None:
        """Keep what the unembedding is given, of the rows that are kept."""
        rows = self._as_rows(tensor.detach())
        if rows.ndim == 3 and rows.shape[1] == self.length:
            self.end = self._select(Kept(rows, version_of(tensor)))
        elif rows.ndim == 3 and self.rows is None:
            self.end = Kept(rows.clone(), None)
        elif rows.ndim == 3 and self.length is not None and self.rows is not None:
            # The last tokens alone, of which some may be kept.
            first = self.length - rows.shape[1]
            own = [row - first for row in self.rows if row >= first]
            self.end = Kept(rows[:, own], None) if own else None

    def begin_rows(self, batch: int, length: int, rows: list[int] | None) -> None:
        """Drop what came so far of rows that are not kept, and all later rows."""
        if self.length is not None:
            return
        self.batch = batch
        self.length = length
        self.rows = rows
        for event in self.events:
            event.given = self._cut(event.given)
            event.returned = self._cut(event.returned)
        self._known.clear()

    def finish(self) -> None:
        self._known.clear()

    def _cut(self, kept: Kept | None) -> Kept | None:
        if kept is None or kept.tensor.shape[1] != self.length:
            return None
        return self._select(kept)

    def _select(self, kept: Kept) -> Kept:
        if self.rows is not None:
            index = torch.tensor(self.rows, dtype=torch.long, device=kept.tensor.device)
            return Kept(kept.tensor.index_select(1, index), None)
        # Tensors of inference mode have no version: copy them.
        return Kept(kept.tensor.clone(), None) if kept.version is None else kept

    @property
    def nbytes(self) -> int:
        """How many bytes the pass keeps; memory that several tensors share counts once."""
        held = {}
        for event in self.events:
            for kept in (*event.kept(), *([] if self.end is None else [self.end])):
                storage = kept.tensor.untyped_storage()
                held[storage.data_ptr()] = storage.nbytes()
        return sum(held.values())


def version_of(tensor: Tensor) -> int | None:
    """Return how often somebody has written to a tensor; None in inference mode, which does not
    count.
    """
    return None if tensor.is_inference() else tensor._version


class StreamLog:
    """The passes of a recorded model, in the order in which they ran."""

    def __init__(self, model: nn.Module) -> None:
        self.model = ref(model)
        self.layers: dict[str, str] = {}
        """The path of the module that is given the stream, by the name of each attention."""
        self.projections: dict[str, str] = {}
        """The path of the output projection, by the name of each attention that has one."""
        self.heads: dict[str, int] = {}
        """The number of heads of each attention, where it is known."""
        self.unembedding: str | None = None
        """The path of the module that turns the end of the stream into logits."""
        self.passes: list[StreamPass] = []
        self.is_paused = False
        """Whether modules run for a reader of the log, and are not noted."""

    def begin(self) -> None:
        """Begin a pass, unless the last has no event yet."""
        if not self.passes or self.passes[-1].events:
            self.passes.append(StreamPass())

    @property
    def current(self) -> StreamPass:
        """The pass that runs."""
        if not self.passes:
            self.begin()
        return self.passes[-1]

    def note_call(
        self, name: str, number: int, size: tuple[int, int], before: int, rows: list[int]
    ) -> None:
        """Note that an attention was recorded which was given the stream last.

        number  of the recorded call, among those of the attention
        size    of the batch, and how many queries ran
        before  how many queries of the text came before
        rows    which of the queries are kept
        """
        running = self.current
        running.begin_rows(*size, None if len(rows) == size[1] else rows)
        last = len(running.events) - 1
        reads = next((i for i in range(last, -1, -1) if running.events[i].kind == READS), None)
        if reads is not None:
            running.calls[name, number] = CallPlace(reads, before)

    def finish(self) -> None:
        """Forget which tensors are known: the model has run."""
        for one in self.passes:
            one.finish()

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self.passes)
