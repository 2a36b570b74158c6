"""One call of an attention while a model runs: its tensors, its definition, and parts of both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from ..anatomy import OutputProjection
from ..attention import (
    Attention,
    Pairs,
    RealQueries,
    drop_first_keys,
    key_heads_of,
    real_query_masks,
    real_tokens,
    restrict_to_heads,
    restrict_to_queries,
    without_room,
)
from ..measures import BatchTokens, Places, Written
from ..surveys import Size, masked_rows
from ..token_kinds import Sides, Space
from .forward_pass import ForwardPass, Found
from .storage import Store, on_device


class AttentionCall(NamedTuple):
    """One call of an attention, or the part of a call that belongs to some of its heads or queries.

    The tensors are the model's own, not copies: the model may write to them after the call.
    """

    queries: Float[Tensor, "batch heads query d_q"]
    keys: Float[Tensor, "batch key_heads key d_k"]
    values: Float[Tensor, "batch key_heads key d_v"]
    attention: Attention
    """The definition over all keys, evicted ones included; its mask hides the evicted keys."""
    heads: tuple[int, ...]
    """The number of each head in the model."""
    dropout: float
    lse: Float[Tensor, "batch heads query"] | None = None
    """The log-sum-exp of each query, if the engine that ran returns it."""
    evicted: int = 0
    """How many keys stood before the first of `keys`: a cache of a sliding window drops them."""
    query_ids: Int[Tensor, "batch query"] | None = None
    """The token ids of the queries, if known."""
    key_ids: Int[Tensor, "batch key"] | None = None
    """The token ids of the keys, if known and if the keys come from another sequence."""
    keys_depend_on_text: bool = False
    """False if the keys may come from a learned table, and so be equal for every text."""
    positions: tuple[int, ...] | None = None
    """The position of each query among all keys, evicted ones included; None for the last
    positions.
    """
    text: BatchTokens | None = None
    """The tokens of all keys, if known and if queries and keys come from one sequence."""
    across: bool | None = None
    """Whether queries and keys come from two sequences; None if the caller does not say."""
    follows: bool = False
    """Whether the caller knows that these keys begin with the keys of the attention's call before,
    unchanged.
    """
    keys_stay: bool = False
    """Whether nothing writes to the memory of these keys and values again."""
    are_steps: bool = False
    """Whether each query was a step of its own, and the steps were recorded together."""
    carrier: OutputProjection | None = None
    """The output projection, if the norms ‖W_O v‖ are to be kept."""
    ends: tuple[int, ...] | None = None
    """The token ids that end the text which the model writes by these queries; None if the prompt
    has the queries.
    """
    forward_pass: ForwardPass | None = None
    """The forward pass in which the model made the call, if it is known."""
    space: Space | None = None
    """Where the tokens of one text lie on images and in time, if the caller of `ts.watch` says."""

    @property
    def size(self) -> Size:
        """The number of queries and of keys, evicted keys included."""
        return self.queries.shape[-2], self.evicted + self.keys.shape[-2]

    def weights(self) -> Float[Tensor, "batch heads query key"]:
        """Compute all weights of the keys that are present, in the dtype of the queries."""
        batch, heads, queries, _ = map(range, self.queries.shape)
        rows = torch.arange(len(queries), device=self.queries.device)
        keys = range(self.keys.shape[-2])
        attention = self.attention_over_present_keys
        masked = masked_rows(self.queries, self.keys, attention, rows, keys, batch, heads)
        return attention.weights(masked).to(self.queries.dtype)

    @property
    def is_cross_attention(self) -> bool:
        """Whether queries and keys come from two sequences: as the caller says, or by a guess."""
        if self.across is not None:
            return self.across
        # Token ids of the keys are only given where they differ from those of the queries.
        return self.key_ids is not None or seems_cross_attention(self.attention, self.size)

    @property
    def places(self) -> Places:
        """The positions of the queries among the keys, and the keys that belong to each habit of a
        head.
        """
        batch, heads = self.queries.shape[:2]
        return Places.of(
            self.attention,
            batch=batch,
            heads=heads,
            size=self.size,
            positions=self.positions,
            across=self.is_cross_attention,
            text=self.text,
            device=self.queries.device,
            evicted=self.evicted,
            space=self.space,
        )

    @property
    def kind(self) -> tuple[object, ...]:
        """Everything that stays the same while a sequence grows token by token."""
        batch, heads, _, d_q = self.queries.shape
        return (
            batch,
            heads,
            d_q,
            self.queries.dtype,
            self.queries.device,
            self.heads,
            self.dropout,
            self.across,
        )

    @property
    def survey_kind(self) -> tuple[object, ...]:
        """Equal for calls that can be surveyed as one, stacked along the batch axis."""
        # Calls are stacked into one tensor: shapes, types and devices must agree.
        tensors = tuple((part.shape, part.dtype, part.device) for part in (self.queries, self.keys))
        return (
            self.attention._identity,
            tensors,
            self.evicted,
            # The identity of the text is enough: layers of one forward pass share the object.
            id(self.text),
            self.space,
            self.positions,
            self.is_cross_attention,
        )

    @property
    def identifying_tensors(self) -> tuple[Tensor, ...]:
        """The tensors whose fingerprints tell this sequence from others."""
        # Keys from a learned table may be equal for two texts, so that values are compared, too.
        return (self.keys,) if self.keys_depend_on_text else (self.keys, self.values)

    @property
    def attention_over_present_keys(self) -> Attention:
        """The definition over `keys` alone, without the evicted keys."""
        return drop_first_keys(self.attention, self.evicted)

    def once(self, key: Any, find: Callable[[], Found], *alive: object) -> Found:
        """Return find(), called once in a forward pass for each key; see `ForwardPass.once`."""
        return find() if self.forward_pass is None else self.forward_pass.once(key, find, *alive)

    def with_evicted_keys(self) -> "AttentionCall":
        """Return the same call with zeros in the place of every evicted key and value."""
        # The definition counts evicted keys already, so that only the tensors need padding.
        if not self.evicted:
            return self
        keys, values = (pad(tensor, (0, 0, self.evicted, 0)) for tensor in (self.keys, self.values))
        return self._replace(keys=keys, values=values, evicted=0)

    def without_unwritten_keys(self) -> "AttentionCall":
        """Return the call without the unwritten end of a cache of fixed size."""
        attention, mask = without_room(self.attention)
        if mask is None:
            return self
        # Cut the cache to what has been written so far.
        written = int(mask.numbering.length)
        call = self._replace(
            keys=self.keys[:, :, :written], values=self.values[:, :, :written], attention=attention
        )
        return call if call.fits(*call.size) else self  # the mask was made for the whole cache

    def without_padding_queries(self, real: RealQueries | None) -> "AttentionCall":
        """Return the call with a mask under which a query that is not `real` sees nothing."""
        batch, heads = self.queries.shape[:2]
        sink = self.attention.sink
        if real is None:
            return self

        # A query that sees nothing has the lse of no keys: that of the sink, or minus infinity.
        lse = self.lse
        if lse is not None:
            at = Pairs.block(
                range(self.size[0]),
                range(0),
                of=self.size,
                batch=batch,
                heads=heads,
                device=lse.device,
            )
            # A sink has one score for each head.
            none = (
                -torch.inf
                if sink is None
                else torch.as_tensor(sink, device=lse.device).reshape(-1, 1).to(lse.dtype)
            )
            lse = torch.where(real.sees(at)[..., 0], lse, none)

        # From here on, every survey leaves these queries out.
        return self._replace(attention=self.attention.with_extra_mask(real), lse=lse)

    def fits(self, queries: int, keys: int) -> bool:
        """Return whether the definition fits this number of queries and keys."""
        batch, heads, _, d_q = self.queries.shape
        try:
            self.attention.check(
                batch=batch,
                heads=heads,
                queries=queries,
                keys=keys,
                d_q=d_q,
                d_k=self.keys.shape[-1],
            )
        except ValueError:
            return False
        return True

    def select_heads(self, numbers: tuple[int, ...]) -> "AttentionCall":
        """Return the part of the call that belongs to these heads, with the keys and values they
        share.
        """
        count = self.queries.shape[1]
        which = torch.tensor(numbers)
        # Grouped heads share their keys: keep each key head once.
        key_heads = key_heads_of(which, count, self.keys.shape[1]).tolist()
        return self._replace(
            queries=self.queries[:, numbers],
            keys=self.keys[:, key_heads],
            values=self.values[:, key_heads],
            attention=restrict_to_heads(self.attention, which, count),
            heads=numbers,
            lse=None if self.lse is None else self.lse[:, numbers],
        )

    def select_rows(self, selection: "QuerySelection", before: int) -> list[tuple[int, ...]]:
        """Return the rows that a selection of positions keeps of each sequence, or one list for
        all.

        `before` queries came earlier. Positions count the tokens of each sequence without its
        padding. Of steps, each is selected as if it had been recorded alone.
        """
        if self.are_steps:
            selection = _step_by_step(selection)
        batch, heads, queries = self.queries.shape[:3]
        # Without padding, one list of rows holds for all sequences.
        if not real_query_masks(self.attention):
            return [tuple(selection(queries, before))]

        # Count the real tokens before the first query, sequence by sequence.
        across = self.is_cross_attention
        device = self.queries.device
        real, keys = real_tokens(
            self.attention, batch=batch, heads=heads, size=self.size, across=across, device=device
        )
        earlier = keys[:, : keys.shape[1] - queries].sum(1).tolist()
        if across:  # whose keys are another sequence
            earlier = [before] * batch

        # Select by a sequence's own positions, and translate into the rows of the batch.
        found = []
        for own, past in zip(real, earlier, strict=True):
            columns = own.nonzero().flatten().tolist()
            found.append(tuple(columns[row] for row in selection(len(columns), past)))
        return found

    def select_queries(self, which: Int[Tensor, " some"]) -> "AttentionCall":
        """Return the part of the call that belongs to these queries.

        Whether a later call continues this one can only be decided with all queries.
        """
        rows = which.to(self.queries.device)
        # Without positions of their own, the queries are the last of all keys.
        first = self.size[1] - self.size[0]
        return self._replace(
            queries=self.queries[:, :, rows],
            attention=restrict_to_queries(self.attention, which, self.size),
            lse=None if self.lse is None else self.lse[:, :, rows],
            positions=tuple(first + row for row in which.tolist()),
        )


def seems_cross_attention(attention: Attention, size: Size) -> bool:
    """Guess from the number of keys and from the mask whether queries and keys come from two
    sequences.
    """
    queries, keys = size
    # More queries than keys cannot be one text; one mask row for all queries is no causal mask.
    return queries > keys or (queries < keys and attention.mask.same_for_all_queries)


QuerySelection = Callable[[int, int], Sequence[int]]
"""selection(count, before): the rows to keep of `count` queries that follow `before` earlier ones.
"""


def all_queries(count: int, before: int) -> Sequence[int]:
    """Select every query."""
    return range(count)


def _step_by_step(selection: QuerySelection) -> QuerySelection:
    """Return the selection that keeps of several steps what `selection` keeps of each."""
    return lambda count, before: [
        step for step in range(count) if len(selection(1, before + step)) > 0
    ]


def query_selection(queries: Any) -> QuerySelection:
    """Return the selection that `ts.watch(queries=...)` describes.

    Numbers from 0 are positions in the sequence. Negative numbers count from the last query of each
    call: -1 is the last token of the prompt, and then every generated token. A slice selects
    positions. None selects all queries. Raise a ValueError for anything else.
    """
    if queries is None:
        return all_queries
    if isinstance(queries, slice):
        # An end that counts from the last query moves while a text grows.
        if (
            any(end is not None and end < 0 for end in (queries.start, queries.stop))
            or (queries.step or 1) < 1
        ):
            raise ValueError(
                f"queries={queries} counts from the end, which moves while a model generates; use "
                "numbers, such as [-1]"
            )
        # The slice is of the whole text, of which these queries are the last.
        return lambda count, before: [
            row for row in range(count) if before + row in range(*queries.indices(before + count))
        ]

    # Accept one number, or several; anything else is an error with a hint.
    try:
        numbers = (
            [index(queries)]
            if not hasattr(queries, "__iter__")
            else [index(number) for number in queries]
        )
    except TypeError:
        numbers = []
    # True and False are integers to Python, but hardly meant as numbers of queries.
    doubtful = any(isinstance(number, bool) for number in (queries, *numbers)) or len(
        set(numbers)
    ) < len(numbers)
    if not numbers or doubtful:
        raise ValueError(
            f"queries={queries!r} are not numbers of queries, each once; -1 is the last, None is "
            "all"
        )

    def rows(count: int, before: int) -> list[int]:
        # Negative numbers count from the last query of this call, others from the first of all.
        wanted = {number - before if number >= 0 else count + number for number in numbers}
        return [row for row in range(count) if row in wanted]

    return rows


# How many keys of the largest weight are kept of each query, unless the caller says.
TOP = 8
MapSize = tuple[int, int]
ALSO = ("norms", "gradients", "streaming")
"""What ts.watch(also=...) keeps besides. norms: ‖W_O v‖ of each key. gradients: weight times
gradient of each key, once a backward pass has run. streaming: with keep="summaries", the share of
each query's weight on the first and the last keys.
"""


@dataclass(frozen=True)
class KeepOptions:
    """What a recording keeps of each call, and where; see `ts.watch`."""

    top: int = TOP
    map: MapSize | None = None
    queries: QuerySelection = all_queries
    store: Store = on_device
    also: frozenset[str] = frozenset()
    """Of ALSO."""
    sample: bool = False
    """Whether to keep the pooled rows of a few queries of each sequence, with "summaries"; see
    measures/row_sample.py.
    """


@dataclass
class CallFacts:
    """Everything known about a call besides its tensors."""

    name: str
    heads: tuple[int, ...]
    """The number of each head in the model."""
    dropout: float
    attention: Attention
    size: Size
    """The number of queries and of keys."""
    rows: list[int] | None
    """The queries that were kept; None is all."""
    shape: tuple[int, int, int, int]
    """batch, key heads, d_q, d_k"""
    dtype: torch.dtype
    device: torch.device
    """The device on which the model ran."""
    engine: str | None = None
    recorded: MapSize | None = None
    """The size of the map that was kept."""
    across: bool | None = None
    """Whether queries and keys come from two sequences; None in a recording that does not say."""
    prompt: int | None = None
    """How many queries the prompt had; those after it were generated. None in a recording that does
    not say.
    """
    written: Written = Written((), ())
    """Which queries the model wrote, and what ends a text; empty in a recording that does not say.
    """
    tokens: Sides | None = None
    """What the tokens are, if the caller of `ts.watch` says; tokens written later are not named."""


class TextColumns(NamedTuple):
    """The columns of a batch, indices into its tensors, in which one sequence has its own
    tokens.

    Attributes:
        queries: the columns of the queries, along the axis `query`.
        keys: the columns of the keys, along the axis `key`.

    Example:
        >>> import torch, telescope as ts
        >>> layer = ts.layers.MultiHeadAttention(8, 2)
        >>> with ts.watch(layer) as recording:
        ...     _ = layer(torch.randn(2, 5, 8), mask=ts.padding([5, 3]))
        >>> [*recording["attention"].call.text_columns(1).keys]
        [0, 1, 2]
    """

    queries: range
    keys: range


def range_of(real: Bool[Tensor, " token"]) -> range:
    """Return the range from the first to the last token that counts."""
    which = real.nonzero().flatten().tolist()
    return range(which[0], which[-1] + 1) if which else range(0)
