"""The one table of measures: what is known of a head, how it is summed, and how it is shown.

`recording.heads()`, atlases, the health of a training, explanations and the page read this table. A
new habit is a row of HABIT_ROWS and a field of `Head`: files store sums by name, so that recordings
and atlases without the habit still open, and those of a later version open without what is unknown.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import nan
from string import punctuation

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..field_words import FieldNames
from ..guesses import OF_HEAD
from ..printed import PlainTable, PrintedTable

CLEAR = 0.4  # the least share of the weight at which a habit names the kind of a head
FAR = 64  # positions: keys that are farther from the query than this are "far"
# Keys that a cache with attention sinks and a sliding window keeps.
STREAMING_FIRST = 4
STREAMING_LAST = 256

# ------------------------------------------------------------------------------- which keys count


@dataclass(frozen=True)
class AtOffset:
    """The key so many positions after the query; a negative offset, at least -FAR, is before it."""

    offset: int


@dataclass(frozen=True)
class FirstToken:
    """The first token that is not padding."""


@dataclass(frozen=True)
class FarKeys:
    """All keys more than FAR positions before the query."""


@dataclass(frozen=True)
class TokenMatch:
    """Earlier keys whose token, or the token `back` positions before, is the query's token."""

    back: int


KeyRule = AtOffset | FirstToken | FarKeys | TokenMatch


# ------------------------------------------------------------------------------- what is summed up


@dataclass(frozen=True, eq=False)
class HeadRows:
    """What a survey tells of some heads, from which every measure is summed."""

    received: Float[Tensor, "batch heads key"]
    """The weight that each key gets from all queries; float64."""
    entropy: Float[Tensor, "batch heads query"]
    peak: Float[Tensor, "batch heads query"] | None
    """The largest weight of each query; None where none was kept."""
    lse: Float[Tensor, "batch heads query"] | None
    """None where the normaliser is not softmax."""
    seen: Bool[Tensor, "batch heads query"]
    """The queries that see a key and are no padding."""
    counted: Bool[Tensor, "batch heads query"]
    """Of these, the queries that have a choice: those after the first token."""
    first: Int[Tensor, "#batch"]
    """The first key that is not padding."""
    shares: Mapping[str, Float[Tensor, "batch heads"]] = field(default_factory=dict)
    """The sums of `habit_sums`, by name."""
    punctuation: Float[Tensor, "batch heads"] | None = None
    """The weight that punctuation receives; None where it is not known."""

    @cached_property
    def logits(self) -> Float[Tensor, "batch heads query"]:
        """The largest score of each query: its peak weight is exp(score - lse)."""
        if self.lse is None or self.peak is None:
            return torch.full_like(self.entropy, nan)
        return self.lse + self.peak.log()

    @cached_property
    def counts(self) -> dict[str, Float[Tensor, "batch heads"]]:
        """What sums are divided by: each `per` of the table."""
        found = {
            "queries": self.counted.sum(2).double(),
            "given": self.received.sum(2),
            # An empty slice has the shape, type and device of a sum over the keys.
            "texts": torch.ones_like(self.received[..., :0].sum(2)),
        }
        # Known only where `habit_sums` ran.
        known = ("repeated", "patch_queries", "patch_weight", "frame_weight")
        return found | {name: self.shares[name] for name in known if name in self.shares}


def _over_counted(
    rows: HeadRows, numbers: Float[Tensor, "batch heads query"]
) -> Float[Tensor, "batch heads"]:
    # Select before the sum: NaN times 0 would stay NaN.
    return torch.where(rows.counted, numbers, 0.0).sum(2)


def _spread(rows: HeadRows) -> Float[Tensor, "batch heads"]:
    return _over_counted(rows, rows.entropy.double().exp())


def _sink(rows: HeadRows) -> Float[Tensor, "batch heads"]:
    received = rows.received
    key = torch.arange(received.shape[-1], device=received.device)
    # The first token is a habit of its own, so that a sink is any other key.
    others = received.masked_fill((key == rows.first[:, None])[:, None], 0.0)
    # An empty axis has no maximum, but a sum of 0.
    return others.amax(2) if len(key) else others.sum(2)


def _one_key(rows: HeadRows) -> Float[Tensor, "batch heads"]:
    # A head that gives no weight would divide by 0.
    return rows.received.amax(2) / rows.counts["given"].clamp(min=1e-9)


def _punctuation(rows: HeadRows) -> Float[Tensor, "batch heads"]:
    known = rows.punctuation
    return torch.full_like(rows.counts["given"], nan) if known is None else known


def _largest_logit(rows: HeadRows) -> Float[Tensor, "batch heads"]:
    if rows.logits.shape[2] == 0:
        return torch.full_like(rows.counts["given"], nan)
    return rows.logits.masked_fill(~rows.seen, -torch.inf).amax(2)


# -------------------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Measure:
    """One row of the table.

    name      the column of heads(), the statistic of an atlas, the measure of a rule
    meaning   what it is; of a share, the keys that the weight goes to
    keys      which keys of each query a habit counts; summed while a model runs, see `habit_sums`
    of        the sum over the queries of each text, where the summary of a survey has it
    per       what sums are divided by: "queries" that have a choice, those whose token is
              "repeated", the weight "given", or "texts"; the "patch_queries", which are patches of
              an image, the weight that they give to patches of their image, "patch_weight", and
              "frame_weight" likewise; None takes the largest, not a mean
    each      the number of each query, where an atlas keeps its distribution over all queries
    unit      what its numbers are; shares are shown as a percentage, others with one digit
    """

    name: str
    meaning: str
    keys: KeyRule | None = None
    of: Callable[[HeadRows], Tensor] | None = None
    per: str | None = "queries"
    each: Callable[[HeadRows], Tensor | None] | None = None
    unit: str = "share of the weight"

    @property
    def is_share(self) -> bool:
        """Whether its numbers lie between 0 and 1."""
        return self.unit == "share of the weight"

    def sums(self, rows: HeadRows) -> tuple[Tensor, Tensor]:
        """Return numerator and denominator, (batch, heads) each; NaN where it is not known."""
        above = rows.shares[self.name] if self.of is None else self.of(rows)
        return above, rows.counts[self.per or "texts"]

    def of_queries(self, rows: HeadRows) -> Float[Tensor, "batch heads query"]:
        """Return the number of each query."""
        found = None if self.each is None else self.each(rows)
        assert found is not None
        return found

    def mean(self, rows: HeadRows) -> Float[Tensor, " heads"]:
        """Return the number of each head over all texts: their mean or, without `per`, the
        largest.
        """
        # A head without a query that counts gets 0, not NaN.
        above, below = self.sums(rows)
        return above.amax(0) if self.per is None else above.sum(0) / below.sum(0).clamp(min=1)

    def show(self, number: float) -> str:
        """Return a number as tables print it; nothing where it is NaN."""
        # Only NaN differs from itself.
        if number != number:
            return ""
        return f"{number:.0%}" if self.is_share else f"{number:.1f}"


# The habits, which name the kinds of heads; tables, files and the page list them in this order.
HABIT_ROWS = (
    Measure("itself", "the query's own position", AtOffset(0)),
    Measure("previous", "the position before the query", AtOffset(-1)),
    Measure("first", "the first token", FirstToken()),
    Measure("sink", "the one token, besides the first, that receives most", of=_sink, per="given"),
    Measure("same", "earlier occurrences of the query's token", TokenMatch(0), per="repeated"),
    Measure(
        "induction",
        "the tokens that followed earlier occurrences of the query's token",
        TokenMatch(1),
        per="repeated",
    ),
    Measure("punctuation", "punctuation", of=_punctuation, per="given"),
    Measure("far", f"keys more than {FAR} positions before the query", FarKeys()),
)
TABLE = (
    *HABIT_ROWS,
    # Of the next two, a recorded call has the sums: see recording/head_measures.py.
    Measure("streaming", f"the first {STREAMING_FIRST} tokens and the last {STREAMING_LAST}"),
    Measure(
        "retrieval",
        "an earlier copy of the token that the query writes, as the largest weight",
        per="written",
    ),
    Measure(
        "spread",
        "the effective number of keys over which a query spreads its weight: exp(entropy)",
        of=_spread,
        unit="keys",
    ),
    Measure(
        "largest_logit",
        "the largest score of any query",
        of=_largest_logit,
        per=None,
        unit="score",
    ),
    # Known where `ts.watch(tokens=...)` says which tokens are patches or frames.
    Measure(
        "neighbours",
        "the query's own patch of an image and the eight around it",
        per="patch_queries",
    ),
    Measure(
        "patches",
        "the mean distance from a patch to the patches of its image that it gives weight to",
        per="patch_weight",
        unit="patches",
    ),
    Measure(
        "seconds",
        "the mean distance from a frame to the frames of its sound that it gives weight to",
        per="frame_weight",
        unit="seconds",
    ),
    Measure(
        "one_key",
        "the one key that receives most, the first token included",
        of=_one_key,
        per="texts",
    ),
    Measure(
        "entropy",
        "the entropy of a query's weights",
        of=lambda rows: _over_counted(rows, rows.entropy),
        each=lambda rows: rows.entropy,
        unit="nats",
    ),
    Measure("peak", "the largest weight of a query", each=lambda rows: rows.peak),
    Measure("logit", "the largest score of a query", each=lambda rows: rows.logits, unit="score"),
)
MEASURES = {row.name: row for row in TABLE}
HABITS = tuple(row.name for row in HABIT_ROWS)
HABIT_KEYS = {name: MEASURES[name].meaning for name in HABITS}
"""The keys whose share of the weight is each habit, as the page names them."""
IN_SPACE = ("neighbours", "patches", "seconds")
"""The numbers of heads that read an image or a sound; see `space.space_sums`."""
COLUMNS = (*HABITS, "streaming", "retrieval", "spread", "largest_logit", *IN_SPACE)
"""The numbers of `recording.heads()`."""
OF_TEXTS = (*HABITS, "spread")
"""What an atlas adds up text by text; the other columns of heads() are unknown there."""
OF_QUERIES = tuple(row.name for row in TABLE if row.each is not None)
"""What an atlas keeps the distribution of, over all queries."""
KEY_RULES = {row.name: row.keys for row in TABLE if row.keys is not None}
"""The habits that are summed while a model runs."""
OFFSETS = {name: rule.offset for name, rule in KEY_RULES.items() if isinstance(rule, AtOffset)}
COUNTS = ("queries", "repeated")
"""queries: how many queries see a token besides the first, and so have a choice. repeated: how many
of these may see an earlier occurrence of their own token.
"""
SPACE_SUMS = (*IN_SPACE, "patch_queries", "patch_weight", "frame_weight")
"""What is summed where the tokens lie on images or in time."""
SUMS = (*KEY_RULES, *COUNTS, *SPACE_SUMS)
"""The names of the sums of each head that a recording of summaries keeps, in the order of the
tensor.
"""


def is_repeated(name: str) -> bool:
    """Return whether only the queries count that see an earlier occurrence of their own token."""
    return MEASURES[name].per == "repeated"


@dataclass(frozen=True)
class Head(PrintedTable, FieldNames):
    """One head: the share of its weight that goes to each kind of key, from 0 to 1; NaN where it is
    not known.

    Shares are exact means over the queries that have a choice: those after the first token that see
    a key. Padding is left out as query, as key and as first token. In cross-attention, only
    `first`, `sink`, `punctuation` and `spread` are known.

    Attributes:
        layer: the name of the attention.
        number: of the head in the attention.

    Example:
        >>> import torch, telescope as ts
        >>> layer = ts.layers.MultiHeadAttention(8, 2)
        >>> with ts.watch(layer) as recording:
        ...     _ = layer(torch.randn(1, 5, 8))
        >>> head = recording.heads()[0]
        >>> head.layer, 0 <= head.first <= 1
        ('attention', True)
    """

    layer: str
    number: int
    kind: str
    """The habit with the largest share, if that is at least 0.4, else "mixed"; "far" only if no
    other is. `same` and `induction` are compared with `first` on the queries whose token occurred
    before: a head that rests on the first token wherever it has nothing to match is named by what
    it matches. Of the patches of an image, "neighbours" names a head that no other habit but "far"
    names.
    """
    itself: float = nan
    """To the query's own position."""
    previous: float = nan
    """To the position before the query."""
    first: float = nan
    """To the first token, where most heads put weight they do not need elsewhere."""
    sink: float = nan
    """To the one key, besides the first, that receives most: its share of all weight given. Each
    sequence of a batch has a key of its own.
    """
    same: float = nan
    """To earlier occurrences of the query's token; the mean over the queries that may see one."""
    induction: float = nan
    """To the tokens that followed earlier occurrences of the query's token; the mean over the same
    queries.
    """
    punctuation: float = nan
    """To punctuation, of all weight given."""
    far: float = nan
    """To keys more than 64 positions before the query."""
    spread: float = nan
    """The mean of exp(entropy): the effective number of keys over which a query spreads its weight.
    """
    streaming: float = nan
    """To the first 4 tokens and the last 256: what a cache of a sliding window with sinks keeps.
    Known for keep="queries-keys" and "steps", and for "summaries" by ts.watch(also="streaming").
    """
    retrieval: float = nan
    """Of the written tokens that occurred before, how often the largest weight is on an earlier
    copy (the retrieval score of Wu et al., 2024). Of a text that was generated, only the generated
    tokens count.
    """
    largest_logit: float = nan
    """The largest score of any query."""
    neighbours: float = nan
    """Of the weight of the patches of an image: to the patch itself and the eight around it. This
    and the next two are known where `ts.watch(tokens=...)` says what the tokens are, in
    self-attention.
    """
    patches: float = nan
    """How far patches look within their image: the distance from the query's patch to the key's,
    in patches, as the crow flies, the mean over the weight between patches of one image.
    """
    seconds: float = nan
    """How far frames look within their sound: the time from the query's frame to the key's, the
    mean over the weight between frames.
    """
    segments: Mapping[str, float] = field(default_factory=dict)
    """To each segment of heads(segments=...), of all weight given."""

    _theirs = OF_HEAD

    def __rich__(self) -> PlainTable:
        """Return a table with a row for each number that is known; a notebook shows it."""
        title = f"{self.layer}, head {self.number}: {self.kind}"
        table = PlainTable(title=title, box=None, pad_edge=False, title_justify="left")
        for name in ("measure", "number", "what it is"):
            table.add_column(name, justify="right" if name == "number" else "left")
        for name in COLUMNS:
            # Nothing is shown of what is not known.
            if number := MEASURES[name].show(getattr(self, name)):
                table.add_row(name.replace("_", " "), number, MEASURES[name].meaning)
        for name, share in self.segments.items():
            table.add_row(name, MEASURES["first"].show(share), "the tokens of this segment")
        return table


def kinds_of(shares: Float[Tensor, "habit head"], repeated: Float[Tensor, " head"]) -> list[str]:
    """Return for each head the habit with the largest share, if at least CLEAR, else "mixed"; "far"
    only if no other is clear.

    `shares` has a row for each of HABITS. `same` and `induction` are means over the queries whose
    token occurred before; `repeated` is the part of all queries that these are. A head that has
    nothing to match rests on the first token, so `first` is compared with these two on the repeated
    queries alone.
    """
    # By numpy: the largest of so few numbers is found by one thread. torch wakes up all of them,
    # which takes milliseconds where a host is busy.
    by_habit = shares.numpy(force=True)
    far = HABITS.index("far")
    # The first of the rows is the largest where several are; NaN is not clear.
    clear = np.where(by_habit >= CLEAR, by_habit, -np.inf)
    is_far = clear[far] > 0
    clear[far] = -np.inf
    kind = clear.argmax(0)
    kind = np.where(clear.max(0) > 0, kind, np.where(is_far, far, len(HABITS)))

    # How much the first token gets from the repeated queries is not stored. The least it can be:
    # all other queries give it everything.
    first = HABITS.index("first")
    clear[first] = -np.inf
    best = clear.argmax(0)
    share = clear.max(0)
    matches = np.array([*map(is_repeated, HABITS)])[best]
    # A text without repeated queries divides by 0, and matches nothing.
    with np.errstate(divide="ignore", invalid="ignore"):
        least = 1 - (1 - by_habit[first]) / repeated.numpy(force=True)
    is_match = matches & (share > 0) & (share > least)
    names = (*HABITS, "mixed")
    return [names[i] for i in np.where(is_match, best, kind).tolist()]


Decode = Callable[[list[int]], str]
IsMark = Callable[[int], bool]  # whether a token id is punctuation
# ASCII punctuation, and typographic dashes, quotes and the ellipsis.
MARKS = frozenset(punctuation + "…–—«»“”‘’„")


def punctuation_test(decode: Decode) -> IsMark:
    """Return a function that tells whether a token is punctuation; each token is decoded once for
    all layers.
    """

    @cache
    def is_mark(token: int) -> bool:
        text = decode([token])
        # Spaces count as punctuation, also as byte-level BPE and SentencePiece write them.
        return bool(text) and MARKS.issuperset(text.strip(" \t\r\nĠ▁Ċ"))

    return is_mark
