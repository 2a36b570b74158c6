"""Which attentions, passes and heads an edit changes."""

from collections.abc import Sequence
from dataclasses import replace

from ..interception import FoundAttentions
from ..recording import head_numbers
from .edits import Edit, LayerEdit, split_pass


def select_passes(edit: Edit, found: FoundAttentions) -> list[str]:
    """Return the names that an edit selects: of attentions, all of whose passes it edits, and of
    single passes.
    """
    names = list(found.attentions)
    passes: list[str] = []
    for one in dict.fromkeys(edit.layers or ()):
        attention = split_pass(one, names)[0] if isinstance(one, str) and one not in names else ""
        if attention in names and found.names_passes(attention):
            passes.append(str(one))
    selected = edit._select(names, passes, found.unwatched)
    # A pass through an attention all of whose passes are selected would be edited twice.
    return [one for one in selected if one in names or split_pass(one, names)[0] not in selected]


def local_edit(name: str, one: LayerEdit, whole: int, first: int, count: int) -> LayerEdit | None:
    """Return an edit for the process that has `count` of the `whole` heads, from `first` on; None
    if it edits none.
    """
    named = one.edit._select_heads(name, whole)
    if named is None:
        return replace(one, first_head=first)
    own = tuple(number - first for number in named if first <= number < first + count)
    return replace(one, edit=replace(one.edit, heads=own), first_head=first) if own else None


def check_heads(name: str, edit: Edit, count: int) -> None:
    if edit.heads is not None:
        head_numbers(name, edit.heads, count)


def check_edits(name: str, edits: Sequence[LayerEdit], count: int | None) -> None:
    """Raise a ValueError where an edit names a head that does not exist, or contradicts another
    one.
    """
    for one in edits if count is not None else ():
        assert count is not None
        check_heads(name, one.edit, count)
    for one in edits:
        for other in edits:
            # Edits of other sequences never meet.
            if None not in (one.sequences, other.sequences) and one.sequences != other.sequences:
                continue
            why = one.edit._contradicts(other.edit) if one is not other else ""
            if why and share_a_head(one.edit.heads, other.edit.heads, count):
                raise ValueError(
                    f'"{one.edit}" and "{other.edit}" contradict each other in "{name}": {why}; '
                    "leave one of them out, or give them different heads"
                )


def share_a_head(
    one: tuple[int, ...] | None, other: tuple[int, ...] | None, count: int | None
) -> bool:
    """Return whether two edits of these heads change some head both."""
    if one is None or other is None:
        return True
    # -1 is the last head; without a count, negative numbers equal none of the others.
    modulo = count or 1 << 30
    return not {number % modulo for number in one}.isdisjoint(number % modulo for number in other)
