"""`tokens=`: what the queries and the keys of an attention are, of one call or of a whole model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from ..words import hint
from .kinds import Frames, Grid, Labels, TokenKind, read_part

Tokens = TokenKind | Sequence[str] | tuple[TokenKind | Sequence[str], TokenKind | Sequence[str]]
"""The names or the kind of all positions, or those of the queries and those of the keys."""

MOST_BESIDE = 16  # class and register tokens of a model; today's have at most 5


class Sides(NamedTuple):
    """The kinds of the tokens of one call; None where a side is not named.

    Where queries and keys are one text, both are the same kind, and the queries are its last
    tokens.
    """

    queries: TokenKind | None
    keys: TokenKind | None


def split_tokens(tokens: Any) -> tuple[Sides, bool]:
    """Return the kinds that `tokens=` gives, and whether it gives the two sides apart.

    Raise a TypeError unless it is a list of names, a kind, or a pair of these.
    """
    # Two lists name two sequences; two strings are two tokens.
    is_pair = (
        isinstance(tokens, Sequence)
        and len(tokens) == 2
        and not any(isinstance(part, str) for part in tokens)
    )
    if is_pair:
        queries, keys = (None if part is None else read_part(part) for part in tokens)
        return Sides(queries, keys), True
    one = read_part(tokens)
    return Sides(one, one), False


def names_of_sides(
    tokens: Any, queries: int, keys: int
) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """Return the names of the queries and of the keys; of one kind the queries are the last tokens.

    Raise a ValueError if the tokens are of another number.
    """
    sides, is_pair = split_tokens(tokens)
    counts = [None if side is None else len(side) for side in sides]
    # One list names the keys, and the queries are its last positions.
    if not is_pair and counts[1] is not None:
        counts[0] = min(counts[1], queries)
    if any(have not in (None, want) for have, want in zip(counts, (queries, keys), strict=True)):
        _refuse(sides, counts, queries, keys)
    names = [None if side is None else side.names for side in sides]
    if not is_pair and names[1] is not None:
        names[0] = names[1][keys - queries :]
    return names[0], names[1]


def known_names(
    sides: Sides | None, side: str, size: tuple[int, int], *, across: bool
) -> tuple[str, ...] | None:
    """Return the names of the first queries or keys of a call, as many as are named; None where
    that side is not.
    """
    kind = None if sides is None else sides[side == "key"]
    if kind is None:
        return None
    # The queries of one text are the last of its tokens.
    first = size[0] - size[1] if side == "query" and not across else 0
    return kind.names[-first:]


def _refuse(sides: Sides, counts: Sequence[int | None], queries: int, keys: int) -> None:
    """Raise the error for tokens of another number."""
    for side, have, want, what in zip(
        sides, counts, (queries, keys), ("queries", "keys"), strict=True
    ):
        if side is not None and not isinstance(side, Labels) and have != want:
            check_count(side, want, f"there are {want} {what}")
    raise ValueError(
        f"tokens name {counts[0]} queries and {counts[1]} keys; there are {queries} queries and "
        f"{keys} keys; two sequences are named by tokens=(query tokens, key tokens)"
    )


def check_count(kind: TokenKind, count: int, where: str) -> None:
    """Raise a ValueError unless a kind has so many tokens; `where` says what has them."""
    if len(kind) == count:
        return
    # Say what the number is made of, and which grid would fit.
    beside = ""
    fits = ""
    if isinstance(kind, Grid | Frames):
        more = len(kind) - kind.count
        parts = f"{kind.count} frames" if more else ""
        if isinstance(kind, Grid):
            parts = f"{kind.rows} x {kind.columns} patches"
        beside = f"{parts and ', '}{parts}{f' and {more} beside them' if more else ''}"
    if isinstance(kind, Grid):
        fits = f"; {kind.that_fits(count)} has {count}" if kind.that_fits(count) else ""
        # A few more are class and register tokens, as a rule.
        if not fits and 0 < count - len(kind) <= MOST_BESIDE:
            fits = "; before=[...] and after=[...] name class and register tokens"
    tokens = "1 token" if len(kind) == 1 else f"{len(kind)} tokens"
    raise ValueError(f"tokens={kind} has {tokens}{beside}, and {where}{fits}")


@dataclass(frozen=True)
class TokenNames:
    """`ts.watch(tokens=...)`: the kinds of the tokens of a model's attentions.

    `by_pattern` has the kinds by patterns of names, such as "vision.*", of which the first that
    matches counts; "*" alone where one value was given for all attentions. The flag tells whether
    the two sides were given apart.
    """

    by_pattern: Mapping[str, tuple[Sides, bool]]

    @classmethod
    def of(cls, tokens: Any) -> "TokenNames | None":
        """Return what `ts.watch(tokens=...)` describes; None for None."""
        if tokens is None:
            return None
        given = tokens if isinstance(tokens, Mapping) else {"*": tokens}
        for pattern in given:
            if not isinstance(pattern, str):
                raise TypeError(
                    f'tokens has the key {pattern!r}; its keys are patterns, such as "vision.*"'
                )
        return cls({pattern: split_tokens(value) for pattern, value in given.items()})

    def check_patterns(self, names: Sequence[str]) -> None:
        """Raise a ValueError for a pattern that no attention has."""
        for pattern in self.by_pattern:
            if not any(_matches(name, pattern) for name in names):
                raise ValueError(
                    f'tokens has the key "{pattern}", which is no attention that is watched; '
                    f"{hint(pattern, names)}"
                )

    def of_call(
        self, name: str, queries: int, keys: int, *, across: bool, is_whole: bool
    ) -> Sides | None:
        """Return the kinds of a call over so many tokens that were given to the model; None where
        it is not named.

        Raise a ValueError that names the attention if the kinds are of another number. More tokens
        may follow unless the call `is_whole`.
        """
        found = next(
            (value for pattern, value in self.by_pattern.items() if _matches(name, pattern)), None
        )
        if found is None:
            return None
        sides, is_pair = found
        if not across:
            kind = _of_one_text(sides, name, keys, is_whole=is_whole) if is_pair else sides.keys
            sides = Sides(kind, kind)
        elif not is_pair:
            raise ValueError(
                f'tokens={sides.keys} names one sequence, and "{name}" attends from one to '
                "another; give tokens=(query tokens, key tokens), or a dict from names of "
                "attentions to these"
            )
        for kind, count, what in zip(sides, (queries, keys), ("queries", "keys"), strict=True):
            # The queries of one text may be its last tokens alone.
            of_keys = across or what == "keys"
            if kind is not None and of_keys and (is_whole or len(kind) < count):
                check_count(kind, count, f'"{name}" has {count} {what}')
        return sides


def _of_one_text(sides: Sides, name: str, keys: int, *, is_whole: bool) -> TokenKind | None:
    """Return which of two kinds are the tokens of a self-attention: the one of its length."""
    given = [kind for kind in dict.fromkeys(sides) if kind is not None]
    fitting = [kind for kind in given if len(kind) == keys]
    if len(fitting) > 1:
        raise ValueError(
            f'tokens=({sides.queries}, {sides.keys}) both have the {keys} tokens of "{name}"; say '
            f'which are its own: tokens={{"{name}": ...}}'
        )
    if fitting:
        return fitting[0]
    # A side that is not named may be of any length, and a text may go on.
    if len(given) == 2 and (is_whole or max(map(len, given)) < keys):
        raise ValueError(
            f"tokens=({sides.queries}, {sides.keys}) have {len(given[0])} and {len(given[1])} "
            f'tokens, and "{name}" reads one text of {keys}'
        )
    return None


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")
