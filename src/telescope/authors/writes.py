"""`writes`: what every author of the residual stream adds to the logits of the next token; and
`pushes`: the tokens that one head pushes up and down.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..files import frame
from ..traces import PlainTable, PrintedTable, render_text
from ..words import whole_number
from .following import SplitHead, Written
from .labels import Labels
from .streams import CallColumns, End, Streams

DIFFERENCE = "difference"
ROWS = 8192  # of the unembedding that are in float64 at a time


class Wrote(NamedTuple):
    """What one author adds to the logit of each token.

    Attributes:
        author: who wrote.
        values: what the author adds to each logit that was asked for.

    Example:
        >>> import torch, telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2)
        >>> model = ts.models.GPT(config).eval()
        >>> with ts.watch(model, keep="steps") as recording:
        ...     _ = model(torch.tensor([[1, 2, 3, 4]]))
        >>> len(recording.writes(tokens=[5]).top(1)[0].values)
        1
    """

    author: str
    values: dict[str, float]


@dataclass(frozen=True, eq=False)
class Writes(PrintedTable):
    """What each author of the residual stream adds to some logits after one token. Returned by
    `recording.writes`.

    The values of a token, of all authors, add up to its logit, which `logits` has.

    Attributes:
        authors: the name of each author.
        values: (author, token), what each author adds to each logit.

    Example:
        >>> import torch, telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2)
        >>> model = ts.models.GPT(config).eval()
        >>> with ts.watch(model, keep="steps") as recording:
        ...     _ = model(torch.tensor([[1, 2, 3, 4]]))
        >>> found = recording.writes(tokens=[5])
        >>> len(found.values) == len(found.authors)
        True
        >>> len(found.table()) > 0, len(found.top(2))
        (True, 2)
    """

    after: str
    """The token after which the logits are."""
    tokens: tuple[str, ...]
    """The tokens of the columns; "difference" is the first less the second."""
    authors: tuple[str, ...]
    values: Float[Tensor, "author token"]
    logits: dict[str, float]
    """The logit of each token, as the unembedding returned it: before a cap or a factor that a
    model may put behind it.
    """
    shown: tuple[int, ...]
    """The authors that were asked for; the others are summed when printed."""

    def top(self, count: int = 10) -> list[Wrote]:
        """Return the authors that were asked for with the largest values in the last column.

        Args:
            count: how many authors.
        """
        last = self.values[:, -1].abs()
        order = sorted(self.shown, key=lambda i: -float(last[i]))
        return [self._row(i) for i in order[: whole_number("count", count)]]

    def _row(self, number: int) -> Wrote:
        values = self.values[number].tolist()
        return Wrote(self.authors[number], dict(zip(self.tokens, values, strict=True)))

    def table(self, *, library: str = "pandas") -> Any:
        """Return a row for each author as a frame of pandas or polars.

        Args:
            library: "pandas" or "polars".
        """
        rows = [self._row(i) for i in range(len(self.authors))]
        columns = {name: [row.values[name] for row in rows] for name in self.tokens}
        return frame({"author": [row.author for row in rows]} | columns, library)

    def __rich__(self) -> PlainTable:
        table = PlainTable(
            box=None, pad_edge=False, title=f'after "{self.after}"', title_justify="left"
        )
        table.add_column("author", no_wrap=True)
        for token in self.tokens:
            table.add_column(token, justify="right", no_wrap=True)
        largest = self.top(10)
        for row in largest:
            table.add_row(row.author, *(f"{value:+.3f}" for value in row.values.values()))
        rest = len(self.authors) - len(largest)
        if rest:
            left = [
                self.logits[name] - sum(row.values[name] for row in largest) for name in self.tokens
            ]
            table.add_row(f"{rest:,} others", *(f"{value:+.3f}" for value in left))
        table.add_row("logit", *(f"{self.logits[name]:+.3f}" for name in self.tokens))
        return table

    def __repr__(self) -> str:
        return render_text(self.__rich__())


def split_logits(
    streams: Streams,
    call: CallColumns,
    column: int,
    choose: Callable[[Float[Tensor, " vocabulary"]], Sequence[int]],
    name_of: Callable[[int], str],
    labels: Labels,
    after: str,
    *,
    is_shown: Callable[[Any], bool],
    is_difference: bool,
    split: SplitHead | None = None,
    key_names: Sequence[str] = (),
) -> Writes:
    """Return what each author adds to the logits after one query.

    choose    from all logits, which tokens to split
    is_shown  whether an author was asked for
    split     a head to divide among its keys, which are called `key_names`
    """
    end: End = streams.end(call, column)
    written = _split_authors(streams, end, split)
    with streams.reading():
        state = end.factor * end.spot.vector()
        weight = end.weight.detach()
        every = (weight @ state.to(weight)).double()
        if end.bias is not None:
            every = every + end.bias.detach().double().flatten()
        tokens = [*choose(every)]
        rows = weight[tokens].double()
        values = end.factor * written.parts @ rows.mT.to(written.parts)
    names = [
        key_names[author.head or 0] if author.kind == "key" else labels(author)
        for author in written.authors
    ]
    # The bias of the unembedding is an author, too.
    if end.bias is not None:
        own = end.bias.detach().double().flatten()[tokens].to(values)
        values = torch.cat([values, own[None]])
        names.append("bias of logits")
    columns = [name_of(token) for token in tokens]
    if is_difference:
        values = torch.cat([values, (values[:, 0] - values[:, 1])[:, None]], 1)
        columns.append(DIFFERENCE)
    sums = dict(zip(columns, values.sum(0).tolist(), strict=True))
    shown = tuple(i for i, author in enumerate(written.authors) if is_shown(author))
    return Writes(after, tuple(columns), tuple(names), values, sums, shown)


# ------------------------------------------------------------------------------------------ pushes


class Push(NamedTuple):
    """What a head adds to the logit of one token, and the key that carried most of it.

    Attributes:
        token: whose logit is pushed.
        id: the token's number in the vocabulary.
        key: the key that carried most of it.

    Example:
        >>> import torch, telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2)
        >>> model = ts.models.GPT(config).eval()
        >>> with ts.watch(model, keep="steps") as recording:
        ...     _ = model(torch.tensor([[1, 2, 3, 4]]))
        >>> recording.pushes(-1, head=0, top=1).up[0].value > 0
        True
    """

    token: str
    id: int
    value: float
    """What the head adds to the logit, less what it adds to that of all tokens on average."""
    key: str
    position: int | None
    """The position of the key; None where many keys of a long text are one."""
    part: float
    """The key's part of the value."""


@dataclass(frozen=True, eq=False)
class Pushes(PrintedTable):
    """The tokens that one head pushes up and down at one query. Returned by `recording.pushes`.

    Softmax ignores what all logits have alike. So every value is what the head adds to the logit of
    a token, less the mean over the vocabulary.

    Attributes:
        layer: the name of the attention.
        head: the number of the head.

    Example:
        >>> import torch, telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2)
        >>> model = ts.models.GPT(config).eval()
        >>> with ts.watch(model, keep="steps") as recording:
        ...     _ = model(torch.tensor([[1, 2, 3, 4]]))
        >>> found = recording.pushes(-1, head=0, top=2)
        >>> len(found.up), len(found.down), len(found.table())
        (2, 2, 4)
    """

    layer: str
    head: int
    after: str
    """The token after which the logits are."""
    mean: float
    """What the head adds to the logits of all tokens on average."""
    up: tuple[Push, ...]
    """The tokens that are pushed up most, the first most."""
    down: tuple[Push, ...]
    """The tokens that are pushed down most, the first most."""

    def table(self, *, library: str = "pandas") -> Any:
        """Return a row for each token as a frame of pandas or polars.

        Args:
            library: "pandas" or "polars".
        """
        every = (*self.up, *self.down)
        return frame(
            {name: [getattr(one, name) for one in every] for name in Push._fields}, library
        )

    def __rich__(self) -> PlainTable:
        title = f'{self.layer}, head {self.head}, after "{self.after}"'
        table = PlainTable(box=None, pad_edge=False, title=title, title_justify="left")
        for name in ("token", "pushed", "key", "of it"):
            right = name in ("pushed", "of it")
            table.add_column(name, justify="right" if right else "left", no_wrap=True)
        for one in (*self.up, *self.down):
            table.add_row(one.token, f"{one.value:+.3f}", one.key, f"{one.part:+.3f}")
        return table

    def __repr__(self) -> str:
        return render_text(self.__rich__())


class SplitKeys(NamedTuple):
    """A head to divide among its keys, with what they are called and their positions."""

    head: SplitHead
    names: Sequence[str]
    positions: Sequence[int | None]


def push_logits(
    streams: Streams,
    call: CallColumns,
    column: int,
    split: SplitKeys,
    name_of: Callable[[int], str],
    after: str,
    top: int,
) -> Pushes:
    """Return the tokens that a head pushes up and down most after one query, `top` of each."""
    end: End = streams.end(call, column)
    written = _split_authors(streams, end, split.head)
    keys = [i for i, author in enumerate(written.authors) if author.kind == "key"]
    parts = end.factor * written.parts[keys]

    # Every logit in float64, of some rows of the unembedding at a time.
    weight = end.weight.detach()
    parts = parts.to(weight.device)
    own = parts.sum(0)
    logits = torch.cat([rows.double() @ own for rows in torch.split(weight, ROWS)])
    mean = logits.mean()
    total = torch.stack([rows.double().sum(0) for rows in torch.split(weight, ROWS)]).sum(0)
    centre = total / len(weight)

    def push(token: int) -> Push:
        by_key = parts @ (weight[token].double() - centre)
        value = float(logits[token] - mean)
        # The key that carried most of it pushes in the same direction.
        most = int((by_key if value > 0 else -by_key).argmax())
        author = written.authors[keys[most]].head or 0
        carried = float(by_key[most])
        return Push(
            name_of(token), token, value, split.names[author], split.positions[author], carried
        )

    centred = logits - mean
    highest = centred.topk(min(top, len(centred))).indices.tolist()
    lowest = (-centred).topk(min(top, len(centred))).indices.tolist()
    return Pushes(
        split.head.name,
        split.head.head,
        after,
        float(mean),
        tuple(push(token) for token in highest if centred[token] > 0),
        tuple(push(token) for token in lowest if centred[token] < 0),
    )


def _split_authors(streams: Streams, end: End, split: SplitHead | None) -> Written:
    """Return who wrote the end of the stream, with one head divided among its keys."""
    followed = end.spot.followed
    with streams.reading():
        followed.split = split
        try:
            return end.spot.authors()
        finally:
            followed.split = None
