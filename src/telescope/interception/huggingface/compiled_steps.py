"""Record compiled runs of a model of transformers: prompts call by call, the steps of a model that
writes many at a time.

A step over a cache of fixed size copies its queries into buffers, inside the graph. Steps wait
there until somebody reads, until the buffers are full, or until anything else happens to the cache;
then they are recorded as one call of many queries, over the keys that the cache holds.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, proxy

import torch
from torch import Tensor, nn

from ...recording import ROOM, Recording
from ..compiled import TAP, AttentionTap, Call, Pass, Step, TokenIds
from ..interceptor import StoredKeys
from ..text import KeyMemory, version_of
from .cache_layers import StaticKeys, before_changes, cache_of, static_keys
from .interface_call import share_memory
from .logged_passes import LateCall
from .masks import LazyMask, is_steady
from .transformers_internals import implementation_of

# ------------------------------------------------------------------------------------------ buffers


class Buffers(NamedTuple):
    """What the compiled code of one attention reads and writes in each step."""

    queries: Tensor
    keys: Tensor | None
    """New keys and values, where a cache that slides does not keep them."""
    values: Tensor | None
    slot: Tensor
    """The row of this step."""
    place: Tensor | None
    """Where a cache that slides has the newest key."""


_buffers: "WeakKeyDictionary[nn.Module, dict[Any, Buffers]]" = WeakKeyDictionary()
"""The buffers of each attention, by the shapes that they fit. They live as long as the model: CUDA
graphs hold their addresses, and would be recorded again for others.
"""
_numbers: "WeakKeyDictionary[nn.Module, dict[Any, Tensor]]" = WeakKeyDictionary()
"""Of each model the slot, under 0, and places, under the sizes of windows; with the device."""


def _fixed(tensor: Tensor) -> Tensor:
    """Tell torch.compile that the tensor stays where it is, so that CUDA graphs do not copy it."""
    torch._dynamo.mark_static_address(tensor, guard=False)
    return tensor


def _number(model: nn.Module, window: int, device: torch.device) -> Tensor:
    known = _numbers.setdefault(model, {})
    if (window, device) not in known:
        known[window, device] = _fixed(torch.zeros(1, dtype=torch.long, device=device))
    return known[window, device]


def _buffers_of(model: nn.Module, module: nn.Module, heads: int, cached: StaticKeys) -> Buffers:
    """Return the buffers of an attention for ROOM steps over this cache."""
    keys = cached.keys
    values = cached.values
    batch, key_heads, _, width = keys.shape
    shape = (batch, heads, key_heads, width, values.shape[-1])
    kind = (*shape, keys.dtype, keys.device, cached.window)
    known = _buffers.setdefault(module, {})
    if kind not in known:
        # Buffers of another batch would stay for nothing.
        known.clear()
        slides = bool(cached.window)
        known[kind] = Buffers(
            queries=_fixed(keys.new_zeros(batch, heads, ROOM, width)),
            keys=_fixed(keys.new_zeros(batch, key_heads, ROOM, width)) if slides else None,
            values=_fixed(values.new_zeros(batch, key_heads, ROOM, shape[-1])) if slides else None,
            slot=_number(model, 0, keys.device),
            place=_number(model, cached.window, keys.device) if slides else None,
        )
    return known[kind]


# -------------------------------------------------------------------------------------------- steps


class WaitingLayer(NamedTuple):
    """One attention of the steps that wait."""

    tap: AttentionTap
    cached: StaticKeys
    buffers: Buffers
    known: int
    """How many keys the text had before the first step that waits."""
    slid: tuple[Tensor, Tensor] | None
    """Keys and values from before these steps, of a cache that slides."""


class Steps:
    """Hand the compiled runs of a model to the recording of one block."""

    def __init__(self, interceptor: Any, recording: Recording) -> None:
        self.interceptor: Any = proxy(interceptor)  # which refers to this object
        self.recording = recording
        self.count = 0
        """How many steps wait in the buffers."""
        self._layers: dict[str, WaitingLayer] = {}
        self._cache: Any = None
        self._versions: Sequence[Any] = ()  # of the keys in the cache, after the last step
        self._ids: list[Tensor] = []
        self._last: Sequence[Step] = ()
        self._undo = ExitStack()
        self._numbers: dict[int, tuple[Tensor, tuple[int, int] | None]] = {}
        """The numbers that steps read: the slot, and places, each with the first place and the
        last.
        """

    def continues(self, kwargs: Mapping[str, Any], ids: Tensor | None) -> bool:
        """Return whether the run that begins is one more step beside those that wait."""
        if not 0 < self.count < ROOM or ids is None or ids.shape != self._ids[0].shape:
            return False
        is_same = cache_of(kwargs) is self._cache and not self.interceptor.text.is_reading_prompt
        return is_same and self._versions == self._current_versions()

    def prepare(self, model: nn.Module, kwargs: Mapping[str, Any], ids: Tensor | None) -> None:
        """Prepare buffers for the run that begins, if it is a step over a cache of fixed size that
        continues the recorded text. Other runs hand out what they were passed.
        """
        self._layers = {}
        cache = cache_of(kwargs)
        text = self.interceptor.text
        if ids is None or ids.ndim != 2 or ids.shape[1] != 1 or cache is None:
            return
        if text.is_reading_prompt or self.interceptor.has_cross_attention:
            return
        layers: dict[str, WaitingLayer] = {}
        for name, module in self.interceptor.recorded_modules():
            cached = static_keys(cache, module)
            heads = self.interceptor.heads_of_call(module, len(ids))
            last = self.recording.last_call(name)
            if cached is None or heads is None or last is None:
                return
            if len(cached.keys) != len(ids) or not text.holds(name, cached.layer):
                return
            slid = None
            known = last.size[1]
            if cached.window:
                held = slice(0, min(known, cached.window))
                slid = (cached.keys[:, :, held].clone(), cached.values[:, :, held].clone())
            tap: AttentionTap = vars(module)[TAP]
            layers[name] = WaitingLayer(
                tap, cached, _buffers_of(model, module, heads, cached), known, slid
            )
        self._layers = layers
        self._cache = cache
        # What reorders or resets the cache has the steps recorded before.
        self._undo.enter_context(before_changes(cache, self.flush))
        self._prepare_taps()
        self.aim()

    def aim(self) -> None:
        """Let the run that begins write to the next row of the buffers."""
        # All attentions of a model share the slot, and those of one window a place.
        for number, place in self._numbers.values():
            number.fill_(self.count if place is None else min(place[0] + self.count, place[1]))

    def _prepare_taps(self) -> None:
        """Tell the taps of all attentions to write to their buffers."""
        self._numbers = {}
        for tap, cached, buffers, known, _ in self._layers.values():
            tap.queries, tap.keys, tap.values, tap.slot, tap.place = buffers
            self._numbers[id(buffers.slot)] = buffers.slot, None
            if buffers.place is not None:
                self._numbers[id(buffers.place)] = buffers.place, (known, cached.window - 1)

    def receive(self, events: tuple[Any, ...]) -> None:
        """Record what a compiled run has handed out."""
        written: dict[int, int] = {}
        for event in events:
            match event:
                case TokenIds(ids):
                    self.interceptor.text.inputs.add(ids)
                case Pass(tap, across):
                    self.interceptor.begin_attention(tap.module, across)
                case Call(tap, tensors, mask, options):
                    tensors, mask = self._without_room(tap, tensors, mask, written)
                    self._record(self._made(tap, copies_of(tensors), mask, options))

    def _without_room(
        self,
        tap: AttentionTap,
        tensors: tuple[Tensor, Tensor, Tensor],
        mask: Any,
        written: dict[int, int],
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Any]:
        """Return what a call was passed without the unwritten end of a cache of fixed size, where
        only the numbers of a mask tell which keys are written.

        `written` remembers how many keys a cache holds, by its length: to read that, the host
        waits.
        """
        queries, keys, values = tensors
        if not isinstance(mask, Tensor) or isinstance(mask, LazyMask):
            return tensors, mask
        cached = static_keys(self.interceptor.text.cache(), tap.module)
        if cached is None or not share_memory(cached.keys, keys):
            return tensors, mask
        room = keys.shape[2]
        if room not in written:
            written[room] = min(int(cached.layer.get_seq_length()), room)
        count = written[room]
        return (queries, keys[:, :, :count], values[:, :, :count]), mask[..., :count]

    def wait(self, events: tuple[Any, ...]) -> bool:
        """Let the step that has just run wait; return False if the run was no step."""
        steps = [event for event in events if type(event) is Step]
        if not steps:
            return False
        self.count += 1
        self._ids += [event.ids for event in events if type(event) is TokenIds][:1]
        self._last = steps
        self._versions = self._current_versions()
        # What other masks say of this step, they do not say of the steps before.
        masks = {id(step.mask): step.mask for step in steps}
        if len(self._ids) < self.count or not all(map(is_steady, masks.values())):
            self.flush()
        return True

    def _current_versions(self) -> list[Any]:
        """Return what changes when anybody writes to the keys that the cache holds."""
        return [
            (id(layer.cached.layer.keys), version_of(layer.cached.layer.keys))
            for layer in self._layers.values()
        ]

    # ------------------------------------------------------------------------------------ recording

    def flush(self) -> None:
        """Record the steps that wait."""
        count = self.count
        self.count = 0
        layers = {id(layer.tap): layer for layer in self._layers.values()}
        self._undo.close()
        if not count:
            return
        text = self.interceptor.text
        text.begin_pass(self._cache)
        if self._ids:
            text.inputs.add(torch.cat(self._ids, 1))
        self._ids = []
        masks: dict[Any, Any] = {}
        with text.stepping():
            for step in self._last:
                layer = layers[id(step.tap)]
                self.interceptor.begin_attention(step.tap.module, None)
                made = self._steps_of(layer, step, count, masks)
                self._record(made, are_steps=True)
        # A cache that the model has done with is freed.
        self._last = ()
        self._cache = None
        self._layers = {}
        # The model may write to the cache again: survey now what lies there.
        self.recording.queue.survey_waiting()

    def _steps_of(
        self, layer: WaitingLayer, step: Step, count: int, masks: dict[Any, Any]
    ) -> LateCall:
        """Return all steps of one attention as one call."""
        tap, cached, buffers, known, slid = layer
        queries = buffers.queries[:, :, :count]
        keys = cached.layer.keys
        values = cached.layer.values
        evicted = 0
        if slid is not None:
            # Put the keys that have slid away before the new ones.
            assert buffers.keys is not None
            assert buffers.values is not None
            evicted = known - slid[0].shape[2]
            keys = torch.cat([slid[0], buffers.keys[:, :, :count]], 2)
            values = torch.cat([slid[1], buffers.values[:, :, :count]], 2)
        # Layers of one mask share its translation.
        mask = step.mask
        key = (id(mask), keys.shape[2], evicted)
        if isinstance(mask, LazyMask) and key not in masks:
            more = {"q_length": count, "q_offset": known}
            if slid is not None:
                more |= {"kv_offset": evicted, "kv_length": keys.shape[2]}
            masks[key] = LazyMask.of(mask.own, {**mask.arguments, **more}, mask.dtype)
        made = self._made(tap, (queries, keys, values), masks.get(key, mask), step.options)
        memory = KeyMemory.held_by(cached.layer, cached.layer.keys)
        made.stored = StoredKeys((memory,), stay=True)
        return made

    def _made(
        self, tap: AttentionTap, tensors: tuple[Tensor, Tensor, Tensor], mask: Any, options: Any
    ) -> LateCall:
        """Return a call that a compiled run has made."""
        implementation = implementation_of(tap.module)
        return LateCall(implementation, tap.module, tensors, mask, dict(options))

    @torch.no_grad()
    def _record(self, made: LateCall, *, are_steps: bool = False) -> None:
        """Record a call; steps are known to continue what was recorded."""
        handler = self.interceptor.handler
        made.edits = self.interceptor.edits_of(made.module)
        handled = self.interceptor.handle(id(made.module), made)
        handler.before(handled)
        handled.follows = handled.follows or are_steps
        handled.are_steps = are_steps
        handler.after(handled, made.tensors[0])


def copies_of(tensors: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return tensors that no later run of a CUDA graph writes to."""
    if "torch._inductor.cudagraph_trees" not in sys.modules or not tensors[0].is_cuda:
        return tensors
    queries, keys, values = tensors
    return queries.clone(), keys.clone(), values.clone()
