"""What is kept of a call: its summary alone, its queries and keys, or everything its steps are made of."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import Attention
from ..attention.values import mapped
from ..engines import autocast
from .follow import follows, marks, same
from .growing import Growing
from .ran import Ran
from .survey import Summary, Survey, survey
from .trace import Tokens, Trace, trace

TOP = 8
MapSize = tuple[int, int]


class Call(ABC):
    """What was kept of one call of an attention. Calls that go on with a sequence, as decoding does, are one call."""

    keep: ClassVar[str]
    whole: ClassVar[tuple[bool, bool]]  # whether keys and values are kept, or only marks to know them by

    def __init__(self, name: str, ran: Ran) -> None:
        self.name, self.kind, self.size = name, ran.kind, ran.size
        self.heads, self.dropout, self.attention = ran.heads, ran.dropout, _copied(ran.attention)
        self._first = marks(ran.queries[:, :, :1])
        self._known = [Growing(tensor, 2) for tensor in self._of(ran, slice(None))]

    def goes_on_with(self, ran: Ran, *, in_one_run: bool) -> bool:
        """Whether that call is the rest of this one. To the same keys it may also be the first of another sequence: of
        another run, or with the same first query once more."""
        return (
            ran.kind == self.kind
            and (ran.size[1] > self.size[1] or (in_one_run and not same(self._first, marks(ran.queries[:, :, :1]))))
            and follows(self.attention, self.size, ran)
            and all(map(same, (known.tensor for known in self._known), self._of(ran, slice(self.size[1]))))
        )

    def go_on_with(self, ran: Ran) -> None:
        self._put(ran)
        for known, new in zip(self._known, self._of(ran, slice(self.size[1], None)), strict=True):
            known.append(new)
        self.size = (self.size[0] + ran.size[0], ran.size[1])
        self.attention = self.attention if ran.attention == self.attention else _copied(ran.attention)

    @abstractmethod
    def _put(self, ran: Ran) -> None:
        """What those queries say, to what is here. (Keys and values follow.)"""

    def _of(self, ran: Ran, some: slice) -> list[Tensor]:
        """Of some of a call's keys and values what is kept of them."""
        both = zip(self.whole, (ran.keys[:, :, some], ran.values[:, :, some]), strict=True)
        return [tensor if whole else marks(tensor) for whole, tensor in both]

    # -------------------------------------------------------------------------------------------------- what to ask

    @abstractmethod
    def survey(self, *, top: int | None = None, map: MapSize | None = None) -> Survey:
        """What every query looks at and what every key is given; see ts.survey."""

    def head(self, number: int) -> Survey:
        """The survey of one head, by its number in the model."""
        if number not in self.heads:
            raise ValueError(f'there is no head {number} of "{self.name}"; kept are {", ".join(map(str, self.heads))}')
        return self.survey().head(self.heads.index(number))

    def trace(self, tokens: Tokens | None = None) -> Trace:
        """Every step; see ts.trace. A training step's dropout, thrown by dice, is left out of it."""
        raise self._not_kept("trace()", "steps")

    @property
    def queries(self) -> Float[Tensor, "batch heads query d_q"]:
        raise self._not_kept("queries", "queries-keys")

    @property
    def keys(self) -> Float[Tensor, "batch key_heads key d_k"]:
        raise self._not_kept("keys", "queries-keys")

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
    def nbytes(self) -> int:
        """How much memory it takes."""
        return sum(part.memory.nbytes for part in self._parts())

    def _parts(self) -> list[Growing]:
        return [part for part in (*vars(self).values(), *self._known) if isinstance(part, Growing)]

    def _not_kept(self, what: str, keep: str) -> ValueError:
        return ValueError(f'"{self.name}" has no {what}: keep="{self.keep}" did not keep it, keep="{keep}" does')


class Summaries(Call):
    """The numbers of a survey, computed while the model runs. Queries and keys are let go."""

    keep, whole = "summaries", (False, False)

    def __init__(self, name: str, ran: Ran, *, top: int = TOP, map: MapSize | None = None) -> None:
        super().__init__(name, ran)
        fitting = None if map is None or 0 in ran.size else (min(map[0], ran.size[0]), min(map[1], ran.size[1]))
        seen = survey(ran.queries, ran.keys, ran.attention, top=top, map=fitting)
        summary, self.engine, self.recorded, self.pooled = seen.summary, seen.engine, fitting, seen.summary.map
        self.widths, self.dtype = (ran.queries.shape[-1], *ran.keys.shape[1::2]), ran.queries.dtype
        self.lse = None if summary.lse is None else Growing(summary.lse, 2)
        self.received = Growing(summary.received.double(), 2)  # a sum of as many numbers as there are calls
        self.entropy = Growing(summary.entropy, 2)
        self.top_weights, self.top_keys = Growing(summary.top_weights, 2), Growing(summary.top_keys, 2)

    def _put(self, ran: Ran) -> None:
        more = survey(ran.queries, ran.keys, ran.attention, top=self.top_keys.tensor.shape[-1]).summary
        assert self.lse is not None
        assert more.lse is not None
        self.lse.append(more.lse)
        self.received.append(torch.zeros_like(more.received[:, :, self.size[1] :]))
        self.received.tensor.add_(more.received)
        self.entropy.append(more.entropy)
        self.top_weights.append(more.top_weights)
        self.top_keys.append(more.top_keys)
        self.recorded = self.pooled = None  # rows of a map would have to be cut anew

    def survey(self, *, top: int | None = None, map: MapSize | None = None) -> Survey:
        kept, (d_q, key_heads, d_k) = self.top_keys.tensor.shape[-1], self.widths
        top = kept if top is None else top
        if not 0 <= top <= kept:
            raise ValueError(f'"{self.name}" has the top {kept} of each query, not {top}; watch(..., top=...) says it')
        if map is not None and map != self.recorded:
            raise self._not_kept(f"map of {map[0]} x {map[1]}", "queries-keys")
        batch, heads = self.entropy.tensor.shape[:2]
        return Survey(
            queries=torch.empty(batch, heads, self.size[0], d_q, dtype=self.dtype, device="meta"),
            keys=torch.empty(batch, key_heads, self.size[1], d_k, dtype=self.dtype, device="meta"),
            values=None,
            attention=self.attention,
            engine=self.engine,
            summary=Summary(
                lse=None if self.lse is None else self.lse.tensor,
                received=self.received.tensor.to(self.entropy.tensor.dtype, copy=True),  # it is added to in place
                entropy=self.entropy.tensor,
                top_weights=self.top_weights.tensor[..., :top],
                top_keys=self.top_keys.tensor[..., :top],
                map=self.pooled,
            ),
            recorded=self.recorded,
            context=None,
        )


class QueriesKeys(Call):
    """Queries and keys: surveys, rows and maps are computed when they are asked for."""

    keep, whole = "queries-keys", (True, False)

    def __init__(self, name: str, ran: Ran) -> None:
        super().__init__(name, ran)
        self._queries = Growing(ran.queries, 2)
        self._surveys: dict[int, Survey] = {}

    def _put(self, ran: Ran) -> None:
        self._queries.append(ran.queries)
        self._surveys.clear()

    def survey(self, *, top: int | None = None, map: MapSize | None = None) -> Survey:
        top = TOP if top is None else top
        if map is None and top in self._surveys:
            return self._surveys[top]
        with autocast.off(self.queries.device):
            seen = self._surveys[top] = survey(self.queries, self.keys, self.attention, top=top, map=map)
        return seen

    @property
    def queries(self) -> Float[Tensor, "batch heads query d_q"]:
        return self._queries.tensor

    @property
    def keys(self) -> Float[Tensor, "batch key_heads key d_k"]:
        return self._known[0].tensor


class Steps(QueriesKeys):
    """Queries, keys and values, from which every step is computed when it is asked for, and the residual stream."""

    keep, whole = "steps", (True, True)

    def __init__(self, name: str, ran: Ran) -> None:
        super().__init__(name, ran)
        self._before: Growing | None = None
        self._after: Growing | None = None

    def stood_between(self, before: Float[Tensor, "batch n d_model"], after: Float[Tensor, "batch n d_model"]) -> None:
        """The residual stream around the last of it."""
        if self._before is None or self._after is None:
            self._before, self._after = Growing(before, 1), Growing(after, 1)
        else:
            self._before.append(before)
            self._after.append(after)

    def trace(self, tokens: Tokens | None = None) -> Trace:
        with torch.no_grad(), autocast.off(self.queries.device):
            return trace(self.queries, self.keys, self.values, self.attention, tokens)

    @property
    def values(self) -> Float[Tensor, "batch key_heads key d_v"]:
        return self._known[1].tensor

    @property
    def before(self) -> Float[Tensor, "batch query d_model"]:
        return self._stream(self._before)

    @property
    def after(self) -> Float[Tensor, "batch query d_model"]:
        return self._stream(self._after)

    def _stream(self, kept: Growing | None) -> Tensor:
        if kept is None:
            raise ValueError(f'"{self.name}" stands in no residual stream: it was not called by an AddNorm')
        if kept.size != self.size[0]:
            raise ValueError(
                f'"{self.name}": {kept.size} positions of the residual stream do not fit its {self.size[0]} queries; '
                "beams ask side by side, and a call that was interrupted has no stream"
            )
        return kept.tensor


KEEP: dict[str, type[Call]] = {kind.keep: kind for kind in (Summaries, QueriesKeys, Steps)}


def _copied(attention: Attention) -> Attention:
    """With tensors of its own: masks are written again by who decodes, weights by who trains."""
    copied: Attention = mapped(attention, lambda tensor: tensor.detach().clone())
    return copied
