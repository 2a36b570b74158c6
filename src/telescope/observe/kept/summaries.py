"""The summary alone: numbers of each query and each key."""

import warnings
from collections.abc import Iterator
from functools import partial
from weakref import ref

import torch
from jaxtyping import Float
from torch import Tensor

from ..growing import Growing
from ..ran import Ran
from ..shares import COUNTS, NAMES, Places, Text, shares
from ..survey import Summary, Survey, read_off
from ..survey.summary import precision
from ..together import Found
from .call import Call, Keeping, MapSize


class Summaries(Call):
    """The numbers of a survey, computed while the model runs. Queries and keys are let go."""

    keep = "summaries"
    _text: Text | None = None

    def _begin(self, ran: Ran) -> None:
        self._waits = self.how.together
        super()._begin(ran)

    def _know(self, parts: tuple[Tensor, ...]) -> None:
        super()._know(parts[1:])  # the keys are marked by who surveys them

    def _put(self, ran: Ran, known: int) -> None:
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

    def found(self, found: Found) -> None:
        self._told, summary = True, found.summary
        self._known.insert(0, Growing(found.keys, 2, made_for_it=True))
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
            received = self._parts["received"] = Growing(received.tensor.double(), 2, self.how.store)
        assert isinstance(received, Growing)
        received.append(torch.zeros_like(more[:, :, known:]))
        received.tensor[:, :, gone:].add_(more.to(received.memory.device))

    def _read(self, ran: Ran) -> Text | None:
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
    def foretold(cls, ran: Ran, how: Keeping) -> int:
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


def _tell(call: "ref[Summaries]", found: Found) -> None:
    """If it is still there to be told."""
    waiting = call()
    if waiting is not None:
        waiting.found(found)
