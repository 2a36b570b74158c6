"""Print a recording as a table of its attentions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..traces import PlainTable
from .names import list_names
from .watched import Watched


def table_of(
    title: str,
    watched: Mapping[str, Watched],
    edits: Iterable[Any],
    left_out: Mapping[str, str],
    other_layers: Sequence[str],
) -> PlainTable:
    """Return the table of a recording; `left_out` has the reason for each name."""
    table = PlainTable(title=title, box=None, pad_edge=False, title_justify="left")
    for column in ("name", "heads", "queries x keys", "definition", "calls"):
        right = column in ("heads", "calls")
        # Only definitions may be folded: a number that is cut is another number.
        table.add_column(
            column,
            justify="right" if right else "left",
            no_wrap=column != "definition",
            overflow="fold",
        )
    for one in watched.values():
        table.add_row(*one._cells())
    for edit in edits:
        table.add_row("edited", "", "", str(edit), "")
    for name, reason in left_out.items():
        # A watched attention without a call has the reason in its own row, above.
        if name not in watched:
            table.add_row(name, "", "", f"not watched: {reason}", "")
        elif watched[name].calls:
            table.add_row(name, "", "", f"not watched in every run: {reason}", "")
    if other_layers:
        names = list_names(other_layers)
        table.add_row(names, "", "", "without softmax attention, and not recorded", "")
    return table
