"""`CallEdits`: the edits of the calls of one attention, sorted by what they change."""

from collections.abc import Sequence
from typing import NamedTuple

from .edits import LayerEdit, Needs, Part


class SequencesHiddenError(Exception):
    """The sequences of the model's inputs are not the rows of an attention's batch, as where it
    attends within the windows of an image.
    """


class CallEdits(NamedTuple):
    """The edits of the calls of one attention."""

    every: Sequence[LayerEdit]
    """As they were listed."""
    needs: Needs
    definition: list[LayerEdit]
    """Those that change the definition, in the order they apply; so for the other parts."""
    tensors: list[LayerEdit]
    context: list[LayerEdit]

    @classmethod
    def of(cls, edits: Sequence[LayerEdit]) -> "CallEdits":
        """Sort the edits of an attention."""
        # The sort is stable: edits of one rank stay as they were listed.
        ordered = sorted(edits, key=lambda one: one.edit._rank)
        # The order of `Part` is that of the last three fields.
        parts = [[one for one in ordered if one.edit._changes is part] for part in Part]
        return cls(edits, needs_of(edits), *parts)

    @property
    def needs_context_only(self) -> bool:
        """Whether the call may run as the model made it, without being described."""
        return not self.definition and not self.tensors and Needs.PLACE not in self.needs


def needs_of(edits: Sequence[LayerEdit]) -> Needs:
    """Return what some of these edits need to know."""
    needs = Needs.NOTHING
    for one in edits:
        needs |= one.edit._needs
    return needs
