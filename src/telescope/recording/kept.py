"""A call of an attention that is kept: what every kind of keeping has, and how it grows."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, SupportsIndex
from weakref import ref

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ..attention import Attention
from ..attention.padding_queries import of_all_queries
from ..attention.restrict import key_heads_of, of_heads, of_queries
from ..attention.values import tensors
from ..engines import torch_modes
from ..survey import Summary, Survey, read_off, survey
from ..survey.extend import Size
from ..survey.summary import precision
from ..trace.trace import Tokens, Trace, trace
from ..words import whole_number
from .attention_call import AttentionCall, Chosen, everyone, seems_across
from .continuation import follows, marks, same
from .head_shares import COUNTS, NAMES, BatchTokens, Places, shares
from .storage import GrowingTensor, Store, StoredTensor, on_device
from .survey_queue import SurveyQueue, SurveyResult

TOP = 8
CROSS = ("cross", "cross_attn", "encoder_attn", "EncDecAttention", "crossattention")  # in recordings that do not say
MapSize = tuple[int, int]


@dataclass(frozen=True)
class KeepOptions:
    """How it is kept."""

    top: int = TOP
    map: MapSize | None = None
    queries: Chosen = everyone
    store: Store = on_device

    def __post_init__(self) -> None:
        self.together: SurveyQueue
        object.__setattr__(self, "together", SurveyQueue(self.top, self.map))


@dataclass
class CallFacts:
    """What is known of a call besides its numbers."""

    name: str
    heads: tuple[int, ...]
    """The numbers its heads have in the model."""
    dropout: float
    attention: Attention
    size: Size
    rows: list[int] | None
    """Which queries were kept; None is all."""
    shape: tuple[int, int, int, int]
    """batch, key heads, d_q, d_k"""
    dtype: torch.dtype
    device: torch.device
    engine: str | None = None
    recorded: MapSize | None = None
    across: bool | None = None
    """Whether the keys are another sequence than the queries; None in a recording that does not say."""


class Call(ABC):
    """What was kept of one call of an attention. Calls that go on with a sequence, as decoding does, are one call."""

    keep: ClassVar[str]
    facts: CallFacts
    _waits: SurveyQueue | None = None
    """With whom, until somebody reads what was found."""
    _told = False
    _first: Tensor | None = None
    """The first query, by which a sequence is known where keys alone do not tell."""

    def __init__(self, name: str, ran: AttentionCall, how: KeepOptions = KeepOptions()) -> None:
        ran = ran.from_first_key()
        self.how, self.kind = how, ran.kind
        (batch, key_heads, _, d_k), d_q = ran.keys.shape, ran.queries.shape[-1]
        self.facts = CallFacts(
            name=name,
            heads=ran.heads,
            dropout=ran.dropout,
            attention=ran.attention.copied(),
            size=ran.size,
            rows=None if how.queries is everyone else [],
            shape=(batch, key_heads, d_q, d_k),
            dtype=ran.queries.dtype,
            device=ran.queries.device,
            across=ran.looks_across,
        )
        self._parts: dict[str, StoredTensor] = {}
        self._begin(ran)
        self._put_ids(ran, 0)

    @classmethod
    def opened(cls, facts: CallFacts, parts: Mapping[str, StoredTensor]) -> "Call":
        """One that was saved; nothing goes on with it."""
        call = cls.__new__(cls)
        call.facts, call._parts, call._known = facts, dict(parts), []
        return call

    # ------------------------------------------------------------------------------------------------------ growing

    def goes_on_with(self, ran: AttentionCall, *, in_one_run: bool) -> bool:
        """Whether that call is the rest of this one. To the same keys it may also be the first of another sequence: of
        another run, or with the same first query once more."""
        self._look()
        if (
            ran.kind != self.kind
            or not (ran.size[1] > self.size[1] or (in_one_run and self._began_otherwise(ran)))
            or not follows(self.attention, self.size, ran)
        ):
            return False
        old = slice(0, self.size[1] - ran.gone)
        return all(
            same(known.tensor[:, :, ran.gone :], marks(now[:, :, old]))
            for known, now in zip(self._known, ran.known_by, strict=True)
        )

    def _began_otherwise(self, ran: AttentionCall) -> bool:
        return self._first is not None and not same(self._first, ran.queries[:, :, :1])

    def go_on_with(self, ran: AttentionCall) -> None:
        queries, keys = self.size
        self._put(self._chosen(ran, queries), keys - ran.gone)
        self._put_ids(ran, queries)
        for known, new in zip(self._known, ran.known_by, strict=True):
            known.append(marks(new[:, :, keys - ran.gone :]))
        self.facts.size = (queries + ran.size[0], ran.size[1])
        if ran.attention != self.attention:
            self.facts.attention = ran.attention.copied()

    def _begin(self, ran: AttentionCall) -> None:
        """By its keys a sequence is known again; by its first query too, where more of them may look at the same."""
        self._first = ran.queries[:, :, :1].detach().clone() if ran.attention.mask.keys_alone else None
        self._know(ran.known_by)
        self._put(self._chosen(ran, 0), 0)

    def _know(self, parts: tuple[Tensor, ...]) -> None:
        self._known = [GrowingTensor(marks(some), 2, made_for_it=True) for some in parts]

    @abstractmethod
    def _put(self, ran: AttentionCall, known: int) -> None:
        """What those queries say, to what is here; the first `known` of the keys are here already."""

    @classmethod
    @abstractmethod
    def foretold(cls, ran: AttentionCall, how: KeepOptions) -> int:
        """How many bytes would be kept of that call."""

    def _chosen(self, ran: AttentionCall, before: int) -> AttentionCall:
        """The queries that are kept of those that came after so many."""
        if self.facts.rows is None:
            return ran
        which = self.how.queries(ran.size[0], before)
        self.facts.rows += [before + row for row in which]
        return ran.of_queries(torch.tensor(which, dtype=torch.long))

    def _grow(self, name: str, more: Shaped[Tensor, "..."], axis: int = 2, *, made_for_it: bool = False) -> None:
        if name not in self._parts:
            self._parts[name] = GrowingTensor(more, axis, self.how.store, made_for_it=made_for_it)
        else:
            part = self._parts[name]
            assert isinstance(part, GrowingTensor)
            part.append(more)

    def _put_ids(self, ran: AttentionCall, before: int) -> None:
        """The tokens, as long as those of every query are known."""
        if before == 0 and ran.key_ids is not None:
            self._grow("key_ids", ran.key_ids, 1, made_for_it=True)
        if ran.query_ids is not None and (before == 0 or "query_ids" in self._parts):
            self._grow("query_ids", ran.query_ids, 1, made_for_it=True)
        else:
            self._parts.pop("query_ids", None)

    # -------------------------------------------------------------------------------------------------- what to ask

    @abstractmethod
    def survey(self, *, top: int | None = None, map: MapSize | None = None) -> Survey:
        """What every query looks at and what every key is given; see ts.survey."""

    @abstractmethod
    def shares(self, places: Places) -> Float[Tensor, "batch heads sum"]:
        """What its heads do by habit, summed over the queries; see observe/shares.py."""

    def head(self, number: SupportsIndex) -> Survey:
        """The survey of one head, by its number in the model."""
        return self.survey().head(self._place(number))

    def _place(self, number: SupportsIndex) -> int:
        """Where the head of this number stands among those that were kept."""
        number = whole_number("head", number)
        if number not in self.heads:
            raise ValueError(f'there is no head {number} of "{self.name}"; kept are {", ".join(map(str, self.heads))}')
        return self.heads.index(number)

    def trace(self, tokens: Tokens | None = None) -> Trace:
        """Every step; see ts.trace. A training step's dropout, thrown by dice, is left out of it."""
        raise self._not_kept("trace()", "steps")

    @property
    def parts(self) -> dict[str, StoredTensor]:
        """The numbers that are kept, by name."""
        self._look()
        return self._parts

    def _look(self) -> None:
        if self._waits is not None:
            if not self._told:
                self._waits.now()
            self._waits.wait(*(part.tensor for part in (*self._parts.values(), *self._known)))
            self._waits = None

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def heads(self) -> tuple[int, ...]:
        """The numbers its heads have in the model."""
        return self.facts.heads

    @property
    def size(self) -> Size:
        """How many queries and keys there were."""
        return self.facts.size

    @property
    def across(self) -> bool:
        """Whether its keys are another sequence than its queries, as where a decoder looks at an encoder."""
        if self.facts.across is not None:
            return self.facts.across
        named = self.name.rpartition(".")[2] in CROSS
        return named or "key_ids" in self._parts or seems_across(self.attention, self.size)

    @property
    def attention(self) -> Attention:
        return self.facts.attention

    @property
    def dropout(self) -> float:
        return self.facts.dropout

    @property
    def rows(self) -> list[int]:
        """Which of its queries were kept."""
        return list(range(self.size[0])) if self.facts.rows is None else self.facts.rows

    @property
    def queries(self) -> Float[Tensor, "batch heads query d_q"]:
        raise self._not_kept("queries", "queries-keys")

    @property
    def keys(self) -> Float[Tensor, "batch key_heads key d_k"]:
        raise self._not_kept("keys", "queries-keys")

    @property
    def lse(self) -> Float[Tensor, "batch heads query"] | None:
        """ln Σ exp(score) of each query, where it was kept: by a summary, or as the engine that ran gave it."""
        return self.parts["lse"].tensor if "lse" in self.parts else None

    @property
    def values(self) -> Float[Tensor, "batch key_heads key d_v"]:
        raise self._not_kept("values", "steps")

    @property
    def before(self) -> Float[Tensor, "batch query d_model"]:
        """The residual stream as it came to the attention's add & norm."""
        raise self._not_kept("before", "steps")

    @property
    def after(self) -> Float[Tensor, "batch query d_model"]:
        """The residual stream as it left the attention's add & norm: x + what was found; post-norm, normalised."""
        raise self._not_kept("after", "steps")

    @property
    def query_ids(self) -> Int[Tensor, "batch query"] | None:
        """The tokens that ask, where the model was given any."""
        return self._ids("query_ids", self.size[0])

    @property
    def key_ids(self) -> Int[Tensor, "batch key"] | None:
        """The tokens that are asked: the same, or those of another sequence."""
        if "key_ids" in self.parts:
            return self._ids("key_ids", self.size[1])
        return self.query_ids if self.size[0] == self.size[1] and not self.across else None

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return nbytes_of([self])

    def _beside(self) -> Iterator[Tensor]:
        """What is kept besides its parts."""
        yield from tensors(self.attention)
        if self._first is not None:
            yield self._first

    def _ids(self, name: str, count: int) -> Tensor | None:
        part = self.parts.get(name)
        return None if part is None or part.tensor.shape[1] != count else part.tensor

    def kept_attention(self) -> Attention:
        """The definition, of the queries that were kept."""
        rows = self.facts.rows
        return self.attention if rows is None else of_queries(self.attention, torch.tensor(rows).long(), self.size)

    def _not_kept(self, what: str, keep: str) -> ValueError:
        return ValueError(f'"{self.name}" has no {what}: keep="{self.keep}" did not keep it, keep="{keep}" does')


def nbytes_of(calls: Sequence[Call]) -> int:
    """Return how many bytes these calls keep, in memory or in files; what several share is counted once."""
    parts = [part for call in calls for part in (*call.parts.values(), *call._known)]
    filed = sum(part.nbytes for part in parts if not isinstance(part, GrowingTensor))
    kept = [part.memory for part in parts if isinstance(part, GrowingTensor)]
    views: dict[int, set[tuple[int, int]]] = {}
    rooms: dict[int, int] = {}
    for tensor in (*kept, *(tensor for call in calls for tensor in call._beside())):
        storage = tensor.untyped_storage()
        rooms[storage.data_ptr()] = storage.nbytes()
        views.setdefault(storage.data_ptr(), set()).add((int(tensor.storage_offset()), tensor.nbytes))
    return filed + sum(min(room, sum(size for _, size in views[place])) for place, room in rooms.items())


class QueriesKeysCall(Call):
    """Queries and keys: surveys, rows and maps are computed when they are asked for, where the model ran."""

    keep = "queries-keys"
    _surveys: dict[tuple[int, Size], Survey] | None = None
    _heads: dict[int, Survey] | None = None

    def _put(self, ran: AttentionCall, known: int) -> None:
        self._surveys = self._heads = None
        if ran.lse is not None and ("lse" in self._parts or "queries" not in self._parts):
            self._grow("lse", ran.lse)
        else:  # of some queries it would be of no use
            self._parts.pop("lse", None)
        self._grow("queries", ran.queries)
        self._grow("keys", ran.keys[:, :, known:])

    @classmethod
    def foretold(cls, ran: AttentionCall, how: KeepOptions) -> int:
        some = len(how.queries(ran.size[0], 0)) / max(ran.size[0], 1)
        lse = 0 if ran.lse is None else ran.lse.nbytes
        return int((ran.queries.nbytes + lse) * some) + _with_those_gone(ran.keys, ran.gone)

    def survey(self, *, top: int | None = None, map: MapSize | None = None) -> Survey:
        wanted = (TOP if top is None else top, self.size)
        if map is None and self._surveys and wanted in self._surveys:
            return self._surveys[wanted]
        queries, keys = self._where_it_ran(self.queries), self._where_it_ran(self.keys)
        with torch_modes.without_autocast(queries.device):
            seen = survey(queries, keys, self.kept_attention(), top=wanted[0], map=map)
        self._surveys = {**(self._surveys or {}), wanted: seen}
        return seen

    def head(self, number: SupportsIndex) -> Survey:
        """The survey of one head, by its number in the model. The other heads are not computed."""
        place, heads = self._place(number), len(self.heads)
        if self._surveys and (TOP, self.size) in self._surveys:
            return self._surveys[TOP, self.size].head(place)
        if self._heads is None or place not in self._heads:
            which = torch.tensor([place])
            serving = key_heads_of(which, heads, self.keys.shape[1]).tolist()
            queries, keys = self._where_it_ran(self.queries[:, [place]]), self._where_it_ran(self.keys[:, serving])
            with torch_modes.without_autocast(queries.device):
                seen = survey(queries, keys, of_heads(self.kept_attention(), which, heads), top=TOP)
            self._heads = {**(self._heads or {}), place: seen}
        return self._heads[place]

    def shares(self, places: Places) -> Float[Tensor, "batch heads sum"]:
        seen, queries, keys = self.survey(), self._where_it_ran(self.queries), self._where_it_ran(self.keys)
        with torch_modes.without_autocast(queries.device):
            return shares(queries, keys, self.kept_attention(), seen.summary, places)

    @property
    def queries(self) -> Float[Tensor, "batch heads query d_q"]:
        return self.parts["queries"].tensor

    @property
    def keys(self) -> Float[Tensor, "batch key_heads key d_k"]:
        return self.parts["keys"].tensor

    def _beside(self) -> Iterator[Tensor]:
        """Surveys that were asked for stay: their numbers, and queries and keys if they were copied to be read."""
        yield from super()._beside()
        for seen in (*(self._surveys or {}).values(), *(self._heads or {}).values()):
            yield from (it for it in (seen.queries, seen.keys, *vars(seen.summary).values()) if it is not None)
            yield from tensors(seen.attention)

    def _where_it_ran(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.facts.device)


class StepsCall(QueriesKeysCall):
    """Queries, keys and values, from which every step is computed when it is asked for, and the residual stream."""

    keep = "steps"

    def _put(self, ran: AttentionCall, known: int) -> None:
        super()._put(ran, known)
        self._grow("values", ran.values[:, :, known:])

    @classmethod
    def foretold(cls, ran: AttentionCall, how: KeepOptions) -> int:
        """The residual stream, whose width an attention does not know, left out."""
        return super().foretold(ran, how) + _with_those_gone(ran.values, ran.gone)

    def stood_between(self, before: Float[Tensor, "batch n d_model"], after: Float[Tensor, "batch n d_model"]) -> None:
        """The residual stream around the last of it."""
        self._grow("before", before, 1)
        self._grow("after", after, 1)

    def trace(self, tokens: Tokens | None = None) -> Trace:
        """Every step as it ran, what padding asks included."""
        queries, keys, values = map(self._where_it_ran, (self.queries, self.keys, self.values))
        with torch.no_grad(), torch_modes.without_autocast(self.facts.device):
            return trace(queries, keys, values, of_all_queries(self.kept_attention()), tokens)

    @property
    def values(self) -> Float[Tensor, "batch key_heads key d_v"]:
        return self.parts["values"].tensor

    @property
    def before(self) -> Float[Tensor, "batch query d_model"]:
        return self._stream("before")

    @property
    def after(self) -> Float[Tensor, "batch query d_model"]:
        return self._stream("after")

    def _stream(self, name: str) -> Tensor:
        if name not in self.parts:
            raise ValueError(f'"{self.name}" stands in no residual stream: it was not called by an AddNorm')
        stream = self.parts[name].tensor
        if stream.shape[1] != self.size[0]:
            raise ValueError(
                f'"{self.name}": {stream.shape[1]} positions of the residual stream do not fit its {self.size[0]} '
                "queries; beams ask side by side, and a call that was interrupted has no stream"
            )
        return stream


def _with_those_gone(tensor: Tensor, gone: int) -> int:
    """How many bytes it takes with a place for each key that is gone."""
    batch, heads, keys, width = tensor.shape
    return batch * heads * (gone + keys) * width * tensor.element_size()


class SummariesCall(Call):
    """The numbers of a survey, computed while the model runs. Queries and keys are let go."""

    keep = "summaries"
    _text: BatchTokens | None = None

    def _begin(self, ran: AttentionCall) -> None:
        self._waits = self.how.together
        super()._begin(ran)

    def _know(self, parts: tuple[Tensor, ...]) -> None:
        super()._know(parts[1:])  # the keys are marked by who surveys them

    def _put(self, ran: AttentionCall, known: int) -> None:
        ran = ran._replace(text=self._read(ran))
        if not self._parts:
            self.how.together.add(ran, partial(_tell, ref(self)))
            return
        seen = read_off(ran.queries, ran.keys, ran.here, top=self.how.top, lse=ran.lse)
        self._receive(seen.summary.received, ran.gone, known)
        self._add(shares(ran.queries, ran.keys, ran.here, seen.summary, ran.places))
        if self._parts.pop("map", None) is not None:  # its rows would have to be cut anew
            warnings.warn(
                "watch(map=...) keeps the map of a text that is read at once; more was read or written after it, so "
                'the map is dropped; keep="queries-keys" has maps of the whole text',
                stacklevel=2,
            )
        self.facts.engine, self.facts.recorded = seen.engine, None
        self._grow_by(seen.summary, ran.gone)

    def found(self, found: SurveyResult) -> None:
        self._told, summary = True, found.summary
        self._known.insert(0, GrowingTensor(found.keys, 2, made_for_it=True))
        self.facts.engine = found.engine
        self.facts.recorded = None if summary.map is None else (summary.map.shape[-2], summary.map.shape[-1])
        self._grow("received", summary.received, made_for_it=True)
        self._grow("shares", found.shares)
        if summary.map is not None:
            self._grow("map", summary.map, made_for_it=True)
        self._grow_by(summary, 0)

    def _grow_by(self, summary: Summary, gone: int) -> None:
        if summary.lse is not None:
            self._grow("lse", summary.lse, made_for_it=True)
        self._grow("entropy", summary.entropy, made_for_it=True)
        self._grow("top_weights", summary.top_weights, made_for_it=True)
        keys = torch.where(summary.top_keys < 0, -1, summary.top_keys + gone) if gone else summary.top_keys
        self._grow("top_keys", keys, made_for_it=True)

    def _receive(self, more: Float[Tensor, "batch heads key"], gone: int, known: int) -> None:
        """Added up in float64: it is a sum of as many numbers as there are calls."""
        received = self._parts["received"]
        if received.tensor.dtype != torch.float64:
            received = self._parts["received"] = GrowingTensor(received.tensor.double(), 2, self.how.store)
        assert isinstance(received, GrowingTensor)
        received.append(torch.zeros_like(more[:, :, known:]))
        received.tensor[:, :, gone:].add_(more.to(received.memory.device))

    def _read(self, ran: AttentionCall) -> BatchTokens | None:
        """The tokens so far, as long as those of every query are known."""
        if ran.query_ids is None:
            self._text = None
        elif not self._parts:
            self._text = self.how.together.text_of(ran.query_ids)
        elif self._text is not None:
            self._text = self._text.followed_by(ran.query_ids)
        return self._text

    def _beside(self) -> Iterator[Tensor]:
        yield from super()._beside()
        if self._text is not None:
            yield from self._text.tensors()

    def _add(self, more: Float[Tensor, "batch heads sum"]) -> None:
        part = self._parts["shares"].tensor
        part.add_(more.to(part.device))

    @classmethod
    def foretold(cls, ran: AttentionCall, how: KeepOptions) -> int:
        (batch, heads, queries, _), keys = ran.queries.shape, ran.size[1]
        number = precision(ran.queries).itemsize
        rows = len(how.queries(queries, 0))
        pooled = 0 if how.map is None else min(how.map[0], rows) * min(how.map[1], keys)
        sums = 8 * (len(NAMES) + len(COUNTS))
        return batch * heads * (number * (2 * rows + keys + how.top * rows + pooled) + 4 * how.top * rows + sums)

    def survey(self, *, top: int | None = None, map: MapSize | None = None) -> Survey:
        numbers = {name: part.tensor for name, part in self.parts.items()}
        kept, (batch, key_heads, d_q, d_k) = numbers["top_keys"].shape[-1], self.facts.shape
        top = kept if top is None else top
        if not 0 <= top <= kept:
            raise ValueError(f'"{self.name}" has the top {kept} of each query, not {top}; watch(..., top=...) says it')
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
                received=numbers["received"].to(numbers["entropy"].dtype, copy=True),  # it is added to in place
                entropy=numbers["entropy"],
                top_weights=numbers["top_weights"][..., :top],
                top_keys=numbers["top_keys"][..., :top],
                map=numbers.get("map"),
            ),
            recorded=self.facts.recorded,
            context=None,
        )

    def shares(self, places: Places) -> Float[Tensor, "batch heads sum"]:
        """As they were summed up; NaN in a recording of a Telescope that did not."""
        part = self.parts.get("shares")
        if part is not None:
            return part.tensor
        heads = (self.facts.shape[0], len(self.heads))
        return torch.full((*heads, len(NAMES) + len(COUNTS)), torch.nan, dtype=torch.float64)


def _tell(call: "ref[SummariesCall]", found: SurveyResult) -> None:
    """If it is still there to be told."""
    waiting = call()
    if waiting is not None:
        waiting.found(found)


KEEP: dict[str, type[Call]] = {kind.keep: kind for kind in (SummariesCall, QueriesKeysCall, StepsCall)}
