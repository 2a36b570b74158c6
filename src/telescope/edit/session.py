"""`EditSession`: the edits of one block, and which of them concern a call of an attention."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from threading import get_ident
from typing import Any

import torch
from torch import Tensor

from ..recording.attention_call import AttentionCall
from ..recording.names import head_numbers, select_layers
from ..recording.recording import Recording
from ..watch.find_attentions import FoundAttentions
from ..watch.module_hook import COMPILED
from ..watch.tensor_parallel import tensor_parallel_rank, tensor_parallel_size
from ..watch.token_inputs import TokenInputs
from ..words import hint
from .apply import CallEditor, finish_context
from .edits import Boost, Edit, Frozen, Hide, Mute, Redefine
from .prompts import Place, PromptTracker
from .regions import LayerEdit, Regions
from .spans import TextFinder
from .targets import heads_of


class EditSession:
    """The edits of one block on one model. Calls are edited in the thread that entered the block, and in no other.

    Edits name heads of the whole model. Where these are divided among processes, each process edits those it has.
    """

    def __init__(
        self,
        found: FoundAttentions,
        edits: Sequence[Edit],
        tokenizer: Any,
        sequences: Sequence[range | None] | None = None,
    ) -> None:
        self.thread, self.edits = get_ident(), tuple(edits)
        sequences = [None] * len(edits) if sequences is None else sequences
        self.tokens = TokenInputs()
        self.tracker = PromptTracker(self.tokens)
        decode = getattr(tokenizer, "decode", None)
        token_name = getattr(tokenizer, "id_to_token", None) or getattr(tokenizer, "convert_ids_to_tokens", None)
        self.regions = Regions(TextFinder(decode, token_name))
        self.editor = CallEditor(self.regions)
        self.places: dict[str, Place] = {}  # of the running call of each attention
        self.layers: dict[str, list[LayerEdit]] = {}
        for edit, own in zip(edits, sequences, strict=True):
            for name in _select(edit, found):
                self.layers.setdefault(name, []).append(LayerEdit(edit, own))
        self.needs_positions = any(map(_needs_positions, edits))
        self.model = found.modules[""]
        self.parts, self.part = tensor_parallel_size(self.model), tensor_parallel_rank(self.model)
        self.heads: dict[str, int | None] = {}  # of the whole model, by layer
        self._local: dict[tuple[str, int], list[LayerEdit]] = {}
        for name, own_edits in self.layers.items():
            self.heads[name] = heads_of(found, first_pass(name, found.attentions))
            _check(name, own_edits, self.heads[name])

    def is_active(self) -> bool:
        """Return whether a call that runs now is to be edited; raise a RuntimeError inside compiled code.

        During a backward pass, gradient checkpointing runs calls again, on a GPU in a thread of its own: these are
        edited as they were.
        """
        if torch.compiler.is_compiling():
            raise RuntimeError(COMPILED.replace("watch sees", "edit changes"))
        return get_ident() == self.thread or torch._C._current_graph_task_id() != -1

    def of(self, name: str) -> list[LayerEdit]:
        """Return the edits of an attention; further passes through a shared layer, name.2, have those of the first."""
        if name in self.layers:
            return self.layers[name]
        return self.layers.get(first_pass(name, self.layers), [])

    def of_call(self, name: str, count: int) -> list[LayerEdit]:
        """Return the edits of a call of `count` heads; where processes divide them, with the numbers they have here."""
        edits = self.of(name)
        if self.parts == 1 or not edits:
            return edits
        whole = self.heads.get(name) or self.heads.get(first_pass(name, self.layers)) or count * self.parts
        if whole == count:  # each process has all heads of this attention
            return edits
        if (name, count) not in self._local:
            parts = (_local(name, one, whole, self.part * count, count) for one in edits)
            self._local[name, count] = [one for one in parts if one is not None]
        return self._local[name, count]

    def change(self, name: str, call: AttentionCall) -> AttentionCall:
        """Return the call with its definition, queries or keys changed; the same object if nothing changes."""
        if self.needs_positions:
            self.tracker.note(call)
        edits = self.of_call(name, call.queries.shape[1])
        for one in edits:
            _check_heads(name, one.edit, call.queries.shape[1])
        if any(isinstance(one.edit, Hide | Boost) or _needs_positions(one.edit) for one in edits):
            self.places[name] = self.tracker.place(name, call, with_positions=self.needs_positions)
        if all(isinstance(one.edit, Mute) for one in edits):
            return call
        return self.editor.change(name, call, self.places.get(name), edits)

    def finish(self, name: str, call: AttentionCall | None, context: Tensor) -> Tensor:
        """Return the context (batch, heads, query, d_v) with the muted heads multiplied, in place where possible.

        `call` may be left out where no head is muted by its mean.
        """
        mutes = [one for one in self.of_call(name, context.shape[1]) if isinstance(one.edit, Mute)]
        return finish_context(name, call, context, mutes, self.places.get(name)) if mutes else context

    def check_found(self) -> None:
        """Raise a ValueError if the model ran, and a span was in nothing that it read."""
        for problem in self.regions.problems():
            raise ValueError(problem)


def _needs_positions(edit: Edit) -> bool:
    """Return whether an edit needs to know where the queries of a cross-attention stand."""
    if isinstance(edit, Hide | Boost):
        return edit.queries is not None or not edit.new
    return isinstance(edit, Frozen) or (isinstance(edit, Mute) and edit.by == "mean")


def _select(edit: Edit, found: FoundAttentions) -> list[str]:
    """Return the names of the attentions that an edit changes."""
    names = list(found.attentions)
    if not isinstance(edit, Frozen):
        return select_layers(names, edit.layers, found.unwatched)
    assert isinstance(edit.recording, Recording)
    recorded = [name for name in edit.recording.names if edit.recording[name].calls]
    selected = select_layers(recorded, edit.layers)
    missing = [name for name in selected if first_pass(name, names) not in names]
    if missing:
        raise ValueError(
            f'frozen: this model has no attention "{missing[0]}", which was recorded; {hint(missing[0], names)}'
        )
    return selected


def _local(name: str, one: LayerEdit, whole: int, first: int, count: int) -> LayerEdit | None:
    """Return an edit for the process that has `count` of the `whole` heads, from `first` on; None if it edits none."""
    edit = one.edit
    if edit.heads is None and not isinstance(edit, Frozen):
        return replace(one, first_head=first)
    named: Sequence[int] = range(whole)
    if edit.heads is not None:
        named = head_numbers(name, edit.heads, whole)
    elif isinstance(edit, Frozen) and isinstance(edit.recording, Recording) and not edit.recording.is_part:
        named = edit.recording[name].call.heads
    own = tuple(number - first for number in named if first <= number < first + count)
    return replace(one, edit=replace(edit, heads=own), first_head=first) if own else None


def first_pass(name: str, names: Collection[str]) -> str:
    """Return the name of an attention from that of a further pass through it: "layer" from "layer.2"."""
    base, _, number = name.rpartition(".")
    return base if name not in names and number.isdecimal() and base in names else name


def _check_heads(name: str, edit: Edit, count: int) -> None:
    if edit.heads is not None:
        head_numbers(name, edit.heads, count)


def _check(name: str, edits: Sequence[LayerEdit], count: int | None) -> None:
    """Raise a ValueError where an edit names a head that does not exist, or contradicts another one."""
    for one in edits if count is not None else ():
        assert count is not None
        _check_heads(name, one.edit, count)
    frozen = [one for one in edits if isinstance(one.edit, Frozen)]
    others = [one for one in edits if isinstance(one.edit, Hide | Boost | Redefine)]
    pairs = [(one, other) for i, one in enumerate(frozen) for other in (*frozen[i + 1 :], *others)]
    for one, other in pairs:
        if _share_a_head(one.edit.heads, other.edit.heads, count):
            raise ValueError(
                f'"{one.edit}" and "{other.edit}" contradict each other in "{name}": a frozen pattern is not computed '
                "anew; leave one of them out, or give them different heads"
            )


def _share_a_head(one: tuple[int, ...] | None, other: tuple[int, ...] | None, count: int | None) -> bool:
    if one is None or other is None:
        return True
    modulo = count or 1 << 30
    return not {number % modulo for number in one}.isdisjoint(number % modulo for number in other)
