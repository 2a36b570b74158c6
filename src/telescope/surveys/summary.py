"""What an engine of `survey` returns: numbers for each query and each key, none for each pair of
them; as tables, and extended by rows while decoding.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from ..attention import Attention, Bias, Pairs, Spans, softmax
from ..engines import torch_modes
from ..printed import PlainTable, PrintedTable
from ..words import hint
from .device import to_host

# The shapes that this room speaks of.
Queries = Float[Tensor, "batch heads query d_q"]
Keys = Float[Tensor, "batch key_heads key d_k"]
PerQuery = Float[Tensor, "batch heads query"]
PerKey = Float[Tensor, "batch heads key"]
PerSet = Float[Tensor, "batch heads sets key"]
PerPair = Float[Tensor, "batch heads query key"]
Map = Float[Tensor, "batch heads rows columns"]

TABLES = ("queries", "keys", "top")


@dataclass(frozen=True, eq=False)
class Summary:
    """Numbers for each query and each key, in float32, or in float64 for float64 inputs.

    A row that sees nothing has entropy 0, weights 0 and keys -1.

    Example:
        >>> import telescope as ts, torch
        >>> zeros = torch.zeros(1, 2, 4, 8)
        >>> summary = ts.survey(zeros, zeros, top=1).summary
        >>> summary.received.shape, summary.top_keys.shape
        (torch.Size([1, 2, 4]), torch.Size([1, 2, 4, 1]))
    """

    lse: PerQuery | None
    """ln Σ exp(score), the sink included, so that exp(score - lse) is the weight. None where it is
    not softmax.
    """
    received: PerKey
    """The weight each key gets from all queries together."""
    entropy: PerQuery
    """-Σ w ln w over the keys, in nats. NaN where a weight is below zero, which softmax never
    gives.
    """
    top_weights: Float[Tensor, "batch heads query top"]
    """The largest weights, largest first; 0 where fewer keys are seen."""
    top_keys: Int[Tensor, "batch heads query top"]
    """The keys of these weights, int32, the lower one first where scores are equal; -1 where fewer
    are seen.
    """
    map: Map | None
    """The pooled matrix, if cells were given."""
    before: PerQuery | None = None
    """The total weight that `Marks.before` names, from the engine that reports it."""
    single: Float[Tensor, "batch heads query which"] | None = None
    """The weights that `Marks.single` names, from the engine that reports them."""
    listed: Float[Tensor, "batch heads query list"] | None = None
    """The total weights of the lists of `Marks.listed`, from the engine that reports them."""
    listed_seen: Bool[Tensor, "batch heads query list"] | None = None
    """Whether the query may see a key of the list."""
    weighted: PerSet | None = None
    """The weight each key gets from all queries together, each query counted with its
    `query_weights`.
    """
    carried: PerQuery | None = None
    """Σ weight · norm over the keys, if `norms` were given."""
    largest_weight: PerKey | None = None
    """The largest weight that each key gets; 0 if no query gives it a weight above 0."""
    largest_query: Int[Tensor, "batch heads key"] | None = None
    """The query that gives it, int32, the lower one where weights are equal; -1 if there is none.
    """
    within: PerQuery | None = None
    """The share of each query's weight inside of a mask."""
    lost: PerQuery | None = None
    """How far the context moves if each query sees only what that mask lets it see: the norm of the
    difference.
    """
    shares: Float[Tensor, "batch heads query segment"] | None = None
    """The share of each query's weight that goes to each segment of the keys."""

    def _one_head(self, i: int) -> "Summary":
        """Return the numbers of head i; every tensor keeps its heads axis, of size 1."""
        # Every field has its heads in axis 1.
        kept: dict[str, Any] = {
            name: part[:, i : i + 1] for name, part in vars(self).items() if part is not None
        }
        return replace(self, **kept)


def compute_dtype(queries: Tensor) -> torch.dtype:
    """Return the dtype a survey is computed in: float64 for float64 queries, else float32."""
    return torch.float64 if queries.dtype == torch.float64 else torch.float32


class Top(NamedTuple):
    """The largest weights of each query, largest first, and their keys; weight 0 and key -1 where
    fewer are seen.

    Attributes:
        weights: (batch, heads, query, top), the largest first.
        keys: (batch, heads, query, top), their positions.

    Example:
        >>> import torch, telescope as ts
        >>> x = 9.0 * torch.eye(3)[None, None]
        >>> ts.survey(x, x, top=2).top.keys[0, 0, :, 0].tolist()
        [0, 1, 2]
    """

    weights: Float[Tensor, "batch heads query top"]
    keys: Int[Tensor, "batch heads query top"]


class Peak(NamedTuple):
    """The largest weight of each query, and its key.

    Attributes:
        weight: (batch, heads, query).
        key: (batch, heads, query), its position.

    Example:
        >>> import torch, telescope as ts
        >>> x = 9.0 * torch.eye(3)[None, None]
        >>> ts.survey(x, x).peak.key.flatten().tolist()  # each query looks at itself
        [0, 1, 2]
    """

    weight: PerQuery
    key: Int[Tensor, "batch heads query"]


class Largest(NamedTuple):
    """The largest weight that each key gets, and the query that gives it; 0 and -1 where no weight
    is above 0.

    Attributes:
        weight: (batch, heads, key).
        query: (batch, heads, key), its position.

    Example:
        >>> import torch, telescope as ts
        >>> x = torch.randn(1, 1, 5, 4)
        >>> seen = ts.survey(x, x, largest=True)
        >>> seen.largest.weight.shape, seen.largest.query.shape
        (torch.Size([1, 1, 5]), torch.Size([1, 1, 5]))
    """

    weight: PerKey
    query: Int[Tensor, "batch heads key"]


class Statistics(PrintedTable):
    """The numbers of a survey by their public names, read from its summary; a notebook shows a
    table of the heads.
    """

    _rest = ".entropy, .peak and .received have them all"

    summary: Summary

    def __rich__(self) -> PlainTable:
        """Return a table with a row for each head: means over the queries that see a key, and the
        key that receives most.
        """
        table = PlainTable(title=repr(self), box=None, pad_edge=False, title_justify="left")
        sequences, heads, _ = self.received.shape
        columns = ["head", "mean entropy", "mean peak", "most received by", "share of all"]
        for name in ["sequence", *columns] if sequences > 1 else columns:
            table.add_column(name, justify="right", no_wrap=True)

        # Queries that see nothing have no entropy; their largest key is none.
        entropy = self.entropy.double()
        sees = torch.ones_like(entropy) if self.lse is None else (self.lse > -torch.inf).double()
        count = sees.sum(-1)
        has_peak = bool(self.summary.top_keys.shape[-1])
        peak = self.peak.weight.double() if has_peak else torch.full_like(entropy, torch.nan)
        most = self.received.double().amax(-1) if self.received.shape[-1] else count * torch.nan
        keys = self.received.argmax(-1) if self.received.shape[-1] else torch.zeros_like(count)
        numbers = [
            (entropy * sees).sum(-1) / count,
            (peak * sees).sum(-1) / count,
            keys.double(),
            most / self.received.double().sum(-1),
        ]
        rows = torch.stack(numbers, -1).tolist()
        for sequence in range(sequences):
            for head in range(heads):
                mean, largest, key, share = rows[sequence][head]
                named = [f"{sequence}", f"{head}"] if sequences > 1 else [f"{head}"]
                # Only NaN differs from itself: nothing is known.
                cells = (
                    f"{mean:.4g}" if mean == mean else "",
                    f"{largest:.4g}" if largest == largest else "",
                    f"key {key:.0f}" if share == share else "",
                    f"{share:.1%}" if share == share else "",
                )
                table.add_row(*named, *cells)
        return table

    @property
    def lse(self) -> PerQuery | None:
        """ln Σ exp(score) of each query, the sink included; None where the normaliser is not
        softmax.
        """
        return self.summary.lse

    @property
    def received(self) -> PerKey:
        """The weight each key gets from all queries together: the sums of the columns."""
        return self.summary.received

    @property
    def entropy(self) -> PerQuery:
        """-Σ w ln w of each query, in nats: 0 if all weight is on one key, ln n if n keys have
        equal weights.
        """
        return self.summary.entropy

    @property
    def top(self) -> Top:
        """The largest weights of each query, largest first, and their keys."""
        return Top(self.summary.top_weights, self.summary.top_keys.long())

    @property
    def peak(self) -> Peak:
        """The largest weight of each query, and its key.

        Raises:
            ValueError: for a survey with top=0.
        """
        if not self.summary.top_keys.shape[-1]:
            raise ValueError("this survey was made with top=0, so it kept no peak; top=1 keeps it")
        return Peak(self.summary.top_weights[..., 0], self.summary.top_keys[..., 0].long())

    @property
    def largest_logit(self) -> PerQuery:
        """The largest score of each query, after softcap and bias: lse + ln(peak); -inf for a query
        that sees nothing.

        Raises:
            ValueError: for a survey with top=0, or of another normaliser than softmax.
        """
        if self.lse is None:
            raise ValueError("the largest logit is known for softmax only, as lse + ln(peak)")
        # exp(score - lse) is the weight, so that no score has to be computed again.
        return self.lse + self.peak.weight.log()

    @property
    def weighted(self) -> PerSet:
        """What each key gets from all queries together, each with its weight: needs
        survey(query_weights=...).
        """
        return self._asked("weighted", "query_weights=...")

    @property
    def carried(self) -> PerQuery:
        """Σ weight · norm over the keys of each query: needs survey(norms=...).

        weight · norm / carried is the share of a key in what the query's weights carry.
        """
        return self._asked("carried", "norms=...")

    @property
    def largest(self) -> Largest:
        """The largest weight that each key gets, and from which query: needs
        survey(largest=True).
        """
        weight = self._asked("largest_weight", "largest=True")
        query = self._asked("largest_query", "largest=True")
        return Largest(weight, query.long())

    @property
    def within(self) -> PerQuery:
        """The share of each query's weight inside of the mask of survey(within=MASK)."""
        return self._asked("within", "within=MASK")

    @property
    def lost(self) -> PerQuery:
        """‖context - context under the mask of within=‖ of each query: needs survey(within=MASK,
        values=...).
        """
        return self._asked("lost", "within=MASK, values=...")

    @property
    def shares(self) -> Float[Tensor, "batch heads query segment"]:
        """The share of each query's weight that goes to each segment of the keys: needs
        survey(segments=ids).
        """
        return self._asked("shares", "segments=ids")

    def _asked(self, name: str, option: str) -> Tensor:
        found: Tensor | None = getattr(self.summary, name)
        if found is None:
            raise ValueError(
                f"this survey has no {name.partition('_')[0]}; survey(..., {option}) computes it"
            )
        return found


# ------------------------------------------------------------------------------------------- tables


def summary_columns(
    summary: Summary, of: str, heads: Sequence[int] | None = None, rows: Sequence[int] | None = None
) -> dict[str, Tensor]:
    """Return the columns of one table; `heads` and `rows` are the numbers of heads and queries, if
    not from 0 on.

    of   "queries": batch, head, query, then lse, entropy, peak, peak_key, largest_logit, and
         carried, within, lost and share_0, share_1, ... where the survey has them
         "keys": batch, head, key, received, and largest, largest_query, weighted_0, ... where the
         survey has them
         "top": batch, head, query, rank, key, weight
    """
    return columns_of_summaries([(summary, heads, rows)], of)[0]


def columns_of_summaries(
    parts: Sequence[tuple[Summary, Sequence[int] | None, Sequence[int] | None]], of: str
) -> list[dict[str, Tensor]]:
    """Return `summary_columns` of several summaries, each with its heads and rows; the numbers of
    all are copied from a GPU at once.
    """
    if of not in TABLES:
        raise ValueError(f'a survey has no table of "{of}"; {hint(str(of), TABLES)}')
    tables = [_table(*part, of) for part in parts]
    copied = iter(to_host([column for table in tables for column in table.values()]))
    flat = [{name: next(copied).reshape(-1) for name in table} for table in tables]
    if of == "top":  # a query that sees fewer keys has fewer rows
        for columns in flat:
            seen = columns["key"] >= 0
            columns.update({name: column[seen] for name, column in columns.items()})
    return flat


def _table(
    summary: Summary, heads: Sequence[int] | None, rows: Sequence[int] | None, of: str
) -> dict[str, Tensor]:
    """Return the columns of one table, each with all axes, on the device of the summary."""
    # The axes of the table, each with the numbers of its rows, and the columns after them.
    batch, count, queries = summary.entropy.shape
    axes = {
        "batch": torch.arange(batch),
        "head": torch.arange(count) if heads is None else torch.tensor(heads),
    }
    own_rows = torch.arange(queries) if rows is None else torch.tensor(rows)
    keys = summary.top_keys
    columns: dict[str, Tensor | None]
    if of == "keys":
        axes["key"] = torch.arange(summary.received.shape[-1])
        columns = {
            "received": summary.received,
            "largest": summary.largest_weight,
            "largest_query": summary.largest_query,
        } | _numbered("weighted", None if summary.weighted is None else summary.weighted.mT)
    elif of == "top":
        axes |= {"query": own_rows, "rank": torch.arange(keys.shape[-1])}
        columns = {"key": keys, "weight": summary.top_weights}
    else:
        axes["query"] = own_rows
        columns = _query_columns(summary)
    # An index column has all axes, as the numbers have.
    grids = torch.meshgrid(*(axis.int() for axis in axes.values()), indexing="ij")
    table = dict(zip(axes, grids, strict=True)) | columns
    return {name: part for name, part in table.items() if part is not None}


def _query_columns(summary: Summary) -> dict[str, Tensor | None]:
    """Return the columns of the table of queries, besides their indices."""
    entropy = summary.entropy
    # Another normaliser than softmax has no lse: the columns are there, and are NaN.
    lse = torch.full_like(entropy, torch.nan) if summary.lse is None else summary.lse
    columns: dict[str, Tensor | None] = {"lse": lse, "entropy": entropy}
    # With top=0 no peak was kept.
    if summary.top_keys.shape[-1]:
        peak = summary.top_weights[..., 0]
        columns["peak"] = peak
        columns["peak_key"] = summary.top_keys[..., 0]
        columns["largest_logit"] = lse + peak.log()
    columns |= {name: getattr(summary, name) for name in ("carried", "within", "lost")}
    return columns | _numbered("share", summary.shares)


def _numbered(name: str, columns: Tensor | None) -> dict[str, Tensor | None]:
    parts = () if columns is None else columns.unbind(-1)
    return {f"{name}_{i}": part for i, part in enumerate(parts)}


# ----------------------------------------------------------------------------- rows while decoding

Size = tuple[int, int]  # queries, keys


def can_reuse_rows(
    before: Attention, now: Attention, old: Size, new: Size, queries: Tensor, keys: Tensor
) -> bool:
    """Return whether all old rows are unchanged, and the new rows can be computed without them.

    `before` is the definition of a matrix of size `old`, `now` that of the longer one of size
    `new`. Of `queries` and `keys`, some of them, only batch, heads, features and device count.
    """
    batch, heads, _, d_q = queries.shape
    # All but mask and bias must be equal, and both must treat the old pairs as before.
    if (
        now.normalize is not softmax
        or replace(now, mask=before.mask, bias=before.bias) != before
        or not _same_bias(before.bias, now.bias, old)
        # The last query stands at the last key: with more new keys, the old queries would move.
        or new[1] - old[1] != new[0] - old[0]
    ):
        return False
    try:
        added = new[0] - old[0]
        now.check(batch=batch, heads=heads, queries=added, keys=new[1], d_q=d_q, d_k=keys.shape[-1])
    except ValueError:  # it has numbers for each query, so the new queries cannot be computed alone
        return False
    # With an equal mask old rows change only by seeing a new key; otherwise compare the spans.
    one = _spans(before, old, old[0], queries)
    other = _spans(now, new, old[0], queries)
    if now.mask == before.mask:
        return bool((other.empty | (other.stop <= old[1])).all())
    # Spans without keys are equal wherever they begin.
    both_empty = one.empty & other.empty
    same = both_empty | ((one.start == other.start) & (one.stop == other.stop))
    return one.whole and other.whole and bool(same.all())


def append_positions(name: str, old: Tensor, new: Tensor) -> Tensor:
    """Return the old positions followed by the new ones."""
    if old.shape[:2] != new.shape[:2] or old.shape[3] != new.shape[3]:
        raise ValueError(
            f"extend: {name} have shape {tuple(new.shape)}, after {tuple(old.shape)}; only their "
            "number may differ"
        )
    # As `survey` did with the old ones.
    (new,) = torch_modes.cast_for_autocast(new)
    if (old.device, old.dtype) != (new.device, new.dtype):
        raise ValueError(
            f"extend: {name} are {new.dtype} on {new.device}, after {old.dtype} on {old.device}; "
            "convert them"
        )
    return torch.cat([old, new.detach()], -2)


def append_rows(old: Summary, new: Summary) -> Summary:
    """Return the summary of the old rows followed by the new ones; each key receives the sum of
    both.
    """
    assert old.lse is not None  # it is softmax, or `can_reuse_rows` would have said no
    assert new.lse is not None
    # The old queries gave nothing to the new keys.
    more = new.received.shape[-1] - old.received.shape[-1]
    return Summary(
        lse=torch.cat([old.lse, new.lse], -1),
        received=pad(old.received, (0, more)) + new.received,
        entropy=torch.cat([old.entropy, new.entropy], -1),
        top_weights=torch.cat([old.top_weights, new.top_weights], -2),
        top_keys=torch.cat([old.top_keys, new.top_keys], -2),
        map=None,  # its rows would pool other queries
    )


def _same_bias(before: object, now: object, old: Size) -> bool:
    """Return whether both add the same to the old pairs."""
    if isinstance(now, Bias) and isinstance(before, Bias):
        return now.agrees(before, old)
    return now == before


def _spans(attention: Attention, of: Size, rows: int, queries: Tensor) -> Spans:
    """Return the spans of keys that the first `rows` queries see in a matrix of this size."""
    batch, heads = queries.shape[:2]
    at = Pairs.block(range(rows), range(0), of=of, batch=batch, heads=heads, device=queries.device)
    return attention.mask.spans(at, of[1])
