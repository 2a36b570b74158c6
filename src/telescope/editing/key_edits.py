"""Edits of keys: hide them from some queries, or let them count more.

The spans of such an edit are looked up in the prompt (spans.py), and become a rectangle of queries,
keys and heads in each call, by which the call's definition is changed.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from ..attention import Attention, Rectangle, raise_scores, require_real, table_of
from ..attention import hide as hide_keys
from ..recording import Layers, head_numbers
from ..words import suggests, whole_number
from .edits import (
    GUESSED_KEYS,
    Block,
    Edit,
    EditedCall,
    Heads,
    Needs,
    Part,
    Redefinition,
    describe_heads,
    describe_layers,
    read_heads,
    read_layers,
)
from .spans import Given, Range, Span, TextFinder, find_tokens, span

Ranges = tuple[Range, ...]
RECTANGLES = 64  # that are remembered: layers share them, and a step of decoding may have new ones


@dataclass(frozen=True)
class KeyEdit(Edit):
    """The base of edits of some keys for some queries; None is every query."""

    _changes = Part.DEFINITION
    keys: Span = Span()
    queries: Span | None = None
    new: bool = True
    """Whether queries and keys may be tokens that the model generates."""

    @property
    def _needs(self) -> Needs:
        # Positions matter where some queries, or the tokens of the prompt alone, are meant.
        needs_positions = self.queries is not None or not self.new
        return Needs.PLACE | Needs.POSITIONS if needs_positions else Needs.PLACE

    @property
    def _adds_to_scores(self) -> bool:
        return True

    def _redefinition(self, at: EditedCall) -> Redefinition | None:
        rectangle = at.block.share(Regions).rectangle(self, at)
        if rectangle is None:
            return None
        # Equal rectangles are one object, so that the identity can stand for the content.
        return Redefinition(
            partial(self._redefine, rectangle=rectangle), (self._key, id(rectangle))
        )

    @property
    def _key(self) -> object:
        """Equal for edits that change a rectangle in the same way."""
        return self.kind

    def _redefine(self, attention: Attention, rectangle: Rectangle) -> Attention:
        """Return the definition with the rectangle edited."""
        raise NotImplementedError

    def _describe(self, preposition: str) -> str:
        """Return the edit in words, after its verb."""
        keys = self.keys._named("key", "keys")
        queries = "every query"
        if self.queries is not None:
            queries = self.queries._named("query", "queries")
        old = "" if self.new else " of the prompt"
        heads = "" if self.heads is None else f" in {describe_heads(self.heads)}"
        return f"{keys} {preposition} {queries}{old}{heads}{describe_layers(self.layers)}"


# ------------------------------------------------------------------------------- hidden and boosted


@dataclass(frozen=True)
class Hide(KeyEdit):
    """Hide some keys from some queries.

    Attributes:
        keys: the tokens that are hidden.
        queries: the queries that they are hidden from; None is every query.

    Example:
        >>> import telescope as ts
        >>> edit = ts.hide(range(2, 5))
        >>> str(edit.keys), edit.queries, edit.to_json()["is"]
        ('2 to 4', None, 'hide')
    """

    kind = "hide"
    _rank = 2

    def __str__(self) -> str:
        return f"hide {self._describe('from')}"

    def _redefine(self, attention: Attention, rectangle: Rectangle) -> Attention:
        return hide_keys(attention, rectangle)


@dataclass(frozen=True)
class Boost(KeyEdit):
    """Let some keys count `by` times as much for some queries.

    Attributes:
        keys: the tokens that count more.
        queries: the queries for which they do; None is every query.
        by: the factor of their weight.

    Example:
        >>> import telescope as ts
        >>> edit = ts.boost(3, by=4.0)
        >>> edit.by, edit.to_json()["is"]
        (4.0, 'boost')
    """

    kind = "boost"
    _rank = 1
    by: float = 1.0

    def __str__(self) -> str:
        return f"boost {self._describe('for')} by {self.by:g}"

    def _redefinition(self, at: EditedCall) -> Redefinition | None:
        found = super()._redefinition(at)  # looks for the keys also where nothing changes
        return None if self.by == 1.0 else found

    @property
    def _key(self) -> object:
        return self.kind, self.by

    def _redefine(self, attention: Attention, rectangle: Rectangle) -> Attention:
        # The weight grows by the factor, since exp(score + ln by) = by · exp(score).
        return raise_scores(attention, rectangle, math.log(self.by))


class HideEdits:
    """`ts.hide`: make edits that hide keys from queries."""

    @suggests("hide", **GUESSED_KEYS)
    def __call__(
        self,
        keys: Given,
        queries: Given | None = None,
        *,
        layers: Layers = None,
        heads: Heads = None,
        new: bool = True,
    ) -> Hide:
        """Return the edit that hides some keys from some queries; the weights of the other keys sum
        to one again.

        A query from which every key is hidden that it may see gets zeros as context.

        Args:
            keys: positions (a number, range, slice or list), text such as "the astronomer", or
                `ts.tokens(...)`. Positions count the tokens of each sequence from 0, without
                padding. Text is found in the prompt through the tokenizer, wherever it occurs as
                whole words. In cross-attention, keys are tokens of the source.
            queries: the same; None is every query.
            layers, heads: the attentions and heads, as in `ts.mute`; None is all.
            new: whether queries and keys may be tokens that the model generates. A span without an
                end, and queries=None, then include them.

        Example:
            >>> import telescope as ts
            >>> print(ts.hide(range(10, 40), slice(200, None)))
            hide keys 10 to 39 from queries from 200 on in every layer
        """
        whom = None if queries is None else span("queries", queries)
        return Hide(read_layers(layers), read_heads(heads), span("keys", keys), whom, bool(new))

    def each(
        self,
        segments: Iterable[Given],
        queries: Given | None = "later",
        *,
        layers: Layers = None,
        heads: Heads = None,
    ) -> list[Hide]:
        """Return one edit for each segment of a text, such as its sentences, for `ts.effect`.

        Args:
            segments: spans; or one whole number for each token, which tells its segment, as in
                `survey(...).map`.
            queries: from which queries each segment is hidden; "later" are all tokens after it,
                None is every query.
            layers, heads: as in `ts.hide`.

        Returns:
            One edit for each segment, in the order of the text.

        Raises:
            ValueError: `queries` is "later", and the end of a segment is not known.

        Example:
            >>> import telescope as ts
            >>> for edit in ts.hide.each([range(0, 3), range(3, 5)]):
            ...     print(edit)
            hide keys 0 to 2 from queries from 3 on in every layer
            hide keys 3 to 4 from queries from 5 on in every layer
        """
        edits = []
        for keys in _segments(list(segments)):
            own = span("segments", keys)
            whom: Given | None = queries
            # By default a segment is hidden from the tokens after its end, which has to be known.
            if isinstance(queries, str) and queries == "later":
                ends = [stop for _, stop in own.ranges if stop is not None]
                if own._needs_ids or len(ends) < len(own.ranges):
                    raise ValueError(
                        f"segment {own} has no known end; give positions, or queries=None for "
                        "every query"
                    )
                whom = slice(max(ends), None)
            edits.append(self(own, whom, layers=layers, heads=heads))
        return edits


def _segments(given: list[Any]) -> list[Any]:
    """Return the spans of segments that are given as one number for each token; spans are returned
    as they are.
    """
    # One number for each token marks segments; anything else is a list of spans.
    if not given or not all(
        isinstance(one, SupportsIndex) and not isinstance(one, bool) for one in given
    ):
        return given
    numbers = [whole_number("segments", one) for one in given]
    # One span for each segment, in the order in which segments begin.
    return [
        [i for i, number in enumerate(numbers) if number == segment]
        for segment in dict.fromkeys(numbers)
    ]


hide = HideEdits()


@suggests("boost", **GUESSED_KEYS, times="by=", factor="by=")
def boost(
    keys: Given,
    by: float,
    *,
    queries: Given | None = None,
    layers: Layers = None,
    heads: Heads = None,
    new: bool = True,
) -> Boost:
    """Return the edit that lets some keys count `by` times as much: ln(by) is added to their
    scores.

    Args:
        keys, queries, layers, heads, new: as in `ts.hide`.
        by: the factor, above 0; 1 changes nothing, below 1 the keys count less.

    Example:
        >>> import telescope as ts
        >>> print(ts.boost("the astronomer", by=4.0))
        boost "the astronomer" for every query in every layer by 4
    """
    factor = require_real("by", by)
    if not (math.isfinite(factor) and factor > 0):
        raise ValueError(f"by={by} is not a factor above 0; ts.hide hides keys altogether")
    whom = None if queries is None else span("queries", queries)
    return Boost(
        read_layers(layers), read_heads(heads), span("keys", keys), whom, bool(new), float(factor)
    )


# ------------------------------------------------------------------------------------------ regions


@dataclass
class Search:
    """What was found of one span so far."""

    span: Span
    found: bool = False
    without_ids: bool = False
    """Whether the tokens of some prompt are not known."""
    longest: int = 0
    """Of the sequences that were searched, in tokens."""
    texts: set[str] = field(default_factory=set)
    """The texts that were found."""
    hints: dict[str, str] = field(default_factory=dict)
    """The end of the error for each text that was not found."""


class Regions:
    """Find the rectangles of the edits of one block. Equal rectangles are one object, so that
    layers share masks.
    """

    def __init__(self, block: Block) -> None:
        tokenizer = block.tokenizer
        # The lookup from ids to names, in tokenizers and in transformers.
        names = ("id_to_token", "convert_ids_to_tokens")
        self.finder = TextFinder(
            getattr(tokenizer, "decode", None),
            next(filter(None, (getattr(tokenizer, name, None) for name in names)), None),
        )
        # A cache of this block, which returns one object for equal ranges.
        self._make = lru_cache(max(RECTANGLES, block.regions))(_make_rectangle)
        self._block = block
        self._searches: dict[tuple[Edit, str], Search] = {}
        # When the block ends, a span that was found nowhere is an error.
        block.checks.append(self.problems)

    def rectangle(self, edit: KeyEdit, at: EditedCall) -> Rectangle | None:
        """Return the rectangle of an edit in a call; None if it holds no pair."""
        assert at.call is not None
        assert at.place is not None
        prompt = at.place.prompt
        across = at.call.is_cross_attention
        heads = at.call.queries.shape[1]

        # The keys and queries of each sequence of the prompt.
        keys = self.ranges(edit, at, "keys", edit.keys, new=edit.new)
        self.note(edit, "keys", keys, at.call.size[1])
        queries: list[Ranges] | None = None
        if edit.queries is not None:
            queries = self.ranges(
                edit, at, "queries", edit.queries, new=edit.new, of_queries=across
            )
            # The queries of a cross-attention count in their own text, not in that of the keys.
            reached = max(at.place.positions or [0]) + 1 if across else at.call.size[1]
            self.note(edit, "queries", queries, reached)
        elif not edit.new:
            # Every query then means every query of the prompt.
            end = prompt.queries if across else prompt.keys
            queries = [((0, end),)] * prompt.batch
        # Sequences that belong to other edits have no keys to be changed.
        if at.own.sequences is not None:
            keys = [own if row in at.own.sequences else () for row, own in enumerate(keys)]

        # One row for all sequences if they are alike, or else one for each row of the call.
        rows: Sequence[int] = [0]
        if len({*keys}) > 1 or (queries is not None and len({*queries}) > 1):
            rows = at.place.rows(at.call) or range(prompt.batch)
        keys = [keys[row] for row in rows]
        queries = queries and [queries[row] for row in rows]

        # Resolve the heads, and where the queries of a cross-attention stand in their text.
        numbers = None if edit.heads is None else head_numbers(at.name, edit.heads, heads)
        positions = tuple(at.place.positions or ()) if across and queries is not None else None
        own_queries = None if queries is None else tuple(queries)
        return self._make(tuple(keys), own_queries, numbers, heads, positions)

    def problems(self) -> list[str]:
        """Return a sentence for each span that was in nothing that the model read."""
        found = []
        for (edit, what), search in self._searches.items():
            # A text that some prompts lack may be in others: report texts that no prompt has.
            missing = [text for text in search.hints if text not in search.texts]
            if missing:
                found.append(
                    f'{edit}: no text that was read holds "{missing[0]}"; '
                    f"{search.hints[missing[0]]}"
                )
            elif not search.found and search.without_ids:
                found.append(
                    f"{edit}: the tokens of the prompt are not known; enter the block before the "
                    "model reads them"
                )
            elif not search.found:
                longest = max(search.longest, self._block.longest)
                found.append(
                    f"{edit}: there were no {what} {search.span}; the longest text had positions 0 "
                    f"to {max(longest - 1, 0)}"
                )
        return found

    def ranges(
        self,
        edit: Edit,
        at: EditedCall,
        what: str,
        span: Span,
        *,
        new: bool = True,
        of_queries: bool = False,
    ) -> list[Ranges]:
        """Return where a span is in each sequence of the prompt, as indices of keys or,
        `of_queries`, of queries; with `new`, ranges may hold tokens that the model generates.
        """
        assert at.place is not None
        prompt = at.place.prompt
        # Search a prompt once, not at every step of generation.
        known: list[Ranges] | None = prompt.ranges.get((id(at.own), what))
        if known is not None:
            return known
        # Choose the sequence to search: a cross-attention has one for queries and one for keys.
        ids = prompt.query_ids if of_queries else prompt.key_ids
        begins = prompt.first_query if of_queries else prompt.first
        end = prompt.queries if of_queries else prompt.keys
        search = self._searches.setdefault((edit, what), Search(span))
        search.without_ids |= span._needs_ids and ids is None
        ranges = []
        for row in range(prompt.batch):
            first = 0 if begins is None else begins[row]
            found = [*span.ranges]
            if ids is not None and span._needs_ids:
                found += self._find(search, ids[row, first:])
            # Spans count from the first token that is no padding.
            own = [(start + first, None if stop is None else stop + first) for start, stop in found]
            # Without generated tokens, ranges end with the prompt.
            ranges.append(tuple(own) if new else _clip(own, end))
        prompt.ranges[id(at.own), what] = ranges
        return ranges

    def _find(self, search: Search, ids: Tensor) -> list[Range]:
        """Return where the tokens and texts of a span are in a sequence without padding."""
        found = find_tokens(search.span.tokens, ids)
        for text in search.span.texts:
            places = self.finder.find(text, ids.tolist())
            found += places
            if places:
                search.texts.add(text)
            else:
                # Note what the prompt has instead, for the error if no prompt holds the text.
                search.hints[text] = self.finder.hint(text, ids.tolist())
        return found

    def note(self, edit: Edit, what: str, ranges: Sequence[Ranges], length: int) -> None:
        """Note whether some of the ranges begin before the end of the text, or wait for tokens to
        come after it.
        """
        search = self._searches[edit, what]
        search.longest = max(search.longest, length)
        # A range without an end may begin right after the text, with the next token.
        search.found |= any(
            start < length + (stop is None) for own in ranges for start, stop in own
        )


def _clip(ranges: Iterable[Range], end: int) -> Ranges:
    return tuple(
        (start, end if stop is None else min(stop, end)) for start, stop in ranges if start < end
    )


@torch.inference_mode(False)  # inference tensors have no version, by which engines cache masks
def _make_rectangle(
    keys: tuple[Ranges, ...],
    queries: tuple[Ranges, ...] | None,
    numbers: tuple[int, ...] | None,
    heads: int,
    positions: tuple[int, ...] | None,
) -> Rectangle | None:
    """Return the rectangle of these ranges, one list for each sequence or one for all; None if it
    is empty.
    """
    # Without a key or a query, the call stays as it is.
    if not any(keys) or (queries is not None and not any(queries)):
        return None
    table = None if queries is None else table_of(queries)
    if positions is not None and table is not None:
        # By the rows of this call: the queries of a cross-attention have no place among its keys.
        table = table[:, torch.tensor(positions).clamp(max=table.shape[1] - 1)]
        if not table.any():
            return None
    # Mark the edited heads; None stands for all.
    chosen = None
    if numbers is not None:
        chosen = torch.zeros(heads, dtype=torch.bool)
        chosen[list(numbers)] = True
    return Rectangle(table_of(keys), table, chosen, by_row=positions is not None)
