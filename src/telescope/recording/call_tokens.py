"""What the tokens of recorded calls are, as `ts.watch(tokens=...)` says; also in recording.json."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..files import LoadError
from ..token_kinds import Sides, TokenKind, TokenNames, kind_from_json, space_of_sides
from .attention_call import AttentionCall
from .recorded_call import RecordedCall


def with_kinds(
    names: TokenNames | None, name: str, call: AttentionCall
) -> tuple[AttentionCall, Sides | None]:
    """Return the first call of a text with the places of its tokens, and what these are.

    Raise a ValueError if the call has more tokens than are named.
    """
    if names is None:
        return call, None
    sides = names.of_call(name, *call.size, across=call.is_cross_attention, is_whole=False)
    return call._replace(space=space_of_sides(sides)), sides


def check_kinds(names: TokenNames | None, calls: Mapping[str, Sequence[RecordedCall]]) -> None:
    """Raise a ValueError if another number of tokens is named than the model was given; the calls
    then have no names.
    """
    if names is None:
        return
    every = [(name, call) for name, own in calls.items() for call in own]
    for _, call in every:
        call._facts.tokens = None
    found = []
    for name, call in every:
        prompt = call._facts.prompt
        given = call.size[0] if prompt is None else prompt
        # Written tokens have no kind: count those that were given, and the keys before.
        keys = call.size[1] if call.across else call.size[1] - call.size[0] + given
        found.append(names.of_call(name, given, keys, across=call.across, is_whole=True))
    for (_, call), sides in zip(every, found, strict=True):
        call._facts.tokens = sides


# ----------------------------------------------------------------------------------- recording.json


class WrittenKinds:
    """The kinds of tokens of a recording that is written, each once: calls name them by number."""

    def __init__(self) -> None:
        self.kinds: list[TokenKind] = []

    def entry(self, sides: Sides | None) -> dict[str, list[int | None]]:
        """Return the field of a call; nothing where its tokens have no kind."""
        return {} if sides is None else {"kinds": [*map(self._number, sides)]}

    def _number(self, kind: TokenKind | None) -> int | None:
        if kind is None:
            return None
        if kind not in self.kinds:
            self.kinds.append(kind)
        return self.kinds.index(kind)

    def to_json(self) -> dict[str, Any]:
        """Return the field of the recording; nothing where no token has a kind."""
        return {"token_kinds": [kind.to_json() for kind in self.kinds]} if self.kinds else {}


def kinds_from_json(given: Any, where: str) -> list[TokenKind]:
    """Return the kinds of tokens of a recording; raise a LoadError if they are none."""
    if not isinstance(given, list):
        raise LoadError(f'{where}: "token_kinds" is not a list of kinds of tokens')
    try:
        return [kind_from_json(one) for one in given]
    except ValueError as problem:
        raise LoadError(f'{where}: "token_kinds": {problem}') from None


def sides_from_json(
    entry: Any, kinds: Sequence[TokenKind], size: tuple[int, int], where: str
) -> Sides | None:
    """Return the kinds of the tokens of a call of this size; None where it has none."""
    numbers = entry.get("kinds")
    if numbers is None:
        return None
    known = range(len(kinds))
    if (
        not isinstance(numbers, list)
        or len(numbers) != 2
        or not all(one is None or (type(one) is int and one in known) for one in numbers)
    ):
        raise LoadError(f'{where}: "kinds" is not two of its kinds: {str(numbers)[:80]}')
    queries, keys = (None if one is None else kinds[one] for one in numbers)
    # Of one text, both sides are the tokens of the keys.
    counts = (size[1] if queries == keys else size[0], size[1])
    for kind, count in zip((queries, keys), counts, strict=True):
        if kind is not None and len(kind) > count:
            raise LoadError(f"{where}: {str(kind)[:80]} has {len(kind)} tokens, and it has {count}")
    return Sides(queries, keys)
