"""Queries and keys, or everything that the steps are made of."""

from collections.abc import Iterator
from typing import SupportsIndex

import torch
from jaxtyping import Float
from torch import Tensor

from ...attention.heads import key_heads_of, of_heads
from ...attention.real import of_all_queries
from ...attention.values import tensors
from ...engines import autocast
from ..ran import Ran
from ..shares import Places, shares
from ..survey import Survey, survey
from ..survey.extend import Size
from ..trace import Tokens, Trace, trace
from .call import TOP, Call, Keeping, MapSize


class QueriesKeys(Call):
    """Queries and keys: surveys, rows and maps are computed when they are asked for, where the model ran."""

    keep = "queries-keys"
    _surveys: dict[tuple[int, Size], Survey] | None = None
    _heads: dict[int, Survey] | None = None

    def _put(self, ran: Ran, known: int) -> None:
        self._surveys = self._heads = None
        if ran.lse is not None and ("lse" in self._parts or "queries" not in self._parts):
            self._grow("lse", ran.lse)
        else:  # of some queries it would be of no use
            self._parts.pop("lse", None)
        self._grow("queries", ran.queries)
        self._grow("keys", ran.keys[:, :, known:])

    @classmethod
    def foretold(cls, ran: Ran, how: Keeping) -> int:
        some = len(how.queries(ran.size[0], 0)) / max(ran.size[0], 1)
        lse = 0 if ran.lse is None else ran.lse.nbytes
        return int((ran.queries.nbytes + lse) * some) + _with_those_gone(ran.keys, ran.gone)

    def survey(self, *, top: int | None = None, map: MapSize | None = None) -> Survey:
        wanted = (TOP if top is None else top, self.size)
        if map is None and self._surveys and wanted in self._surveys:
            return self._surveys[wanted]
        queries, keys = self._where_it_ran(self.queries), self._where_it_ran(self.keys)
        with autocast.off(queries.device):
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
            with autocast.off(queries.device):
                seen = survey(queries, keys, of_heads(self.kept_attention(), which, heads), top=TOP)
            self._heads = {**(self._heads or {}), place: seen}
        return self._heads[place]

    def shares(self, places: Places) -> Float[Tensor, "batch heads sum"]:
        seen, queries, keys = self.survey(), self._where_it_ran(self.queries), self._where_it_ran(self.keys)
        with autocast.off(queries.device):
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


class Steps(QueriesKeys):
    """Queries, keys and values, from which every step is computed when it is asked for, and the residual stream."""

    keep = "steps"

    def _put(self, ran: Ran, known: int) -> None:
        super()._put(ran, known)
        self._grow("values", ran.values[:, :, known:])

    @classmethod
    def foretold(cls, ran: Ran, how: Keeping) -> int:
        """The residual stream, whose width an attention does not know, left out."""
        return super().foretold(ran, how) + _with_those_gone(ran.values, ran.gone)

    def stood_between(self, before: Float[Tensor, "batch n d_model"], after: Float[Tensor, "batch n d_model"]) -> None:
        """The residual stream around the last of it."""
        self._grow("before", before, 1)
        self._grow("after", after, 1)

    def trace(self, tokens: Tokens | None = None) -> Trace:
        """Every step as it ran, what padding asks included."""
        queries, keys, values = map(self._where_it_ran, (self.queries, self.keys, self.values))
        with torch.no_grad(), autocast.off(self.facts.device):
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
