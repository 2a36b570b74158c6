"""Regions: the rectangle of queries, keys and heads that an edit concerns in one call, found from
its spans.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..attention import Rectangle, table_of
from ..recording.attention_call import AttentionCall
from ..recording.names import head_numbers
from .edits import Boost, Edit, Hide
from .prompts import Place, Prompt
from .spans import Range, Span, TextFinder, find_tokens

Ranges = tuple[Range, ...]
MAX_CACHED = 64


@dataclass(frozen=True, eq=False)
class LayerEdit:
    """An edit of one attention."""

    edit: Edit
    sequences: range | None = None
    """The sequences of a batch that the edit concerns; None is all."""
    first_head: int = 0
    """The number, in the whole model, of this process's first head. The heads of `edit` count from
    there.
    """


@dataclass
class Search:
    """What was found of one span so far."""

    span: Span
    what: str
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

    def __init__(self, finder: TextFinder) -> None:
        self.finder = finder
        self._rectangles: dict[object, Rectangle | None] = {}
        self._searches: dict[tuple[Edit, str], Search] = {}

    def rectangle(
        self, name: str, call: AttentionCall, place: Place, one: LayerEdit
    ) -> Rectangle | None:
        """Return the rectangle of a hiding or boosting edit in a call; None if it holds no pair."""
        edit = one.edit
        assert isinstance(edit, Hide | Boost)
        across = call.is_cross_attention
        batch = len(call.keys)
        heads = call.queries.shape[1]
        keys = self._ranges(one, "keys", place.prompt, edit.keys)
        self._note(edit, "keys", keys, call.size[1])
        queries: Sequence[Ranges] | None = None
        if edit.queries is not None:
            queries = self._ranges(one, "queries", place.prompt, edit.queries, of_queries=across)
            reached = max(place.positions or [0]) + 1 if across else call.size[1]
            self._note(edit, "queries", queries, reached)
        elif not edit.new:
            queries = [
                ((0, place.prompt.queries if across else place.prompt.keys),)
            ] * place.prompt.batch
        if one.sequences is not None:
            keys = [own if row in one.sequences else () for row, own in enumerate(keys)]
        if len({*keys}) > 1 or (queries is not None and len({*queries}) > 1):
            rows = place.rows(call) or range(place.prompt.batch)
            keys = [keys[row] for row in rows]
            queries = queries and [queries[row] for row in rows]
        else:
            keys = keys[:1]
            queries = queries and queries[:1]
        numbers = None if edit.heads is None else head_numbers(name, edit.heads, heads)
        positions = tuple(place.positions or ()) if across and queries is not None else None
        key = (
            tuple(keys),
            None if queries is None else tuple(queries),
            numbers,
            heads,
            positions,
            batch,
        )
        if key not in self._rectangles:
            while len(self._rectangles) >= MAX_CACHED:
                del self._rectangles[next(iter(self._rectangles))]
            with torch.inference_mode(
                False
            ):  # an inference tensor has no version, by which engines cache masks
                self._rectangles[key] = _make(keys, queries, numbers, heads, positions)
        return self._rectangles[key]

    def problems(self) -> list[str]:
        """Return a sentence for each span that was in nothing that the model read."""
        found = []
        for (edit, _), search in self._searches.items():
            missing = [
                text
                for text in search.span.texts
                if text not in search.texts and text in search.hints
            ]
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
                end = max(search.longest - 1, 0)
                found.append(
                    f"{edit}: there were no {search.what} {search.span}; the longest text had "
                    f"positions 0 to {end}"
                )
        return found

    def _ranges(
        self, one: LayerEdit, what: str, prompt: Prompt, span: Span, *, of_queries: bool = False
    ) -> list[Ranges]:
        """Return where a span is in each sequence of the prompt, as indices of keys or,
        `of_queries`, of queries.
        """
        known: list[Ranges] | None = prompt.ranges.get((id(one), what))
        if known is not None:
            return known
        edit = one.edit
        ids = prompt.query_ids if of_queries else prompt.key_ids
        search = self._searches.setdefault((edit, what), Search(span, what))
        search.without_ids |= span.needs_ids and ids is None
        ranges = []
        for row in range(prompt.batch):
            begins = prompt.first_query if of_queries else prompt.first
            first = 0 if begins is None else begins[row]
            own = [
                (start + first, None if stop is None else stop + first)
                for start, stop in span.ranges
            ]
            if ids is not None and span.needs_ids:
                real = ids[row, first:]
                found = find_tokens(span.tokens, real)
                for text in span.texts:
                    places = self.finder.find(text, real.tolist())
                    search.texts |= {text} if places else set()
                    if not places:
                        search.hints[text] = self.finder.hint(text, real.tolist())
                    found += places
                own += [
                    (start + first, None if stop is None else stop + first) for start, stop in found
                ]
            ranges.append(tuple(own))
        if isinstance(edit, Hide | Boost) and not edit.new:
            end = prompt.queries if of_queries else prompt.keys
            ranges = [_clip(own, end) for own in ranges]
        prompt.ranges[id(one), what] = ranges
        return ranges

    def _note(self, edit: Edit, what: str, ranges: Sequence[Ranges], length: int) -> None:
        """Note whether some of the ranges begin before the end of the text, or wait for tokens to
        come after it.
        """
        search = self._searches[edit, what]
        search.longest = max(search.longest, length)
        search.found |= any(
            start < length + (stop is None) for own in ranges for start, stop in own
        )


def _clip(ranges: Ranges, end: int) -> Ranges:
    return tuple(
        (start, end if stop is None else min(stop, end)) for start, stop in ranges if start < end
    )


def _make(
    keys: Sequence[Ranges],
    queries: Sequence[Ranges] | None,
    numbers: tuple[int, ...] | None,
    heads: int,
    positions: tuple[int, ...] | None,
) -> Rectangle | None:
    """Return the rectangle of these ranges, one list for each sequence or one for all; None if it
    is empty.
    """
    if not any(keys) or (queries is not None and not any(queries)):
        return None
    table: Tensor | None = None if queries is None else table_of(queries)
    if positions is not None and table is not None:  # by the rows of this call
        table = table[:, torch.tensor(positions).clamp(max=table.shape[1] - 1)]
        if not table.any():
            return None
    chosen = None
    if numbers is not None:
        chosen = torch.zeros(heads, dtype=torch.bool)
        chosen[list(numbers)] = True
    return Rectangle(table_of(keys), table, chosen, by_row=positions is not None)
