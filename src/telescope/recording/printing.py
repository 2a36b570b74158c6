"""Print a recording as a table of its attentions."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.table import Table

from ..words import format_bytes
from .names import list_names

if TYPE_CHECKING:
    from .recording import Recording


def table_of(recording: "Recording", left_out: Mapping[str, str]) -> Table:
    """Return the table of a recording; `left_out` has the reasons by name."""
    title = f'{recording.model}, keep="{recording.keep}": {format_bytes(recording.nbytes)}'
    table = Table(title=title, box=None, pad_edge=False, title_justify="left")
    for column in ("name", "heads", "queries x keys", "definition", "calls"):
        right = column in ("heads", "calls")
        table.add_column(
            column, justify="right" if right else "left", no_wrap=True, overflow="ellipsis"
        )
    watched = dict(recording)
    for one in watched.values():
        table.add_row(*one.cells())
    for edit in recording.edits:
        table.add_row("edited", "", "", str(edit), "")
    for name, reason in left_out.items():
        # A watched attention without a call has the reason in its own row, above.
        if name not in watched:
            table.add_row(name, "", "", f"not watched: {reason}", "")
        elif watched[name].calls:
            table.add_row(name, "", "", f"not watched in every run: {reason}", "")
    if recording.other_layers:
        names = list_names(recording.other_layers)
        table.add_row(names, "", "", "without softmax attention, and not recorded", "")
    return table
