"""`EditSession`: the edits of one block, and which of them concern a call of an attention."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from threading import get_ident
from typing import Any

import torch
from torch import Tensor

from ..interception import huggingface
from ..interception.find_attentions import FoundAttentions
from ..interception.interceptor import Bypass
from ..interception.module_hook import COMPILED, runs_for
from ..interception.tensor_parallel import tensor_parallel_rank, tensor_parallel_size
from ..interception.text import Text
from ..recording.attention_call import AttentionCall
from ..recording.names import head_numbers, select_layers
from ..recording.recording import Recording
from ..words import hint
from .apply import CallEditor, finish_context
from .edits import Boost, Edit, Frozen, Hide, Mute, Redefine
from .prompts import Place, PromptTracker
from .regions import LayerEdit, Regions
from .spans import TextFinder
from .targets import heads_of


class EditSession:
    """The edits of one block on one model. Calls are edited in the thread that entered the block,
    and in no other.

    Edits name heads of the whole model. Where these are divided among processes, each process edits
    those it has.
    """

    def __init__(
        self,
        found: FoundAttentions,
        edits: Sequence[Edit],
        tokenizer: Any,
        sequences: Sequence[range | None] | None = None,
    ) -> None:
        self.thread = get_ident()
        self.edits = tuple(edits)
        sequences = [None] * len(edits) if sequences is None else sequences
        self.text = Text()
        self.tracker = PromptTracker(self.text)
        decode = getattr(tokenizer, "decode", None)
        token_name = getattr(tokenizer, "id_to_token", None) or getattr(
            tokenizer, "convert_ids_to_tokens", None
        )
        self.regions = Regions(TextFinder(decode, token_name))
        self.editor = CallEditor(self.regions)
        self.places: dict[str, Place] = {}  # of the running call of each attention
        self.called: set[str] = set()
        """The attentions that were called in the block, edited or not."""
        self.attentions = tuple(found.attentions)
        self.selected = [
            (LayerEdit(edit, own), _select(edit, found))
            for edit, own in zip(edits, sequences, strict=True)
        ]
        self._edits: dict[str, list[LayerEdit]] = {}  # by the name of a pass, once it was asked for
        self._passes: dict[
            str, int
        ] = {}  # the most passes through each attention that ran in one forward pass
        self.needs_positions = any(map(_needs_positions, edits))
        self.model = found.modules[""]
        self.parts = tensor_parallel_size(self.model)
        self.part = tensor_parallel_rank(self.model)
        self.heads = {
            name: heads_of(found, name) for name in self.edited_attentions()
        }  # of the whole model
        self._local: dict[tuple[str, int], list[LayerEdit]] = {}
        for name in dict.fromkeys(name for _, names in self.selected for name in names):
            _check(name, self.of(name), self.heads[split_pass(name, self.attentions)[0]])

    def edited_attentions(self) -> set[str]:
        """Return the names of the attentions of which some pass is edited."""
        return {
            split_pass(name, self.attentions)[0] for _, names in self.selected for name in names
        }

    def is_active(self) -> bool:
        """Return whether a call that runs now is to be edited; raise a RuntimeError inside compiled
        code.

        During a backward pass, gradient checkpointing runs calls again, on a GPU in a thread of its
        own: these are edited as they were.
        """
        if torch.compiler.is_compiling():
            raise RuntimeError(COMPILED.replace("watch sees", "edit changes"))
        return runs_for(self.thread)

    def of(self, name: str) -> list[LayerEdit]:
        """Return the edits of a pass through an attention: those of all of its passes, and those of
        this one.
        """
        if name not in self._edits:
            attention, number = split_pass(name, self.attentions)
            own = {attention, f"{attention}.{number}"}
            self._edits[name] = [one for one, names in self.selected if not own.isdisjoint(names)]
        return self._edits[name]

    def begin(self, name: str) -> list[LayerEdit]:
        """Return the edits of a pass that begins, and note that it ran.

        Raise a RuntimeError where gradient checkpointing runs passes again that are edited
        differently: which of the passes is run again cannot be told.
        """
        self.called.add(name)
        attention, number = split_pass(name, self.attentions)
        if torch._C._current_graph_task_id() == -1:
            self._passes[attention] = max(number, self._passes.get(attention, 0))
        elif self._passes.get(attention, 0) > 1 and self._differs_between_passes(attention):
            raise RuntimeError(
                f'gradient checkpointing runs the passes through "{attention}" again, and edits '
                "that differ between "
                "them cannot be told apart then; call model.gradient_checkpointing_disable()"
            )
        return self.of(name)

    def _differs_between_passes(self, attention: str) -> bool:
        """Return whether some edit names one pass through an attention; a frozen edit has each
        pass's own pattern.
        """
        names = {name for _, selected in self.selected for name in selected} - {attention}
        names_a_pass = any(split_pass(name, self.attentions)[0] == attention for name in names)
        return names_a_pass or any(isinstance(one.edit, Frozen) for one in self.of(attention))

    def of_call(self, name: str, count: int) -> list[LayerEdit]:
        """Return the edits of a call of `count` heads; where processes divide them, with the
        numbers they have here.
        """
        edits = self.of(name)
        if self.parts == 1 or not edits:
            return edits
        whole = self.heads[split_pass(name, self.attentions)[0]] or count * self.parts
        if whole == count:  # each process has all heads of this attention
            return edits
        if (name, count) not in self._local:
            parts = (_local(name, one, whole, self.part * count, count) for one in edits)
            self._local[name, count] = [one for one in parts if one is not None]
        return self._local[name, count]

    def change(self, name: str, call: AttentionCall, value_set: int = 0) -> AttentionCall:
        """Return the call with its definition, queries or keys changed; the same object if nothing
        changes.

        A call that has the weights of the call before, and other values, has a `value_set` above 0.
        """
        if self.needs_positions and value_set == 0:
            self.tracker.note(call)
        edits = self.of_call(name, call.queries.shape[1])
        for one in edits:
            _check_heads(name, one.edit, call.queries.shape[1])
        needs_place = any(
            isinstance(one.edit, Hide | Boost) or _needs_positions(one.edit) for one in edits
        )
        if needs_place and value_set == 0:
            self.places[name] = self.tracker.place(name, call, with_positions=self.needs_positions)
        if all(isinstance(one.edit, Mute) for one in edits):
            return call
        return self.editor.change(name, call, self.places.get(name), edits)

    def finish(
        self, name: str, call: AttentionCall | None, context: Tensor, value_set: int = 0
    ) -> Tensor:
        """Return the context (batch, heads, query, d_v) with the muted heads multiplied, in place
        where possible.

        `call` may be left out where no head is muted by its mean.
        """
        mutes = [one for one in self.of_call(name, context.shape[1]) if isinstance(one.edit, Mute)]
        return (
            finish_context(name, call, context, mutes, self.places.get(name), value_set)
            if mutes
            else context
        )

    def idle_edits(self) -> list[Edit]:
        """Return the edits that changed nothing, since none of their attentions was called."""
        busy = {id(one.edit) for name in self.called for one in self.of(name)}
        return [edit for edit in self.edits if id(edit) not in busy]

    def refuse_bypass(self, bypass: Bypass) -> None:
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
        for name in dict.fromkeys(name for _, names in self.selected for name in names):
            attention, number = split_pass(name, self.attentions)
            ran = self._passes.get(attention, number)
            if number > ran:
                raise ValueError(
                    f'layers="{name}": there was no pass {number} through "{attention}", so '
                    "nothing was edited there; "
                    f'passes count from 1, the last was {ran}, and "{attention}" edits all of them'
                )
        for problem in self.regions.problems():
            raise ValueError(problem)


def _needs_positions(edit: Edit) -> bool:
    """Return whether an edit needs to know where the queries of a cross-attention stand."""
    if isinstance(edit, Hide | Boost):
        return edit.queries is not None or not edit.new
    return isinstance(edit, Frozen) or (isinstance(edit, Mute) and edit.by == "mean")


def _select(edit: Edit, found: FoundAttentions) -> list[str]:
    """Return the names that an edit selects: of attentions, all of whose passes it edits, and of
    single passes.
    """
    names = list(found.attentions)
    listed = [one for one in edit.layers or () if isinstance(one, str)]
    passes = [
        one
        for one in dict.fromkeys(listed)
        if one not in names and split_pass(one, names)[0] in names
    ]
    if (
        found.backend is not huggingface
    ):  # passes through a layer of Telescope's models have no names
        passes = []
    if not isinstance(edit, Frozen):
        return _without_passes_of_all(
            select_layers([*names, *passes], edit.layers, found.unwatched), names
        )
    assert isinstance(edit.recording, Recording)
    recorded = [name for name in edit.recording.names if edit.recording[name].calls]
    first_passes = [
        one
        for one in passes
        if split_pass(one, names)[1] == 1 and split_pass(one, names)[0] in recorded
    ]
    selected = select_layers([*recorded, *first_passes], edit.layers)
    missing = [name for name in selected if split_pass(name, names)[0] not in names]
    if missing:
        raise ValueError(
            f'frozen: this model has no attention "{missing[0]}", which was recorded; '
            f"{hint(missing[0], names)}"
        )
    return _without_passes_of_all(selected, names)


def _without_passes_of_all(selected: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the selected names without the passes through an attention all of whose passes are
    selected.
    """
    return [
        name for name in selected if name in names or split_pass(name, names)[0] not in selected
    ]


def _local(name: str, one: LayerEdit, whole: int, first: int, count: int) -> LayerEdit | None:
    """Return an edit for the process that has `count` of the `whole` heads, from `first` on; None
    if it edits none.
    """
    edit = one.edit
    if edit.heads is None and not isinstance(edit, Frozen):
        return replace(one, first_head=first)
    named: Sequence[int] = range(whole)
    if edit.heads is not None:
        named = head_numbers(name, edit.heads, whole)
    elif (
        isinstance(edit, Frozen)
        and isinstance(edit.recording, Recording)
        and not edit.recording.is_part
    ):
        named = edit.recording[name].call.heads
    own = tuple(number - first for number in named if first <= number < first + count)
    return replace(one, edit=replace(edit, heads=own), first_head=first) if own else None


def split_pass(name: str, attentions: Collection[str]) -> tuple[str, int]:
    """Return the name of an attention and the number of a pass through it: ("layer", 2) from
    "layer.2".

    The first pass is recorded by the attention's own name; "layer.1" names it too.
    """
    base, _, number = name.rpartition(".")
    is_pass = (
        name not in attentions
        and base in attentions
        and number.isdecimal()
        and not number.startswith("0")
    )
    return (base, int(number)) if is_pass else (name, 1)


def _check_heads(name: str, edit: Edit, count: int) -> None:
    if edit.heads is not None:
        head_numbers(name, edit.heads, count)


def _check(name: str, edits: Sequence[LayerEdit], count: int | None) -> None:
    """Raise a ValueError where an edit names a head that does not exist, or contradicts another
    one.
    """
    for one in edits if count is not None else ():
        assert count is not None
        _check_heads(name, one.edit, count)
    frozen = [one for one in edits if isinstance(one.edit, Frozen)]
    others = [one for one in edits if isinstance(one.edit, Hide | Boost | Redefine)]
    pairs = [(one, other) for i, one in enumerate(frozen) for other in (*frozen[i + 1 :], *others)]
    for one, other in pairs:
        if _share_a_head(one.edit.heads, other.edit.heads, count):
            raise ValueError(
                f'"{one.edit}" and "{other.edit}" contradict each other in "{name}": a frozen '
                "pattern is not computed "
                "anew; leave one of them out, or give them different heads"
            )


def _share_a_head(
    one: tuple[int, ...] | None, other: tuple[int, ...] | None, count: int | None
) -> bool:
    if one is None or other is None:
        return True
    modulo = count or 1 << 30
    return not {number % modulo for number in one}.isdisjoint(number % modulo for number in other)
