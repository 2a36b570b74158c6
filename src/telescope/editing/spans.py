"""Spans: which tokens an edit is about, given as positions, as token ids or as text.

A span is resolved when the model reads its first tokens, the prompt: text and token ids are looked
for there, and positions count from the first token that is no padding. Tokens that the model
generates later are behind the prompt: a span without an end includes them.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, SupportsIndex, Union

from torch import Tensor

from ..traces import INCOMPLETE, Words
from ..words import hint, whole_number

Range = tuple[int, int | None]
"""The first position, and the one after the last; None is no end."""
Given = Union[int, SupportsIndex, range, slice, str, "Span", Iterable[Any]]
"""What a user may give as a span."""
# Tokens that are decoded together: the text of a token may depend on the tokens before it.
WINDOW = 12
PROMPTS = 16  # whose text is remembered: every layer asks, and every sequence of a batch is one


@dataclass(frozen=True)
class Span:
    """Some tokens of a text: ranges of positions, texts, and token ids. All that one of them names
    belong to the span.

    Attributes:
        ranges: (first, one past the last) of each stretch of positions; None is open.
        texts: pieces of text, each wherever it occurs.
        tokens: token ids, each wherever it occurs.

    Example:
        >>> from telescope.editing.spans import span
        >>> str(span("keys", [2, 3, 4, "the astronomer"]))
        '2 to 4 and "the astronomer"'
        >>> import telescope as ts
        >>> found = ts.tokens(13, 198)
        >>> type(found).from_json(found.to_json()) == found
        True
    """

    ranges: tuple[Range, ...] = ()
    texts: tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()

    @property
    def _needs_ids(self) -> bool:
        """Whether the span can be found only in the ids of the tokens."""
        return bool(self.texts or self.tokens)

    def __str__(self) -> str:
        parts = [_format_range(*one) for one in self.ranges] + [f'"{text}"' for text in self.texts]
        if self.tokens:
            plural = "s" if len(self.tokens) > 1 else ""
            parts.append(f"token{plural} {', '.join(map(str, self.tokens))}")
        return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"

    def _named(self, one: str, several: str) -> str:
        """Return the span with the word for its positions before it: "key 3", "keys 3 to 5", or
        text alone.
        """
        # Texts and tokens need no word before them.
        if self._needs_ids:
            return str(self)
        start, stop = self.ranges[0]
        return f"{one if len(self.ranges) == 1 and stop == start + 1 else several} {self}"

    def to_json(self) -> dict[str, Any]:
        """Return the span as JSON."""
        return {
            "ranges": [list(one) for one in self.ranges],
            "texts": list(self.texts),
            "tokens": list(self.tokens),
        }

    @classmethod
    def from_json(cls, parsed: Any) -> "Span":
        """Return the span that `to_json` wrote; raise a ValueError for anything else.

        Args:
            parsed: what `to_json` wrote.

        Raises:
            ValueError: it is anything else.
        """
        # Check the type of every part before a span is made.
        match parsed:
            case {"ranges": [*ranges], "texts": [*texts], "tokens": [*tokens]} if (
                all(isinstance(text, str) for text in texts)
                and all(map(_is_position, tokens))
                and all(isinstance(one, list) and len(one) == 2 for one in ranges)
                and all(_is_position(start) for start, _ in ranges)
                and all(stop is None or _is_position(stop) for _, stop in ranges)
            ):
                return cls(tuple(map(tuple, ranges)), tuple(texts), tuple(tokens))
        raise ValueError(f"{str(parsed)[:80]} is no span")


def _is_position(number: object) -> bool:
    # type() rather than isinstance, which takes True for an int.
    return type(number) is int and 0 <= number < 2**62


def _format_range(start: int, stop: int | None) -> str:
    if stop is None:
        return f"from {start} on" if start else "all"
    return str(start) if stop == start + 1 else f"{start} to {stop - 1}"


def tokens(*ids: SupportsIndex) -> Span:
    """Return the span of all tokens of the prompt that have one of these ids.

    Args:
        ids: token ids, whole numbers.

    Example:
        >>> import telescope as ts
        >>> print(ts.hide(ts.tokens(50256)))
        hide token 50256 from every query in every layer
    """
    if not ids:
        raise ValueError("tokens() names no token; give ids, such as ts.tokens(50256)")
    numbers = tuple(whole_number("tokens", number) for number in ids)
    if min(numbers) < 0:
        raise ValueError(f"there is no token {min(numbers)}; ids count from 0")
    return Span(tokens=numbers)


def span(name: str, given: Given) -> Span:
    """Return what a user gave as a span; `name` is the argument's name, for errors.

    Raises:
        TypeError, ValueError: `given` is no position, range, slice, text, span or list of them, is
            empty, or counts from the end, which moves while a model generates.
    """
    if isinstance(given, Span):
        return given
    if isinstance(given, str):
        if not given.strip():
            raise ValueError(
                f"{name}={given!r} holds no text; give a word, or positions such as range(10, 40)"
            )
        return Span(texts=(given,))
    # A slice without an end includes tokens that are generated later.
    if isinstance(given, slice):
        if given.step not in (None, 1):
            raise ValueError(f"{name}={given} leaves tokens out; give the positions as a list")
        start = 0 if given.start is None else given.start
        return Span(ranges=(_checked(name, given, start, given.stop),))
    # A range of another step is read position by position below.
    if isinstance(given, range) and given.step == 1:
        return Span(ranges=(_checked(name, given, given.start, given.stop),))
    if isinstance(given, Iterable):
        parts = [span(name, part) for part in given]
        if not parts:
            raise ValueError(
                f"{name}={given!r} is empty; leave it out for all, or give positions such as "
                "range(10, 40)"
            )
        # Merge the parts; each text and token counts once, in the order given.
        ranges = _joined([one for part in parts for one in part.ranges])
        texts = dict.fromkeys(text for part in parts for text in part.texts)
        ids = dict.fromkeys(token for part in parts for token in part.tokens)
        return Span(ranges, tuple(texts), tuple(ids))
    # What is left can only be a single position.
    try:
        position = whole_number(name, given)
    except TypeError:
        raise TypeError(
            f"{name}={given!r} is {type(given).__name__}; it takes positions (a number, range or "
            "slice), text, "
            "ts.tokens(...), or a list of them"
        ) from None
    return Span(ranges=(_checked(name, given, position, position + 1),))


def _checked(name: str, given: object, start: Any, stop: Any) -> Range:
    start = whole_number(name, start)
    stop = None if stop is None else whole_number(name, stop)
    if start < 0 or (stop is not None and stop < 0):
        raise ValueError(
            f"{name}={given!r} counts from the end, which moves while a model generates; count "
            "from 0, the first token"
        )
    if stop is not None and stop <= start:
        raise ValueError(f"{name}={given!r} is empty; it begins at {start} and ends before {stop}")
    return start, stop


def _joined(ranges: list[Range]) -> tuple[Range, ...]:
    """Return the ranges in order, with neighbours joined."""
    joined: list[Range] = []
    for start, stop in sorted(ranges, key=lambda one: one[0]):
        # Extend a range that this one overlaps or touches; an end of None stays open.
        if joined and (joined[-1][1] is None or start <= joined[-1][1]):
            last, end = joined[-1]
            joined[-1] = (last, None if stop is None or end is None else max(stop, end))
        else:
            joined.append((start, stop))
    return tuple(joined)


# ------------------------------------------------------------------------------ found in the prompt


class DecodedText(NamedTuple):
    """Token ids as text."""

    text: str
    places: list[range]
    """The characters that each token adds to the text."""
    names: list[str]
    """The names of special tokens, and "" for tokens that are text."""


class TextFinder:
    """Find texts in token ids, by the tokenizer's own decoding."""

    def __init__(
        self,
        decode: Callable[[list[int]], str] | None,
        token_name: Callable[[int], str | None] | None = None,
    ) -> None:
        self.decode = decode
        self.token_name = token_name or (lambda token: None)
        self._read = lru_cache(PROMPTS)(self._decode)

    def find(self, text: str, ids: Sequence[int]) -> list[Range]:
        """Return the tokens of every occurrence of a text: whole words, in upper or lower case as
        given if there are such, else in any case; special tokens by their names, such as </s>.
        """
        whole, places, names = self._read(tuple(ids))
        # Special tokens are found by name, since decoding may leave them out.
        found: list[Range] = [(i, i + 1) for i, name in enumerate(names) if name and name == text]
        # First in upper and lower case as given, then in any case.
        for fold in (str, str.lower):
            wanted = fold(text.strip())
            within = fold(whole)
            # A look-ahead takes no characters, so that occurrences may overlap.
            for match in re.finditer(f"(?={re.escape(wanted)})", within):
                start = match.start()
                stop = start + len(wanted)
                # Take every token that shares a character with the match.
                covered = [i for i, at in enumerate(places) if at.start < stop and start < at.stop]
                if covered and _is_whole(within, start, stop):
                    found.append((covered[0], covered[-1] + 1))
            if found:
                break
        return found

    def hint(self, text: str, ids: Sequence[int]) -> str:
        """Return the end of an error for a text that is not in the prompt: the nearest word, or the
        words there are.
        """
        whole, places, names = self._read(tuple(ids))
        words = Words.from_spans(whole, [(place.start, place.stop) for place in places]).names
        # Suggest words of the prompt, then its special tokens.
        known = dict.fromkeys(
            [*(word for word in words if word.strip("␣ ")), *(name for name in names if name)]
        )
        return hint(text, list(known)[:64])

    def _decode(self, ids: tuple[int, ...]) -> DecodedText:
        """Decode a few tokens at a time: each token adds what the text of the window has more than
        before it.
        """
        if self.decode is None:
            raise ValueError(
                "text is found through a tokenizer, and this model has none; pass ts.edit(model, "
                "..., tokenizer=tokenizer), or give positions"
            )
        text = ""
        places = list[range]()
        names = list[str]()
        start = 0  # of the window
        known = ""  # its text so far
        # Decode the window with and without each token; the difference is the token's text.
        for i, token in enumerate(ids):
            # A window begins with one known token, and never inside of a character.
            if i - start >= WINDOW and not known.endswith(INCOMPLETE):
                start = i - 1
                known = self.decode(list(ids[start:i]))
            now = self.decode(list(ids[start : i + 1]))
            # A character may take several tokens: what is incomplete is replaced by the next.
            finished = known.rstrip(INCOMPLETE)
            text = text[: len(text) - (len(known) - len(finished))]
            added = now[len(finished) :]
            places.append(range(len(text), len(text) + len(added)))
            text = text + added
            known = now
            # A token that adds no text may be a special token.
            names.append("" if added.strip() else self.token_name(token) or "")
        return DecodedText(text, places, names)


def _is_whole(text: str, start: int, stop: int) -> bool:
    """Return whether text[start:stop] begins and ends at the border of a word, unless it begins or
    ends with a mark.
    """
    # At the ends of the text these are empty, and count as borders of a word.
    before = text[start - 1 : start]
    after = text[stop : stop + 1]
    begins = not (before.isalnum() and text[start].isalnum())
    return begins and not (after.isalnum() and text[stop - 1].isalnum())


def find_tokens(wanted: Sequence[int], ids: Tensor) -> list[Range]:
    """Return the places of these token ids in a row of ids."""
    return [(place, place + 1) for place, token in enumerate(ids.tolist()) if token in wanted]
