"""`EditSession`: the edits of one block, and what they do to each call of an attention."""

from collections.abc import Callable, Sequence
from functools import cached_property
from threading import get_ident
from typing import Any

import torch
from torch import Tensor

from ..anatomy import count_heads
from ..attention import Attention, without_room
from ..interception import (
    COMPILED,
    EDIT,
    AttentionTap,
    Bypass,
    FoundAttentions,
    HandledCall,
    Handler,
    ScoreEdit,
    runs_for,
    tensor_parallel_rank,
    tensor_parallel_size,
)
from ..recording import AttentionCall
from . import compiled_edits
from .call_edits import CallEdits, SequencesHiddenError, needs_of
from .edits import Block, Edit, EditedCall, LayerEdit, Needs, Part, Redefinition, split_pass
from .prompts import Place, PromptTracker
from .selection import check_edits, check_heads, local_edit, select_passes

MAX_CACHED = 64  # edited definitions, which layers and steps share


class EditSession(Block, Handler):
    """The edits of one block on one model. Calls are edited in the thread that entered the block,
    and in no other.

    Edits name heads of the whole model. Where these are divided among processes, each process edits
    those it has.
    """

    order = EDIT

    def __init__(
        self,
        found: FoundAttentions,
        edits: Sequence[Edit],
        tokenizer: Any,
        sequences: Sequence[range | None] | None = None,
    ) -> None:
        super().__init__(tokenizer)
        self.thread = get_ident()
        own = [one for one in sequences or () if one is not None]
        self.batch = max((one.stop for one in own), default=None)
        """The number of sequences, where edits concern some of them alone."""
        self.edits = tuple(edits)
        self.modules = found.modules
        self.model = found.modules[""]
        self.attentions = tuple(found.attentions)

        # Which attentions each edit changes.
        self.selected = [
            (LayerEdit(edit, own), select_passes(edit, found))
            for edit, own in zip(edits, sequences or [None] * len(edits), strict=True)
        ]
        # Collect what the edits need to know, so that no more than that is followed.
        self.needs = needs_of([one for one, _ in self.selected])
        self.follows_all = Needs.POSITIONS in self.needs
        """Whether every attention is followed, edited or not."""
        # Token ids are looked at only for edits that have to find their place in a text.
        self.follows_text = self.follows_all or Needs.PLACE in self.needs
        self._edits: dict[str, CallEdits] = {}  # by the name of a pass, once it was asked for
        self._local: dict[tuple[str, int], CallEdits] = {}  # also by the number of heads here

        # How its heads are divided among processes.
        self.parts = tensor_parallel_size(self.model)
        self.part = tensor_parallel_rank(self.model)
        self.heads = {
            name: count_heads(found.modules, found.attentions[name])
            for name in self.edited_attentions()
        }

        # What happens while the model runs.
        self.called: set[str] = set()
        """The attentions that were called in the block, edited or not."""
        self.places: dict[str, Place] = {}  # of the running call of each attention
        self.unsigned: dict[str, Callable[[Tensor], None]] = {}
        """Take the keys of the prompt that compiled code reads, once it has run; by attention."""
        self._passes: dict[str, int] = {}  # the most through each attention in one forward pass
        self._definitions: dict[object, tuple[Attention, Any, Attention]] = {}

        # Refuse heads that do not exist, and contradictions, before the model runs.
        for name in self._selected_names():
            attention = split_pass(name, self.attentions).attention
            self.check_selected(name, self.heads[attention])

    def check_selected(self, name: str, count: int | None) -> None:
        """Refuse the edits of an attention that name other heads than its own, or contradict each
        other.
        """
        check_edits(name, self.edits_for(name).every, count)

    @cached_property
    def tracker(self) -> PromptTracker:
        """Where each call stands in its text."""
        return PromptTracker(self.text)

    def _selected_names(self) -> list[str]:
        return list(dict.fromkeys(name for _, names in self.selected for name in names))

    def edited_attentions(self) -> set[str]:
        """Return the names of the attentions of which some pass is edited."""
        return {split_pass(name, self.attentions).attention for name in self._selected_names()}

    def adopt(self, name: str) -> bool:
        """Raise a RuntimeError if an edit of every attention would miss this one."""
        if any(one._edits_every_layer for one in self.edits):
            raise RuntimeError(
                f'"{name}" attends, which its code did not tell before it ran, and was not edited; '
                "enter the block again: now it is known"
            )
        return False

    def is_active(self) -> bool:
        """Return whether a call that runs now is to be edited; raise a RuntimeError inside compiled
        code.

        During a backward pass, gradient checkpointing runs calls again, on a GPU in a thread of its
        own: these are edited as they were.
        """
        if torch.compiler.is_compiling():
            # Say in the words of `edit` what `watch` says.
            raise RuntimeError(COMPILED.replace("watch sees nothing", "edit changes nothing"))
        return runs_for(self.thread)

    @property
    def why_not_compiled(self) -> str | None:
        return compiled_edits.why_not_compiled(self)

    @property
    def adds_to_scores(self) -> bool:
        return any(one.edit._adds_to_scores for one, _ in self.selected)

    @property
    def follows_calls(self) -> bool:
        return self.follows_text

    def prepare_compiled(self, name: str, heads: int | None, tap: AttentionTap) -> int:
        """Give the tap the factors of an attention's heads. An attention without an edit gets ones:
        other edits need no other code then.
        """
        count = compiled_edits.heads_here(self, name, heads, tap)
        tap.multiply(compiled_edits.factors(self, name, count))
        return count

    def score_edit(self, name: str, call: AttentionCall) -> ScoreEdit | None:
        return compiled_edits.score_edit(self, name, call)

    def note_length(self, tokens: int) -> None:
        self.longest = max(self.longest, tokens)

    def finish_compiled(self, find_keys: Callable[[], dict[str, Tensor]]) -> None:
        # Not in each step, which reads no prompt.
        if self.unsigned:
            compiled_edits.sign_prompts(self, find_keys())

    def edits_of_compiled(self, name: str) -> tuple[Any, ...]:
        return tuple(one.edit for one in self.edits_for(name).every)

    def note_compiled(self, name: str) -> None:
        self.called.add(name)

    def edits_for(self, attention: str) -> CallEdits:
        """Return the edits of an attention, or of a pass through it: those of all of its passes,
        and those of this one.
        """
        if attention not in self._edits:
            base, number = split_pass(attention, self.attentions)
            # A bare name means every pass, a name with a number this pass alone.
            own = {base, f"{base}.{number}"}
            self._edits[attention] = CallEdits.of(
                [one for one, names in self.selected if not own.isdisjoint(names)]
            )
        return self._edits[attention]

    def before(self, call: HandledCall) -> None:
        """Let the edits of a call change its definition, queries or keys."""
        edits = self.begin(call.name)
        # Nothing is edited, and no edit needs to know of the call.
        if not edits.every and not self.follows_all:
            return
        # All handlers share the call, so that a recording can list its edits.
        call.made.edits += tuple(one.edit for one in edits.every)
        # The model's own attention may run: only the output will change.
        if edits.every and edits.needs_context_only:
            return
        call.before_change = call.describe()
        changed = self.change(call.name, call.before_change, call.value_set)
        if changed is not call.before_change:
            # Edits of tensors bring keys of another run, which no cache holds.
            own_keys = all(edit._changes is not Part.TENSORS for edit in call.made.edits)
            call.made.change(call, changed, own_keys=own_keys)

    def after(self, call: HandledCall, output: Tensor) -> Tensor:
        """Let the edits of a call change what it returned."""
        if not self.edits_for(call.name).context:
            return output
        # Edits find heads on axis 1; the output has them where the model's library puts them.
        axis = call.made.head_axis
        context = output.transpose(1, axis)
        found = self.finish(call.name, call.before_change, context, call.value_set)
        return output if found is context else found.transpose(1, axis)

    def begin(self, name: str) -> CallEdits:
        """Return the edits of a pass that begins, and note that it ran.

        Raise a RuntimeError where gradient checkpointing runs passes again that are edited
        differently: which of the passes is run again cannot be told.
        """
        self.called.add(name)
        attention, number = split_pass(name, self.attentions)
        # Count passes outside of a backward pass, in which checkpointing runs them again.
        if torch._C._current_graph_task_id() == -1:
            self._passes[attention] = max(number, self._passes.get(attention, 0))
        elif self._passes.get(attention, 0) > 1 and self._differs_between_passes(attention):
            raise RuntimeError(
                f'gradient checkpointing runs the passes through "{attention}" again, and edits '
                "that differ between them cannot be told apart then; call "
                "model.gradient_checkpointing_disable()"
            )
        return self.edits_for(name)

    def _differs_between_passes(self, attention: str) -> bool:
        """Return whether some edit names one pass through an attention, or needs to know it."""
        passes = {*self._selected_names()} - {attention}
        names_a_pass = any(
            split_pass(name, self.attentions).attention == attention for name in passes
        )
        return names_a_pass or Needs.PASS in self.edits_for(attention).needs

    def edits_of_call(self, name: str, count: int) -> CallEdits:
        """Return the edits of a call of `count` heads; where processes divide them, with the
        numbers they have here.

        Raise a ValueError if an edit names a head that does not exist.
        """
        known = self._local.get((name, count))
        if known is not None:
            return known
        edits = self.edits_for(name)
        # Where the number of heads is not known, every process has as many as this one.
        whole = self.heads.get(split_pass(name, self.attentions).attention) or count * self.parts
        # Keep the edits of heads that this process has, by their numbers here.
        if self.parts > 1 and whole != count:
            first = self.part * count
            here = (local_edit(name, one, whole, first, count) for one in edits.every)
            edits = CallEdits.of([one for one in here if one is not None])
        for one in edits.every:
            check_heads(name, one.edit, count)
        self._local[name, count] = edits
        return edits

    def change(self, name: str, call: AttentionCall, value_set: int = 0) -> AttentionCall:
        """Return the call with its definition, queries or keys changed; the same object if nothing
        changes.

        A call that has the weights of the call before, and other values, has a `value_set` above 0.
        """
        self._check_batch(len(call.queries))
        edits = self.edits_of_call(name, call.queries.shape[1])
        # A further set of values stands at the place of the first.
        place = self.places.get(name) if value_set else self.find_place(name, call)
        # Change the definition first, then queries and keys.
        changes = self.find_changes(name, call, place, edits.definition)
        attention = self.apply_changes(call.attention, changes)
        changed = call if attention is call.attention else call._replace(attention=attention)
        for one in edits.tensors:
            at = EditedCall(name, one, self, call, place, value_set)
            changed = one.edit._change_tensors(at, changed)
        return changed

    def find_place(self, name: str, call: AttentionCall) -> Place | None:
        """Return where a call stands in its text, if an edit has to know; to be asked once for each
        call, in order.
        """
        if self.follows_all:
            self.tracker.note(call)
        if Needs.PLACE in self.edits_of_call(name, call.queries.shape[1]).needs:
            self.places[name] = self.tracker.place(name, call, with_positions=self.follows_all)
        return self.places.get(name)

    def find_changes(
        self, name: str, call: AttentionCall, place: Place | None, edits: Sequence[LayerEdit]
    ) -> list[Redefinition]:
        """Return how edits change the definition of a call."""
        found = (one.edit._redefinition(EditedCall(name, one, self, call, place)) for one in edits)
        return [change for change in found if change is not None]

    def apply_changes(self, given: Attention, changes: Sequence[Redefinition]) -> Attention:
        """Return a definition after its edits."""
        if not changes:
            return given

        # Definitions that are edited alike are one object, so that layers and steps share masks.
        key = (given._identity, *(change.key for change in changes))
        if key in self._definitions:
            return self._definitions[key][-1]

        # Edits count the keys that are written, not the free end of a cache of fixed size.
        attention, written = without_room(given)
        for change in changes:
            attention = change.apply(attention)
        if written is not None:
            attention = written.numbering.apply(attention)
        # A change without a key may give another definition in the next call.
        if all(change.key is not None for change in changes):
            # Drop the oldest definition first.
            while len(self._definitions) >= MAX_CACHED:
                del self._definitions[next(iter(self._definitions))]
            # What the key has identities of is kept alive with it.
            self._definitions[key] = (given, changes, attention)
        return attention

    def finish(
        self, name: str, call: AttentionCall | None, context: Tensor, value_set: int = 0
    ) -> Tensor:
        """Return the context (batch, heads, query, d_v) after the edits, changed in place where
        possible.

        `call` may be left out where `needs_context_only` holds for the edits.
        """
        self._check_batch(len(context))
        for one in self.edits_of_call(name, context.shape[1]).context:
            at = EditedCall(name, one, self, call, self.places.get(name), value_set)
            context = one.edit._change_context(at, context)
        return context

    def _check_batch(self, batch: int) -> None:
        """Raise a SequencesHiddenError where edits concern some sequences of a call alone, and the
        batch of the call is not made of the sequences.
        """
        if self.batch is not None and batch != self.batch:
            raise SequencesHiddenError

    def idle_edits(self) -> list[Edit]:
        """Return the edits that changed nothing, since none of their attentions was called."""
        # Compare identities: of two equal edits, each counts by itself.
        busy = {id(one.edit) for name in self.called for one in self.edits_for(name).every}
        return [edit for edit in self.edits if id(edit) not in busy]

    def report_bypass(self, bypass: Bypass) -> None:
        """Raise a ValueError if an attention that is edited has run past the edit."""
        if bypass.name in self.edited_attentions():
            raise ValueError(
                f'"{bypass.name}" ran, and ts.edit cannot change it: {bypass.reason}; '
                f"{bypass.remedy}"
            )

    def check_found(self) -> None:
        """Raise a ValueError if the model ran, and an edited pass did not, or a span was in nothing
        that it read.
        """
        for name in self._selected_names():
            attention, number = split_pass(name, self.attentions)
            # An attention that never ran counts as complete here; `idle_edits` lists its edits.
            ran = self._passes.get(attention, number)
            if number > ran:
                raise ValueError(
                    f'layers="{name}": there was no pass {number} through "{attention}", so '
                    "nothing was edited there; "
                    f'passes count from 1, the last was {ran}, and "{attention}" edits all of them'
                )
        # Let spans and other shared objects of the block report what was not found.
        for check in self.checks:
            for problem in check():
                raise ValueError(problem)
