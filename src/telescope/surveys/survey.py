"""`survey` and its result: exact statistics of every query and key, from which maps, rows and cells
can be computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import Attention, Mask, everyone, key_heads_of, restrict_to_heads, softmax
from ..engines import attend, check, check_without_values, torch_modes
from ..field_words import FieldNames
from ..files import frame
from ..guesses import OF_SURVEY, of_definition
from ..words import check_index, suggests, whole_number
from .dispatch import ENGINES, pool, summarize, weigh
from .reference import check_lse, check_sums, masked_rows
from .requests import (
    Extras,
    Marks,
    borders,
    check_within,
    read_cells,
    read_extras,
    read_map,
    read_query_numbers,
    read_query_weights,
    segment_cells,
)
from .shares import share_within
from .summary import (
    Keys,
    Map,
    PerQuery,
    PerSet,
    Queries,
    Statistics,
    Summary,
    append_positions,
    append_rows,
    can_reuse_rows,
    summary_columns,
)


@dataclass(frozen=True, eq=False, repr=False)
class Survey(Statistics, FieldNames):
    """Exact numbers for each query and each key of an attention, as `survey` returns them.

    .lse .received .entropy .peak .top are computed already, and so are .weighted .carried .largest
    .within .lost .shares where `survey` was asked for them. .map, .rows, .cell and .weigh compute
    parts of the matrix from queries and keys; .borders tells which queries and keys each cell of
    .map pools; .head returns the survey of one head; .extend adds queries and keys.

    In a recording that kept only summaries, queries and keys are on the meta device: they have
    shapes but no numbers, and .map, .rows, .cell and .extend raise a ValueError.

    Attributes:
        queries, keys, values: as they were given; (batch, heads, query, d_q) and so on.
        attention: the definition.
        engine: which engine computed the survey.
        summary: the tensors behind .lse, .received, .entropy, .peak and .top.

    Example:
        >>> import telescope as ts, torch
        >>> # All scores are equal, and so are the weights
        >>> zeros = torch.zeros(1, 2, 4, 8)
        >>> seen = ts.survey(zeros, zeros, ts.Attention(mask=ts.causal), top=2)
        >>> seen
        Survey of softmax...: 4 queries x 4 keys, batch 1, heads 2, by chunked; ...
        >>> seen.rows(-1)[0, 0].tolist()
        [[0.25, 0.25, 0.25, 0.25]]
        >>> seen.map(2, 2)[0, 0]
        tensor([[1.0000, 0.0000],
                [0.5833, 0.4167]])
        >>> # Rows pool the queries 0 and 1, 2, 3; columns the keys 0 and 1, 2 and 3
        >>> seen.borders(3, 2)
        ([0, 2, 3], [0, 2])
        >>> seen.cell(3, 0).tolist(), seen.head(1).received.shape
        ([[0.25, 0.25]], torch.Size([1, 1, 4]))
        >>> x = torch.eye(3)[None, None]
        >>> extras = {"norms": True, "largest": True, "within": ts.window(2)}
        >>> parts = {
        ...     "query_weights": torch.ones(3),
        ...     "segments": torch.tensor([0, 0, 1]),
        ... }
        >>> seen = ts.survey(x, x, values=x, top=2, **extras, **parts)
        >>> seen.lse.shape, seen.entropy.shape, seen.peak.key.shape  # one of each query
        (torch.Size([1, 1, 3]), torch.Size([1, 1, 3]), torch.Size([1, 1, 3]))
        >>> seen.top.keys.shape, seen.largest_logit.shape, seen.shares.shape
        (torch.Size([1, 1, 3, 2]), torch.Size([1, 1, 3]), torch.Size([1, 1, 3, 2]))
        >>> seen.weighted.shape, seen.carried.shape, seen.largest.weight.shape
        (torch.Size([1, 1, 1, 3]), torch.Size([1, 1, 3]), torch.Size([1, 1, 3]))
        >>> seen.within.shape, seen.lost.shape
        (torch.Size([1, 1, 3]), torch.Size([1, 1, 3]))
        >>> seen.weigh(torch.ones(3)).allclose(seen.weighted), len(seen.table("keys"))
        (True, 3)
        >>> ts.survey(x, x).extend(x, x).received.shape
        torch.Size([1, 1, 6])
    """

    _theirs = OF_SURVEY
    queries: Queries
    keys: Keys
    values: Float[Tensor, "batch key_heads key d_v"] | None
    attention: Attention
    engine: str
    summary: Summary
    recorded: tuple[int, int] | None
    """The rows and columns of the map in the summary, if it has one."""
    context: Float[Tensor, "batch heads query d_v"] | None
    """The output of the attention, if values were given."""

    @torch.no_grad()
    def weigh(self, query_weights: Any) -> PerSet:
        """Return what each key gets from all queries together, each with its weight: Aᵀw, for one w
        or several.

        Args:
            query_weights: (query,), (sets, query) or (batch or 1, heads or 1, sets, query).

        Raises:
            ValueError: where these do not fit the queries.
        """
        self._require_tensors("weigh")
        weights = read_query_weights(self.queries, query_weights)
        with torch_modes.without_autocast(self.queries.device):
            return weigh(self.engine, self.queries, self.keys, self.attention, self.lse, weights)

    @torch.no_grad()
    def map(
        self,
        rows: int | None = None,
        cols: int | None = None,
        how: str = "share",
        *,
        segments: Any = None,
    ) -> Map:
        """Return the matrix, pooled to rows x cols cells, or to a row and a column for each of the
        `segments`.

        Query i of n falls into row i · rows // n, and key j of m into column j · cols // m, counted
        from 0 among the queries and keys of this survey. Where n is not a multiple of rows, rows
        differ by one query; `borders` lists where each begins.

        Args:
            how: "share" sums over the keys of a cell and averages over its queries, so that rows
                still sum to one; "max" is the largest weight in a cell.
            segments: ids from 0 on, (token,) or (batch, token), or a pair (query ids, key ids).
            rows, cols: the size of the map; None is every query, or every key.

        Returns:
            (batch, heads, rows, cols).

        Raises:
            ValueError, TypeError: where these do not fit the matrix.
        """
        # The map that was pooled with the summary costs nothing.
        is_recorded = self.recorded is not None and (rows, cols) == self.recorded
        if how == "share" and segments is None and is_recorded:
            assert self.summary.map is not None
            return self.summary.map
        self._require_tensors("map")
        cells = read_cells(self.queries, self.keys, rows, cols, how, segments)
        with torch_modes.without_autocast(self.queries.device):
            return pool(self.engine, self.queries, self.keys, self.attention, self.lse, cells)

    def borders(self, rows: int, cols: int) -> tuple[list[int], list[int]]:
        """Return the first query of each row, and the first key of each column, of `map(rows,
        cols)`.

        Row r of the map pools the queries from its border up to the border of row r + 1.

        Args:
            rows, cols: the size of the map.
        """
        return borders(rows, cols, of=(self.queries.shape[-2], self.keys.shape[-2]))

    @torch.no_grad()
    def rows(
        self, i: int | slice | range | Sequence[int] | Tensor
    ) -> Float[Tensor, "batch heads row key"]:
        """Return the weights of these queries with all keys. Negative numbers count from the last
        query.

        Args:
            i: a query, a slice or range of queries, or a list of them.

        Returns:
            (batch, heads, row, key).
        """
        self._require_tensors("rows")
        where = read_query_numbers(i, self.queries.shape[-2]).to(self.queries.device)
        with torch_modes.without_autocast(self.queries.device):
            return self.attention.weights(self._masked_scores(where, range(self.keys.shape[-2])))

    @torch.no_grad()
    def cell(self, i: SupportsIndex, j: SupportsIndex) -> Float[Tensor, "batch heads"]:
        """Return the weight that query i gives to key j, in every sequence and head. Negative
        numbers count back.

        Args:
            i, j: the query and the key.
        """
        self._require_tensors("cell")
        row = check_index("query", whole_number("i", i), self.queries.shape[-2])
        column = check_index("key", whole_number("j", j), self.keys.shape[-2])
        if self.lse is None:  # another normaliser needs the whole row
            return self.rows(row)[:, :, 0, column]
        with torch_modes.without_autocast(self.queries.device):
            where = torch.tensor([row], device=self.queries.device)
            # exp(score - lse) is the weight: one score suffices.
            masked = self._masked_scores(where, range(column, column + 1))[:, :, 0, 0]
        return torch.exp(masked - self.lse[:, :, row]).masked_fill(masked == -torch.inf, 0.0)

    def table(self, of: str = "queries", *, library: str = "pandas") -> Any:
        """Return the numbers as a long frame of pandas or polars.

        Args:
            of: "queries": a row for each query of each head, with lse, entropy, peak, peak_key,
                largest_logit and, where the survey has them, carried, within, lost, share_0,
                share_1, ... "keys": a row for each key of each head, with received, largest,
                largest_query, weighted_0, ... "top": a row for each of the largest weights, with
                rank, key and weight.
            library: "pandas" or "polars".
        """
        return frame(summary_columns(self.summary, of), library)

    def head(self, i: SupportsIndex) -> "Survey":
        """Return the survey of head i; every tensor keeps its heads axis, of size 1. Negative
        numbers count back.

        Args:
            i: the index of the head; -1 is the last.
        """
        number = check_index("head", i, self.queries.shape[1])
        which = torch.tensor([number])
        # A head of queries takes its head of keys along, and its part of the definition.
        key_head = key_heads_of(which, self.queries.shape[1], self.keys.shape[1]).tolist()
        return replace(
            self,
            queries=self.queries[:, [number]],
            keys=self.keys[:, key_head],
            values=None if self.values is None else self.values[:, key_head],
            attention=restrict_to_heads(self.attention, which, self.queries.shape[1]),
            summary=self.summary._one_head(number),
            context=None if self.context is None else self.context[:, [number]],
        )

    def extend(
        self,
        queries: Float[Tensor, "batch heads new_query d_q"],
        keys: Float[Tensor, "batch key_heads new_key d_k"],
        *,
        values: Float[Tensor, "batch key_heads new_key d_v"] | None = None,
        attention: Attention | None = None,
    ) -> "Survey":
        """Return the survey of the old queries and keys followed by these, as if computed from
        scratch.

        Where no old query sees a new key, only the new rows are computed. A recorded map is
        dropped, and so is what `survey` was asked for besides (.weighted, .carried, .largest,
        .within, .shares); `.map` and `.weigh` compute from the new survey. Where the definition has
        a tensor as long as the sequence (documents, padding(keep=...), from_tensor), pass the
        longer `attention`. `values` are needed if and only if the survey was made with values.

        Args:
            queries: (batch, heads, new query, d_q).
            keys: (batch, key_heads, new key, d_k).
            values: (batch, key_heads, new key, d_v), if the survey was made with values.
            attention: the definition of the longer text; None is that of this survey.

        Raises:
            ValueError, TypeError: where these do not fit the old ones.
        """
        self._require_tensors("extend")
        attention = self.attention if attention is None else attention
        # The new ones must fit one another; mask and bias are checked with the old ones, below.
        _check(queries, keys, values, replace(self.attention, mask=everyone, bias=None))
        if self.values is None and values is not None:
            raise ValueError(
                "extend got values, but this survey was made without; make it with survey(..., "
                "values=...)"
            )
        if self.values is not None and values is None:
            raise ValueError(
                "this survey was made with values, so extend needs them too: extend(queries, "
                "keys, values=...)"
            )
        # Join the old and the new ones, and check them together.
        all_queries = append_positions("queries", self.queries, queries)
        all_keys = append_positions("keys", self.keys, keys)
        if self.values is not None and values is not None:
            values = append_positions("values", self.values, values)
        _check(all_queries, all_keys, values, attention)

        # Survey the new rows alone where the old ones stay as they are.
        old = (self.queries.shape[-2], self.keys.shape[-2])
        new = (all_queries.shape[-2], all_keys.shape[-2])
        top = self.summary.top_keys.shape[-1]
        reusable = can_reuse_rows(self.attention, attention, old, new, self.queries, self.keys)
        row_queries = all_queries[:, :, old[0] :] if reusable else all_queries
        # The same engine, so that rows computed now and then agree to the bit.
        obstacle = ENGINES[self.engine].cannot(row_queries, all_keys, attention, top)
        engine = self.engine if obstacle is None else None
        more = survey(row_queries, all_keys, attention, top=top, values=values, engine=engine)
        if not reusable:
            return more
        # The old rows go before the new ones.
        context = more.context
        if self.context is not None and context is not None:
            context = torch.cat([self.context, context], -2)
        summary = append_rows(self.summary, more.summary)
        return replace(more, queries=all_queries, summary=summary, context=context)

    def _require_tensors(self, what: str) -> None:
        """Raise a ValueError if queries and keys have no numbers."""
        if self.queries.is_meta:
            raise ValueError(
                f"{what} needs queries and keys, but only summaries were kept; "
                'ts.watch(keep="queries-keys") keeps them'
            )

    def _masked_scores(self, rows: Tensor, columns: range) -> Tensor:
        batch, heads = self.queries.shape[:2]
        return masked_rows(
            self.queries, self.keys, self.attention, rows, columns, range(batch), range(heads)
        )

    def __repr__(self) -> str:
        batch, heads, queries, _ = self.queries.shape
        keys = self.keys.shape[-2]
        top = self.summary.top_keys.shape[-1]
        return (
            f"Survey of {self.attention}: {queries:,} queries x {keys:,} keys, batch {batch}, "
            f"heads {heads}, by {self.engine}; the top {top} of each query"
        )


@suggests(
    "survey",
    "the definition is one argument: ts.survey(q, k, ts.Attention(mask=...), top=8)",
    **of_definition("ts.survey(q, k"),
    **dict.fromkeys(("topk", "top_k", "k"), "top="),
)
@torch.no_grad()
def survey(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    attention: Attention = Attention(),
    *,
    top: int = 8,
    values: Float[Tensor, "batch key_heads key d_v"] | None = None,
    lse: Float[Tensor, "batch heads query"] | None = None,
    map: tuple[int, int] | None = None,
    query_weights: Any = None,
    norms: Float[Tensor, "batch some_heads key"] | bool | None = None,
    largest: bool = False,
    within: Mask | None = None,
    segments: Any = None,
    engine: str | None = None,
) -> Survey:
    """Return exact statistics of every query and every key, in memory that grows with n and not
    with n².

    Args:
        queries: (batch, heads, query, d_q).
        keys: (batch, key_heads, key, d_k), where key_heads divides heads.
        attention: the definition: score, scale, mask, bias, normaliser.
        top: how many of each query's largest weights are kept.
        values: (batch, key_heads, key, d_v): adds .context, the output of the attention.
        lse: (batch, heads, query): ln Σ exp(score) of a forward pass saves work; some rows are
            checked.
        map: (rows, cols): pools the matrix in the same pass, for .map(rows, cols).
        query_weights: (query,), (sets, query) or (batch or 1, heads or 1, sets, query): adds
            .weighted, what each key gets from the queries, each with its weight.
        norms: (batch, heads or key_heads, key), such as ‖W_O v‖, or True for the norms of `values`:
            adds .carried, Σ weight · norm of each query.
        largest: adds .largest, the largest weight that each key gets, and its query.
        within: a mask: adds .within, the share of each query's weight inside of it, at the cost of
            its area; with `values` also .lost, how far the context moves if a query sees nothing
            else.
        segments: (key,) or (batch, key), a number from 0 on for each key: adds .shares, of each
            query and segment.
        engine: "triton", "fused", "chunked" or "reference"; None takes the first of them that can.

    Returns:
        A `Survey` with .lse .received .entropy .peak .top .largest_logit .map(rows, cols) .rows(i)
        .cell(i, j) .weigh(query_weights) .head(i) .extend(queries, keys). Gradients are not
        recorded.

    Raises:
        TypeError, ValueError: one sentence, where an argument does not fit the others, and
            torch.OutOfMemoryError where one row at a time does not fit into memory.

    Example:
        >>> import telescope as ts, torch
        >>> keys = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 5.0]])[None, None]
        >>> seen = ts.survey(keys, keys, ts.Attention(scale=1.0, mask=ts.causal), top=1)
        >>> seen.peak.key.tolist()
        [[[0, 1, 2]]]
        >>> # The weights of each of the three queries sum to one
        >>> round(float(seen.received.sum()), 4)
        3.0
    """
    _check(queries, keys, values, attention)
    # Read and check everything before anything is computed.
    _check_options(queries, attention, top, lse)
    extras = read_extras(queries, keys, values, query_weights, norms, largest)
    by_segment = None if segments is None else segment_cells(segments, queries, keys)
    if within is not None:
        check_within(within, queries, keys, attention)
    queries, keys = (tensor.detach() for tensor in torch_modes.cast_for_autocast(queries, keys))
    values = None if values is None else torch_modes.cast_for_autocast(values)[0].detach()
    with torch_modes.without_autocast(queries.device):
        if lse is not None:
            check_lse(queries, lse)
            lse = lse.detach()
        seen = survey_unchecked(
            queries, keys, attention, top=top, lse=lse, map=map, engine=engine, extras=extras
        )
        # What needs a pass of its own: shares of segments, the weight inside of a mask.
        if by_segment is not None:
            shares = pool(seen.engine, queries, keys, attention, seen.lse, by_segment)
            seen = replace(seen, summary=replace(seen.summary, shares=shares))
        if within is not None:
            seen = _with_share(seen, within, values)
        # Last: this waits for the GPU, which has begun to compute by now.
        if lse is not None:
            faster = getattr(ENGINES[seen.engine], "row_numbers", None)
            check_sums(queries, keys, attention, lse, faster)
    # Done where no context is asked for, or `_with_share` has computed it.
    if values is None or seen.context is not None:
        return seen
    return replace(seen, values=values, context=attend(queries, keys, values, attention))


def _check_options(queries: Tensor, attention: Attention, top: int, lse: Tensor | None) -> None:
    """Raise a ValueError, one sentence, where these options of `survey` do not fit."""
    if not isinstance(top, int) or isinstance(top, bool) or top < 0:
        raise ValueError(
            f"top={top!r} must be 0 or more, a whole number: how many weights of each query are "
            "kept"
        )
    if queries.is_meta:
        raise ValueError(
            "queries are on meta, where tensors have a shape but no numbers to survey; use cpu or "
            "cuda"
        )
    if lse is not None and attention.normalize is not softmax:
        raise ValueError("lse is defined for softmax only; leave it out for another normaliser")


def _with_share(seen: Survey, mask: Mask, values: Tensor | None) -> Survey:
    """Return the survey with .within and, if there are values, .lost and .context."""
    queries = seen.queries
    keys = seen.keys
    attention = seen.attention
    assert seen.lse is not None
    share = share_within(seen.engine, queries, keys, attention, seen.lse, mask)
    if values is None:
        return replace(seen, summary=replace(seen.summary, within=share))
    # What is lost: the distance of the two outputs.
    context = attend(queries, keys, values, attention)
    inside = attend(queries, keys, values, replace(attention, mask=attention.mask & mask))
    lost = (inside - context).to(share.dtype).norm(dim=-1)
    summary = replace(seen.summary, within=share, lost=lost)
    return replace(seen, values=values, context=context, summary=summary)


def survey_unchecked(
    queries: Queries,
    keys: Keys,
    attention: Attention,
    *,
    top: int,
    lse: PerQuery | None = None,
    map: tuple[int, int] | None = None,
    engine: str | None = None,
    marks: Marks | None = None,
    extras: Extras = Extras(),
) -> Survey:
    """Return `survey` of arguments that are known to fit, with an lse that is known to be right.

    Nothing is checked, so that on a GPU nothing waits for a result. The arguments are those of
    `survey`. `marks` are reported by the engines "fused" and "chunked", which form all weights; the
    others leave them out. All report what `extras` asks for.

    Example:
        >>> import telescope as ts, torch
        >>> from telescope.surveys import survey_unchecked
        >>> zeros = torch.zeros(1, 1, 4, 2)
        >>> survey_unchecked(zeros, zeros, ts.Attention(), top=0).received.tolist()
        [[[1.0, 1.0, 1.0, 1.0]]]
    """
    cells = None if map is None else read_map(queries, keys, map)
    chosen, summary = summarize(
        queries, keys, attention, top=top, lse=lse, cells=cells, engine=engine, marks=marks,
        extras=extras,
    )  # fmt: skip
    return Survey(queries, keys, None, attention, chosen, summary, map, None)


def _check(queries: Tensor, keys: Tensor, values: Tensor | None, attention: Attention) -> None:
    if values is None:
        check_without_values(queries, keys, attention)
    else:
        check(queries, keys, values, attention)
