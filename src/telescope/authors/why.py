"""`why`: one score of an attention, as a sum over who wrote what the query and the key read.

A score is a dot product of two linear maps of the residual stream, once the norms are held as they
ran. The stream is a sum over its authors, so the score is a sum over pairs: an author of what the
query reads, and an author of what the key reads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from rich.console import Group
from rich.text import Text
from torch import Tensor

from ..attention import Attention, dot
from ..files import frame
from ..traces import PlainTable, PrintedTable, render_text
from ..words import whole_number
from .following import REST, Written
from .labels import Labels
from .norms import LostError
from .projections import Projected
from .streams import CallColumns, Streams

CLEAR = (
    0.3  # of the largest term: a score below is a difference of terms, which are no shares of it
)


class Term(NamedTuple):
    """One term of a score.

    Attributes:
        query_author: who wrote the part of the query.
        key_author: who wrote the part of the key.
        value: what the two parts add to the score.

    Example:
        >>> import torch, telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2)
        >>> model = ts.models.GPT(config).eval()
        >>> with ts.watch(model, keep="steps") as recording:
        ...     _ = model(torch.tensor([[1, 2, 3, 4]]))
        >>> largest, second = recording.why(1, head=0, query=3, key=1).top(2)
        >>> abs(largest.value) >= abs(second.value)
        True
    """

    query_author: str
    key_author: str
    value: float


@dataclass(frozen=True, eq=False)
class Why(PrintedTable):
    """One score before softmax, as the sum of its terms. Returned by `recording.why`.

    `terms[a, b]` is what author a of the query side and author b of the key side have to do with
    it: the part of the query that a wrote, times the part of the key that b wrote, times the scale.

    Attributes:
        layer: the name of the attention.
        head: the number of the head.
        query, key: the two tokens.
        query_authors, key_authors: the names of the authors of each side.
        terms: (query author, key author), what each pair adds to the score.

    Example:
        >>> import torch, telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2)
        >>> model = ts.models.GPT(config).eval()
        >>> with ts.watch(model, keep="steps") as recording:
        ...     _ = model(torch.tensor([[1, 2, 3, 4]]))
        >>> found = recording.why(1, head=0, query=3, key=1)
        >>> abs(found.terms.sum().item() - found.score) < 1e-5
        True
        >>> sorted(found.by("query")) == sorted(found.query_authors)
        True
        >>> (
        ...     len(found.top(3)),
        ...     len(found.table()) == found.terms.numel(),
        ...     len(found.sentence) > 0,
        ... )
        (3, True, True)
    """

    layer: str
    head: int
    query: str
    key: str
    score: float
    """The sum of all terms: q · k · scale, before softcap, bias and mask."""
    masked: float
    """The score after softcap, bias and mask, of which softmax makes the weight."""
    weight: float
    """The weight of the key."""
    query_authors: tuple[str, ...]
    key_authors: tuple[str, ...]
    terms: Float[Tensor, "query_author key_author"]
    against: str | None = None
    """The key that the score is compared with; every number is then a difference, and that of
    `masked` the logarithm of how many times as large the weight is.
    """

    def by(self, side: str) -> dict[str, float]:
        """Return the score summed to the authors of one side, "query" or "key", largest first.

        Args:
            side: "query" or "key".
        """
        if side not in ("query", "key"):
            raise ValueError(f'there is no side "{side}"; there are query and key')
        names = self.query_authors if side == "query" else self.key_authors
        sums = self.terms.sum(1 if side == "query" else 0).tolist()
        return dict(sorted(zip(names, sums, strict=True), key=lambda one: -abs(one[1])))

    def top(self, count: int = 8) -> list[Term]:
        """Return the largest terms by absolute value, the largest first.

        Args:
            count: how many terms.
        """
        count = min(whole_number("count", count), self.terms.numel())
        found = self.terms.abs().flatten().topk(max(count, 0)).indices.tolist()
        width = self.terms.shape[1]
        return [self._term(place // width, place % width) for place in found]

    def _clear(self, count: int, share: float) -> list[Term]:
        """Return the largest terms, without those below a share of the first."""
        found = self.top(count)
        return [term for term in found if abs(term.value) >= share * abs(found[0].value)]

    def _term(self, one: int, other: int) -> Term:
        value = float(self.terms[one, other])
        return Term(self.query_authors[one], self.key_authors[other], value)

    def table(self, *, library: str = "pandas") -> Any:
        """Return every term as a row of a frame of pandas or polars.

        Args:
            library: "pandas" or "polars".
        """
        every = self.top(self.terms.numel())
        names = ("query_author", "key_author", "value")
        return frame({name: [getattr(one, name) for one in every] for name in names}, library)

    @property
    def sentence(self) -> str:
        """What the largest terms say, in words."""
        start = f"{self.query} looks at {self.key} with a score of {self.score:.3g}"
        if self.against is not None:
            start = (
                f"{self.query} looks at {self.key} rather than at {self.against}, by a score of "
                f"{self.score:.3g}"
            )
        parts = []
        for term in self._clear(3, 0.005):
            # A share of the score is clear only where the terms do not cancel.
            amount = (
                f"{term.value / self.score:.0%}"
                if abs(self.score) > CLEAR * abs(self.top(1)[0].value)
                else f"{term.value:+.3g}"
            )
            parts.append(f"{amount} is {term.query_author} on {term.key_author}")
        return f"{start}: {', '.join(parts)}"

    def __rich__(self) -> Group:
        table = PlainTable(box=None, pad_edge=False)
        for name, side in (("of the query", "left"), ("of the key", "left"), ("score", "right")):
            table.add_column(name, justify=side, no_wrap=True)
        shown = self._clear(8, 1e-6)
        for term in shown:
            table.add_row(term.query_author, term.key_author, f"{term.value:+.4f}")
        rest = self.terms.numel() - len(shown)
        left = self.score - sum(term.value for term in shown)
        if rest:
            table.add_row(f"{rest:,} other terms", "", f"{left:+.4f}")
        table.add_row("sum", "", f"{self.score:+.4f}")
        return Group(Text(f"{self.layer}, head {self.head}: {self.sentence}"), table)

    def __repr__(self) -> str:
        return render_text(self.__rich__())


class Cell(NamedTuple):
    """One score of a recorded call, and what is known of its query and its key."""

    call: CallColumns
    head: int
    """Its place among the heads that are recorded."""
    number: int
    """Its number in the model."""
    query: int
    """The column of the query, padding included."""
    key: int
    """The column of the key."""
    ran: Mapping[str, Mapping[str, Float[Tensor, "heads d_k"]]]
    """The recorded queries and keys of all heads, for the token of each side: those of "query" at
    the query's token, and so on.
    """
    attention: Attention
    group: int
    """How many heads share a key."""
    masked: float
    weight: float


def split_score(streams: Streams, cell: Cell, names: tuple[str, str], labels: Labels) -> Why:
    """Return the terms of one score.

    names   what the query and the key are called
    """
    attention = cell.attention
    if attention.score != dot:
        raise LostError(
            f'"{cell.call.name}" has the score {attention.score}, which is no dot product of a '
            "query and a key, so it is no sum of products"
        )
    asked, query = _side(streams, cell, "query")
    answered, key = _side(streams, cell, "key")
    # The bias of a projection has a term of its own.
    queries, of_query = _with_constant(asked, query, cell.call.name, labels, "W_q")
    keys, of_key = _with_constant(answered, key, cell.call.name, labels, "W_k")
    scale = attention.scale_for(queries.shape[-1])
    terms = scale * (queries @ keys.mT)
    # What rounding made of the sum is a term, too, so that all add up to what ran.
    ran_query = cell.ran["query"]["query"][cell.head]
    ran_key = cell.ran["key"]["key"][cell.head // cell.group]
    score = float(scale * (ran_query @ ran_key))
    place = of_query.index(labels(REST)), of_key.index(labels(REST))
    terms[place] += score - float(terms.sum())
    return Why(
        cell.call.name,
        cell.number,
        *names,
        score,
        cell.masked,
        cell.weight,
        tuple(of_query),
        tuple(of_key),
        terms,
    )


def _side(streams: Streams, cell: Cell, side: str) -> tuple[Written, Projected]:
    find: Callable[..., Any] = streams.query if side == "query" else streams.key
    spot = find(cell.call, cell.query if side == "query" else cell.key)
    # A query's head is numbered among all heads of the model, and its key's by its group.
    head = cell.number if side == "query" else cell.number // cell.group
    return streams.project(cell.call.name, side, head, spot, cell.ran[side])


def _with_constant(
    written: Written, projected: Projected, name: str, labels: Labels, matrix: str
) -> tuple[Tensor, list[str]]:
    parts = projected.parts
    parts, names = _grouped(parts, [labels(author) for author in written.authors])
    if bool(projected.constant.abs().max() > 0):
        parts = torch.cat([parts, projected.constant[None]])
        names.append(f"bias of {matrix}")
    if labels(REST) not in names:
        parts = torch.cat([parts, torch.zeros_like(parts[:1])])
        names.append(labels(REST))
    return parts, names


def _grouped(parts: Tensor, names: Sequence[str]) -> tuple[Tensor, list[str]]:
    """Return the sum of the parts of each name: a layer may have two modules that feed forward."""
    found = [*dict.fromkeys(names)]
    sums = parts.new_zeros(len(found), parts.shape[-1])
    places = torch.tensor([found.index(name) for name in names], device=parts.device)
    return sums.index_add_(0, places, parts), found


def less(one: Why, other: Why) -> Why:
    """Return a score less another of the same query, term by term."""
    keys = [*dict.fromkeys((*one.key_authors, *other.key_authors))]
    terms = one.terms.new_zeros(len(one.query_authors), len(keys))
    for sign, why in ((1.0, one), (-1.0, other)):
        places = torch.tensor([keys.index(name) for name in why.key_authors], device=terms.device)
        terms = terms.index_add(1, places, sign * why.terms)
    return replace(
        one,
        score=one.score - other.score,
        masked=one.masked - other.masked,
        weight=one.weight - other.weight,
        key_authors=tuple(keys),
        terms=terms,
        against=other.key,
    )
