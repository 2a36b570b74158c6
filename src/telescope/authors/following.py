"""Follow a residual stream back to its authors: the embedding, the heads, the feed-forwards.

Which sums a model forms is not written anywhere: it is found in the numbers of the log. What a norm
or an attention was given is an earlier state of the stream, as it was or normalised, plus what was
written since. Candidates are tried until one agrees with the numbers in every feature; if none
does, an error says where the stream was lost. So a family that nobody has seen is either followed
rightly or refused.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..anatomy import Modules, OutputProjection
from .log import EMBEDDING, HEADS, NORM, POSITIONS, WRITES, Event, State, StreamPass
from .norms import TOLERANCE, LostError, NormFormula

BASES = 8  # states of the stream that are tried as the one before
CHECKED = 16  # rows in which a sum must agree
ROUNDINGS = 8  # of the model's dtype, that a sum of a few numbers may be off by


class Author(NamedTuple):
    """Who wrote a part of a residual stream.

    Attributes:
        head: the number of a head; None for other kinds.

    Example:
        >>> from telescope.authors import Author
        >>> Author("head", "blocks.0.self", 3).head
        3
    """

    kind: str
    """"embedding", "positions", "head", "bias", "attention", "feed-forward", "norm" or "rest"."""
    name: str
    """The attention of a head, or the module."""
    head: int | None = None


NORM_BIAS = Author("norm", "biases of norms")
REST = Author("rest", "rounding")


@dataclass(frozen=True, eq=False)
class Written:
    """What several authors wrote to one position: one row each. The rows add up to the state."""

    authors: tuple[Author, ...]
    parts: Float[Tensor, "author features"]

    @property
    def total(self) -> Float[Tensor, " features"]:
        return self.parts.sum(0)


def joined(several: Iterable[tuple[Author, Tensor]]) -> Written:
    """Return what authors wrote, each author once."""
    sums: dict[Author, Tensor] = {}
    for author, part in several:
        sums[author] = sums[author] + part if author in sums else part
    return Written(tuple(sums), torch.stack([*sums.values()]))


class Write(NamedTuple):
    """One term of a sum: what a module wrote, times a number."""

    event: int
    factor: float
    norm: int | None
    """The norm that the module's output went through before it was added."""


class Sum(NamedTuple):
    """How a state came to be: an earlier state, times a number, and what was written since."""

    base: State | None
    factor: float
    writes: tuple[Write, ...]
    is_whole: bool = False
    """Whether the state is where a stack of layers begins, and has one author."""


class SplitHead(NamedTuple):
    """A head, with the weight times the value of each key that it read."""

    name: str
    head: int
    contexts: Float[Tensor, "key d_v"]


@dataclass(eq=False)
class FollowedPass:
    """The sums of one pass, found in the rows of one sequence."""

    noted: StreamPass
    modules: Modules
    dtype: torch.dtype
    batch: int
    rows: Sequence[int]
    """Some rows in which the sums are checked."""
    projections: Mapping[str, str]
    """The path of the output projection of each attention, by name."""
    heads: Mapping[str, int]
    """The number of heads of each attention, by name."""
    attentions: Collection[str] = ()
    """The paths of all attentions."""
    sums: dict[int, Sum] = field(default_factory=dict)
    states: list[State] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)
    """By the number of an event, why the state that it was given is not understood."""
    split: "SplitHead | None" = None
    """A head whose writing is divided among the keys that it read."""
    _formulas: dict[int, NormFormula] = field(default_factory=dict)
    _tensors: dict[State, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._find_sums()

    # ----------------------------------------------------------------------------- finding the sums

    def _find_sums(self) -> None:
        open_writes: list[Write] = []
        for number, event in enumerate(self.noted.events):
            if event.kind in WRITES and event.returned is not None:
                open_writes.append(Write(number, 1.0, None))
            if event.kind in WRITES or event.given is None:
                continue
            given = self._tensor(State(number, False))
            # A norm of what one module wrote, before it is added.
            if event.kind == NORM and (place := self._normed_write(given, open_writes)) is not None:
                open_writes[place] = open_writes[place]._replace(norm=number)
                continue
            found = self._explain(given, open_writes)
            if found is None:
                self.lost[number] = self._describe_loss(event, open_writes)
                found = Sum(None, 1.0, (), is_whole=True)
            used = {write.event for write in found.writes}
            open_writes = [write for write in open_writes if write.event not in used]
            if found.is_whole:
                open_writes = []
            self.sums[number] = found
            self.states.append(State(number, False))
            if event.kind == NORM and event.returned is not None:
                self.states.append(State(number, True))

    def _normed_write(self, given: Tensor, writes: Sequence[Write]) -> int | None:
        """Return the place of the write that this tensor is, behind a state of the stream."""
        if not self.states:
            return None
        for place, write in reversed([*enumerate(writes)]):
            event = self.noted.events[write.event]
            if event.kind not in (EMBEDDING, POSITIONS) and write.norm is None:
                written = self._tensor(State(write.event, True))
                if written.shape == given.shape and torch.equal(written, given):
                    return place
        return None

    def _explain(self, given: Tensor, writes: Sequence[Write]) -> Sum | None:
        """Return the sum that agrees with a tensor; None if none does."""
        states = [one for one in reversed(self.states) if self._tensor(one).shape == given.shape]
        # The same state again, as two norms of parallel layers are given it.
        for state in states:
            if torch.equal(self._tensor(state), given):
                return Sum(state, 1.0, ())
        fitting = [one for one in writes if self._write(one).shape == given.shape]
        bases = [*states[:BASES], None]
        # All that was written since is added, as in most models.
        for base in bases:
            terms = [*([] if base is None else [self._tensor(base)]), *map(self._write, fitting)]
            if terms and self._agrees(given, terms, [1.0] * len(terms)):
                return Sum(base, 1.0, tuple(fitting))
        # Otherwise factors are fitted: of scaled embeddings, scaled residuals, or zero.
        for base in bases:
            terms = [*([] if base is None else [self._tensor(base)]), *map(self._write, fitting)]
            if not terms:
                continue
            factors = self._fit(given, terms)
            if factors is not None and self._agrees(given, terms, factors):
                first = 1.0 if base is None else factors[0]
                own = factors if base is None else factors[1:]
                kept = [
                    one._replace(factor=factor)
                    for one, factor in zip(fitting, own, strict=True)
                    if factor != 0.0
                ]
                return Sum(base, first, tuple(kept))
        # Where nothing but an embedding came before, a stack of layers begins.
        kinds = {self.noted.events[one.event].kind for one in fitting}
        if not self.states or (kinds and kinds <= {EMBEDDING, POSITIONS}):
            return Sum(None, 1.0, (), is_whole=True)
        return None

    def _fit(self, given: Tensor, terms: Sequence[Tensor]) -> list[float] | None:
        matrix = torch.stack([term.flatten() for term in terms], 1)
        if matrix.shape[0] <= matrix.shape[1]:
            return None
        # Scale the columns: an embedding may be a thousand times smaller than the stream.
        sizes = matrix.norm(dim=0).clamp(min=1e-30)
        found = torch.linalg.lstsq((matrix / sizes).cpu(), given.flatten().cpu()[:, None])
        factors = (found.solution[:, 0] / sizes.cpu()).tolist()
        roundings = min(1e3 * torch.finfo(self.dtype).eps, 0.02)
        # Factors that rounding explains are 0 or 1.
        return [
            next((float(one) for one in (0, 1) if abs(f - one) <= roundings), f) for f in factors
        ]

    def _agrees(self, given: Tensor, terms: Sequence[Tensor], factors: Sequence[float]) -> bool:
        """Return whether a sum is a tensor in every feature, but for rounding."""
        parts = [term * factor for term, factor in zip(terms, factors, strict=True)]
        error = (given - sum(parts)).abs()
        size = given.abs() + sum(part.abs() for part in parts)
        # A feature that cancels is rounded as its terms are, and a norm rounds once more.
        bound = ROUNDINGS * torch.finfo(self.dtype).eps * size
        return bool((error <= bound + 1e-30).all()) and bool((size > 0).any())

    def _describe_loss(self, event: Event, writes: Sequence[Write]) -> str:
        names = [self.noted.events[one.event].path for one in writes]
        since = f"what {', '.join(names[:3])} wrote" if names else "anything that was noted"
        return (
            f'the residual stream cannot be followed: what "{event.path}" is given is no sum of an '
            f"earlier state and {since}"
        )

    # ---------------------------------------------------------------------------------- the numbers

    def _tensor(self, state: State) -> Tensor:
        """Return a state in the rows that are checked."""
        if state not in self._tensors:
            self._tensors[state] = self.read(state, self.rows)
        return self._tensors[state]

    def read(self, state: State, rows: Sequence[int]) -> Tensor:
        """Return a state, or what a module wrote, in some rows."""
        event = self.noted.events[state.event]
        found = self.noted.kept(state).rows(self.batch, rows)
        if event.kind == POSITIONS and state.is_output and event.given is not None:
            found = found - event.given.rows(self.batch, rows)
        return found

    def _write(self, write: Write) -> Tensor:
        return self._tensor(State(write.event if write.norm is None else write.norm, True))

    # ---------------------------------------------------------------------------- around attentions

    def stream_before(self, given: State) -> State:
        """Return the state to which an attention's output is added, by what the attention was
        given: the state before a norm, or the same.
        """
        found = given
        while not found.is_output and self.sums[found.event].base is not None:
            of = self.sums[found.event]
            if of.writes or of.factor != 1.0:
                break
            assert of.base is not None
            found = of.base
        if not found.is_output:
            return found
        # Behind the norm of a pre-norm block, the sums go on from what the norm was given.
        used = [one.base for one in self.sums.values() if one.writes]
        return found if found in used else State(found.event, False)

    def stream_around(self, given: State, name: str) -> tuple[State, State]:
        """Return the state before an attention, and the first that its output was added to."""
        before = self.stream_before(given)
        used = [one.base for one in self.sums.values() if one.writes]
        for number, found in self.sums.items():
            wrote = [self.noted.events[write.event] for write in found.writes]
            if number > given.event and any(
                one.kind == HEADS and one.path == name for one in wrote
            ):
                # A model that normalises every sum goes on from what the norm returned.
                normed = State(number, True)
                return before, normed if normed in used else State(number, False)
        raise LostError(
            f'"{name}" has no residual stream: its output is added to nothing that was noted'
        )

    # ----------------------------------------------------------------------------------- authorship

    def authors(self, state: State, row: int) -> Written:
        """Return who wrote a state of the stream at one row, and what; raise a LostError where the
        stream cannot be followed.
        """
        # Go back to the beginning of the stack, and then forward.
        chain = [state]
        while True:
            last = chain[-1]
            if last.is_output:
                chain.append(State(last.event, False))
                continue
            if last.event in self.lost:
                raise LostError(self.lost[last.event])
            base = self.sums[last.event].base
            if base is None:
                break
            chain.append(base)
        known: Written | None = None
        for one in reversed(chain):
            if one.is_output:
                assert known is not None
                known = self._normed(one.event, known, row)
            else:
                known = self._summed(one.event, known, row)
        assert known is not None
        return known

    def _summed(self, number: int, base: Written | None, row: int) -> Written:
        found = self.sums[number]
        whole = self.read(State(number, False), [row])[0]
        if found.is_whole:
            return joined([(Author("embedding", "embedding"), whole)])
        terms: list[tuple[Author, Tensor]] = []
        if base is not None:
            terms += zip(base.authors, base.parts * found.factor, strict=True)
        for write in found.writes:
            written = self._write_authors(write, row)
            terms += zip(written.authors, written.parts * write.factor, strict=True)
        terms.append((REST, whole - sum(part for _, part in terms)))
        return joined(terms)

    def _write_authors(self, write: Write, row: int) -> Written:
        event = self.noted.events[write.event]
        whole = self.read(State(write.event, True), [row])[0]
        if event.kind == HEADS:
            found = self._heads(event, whole, row)
        else:
            kind = {EMBEDDING: "embedding", POSITIONS: "positions"}.get(event.kind, "feed-forward")
            # An attention whose output projection is not known has no heads here.
            kind = "attention" if event.path in self.attentions else kind
            found = joined([(Author(kind, event.path), whole)])
        return found if write.norm is None else self._normed(write.norm, found, row)

    def _heads(self, event: Event, whole: Tensor, row: int) -> Written:
        """Return what the heads of an attention wrote, and the bias of its output projection."""
        assert event.given is not None
        contexts = event.given.rows(self.batch, [row])[0]
        module = self.modules[self.projections[event.path]]
        heads = self.heads.get(event.path)
        if heads is None or contexts.shape[-1] % heads:
            raise LostError(f'the number of heads of "{event.path}" is not known')
        projection = OutputProjection(module, event.path, "why()")
        weight = projection.read(self.dtype).detach().double()
        by_head = weight.reshape(len(weight), heads, -1)
        each = torch.einsum(
            "ohd,hd->ho",
            by_head,
            contexts.reshape(heads, -1).to(weight.device),
        ).to(whole.device)
        terms = [(Author("head", event.path, head), part) for head, part in enumerate(each)]
        if self.split is not None and self.split.name == event.path:
            terms[self.split.head : self.split.head + 1] = self._split_head(
                self.split, by_head, each
            )
        bias = getattr(module, "bias", None)
        if isinstance(bias, Tensor):
            own = bias.detach().double().to(whole.device)
            terms.append((Author("bias", event.path), own))
        rest = whole - sum(part for _, part in terms)
        limit = TOLERANCE[self.dtype] * (whole.norm() + each.norm())
        if not bool(rest.norm() <= limit):
            raise LostError(
                f'the output projection of "{event.path}" did not return the sum of what its '
                "heads wrote; its weights have changed since, or it does more than multiply"
            )
        return joined([*terms, (REST, rest)])

    def _split_head(
        self, split: "SplitHead", weight: Tensor, each: Tensor
    ) -> list[tuple[Author, Tensor]]:
        """Return what a head wrote of the value of each key."""
        head = split.head
        parts = split.contexts.to(weight.device) @ weight[:, head].mT
        whole = each[head]
        if not bool((parts.sum(0) - whole).norm() <= TOLERANCE[self.dtype] * whole.norm() + 1e-12):
            raise LostError(
                f'"{split.name}" changes the context of its heads before the output projection, so '
                "that a head does not write the sum of its keys' values"
            )
        return [
            (Author("key", split.name, key), part.to(whole.device))
            for key, part in enumerate(parts)
        ]

    def _normed(self, number: int, written: Written, row: int) -> Written:
        """Return what is left of every author's part behind a norm, whose denominator is held."""
        event = self.noted.events[number]
        module = self.modules[event.path]
        returned = self.read(State(number, True), [row])[0]
        found = norm_parts(self.formula(number), event.path, module, written, returned, self.dtype)
        return joined(found)

    def formula(self, number: int) -> NormFormula:
        """Return the formula of a norm, by the number of its event."""
        if number not in self._formulas:
            event = self.noted.events[number]
            self._formulas[number] = NormFormula.of(event.path, self.modules[event.path])
        return self._formulas[number]


def norm_parts(
    formula: NormFormula,
    path: str,
    module: nn.Module,
    written: Written,
    returned: Tensor,
    dtype: torch.dtype,
) -> list[tuple[Author, Tensor]]:
    """Return what is left of every part behind a norm, with its bias and what rounding added."""
    inverse = formula.denominator(written.total, returned, TOLERANCE[dtype])
    if inverse is None:
        raise LostError(
            f'"{path}", a {type(module).__name__}, does not normalise as a LayerNorm or an RMSNorm '
            "with the weights of now does, so its output is no sum of parts"
        )
    parts = formula.scaled(written.parts) * inverse
    terms = [*zip(written.authors, parts, strict=True), (NORM_BIAS, formula.bias)]
    return [*terms, (REST, returned - parts.sum(0) - formula.bias)]
