"""Named segments of a text: which tokens belong to which document, speaker, sentence or image
patch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import pad

from ..words import whole_number

OTHER = "other"


@dataclass(frozen=True, eq=False)
class Segments:
    """A segment for each token of a text, numbered from 0 on in the order of `names`.

    Tokens that no given segment holds belong to a last one, "other".
    """

    names: tuple[str, ...]
    ids: Int[Tensor, " token"]

    def tokens(self) -> list[list[int]]:
        """Return the positions of the tokens of every segment."""
        found: list[list[int]] = [[] for _ in self.names]
        for token, number in enumerate(self.ids.tolist()):
            found[number].append(token)
        return found

    def with_rest(self, name: str, count: int) -> "Segments":
        """Return these segments and one more, of the tokens behind the text up to `count`."""
        # The new segment's number is the next one.
        return Segments(
            (*self.names, name), pad(self.ids, (0, count - len(self.ids)), value=len(self.names))
        )


def read_segments(given: Any, count: int, texts: Sequence[str] | None = None) -> Segments:
    """Return the segments of a text of `count` tokens.

    given   a mapping from names to spans; a list of spans; a number for each token, as in
            `survey(segments=...)`; None for a segment for each token, named by `texts`. A span is a
            range, a slice, a position, a pair (start, stop) or a list of positions.

    Raise a ValueError if segments overlap, are empty, or do not fit the text.
    """
    # Without segments, each token is one.
    if given is None:
        names = [f"{i}" for i in range(count)] if texts is None else list(texts)
        return Segments(tuple(names), torch.arange(count))
    if isinstance(given, Tensor):
        given = given.tolist()

    # Read names with spans, a number for each token, or spans without names.
    if isinstance(given, Mapping):
        spans = {str(name): _positions(name, span, count) for name, span in given.items()}
    elif given and all(issubclass(kind, SupportsIndex) for kind in {*map(type, given)}):
        return _from_numbers([whole_number("segments", one) for one in given], count)
    elif isinstance(given, Iterable) and not isinstance(given, str):
        spans = {str(i): _positions(i, span, count) for i, span in enumerate(given)}
    else:
        raise TypeError(
            "segments takes names and spans, or a number for each token, not "
            f"{type(given).__name__}"
        )

    # Number each token by its segment; -1 is a token in no segment yet.
    ids = torch.full((count,), -1)
    for number, (name, positions) in enumerate(spans.items()):
        where = torch.tensor(positions)
        # Weight of a token in two segments would count twice.
        taken = ids[where] >= 0
        if taken.any():
            first = int(where[taken][0])
            other = list(spans)[int(ids[first])]
            raise ValueError(
                f'segments "{other}" and "{name}" overlap at token {first}; a token belongs to one '
                "alone"
            )
        ids[where] = number
    return _with_other(list(spans), ids)


def _from_numbers(numbers: list[int], count: int) -> Segments:
    if len(numbers) != count:
        raise ValueError(
            f"segments has {len(numbers)} numbers for a text of {count} tokens; it takes one for "
            "each"
        )
    if min(numbers) < 0:
        raise ValueError(f"segments has the number {min(numbers)}; segments are numbered from 0 on")
    return Segments(tuple(str(i) for i in range(max(numbers) + 1)), torch.tensor(numbers))


def _with_other(names: list[str], ids: Tensor) -> Segments:
    # Add a segment for the rest, unless every token has one.
    if not (ids < 0).any():
        return Segments(tuple(names), ids)
    other = OTHER
    # A user may have given this name to a segment.
    while other in names:
        other = f"{other} tokens"
    return Segments((*names, other), torch.where(ids < 0, len(names), ids))


def _positions(name: Any, span: Any, count: int) -> list[int]:
    """Return the positions of a span; raise a ValueError if it is empty or not in the text."""
    positions = span_positions(f'segment "{name}"', span, count)
    if not positions:
        raise ValueError(f'segment "{name}" holds no token')
    for position in positions:
        if not 0 <= position < count:
            raise ValueError(
                f'segment "{name}" has token {position}; the text has {count}, numbered 0 to '
                f"{count - 1}"
            )
    return positions


def span_positions(what: str, span: Any, count: int) -> list[int]:
    """Return the positions of a span in a text of `count` tokens, as they are given; a slice is cut
    to the text.
    """
    if isinstance(span, slice):
        return list(range(*span.indices(count)))
    if isinstance(span, range):
        return list(span)
    if isinstance(span, SupportsIndex):
        return [whole_number(what, span)]
    # A tuple of two is start and stop; two single positions are given as a list.
    if isinstance(span, tuple) and len(span) == 2:
        return list(range(whole_number(what, span[0]), whole_number(what, span[1])))
    if isinstance(span, Iterable) and not isinstance(span, str):
        return [whole_number(what, one) for one in span]
    raise TypeError(
        f"{what} is a range, a slice, a pair (start, stop) or positions, not {type(span).__name__}"
    )
