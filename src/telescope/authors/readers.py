"""`readers`: which later heads read what one head wrote, and what it makes of their scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import Attention
from ..files import frame
from ..traces import PlainTable, PrintedTable, render_text
from ..words import hint, whole_number
from .following import Author, Written
from .labels import Labels
from .projections import Position
from .streams import CallColumns, Spot, Streams

COLUMNS = ("by_query", "by_key", "by_both")


class Reader(NamedTuple):
    """One later head, and what its score has of a head's writing.

    Attributes:
        layer: the name of the later attention.
        head: the number of the later head.
        score: the whole score of the later head.

    Example:
        >>> import torch, telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2)
        >>> model = ts.models.GPT(config).eval()
        >>> with ts.watch(model, keep="steps") as recording:
        ...     _ = model(torch.tensor([[1, 2, 3, 4]]))
        >>> reader = recording.readers(0, head=1, query=3, key=1).rows[0]
        >>> reader.layer, reader.head
        ('blocks.1.self', 0)
    """

    layer: str
    head: int
    by_query: float
    """What was written to the query's token, times the whole key."""
    by_key: float
    """The whole query, times what was written to the key's token."""
    by_both: float
    """The part that both of these count: written at both ends."""
    score: float


@dataclass(frozen=True, eq=False)
class Readers(PrintedTable):
    """The later heads whose score of one query and one key has a part that a head wrote. Returned
    by `recording.readers`.

    Attributes:
        author: the head that wrote.
        query, key: the tokens of the score.
        rows: a `Reader` for each later head.

    Example:
        >>> import torch, telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2)
        >>> model = ts.models.GPT(config).eval()
        >>> with ts.watch(model, keep="steps") as recording:
        ...     _ = model(torch.tensor([[1, 2, 3, 4]]))
        >>> found = recording.readers(0, head=1, query=3, key=1)
        >>> len(found.rows), len(found.top(1)), len(found.sort("by_query").table())
        (2, 1, 2)
    """

    author: str
    query: str
    key: str
    rows: tuple[Reader, ...]

    def sort(self, column: str = "by_key") -> "Readers":
        """Return the rows in the order of the absolute values of a column, the largest first.

        Args:
            column: "by_query", "by_key", "by_both" or "score".
        """
        if column not in COLUMNS:
            raise ValueError(f'there is no column "{column}"; {hint(column, COLUMNS)}')
        order = sorted(self.rows, key=lambda row: -abs(getattr(row, column)))
        return Readers(self.author, self.query, self.key, tuple(order))

    def top(self, count: int = 10) -> tuple[Reader, ...]:
        """Return the heads whose scores have the largest parts, at both ends together.

        Args:
            count: how many heads.
        """
        count = whole_number("count", count)
        return tuple(sorted(self.rows, key=lambda row: -abs(_whole(row)))[:count])

    def table(self, *, library: str = "pandas") -> Any:
        """Return a row for each later head as a frame of pandas or polars.

        Args:
            library: "pandas" or "polars".
        """
        names = Reader._fields
        return frame({name: [getattr(row, name) for row in self.rows] for name in names}, library)

    def __rich__(self) -> PlainTable:
        title = f"what {self.author} wrote, in the scores of {self.query} against {self.key}"
        table = PlainTable(box=None, pad_edge=False, title=title, title_justify="left")
        for name in Reader._fields:
            side: Any = "left" if name == "layer" else "right"
            table.add_column(name, justify=side, no_wrap=True)
        for row in self.top(10):
            values = (f"{getattr(row, name):+.3f}" for name in (*COLUMNS, "score"))
            table.add_row(row.layer, str(row.head), *values)
        rest = len(self.rows) - 10
        if rest > 0:
            table.add_row(f"{rest:,} others")
        return table

    def __repr__(self) -> str:
        return render_text(self.__rich__())


def _whole(row: Reader) -> float:
    # What both ends count is counted once.
    return row.by_query + row.by_key - row.by_both


class LaterCall(NamedTuple):
    """A recorded call of a later attention of the same stack, at one query and one key."""

    call: CallColumns
    query: int
    key: int
    ran: Mapping[str, Mapping[str, Float[Tensor, "heads d_k"]]]
    """The recorded queries and keys of all heads, at the token of each side."""
    attention: Attention
    heads: Sequence[int]
    """The numbers of the recorded heads."""
    group: int


def find_readers(
    streams: Streams,
    author: Author,
    later: Sequence[LaterCall],
    names: tuple[str, str],
    labels: Labels,
) -> Readers:
    """Return what an author has in the scores of all heads of later calls."""
    rows: list[Reader] = []
    for one in later:
        scale = one.attention.scale_for(one.ran["query"]["query"].shape[-1])
        queries = _part(streams, one, "query", author)
        keys = _part(streams, one, "key", author)
        for place, head in enumerate(one.heads):
            own_key = place // one.group
            query = one.ran["query"]["query"][place]
            key = one.ran["key"]["key"][own_key]
            of_query = queries[head]
            of_key = keys[head // one.group]
            numbers = (of_query @ key, query @ of_key, of_query @ of_key, query @ key)
            rows.append(Reader(one.call.name, head, *(float(scale * number) for number in numbers)))
    return Readers(labels(author), *names, tuple(rows))


def _part(
    streams: Streams, one: LaterCall, side: str, author: Author
) -> Float[Tensor, "heads d_k"]:
    """Return what an author wrote into the queries, or the keys, of all heads at one token."""
    is_query = side == "query"
    spot: Spot = (streams.query if is_query else streams.key)(
        one.call, one.query if is_query else one.key
    )
    with streams.reading():
        written = spot.authors()
        ran = one.ran[side]
        x = spot.vector()
        sides = streams.sides(one.call.name)
        position = Position(one.call.name, sides, dict.fromkeys(ran, x), ran, spot.followed.dtype)
        # A head that did not write to this token has no part here.
        place = next((i for i, own in enumerate(written.authors) if own == author), None)
        part = torch.zeros_like(x) if place is None else written.parts[place]
        return position.project_all(side, Written((author,), part[None]))
