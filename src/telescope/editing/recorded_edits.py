"""`RecordedEdit`: the base of edits that take a part of an attention from a recording."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..recording import RecordedCall, Recording, SavedEdit, select_layers
from ..words import hint
from .edits import Edit, EditedCall, Part, from_json, split_pass


@dataclass(frozen=True)
class RecordedEdit(Edit):
    """The base of edits that take a part of an attention from a recording."""

    _kept_by_name = "recording"
    recording: Recording | str = ""
    """The recording; the name of its model where the edit was read from a file."""

    @property
    def _edits_every_layer(self) -> bool:
        return False  # those that were recorded

    @property
    def _verb(self) -> str:
        """The function that makes the edit, for errors."""
        return self._made_by or self.kind

    @property
    def _model_name(self) -> str:
        """The name of the recorded model."""
        return self.recording.model if isinstance(self.recording, Recording) else self.recording

    @property
    def _its_recording(self) -> Recording:
        """The recording; `ts.edit` refuses an edit that holds only its name."""
        assert isinstance(self.recording, Recording)
        return self.recording

    @property
    def _recorded_names(self) -> list[str]:
        """The attentions that were recorded: one that was watched and never called has nothing."""
        return [name for name, watched in self._its_recording.items() if watched.calls]

    def _select(
        self, names: Sequence[str], passes: Sequence[str], unwatched: Sequence[str]
    ) -> list[str]:
        recorded = self._recorded_names
        # Without layers=, every attention that was recorded, whose model may have others.
        if self.layers is None:
            known = [name for name in recorded if split_pass(name, names).attention in names]
            if len(known) < len(recorded):
                missing = next(name for name in recorded if name not in known)
                raise ValueError(
                    f'{self._verb}: this model has no attention "{missing}", which was recorded; '
                    f"{hint(missing, names)}"
                )
            return known
        # With layers=, those of this model, each of which has to be recorded.
        selected = select_layers([*names, *passes], self.layers, unwatched)
        for name in selected:
            if self._name_in_recording(name, names) not in recorded:
                raise ValueError(
                    f'{self._verb}: the recording of {self._model_name} has no call of "{name}"; '
                    f"recorded are {', '.join(recorded)}"
                )
        return selected

    def _select_heads(self, name: str, count: int) -> Sequence[int] | None:
        if self.heads is not None:
            return super()._select_heads(name, count)
        # The part of a divided model has recorded its own heads, numbered from 0.
        if self._its_recording._is_part:
            return range(count)
        return self._its_recording[name].calls[0].heads

    def _places(self, at: EditedCall, recorded: RecordedCall, count: int) -> tuple[list[int], ...]:
        """Return the edited heads of a call with `count` heads, and their indices among the
        recorded ones.

        Raise a ValueError if a head was not recorded.
        """
        selected = self._select_heads(at.name, count)
        heads = list(range(count) if selected is None else selected)
        # A part of a divided model has recorded its heads by the numbers they have there.
        before = 0 if self._its_recording._is_part else at.own.first_head
        for head in heads:
            if before + head not in recorded.heads:
                kept = ", ".join(map(str, recorded.heads))
                raise ValueError(
                    f'{self._verb}: head {before + head} of "{at.name}" was not recorded; recorded '
                    f"are {kept}"
                )
        return heads, [recorded.heads.index(before + head) for head in heads]

    def _require_own_contexts(self, names: Sequence[str]) -> None:
        """Raise a ValueError if contexts of these attentions were changed while they were
        recorded: they are computed again from queries, keys and values, without that change.
        """
        recorded = self._recorded_names
        for one in self._its_recording.edits:
            edit = from_json(one.contents) if isinstance(one, SavedEdit) else one
            if not isinstance(edit, Edit) or edit._changes is not Part.CONTEXT:
                continue
            # Some layers of the edit may not have been recorded.
            layers = [None] if edit.layers is None else edit.layers
            changed = {name for layer in layers for name in _selected(recorded, layer)}
            if _may_share_a_head(self.heads, edit.heads) and not changed.isdisjoint(names):
                raise ValueError(
                    f'{self._verb}: the run was recorded with "{one}", which changed what heads '
                    "put out after their attention, and that is not kept; record the run without it"
                )

    def _name_in_recording(self, name: str, names: Sequence[str]) -> str:
        """Return the name by which an attention, or a pass through it, is recorded."""
        # The first pass is recorded by the name of its attention.
        attention, number = split_pass(name, names)
        return name if number > 1 else attention


def _selected(names: Sequence[str], layer: str | int | None) -> list[str]:
    """Return the names that one item of `layers` selects; none if it selects nothing."""
    # "name.1" is the first pass, which is recorded by the name of the attention.
    layer = layer.removesuffix(".1") if isinstance(layer, str) and layer not in names else layer
    try:
        return select_layers(names, layer)
    except ValueError:
        return []


def _may_share_a_head(one: tuple[int, ...] | None, other: tuple[int, ...] | None) -> bool:
    # -1 may be any head.
    if one is None or other is None or min(*one, *other) < 0:
        return True
    return not {*one}.isdisjoint(other)
