"""`Grid`, `Frames` and `Segments`: what the tokens of a sequence are, and what each is called."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, isfinite, isqrt, log10
from typing import Any, SupportsIndex, cast

from ..words import check_index, hint, whole_number

MOST_TOKENS = 2**26  # tokens of one kind: more are a mistake, or a hostile file

TokenPlace = SupportsIndex | str | tuple[Any, ...]
"""A token: its position, its name, (row, column) of a grid, or (name of the grid, row, column)."""


class TokenKind(ABC):
    """What the tokens of one sequence are. `len` is their number, `names` what each is called."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The name of each token."""

    @abstractmethod
    def _parts(self, first: int = 0) -> "Iterator[tuple[int, TokenKind]]":
        """Yield each grid, stretch of frames and stretch of labels with the position of its first
        token; `first` is the position of this kind's.
        """

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return what `kind_from_json` reads."""

    def find(self, token: TokenPlace, what: str = "query") -> int:
        """Return the position of a token; see `TokenPlace`. Of equal names the first is meant.

        Args:
            token: a position, a name, or the place of a patch, (row, column) or (grid, row,
                column).
            what: what the error calls it, "query" or "key".

        Raises:
            ValueError: that names the range, or a similar name, if there is no such token.
        """
        if not isinstance(token, str | tuple):
            return check_index(what, token, len(self))
        name = token_name(token)
        if name in self._place_of:
            return self._place_of[name]
        # A place outside of a grid has no similar name.
        grids = [part._places for _, part in self._parts() if isinstance(part, Grid)]
        known = hint(name, self._examples())
        if isinstance(token, tuple):
            spans = [f"{places[0]} to {places[-1]}" for places in grids]
            known = f"patches are {', '.join(spans)}" if spans else "there are no patches"
        raise ValueError(f'no {what} is "{name}"; {known}')

    @cached_property
    def _place_of(self) -> dict[str, int]:
        # Reversed, so that of equal names the first remains.
        return {name: at for at, name in reversed([*enumerate(self.names)])}

    def _examples(self) -> list[str]:
        """Return names to suggest: the first and the last of many."""
        names = [*self._place_of]
        return names if len(names) <= 40 else [names[-1], "…", names[0]]


def token_name(token: str | tuple[Any, ...]) -> str:
    """Return the name of a token that is given as a name, as (row, column), or as (name of the
    grid, row, column).
    """
    if isinstance(token, str):
        return token
    *grid, row, column = token if len(token) in (2, 3) else ("", *token)[-3:]
    return " ".join([*map(str, grid), f"({row}, {column})"])


@dataclass(frozen=True)
class Labels(TokenKind):
    """Tokens with a name each, such as words."""

    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def names(self) -> tuple[str, ...]:
        return self.labels

    def _parts(self, first: int = 0) -> Iterator[tuple[int, TokenKind]]:
        yield first, self

    def to_json(self) -> dict[str, Any]:
        return {"kind": "labels", "labels": list(self.labels)}

    def __str__(self) -> str:
        return f"a list of {len(self)} labels"


class _Named(TokenKind):
    """Tokens that lie somewhere, with tokens before and after them that have names of their own."""

    before: Sequence[str]
    after: Sequence[str]
    name: str

    @property
    @abstractmethod
    def _places(self) -> tuple[str, ...]:
        """The names of the tokens that lie somewhere."""

    @property
    @abstractmethod
    def count(self) -> int:
        """The number of tokens that lie somewhere."""

    def __len__(self) -> int:
        return len(self.before) + self.count + len(self.after)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The name of each token."""
        shown = f"{self.name} " if self.name else ""
        return (*self.before, *(f"{shown}{place}" for place in self._places), *self.after)

    @property
    def first(self) -> int:
        """The position of the first token that lies somewhere."""
        return len(self.before)

    def _parts(self, first: int = 0) -> Iterator[tuple[int, TokenKind]]:
        yield first, self

    def _check(self, count: int, what: str) -> None:
        """Raise an error unless the labels are labels, and the tokens not too many."""
        for side in ("before", "after"):
            object.__setattr__(self, side, _labels(f"{what}({side}=...)", getattr(self, side)))
        if not isinstance(self.name, str):
            raise TypeError(
                f'{what}(name={self.name!r}) is no text; it takes one, such as "image 1"'
            )
        if count > MOST_TOKENS:
            raise ValueError(f"{what} has {count:,} tokens; at most {MOST_TOKENS:,} can be named")

    def _beside(self) -> str:
        """Return the arguments besides the size, as they were written."""
        given = {side: list(getattr(self, side)) for side in ("before", "after")}
        given["name"] = self.name  # type: ignore[assignment]
        return "".join(f", {name}={value!r}" for name, value in given.items() if value)


@dataclass(frozen=True)
class Grid(_Named):
    """The patches of an image, row by row, with class and register tokens before or after them.

    A patch is called by its row and column, counted from 0 at the upper left: "(3, 5)", or
    "image 1 (3, 5)" where the grid has a name.

    Args:
        rows, columns: how many patches lie below and beside each other.
        before, after: the names of tokens before and after the patches, such as "[CLS]".
        name: of the image, where there are several.

    Example:
        >>> import telescope as ts
        >>> tokens = ts.Grid(2, 3, before=["[CLS]"])
        >>> len(tokens)
        7
        >>> tokens.names[:3]
        ('[CLS]', '(0, 0)', '(0, 1)')
        >>> tokens.find((1, 2))
        6
        >>> tokens.count, tokens.first
        (6, 1)
        >>> tokens.to_json()["kind"], tokens.that_fits(10)
        ('grid', "Grid(3, 3, before=['[CLS]'])")
    """

    rows: int
    columns: int
    before: Sequence[str] = ()
    after: Sequence[str] = ()
    name: str = ""

    def __post_init__(self) -> None:
        for side in ("rows", "columns"):
            number = whole_number(side, getattr(self, side))
            if number < 1:
                raise ValueError(f"Grid({side}={number}) has no patches; it takes 1 or more")
            object.__setattr__(self, side, number)
        self._check(self.count, "Grid")

    @property
    def count(self) -> int:
        """How many patches there are."""
        return self.rows * self.columns

    @cached_property
    def _places(self) -> tuple[str, ...]:
        return tuple(f"({i // self.columns}, {i % self.columns})" for i in range(self.count))

    def to_json(self) -> dict[str, Any]:
        size = {"rows": self.rows, "columns": self.columns}
        return {"kind": "grid", **size, **_beside_to_json(self)}

    def that_fits(self, count: int) -> str:
        """Return a square grid with so many tokens, these before and after it; "" if there is
        none.

        Args:
            count: how many tokens there are.
        """
        side = isqrt(max(0, count - len(self.before) - len(self.after)))
        if side < 1 or side * side + len(self.before) + len(self.after) != count:
            return ""
        return f"Grid({side}, {side}{self._beside()})"

    def __str__(self) -> str:
        return f"Grid({self.rows}, {self.columns}{self._beside()})"


@dataclass(frozen=True)
class Frames(_Named):
    """Frames of sound or video, `count` of them in so many seconds, each named by its start.

    Args:
        frames: how many.
        seconds: how long they last together.
        before, after: the names of tokens before and after the frames.
        name: of the sound, where there are several.

    Example:
        >>> import telescope as ts
        >>> ts.Frames(1500, seconds=30.0).names[:3]
        ('0.00 s', '0.02 s', '0.04 s')
        >>> sound = ts.Frames(1500, seconds=30.0)
        >>> (
        ...     sound.count,
        ...     sound.step,
        ...     sound.first,
        ...     sound.find("0.04 s"),
        ...     sound.to_json()["kind"],
        ... )
        (1500, 0.02, 0, 2, 'frames')
    """

    frames: int
    seconds: float
    before: Sequence[str] = ()
    after: Sequence[str] = ()
    name: str = ""

    def __post_init__(self) -> None:
        number = whole_number("frames", self.frames)
        if number < 1:
            raise ValueError(f"Frames({number}) has no frames; it takes 1 or more")
        object.__setattr__(self, "frames", number)
        is_number = isinstance(self.seconds, int | float) and not isinstance(self.seconds, bool)
        if not is_number or not isfinite(self.seconds) or self.seconds <= 0:
            raise ValueError(
                f"seconds={self.seconds!r} is how long the frames last together; it takes a number "
                "above 0"
            )
        self._check(number, "Frames")

    @property
    def count(self) -> int:
        """How many frames there are."""
        return self.frames

    @property
    def step(self) -> float:
        """The seconds from one frame to the next."""
        return self.seconds / self.frames

    @cached_property
    def _places(self) -> tuple[str, ...]:
        # As many digits as tell neighbouring frames apart.
        digits = max(0, ceil(-log10(self.step)))
        return tuple(f"{frame * self.step:.{digits}f} s" for frame in range(self.frames))

    def to_json(self) -> dict[str, Any]:
        size = {"frames": self.frames, "seconds": self.seconds}
        return {"kind": "frames", **size, **_beside_to_json(self)}

    def __str__(self) -> str:
        return f"Frames({self.frames}, seconds={self.seconds:g}{self._beside()})"


class Segments(TokenKind):
    """Several kinds of tokens one after the other in one sequence: text, image 1, text, image 2.

    Each part is a list of names, a `Grid`, `Frames`, or other `Segments`. Where there are several
    grids or several stretches of frames, each needs a name of its own.

    Args:
        parts: each a list of names, a `Grid`, `Frames` or `Segments`.

    Example:
        >>> import telescope as ts
        >>> tokens = ts.Segments(
        ...     ["<s>", "What", "is"], ts.Grid(2, 2, name="image 1"), ["?"]
        ... )
        >>> tokens.names[2:5]
        ('is', 'image 1 (0, 0)', 'image 1 (0, 1)')
        >>> tokens.spans  # as recording.heads(segments=...) takes them
        {'text': [0, 1, 2, 7], 'image 1': [3, 4, 5, 6]}
        >>> tokens.find(("image 1", 0, 1)), tokens.to_json()["kind"]
        (4, 'segments')
    """

    def __init__(self, *parts: "TokenKind | Sequence[str]") -> None:
        if not parts:
            raise ValueError("Segments() holds no tokens; give its parts, one after the other")
        read = [read_part(part) for part in parts]
        # Segments inside of others are these parts in their order.
        self.segments: tuple[TokenKind, ...] = tuple(
            inner for part in read for _, inner in part._parts()
        )
        named = [part.name for part in self.segments if isinstance(part, _Named)]
        for name in named:
            if named.count(name) > 1:
                raise ValueError(
                    f'{named.count(name)} parts of Segments have the name "{name}"; give each its '
                    'own, such as name="image 1"'
                )

    def __len__(self) -> int:
        return sum(map(len, self.segments))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The name of each token."""
        return tuple(name for part in self.segments for name in part.names)

    def _parts(self, first: int = 0) -> Iterator[tuple[int, TokenKind]]:
        for part in self.segments:
            yield first, part
            first += len(part)

    @property
    def spans(self) -> dict[str, list[int]]:
        """The positions of each part's tokens by its name; "text" are all labels."""
        found: dict[str, list[int]] = {}
        for first, part in self._parts():
            positions = range(first, first + len(part))
            name = (part.name or str(part)) if isinstance(part, _Named) else "text"
            found[name] = [*found.get(name, []), *positions]
        return found

    def to_json(self) -> dict[str, Any]:
        return {"kind": "segments", "parts": [part.to_json() for part in self.segments]}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Segments) and self.segments == other.segments

    def __hash__(self) -> int:
        return hash(self.segments)

    def __str__(self) -> str:
        return f"Segments({', '.join(map(str, self.segments))})"

    def __repr__(self) -> str:
        return f"Segments({', '.join(map(repr, self.segments))})"


def read_part(part: Any) -> TokenKind:
    """Return a kind as it is, and a list of names as `Labels`."""
    return part if isinstance(part, TokenKind) else Labels(_labels("tokens", part))


def _labels(argument: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, str):
        raise TypeError(
            f'{argument} is one string, "{given}"; it takes a list with a string for each position'
        )
    if not isinstance(given, Iterable):
        raise TypeError(
            f"{argument} takes a list of names, a Grid, Frames or Segments, not "
            f"{type(given).__name__}"
        )
    return tuple(map(str, given))


def _beside_to_json(kind: _Named) -> dict[str, Any]:
    return {"before": list(kind.before), "after": list(kind.after), "name": kind.name}


def kind_from_json(given: Any) -> TokenKind:
    """Return the kind that `to_json` wrote; raise a ValueError for anything else."""
    match given:
        case {"kind": "labels", "labels": [*labels], **rest} if not rest and _are_texts(labels):
            return Labels(tuple(labels))
        case {"kind": "segments", "parts": [*parts], **rest} if not rest and parts:
            # Parts are no segments themselves, so that a file cannot nest without end.
            if not any(isinstance(part, dict) and part.get("kind") == "segments" for part in parts):
                return Segments(*map(kind_from_json, parts))
        case {"kind": "grid" | "frames" as kind, **fields}:
            make: Any = Grid if kind == "grid" else Frames
            texts = (fields.get("before"), fields.get("after"))
            if all(isinstance(side, list) and _are_texts(side) for side in texts):
                try:
                    return cast(
                        TokenKind, make(**{str(name): value for name, value in fields.items()})
                    )
                except TypeError as problem:
                    raise ValueError(str(problem)) from None
    raise ValueError(f"{str(given)[:80]} is no kind of tokens")


def _are_texts(given: list[Any]) -> bool:
    return all(isinstance(text, str) for text in given)
