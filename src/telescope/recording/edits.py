"""Edits that were read with a saved recording: what they say, and what `ts.edit` makes an edit of
again.
"""

from dataclasses import dataclass, field
from typing import Any

from ..files import LoadError


@dataclass(frozen=True)
class SavedEdit:
    """An edit as a recording's file holds it. `ts.edit` takes it like any other edit."""

    sentence: str
    contents: dict[str, Any] = field(hash=False)

    def to_json(self) -> dict[str, Any]:
        """Return the edit as JSON."""
        return self.contents

    def __str__(self) -> str:
        return self.sentence


def edits_to_json(edits: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Return the edits of a recording as JSON."""
    return [{"sentence": str(edit), "edit": edit.to_json()} for edit in edits]


def edits_from_json(parsed: Any, where: str) -> tuple[SavedEdit, ...]:
    """Return the edits of a saved recording; raise a LoadError that begins with `where` for
    anything else.
    """
    edits = []
    # Anything but a list is checked as one entry.
    for entry in parsed if isinstance(parsed, list) else [parsed]:
        match entry:
            case {"sentence": str(sentence), "edit": dict(contents)}:
                edits.append(SavedEdit(sentence, contents))
            case _:
                raise LoadError(f'{where}: "edits" holds {str(entry)[:80]}, which is no edit')
    return tuple(edits)
