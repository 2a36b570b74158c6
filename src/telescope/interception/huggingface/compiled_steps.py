"""Record compiled runs of a model of transformers: prompts call by call, the steps of a model that
writes many at a time.

A step over a cache of fixed size copies its queries into buffers, inside the graph. Steps wait
there until somebody reads, until the buffers are full, or until anything else happens to the cache;
then they are recorded as one call of many queries, over the keys that the cache holds.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple
from weakref import proxy

import torch
from torch import Tensor, nn

from ...recording import ROOM, Recording
from ..compiled import TAP, AttentionTap, Call, Pass, Step, TokenIds
from ..interceptor import StoredKeys
from ..module_hook import parked
from ..text import KeyMemory, version_of
from ..waiting import WAITING_BYTES, bytes_that_may_wait
from .cache_layers import StaticKeys, before_changes, cache_of, static_keys
from .late_calls import LateCall, LoggedCall, copies, with_own_tensors
from .masks import LARGEST, LazyMask
from .step_buffers import Buffers, buffers_of
from .transformers_internals import implementation_of
from .waiting_masks import GraphMask, is_steady, known_mask


class WaitingLayer(NamedTuple):
    """One attention of the steps that wait."""

    name: str
    tap: AttentionTap
    cached: StaticKeys
    buffers: Buffers
    known: int | None
    """How many keys the text had before the first step that waits; None if its prompt waits, too,
    and will tell.
    """
    slid: tuple[Tensor, Tensor] | None
    """Keys and values from before these steps, of a cache that slides."""
    own: tuple[Tensor, Tensor, Tensor] | None = None
    """Copies of queries, keys and values, once the block has ended."""


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
        self._masks: dict[int, Any] = {}
        """What is known of the masks of the last step, by the ids of their tensors."""
        self._held: list[tuple[Any, bool]] = []
        """The layers of the cache, and whether their keys are tensors of inference mode, which do
        not count how often they were written to.
        """
        self._edits: dict[int, Any] = {}  # of the steps that wait, by the id of the tap
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

    def prepare(self, model: nn.Module, kwargs: Mapping[str, Any], ids: Tensor | None) -> bool:
        """Prepare buffers for the run that begins, if it is a step over a cache of fixed size that
        continues the recorded text. Return False for other runs, which hand out what they were
        passed.
        """
        self._layers = {}
        cache = cache_of(kwargs)
        text = self.interceptor.text
        if ids is None or ids.ndim != 2 or ids.shape[1] != 1 or cache is None:
            return False
        if text.is_reading_prompt or self.interceptor.has_cross_attention:
            return False
        layers: dict[str, WaitingLayer] = {}
        for name, module in self.interceptor.recorded_modules():
            cached = static_keys(cache, module)
            heads = self.interceptor.heads_of_call(module, len(ids))
            last = self.recording._last_call(name)
            if cached is None or heads is None or last is None:
                return False
            if len(cached.keys) != len(ids) or not text.holds(name, cached.layer):
                return False
            slid = None
            known = last.size[1]
            if cached.window:
                held = slice(0, min(known, cached.window))
                slid = (cached.keys[:, :, held].clone(), cached.values[:, :, held].clone())
            tap: AttentionTap = vars(module)[TAP]
            layers[name] = WaitingLayer(
                name, tap, cached, buffers_of(model, module, heads, cached), known, slid
            )
        self._begin(layers, cache)
        return True

    def prepare_behind_prompt(
        self, model: nn.Module, kwargs: Mapping[str, Any], ids: Tensor | None
    ) -> bool:
        """Prepare buffers for a step behind a prompt that waits; return False if the run that
        begins is none.
        """
        cache = cache_of(kwargs)
        log = self.interceptor.log
        if self.count or cache is None or log is None or ids is None or ids.shape[1:] != (1,):
            return False
        if self.interceptor.text.is_reading_prompt:
            return False
        shapes = log.prompt_in(cache)
        layers: dict[str, WaitingLayer] = {}
        for name, module in self.interceptor.recorded_modules():
            cached = static_keys(cache, module)
            shape = shapes.get(id(module))
            if cached is None or cached.window or shape is None or shape[0] != len(ids):
                return False
            if len(cached.keys) != len(ids):
                return False
            buffers = buffers_of(model, module, shape[1], cached)
            tap: AttentionTap = vars(module)[TAP]
            layers[name] = WaitingLayer(name, tap, cached, buffers, None, None)
        self._begin(layers, cache)
        return True

    def _begin(self, layers: dict[str, WaitingLayer], cache: Any) -> None:
        """Let the steps that begin wait in the buffers of these attentions."""
        self._layers = layers
        self._cache = cache
        self._ids = []  # of steps that could not be recorded
        self._held = [
            (layer.cached.layer, layer.cached.keys.is_inference()) for layer in layers.values()
        ]
        # What reorders or resets the cache has the steps recorded before.
        self._undo.enter_context(before_changes(cache, self.flush))
        self._undo.enter_context(parked([*self.interceptor.modules_by_id.values()]))
        self._prepare_taps()
        self._aim()

    def _aim(self) -> None:
        """Let the run that comes next write to the next row of the buffers."""
        # All attentions of a model share the slot, and those of one window a place.
        for number, place in self._numbers.values():
            number.fill_(self.count if place is None else min(place[0] + self.count, place[1]))

    def _prepare_taps(self) -> None:
        """Tell the taps of all attentions to write to their buffers."""
        self._numbers = {}
        for layer in self._layers.values():
            tap = layer.tap
            slot = layer.buffers.slot
            place = layer.buffers.place
            tap.queries, tap.keys, tap.values, tap.slot, tap.place = layer.buffers
            self._numbers[id(slot)] = slot, None
            # Before a cache that slides, the prompt is recorded, so that its length is known.
            if place is not None and layer.known is not None:
                self._numbers[id(place)] = place, (layer.known, layer.cached.window - 1)

    def receive(self, events: tuple[Any, ...], masks: Mapping[int, Any]) -> None:
        """Record what a compiled run has handed out, or let it wait."""
        calls: list[LoggedCall] = []
        for event in events:
            match event:
                case TokenIds(ids):
                    self.interceptor.text.inputs.add(ids)
                case Pass(tap, across):
                    self.interceptor.begin_attention(tap.module, across)
                case Call(tap):
                    calls.append(self._logged(event, masks))
        if not calls:
            return
        calls = with_own_tensors(calls)
        log = self.interceptor.log
        edits = [self.interceptor.edits_of(call.module) for call in calls]
        is_edited = any(one.every for one in edits)
        if log is not None and not is_edited and log.add_compiled(calls):
            return
        written: dict[int, int] = {}
        for call, own_edits in zip(calls, edits, strict=True):
            tensors, mask = self._without_room(call, known_mask(call.mask), written)
            made = LateCall(call.implementation, call.module, tensors, mask, call.options)
            self.interceptor.count_pass(id(call.module), call.number)
            self._record(made, own_edits)

    def _logged(self, call: Call, masks: Mapping[int, Any]) -> LoggedCall:
        """Return a call that was handed out, as the pass through its module that runs now."""
        module = call.tap.module
        mask = masks.get(id(call.mask), call.mask)
        # A large mask is not kept until somebody reads.
        if isinstance(mask, GraphMask) and mask.written.numel() > LARGEST:
            mask = mask.known
        return LoggedCall(
            implementation_of(module),
            module,
            call.tensors,
            mask,
            dict(call.options),
            None,
            None,
            self.interceptor.passes_of(id(module)),
            (version_of(call.tensors[0]), version_of(call.tensors[1])),
        )

    def _without_room(
        self, call: LoggedCall, mask: Any, written: dict[int, int]
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Any]:
        """Return what a call was passed without the unwritten end of a cache of fixed size, where
        only the numbers of a mask tell which keys are written.

        `written` remembers how many keys a cache holds, by its length: to read that, the host
        waits.
        """
        queries, keys, values = call.tensors
        if not isinstance(mask, Tensor) or isinstance(mask, LazyMask):
            return call.tensors, mask
        cached = static_keys(self.interceptor.text.cache(), call.module)
        if cached is None or cached.keys.shape != keys.shape:
            return call.tensors, mask
        room = keys.shape[2]
        if room not in written:
            written[room] = min(int(cached.layer.get_seq_length()), room)
        count = written[room]
        return (queries, keys[:, :, :count], values[:, :, :count]), mask[..., :count]

    def wait(self, events: tuple[Any, ...], masks: Mapping[int, Any]) -> bool:
        """Let the step that has just run wait; return False if the run was no step."""
        steps = [event for event in events if type(event) is Step]
        if not steps:
            return False
        # Blocks that edit may end before the steps are recorded. All that wait are edited alike.
        if not self.count:
            self._edits = {
                id(step.tap): self.interceptor.edits_of(step.tap.module) for step in steps
            }
        self.count += 1
        self._ids += [event.ids for event in events if type(event) is TokenIds][:1]
        self._versions = self._current_versions()
        # What other masks say of this step, they do not say of the steps before.
        given = {id(step.mask): step.mask for step in steps}
        self._masks = {key: known_mask(masks.get(key, mask)) for key, mask in given.items()}
        self._last = steps
        if len(self._ids) < self.count or not all(map(is_steady, self._masks.values())):
            self.flush()
        else:
            # Now, while the GPU runs the step: before the next one it would wait for the host.
            self._aim()
        return True

    def _current_versions(self) -> list[Any]:
        """Return what changes when anybody writes to the keys that the cache holds."""
        return [
            (id(layer.keys), None if is_inference else layer.keys._version)
            for layer, is_inference in self._held
        ]

    # ------------------------------------------------------------------------------------ recording

    def flush(self) -> None:
        """Record the steps that wait."""
        count = self.count
        self.count = 0
        self._undo.close()
        if not count:
            return
        self._end_prompt()
        layers = {id(layer.tap): layer for layer in self._layers.values()}
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
                self._record(made, self._edits[id(step.tap)], are_steps=True)
        # A cache that the model has done with is freed.
        self._last = ()
        self._masks = {}
        self._held = []
        self._cache = None
        self._layers = {}
        # The model may write to the cache again: survey now what lies there.
        self.recording._queue.survey_waiting()

    def _end_prompt(self) -> None:
        """Record the prompt that waits before these steps, and count its keys."""
        if all(layer.known is not None for layer in self._layers.values()):
            return
        self.interceptor.log.flush()
        self.interceptor.forget_passes()
        for name, layer in self._layers.items():
            last = self.recording._last_call(name)
            assert last is not None
            self._layers[name] = layer._replace(known=last.size[1])

    def keep(self) -> bool:
        """Let the steps wait after their block has ended, as copies of what lies in buffers and
        cache; return False if these are too large.
        """
        layers = [*self._layers.values()]
        if any(layer.slid is not None for layer in layers):
            return False
        count = self.count
        stops = [None if layer.known is None else layer.known + count for layer in layers]
        queries = [layer.buffers.queries[:, :, :count] for layer in layers]
        keys = [layer.cached.keys[:, :, :stop] for layer, stop in zip(layers, stops, strict=True)]
        values = [
            layer.cached.values[:, :, :stop] for layer, stop in zip(layers, stops, strict=True)
        ]
        size = sum(one.nbytes for one in (*queries, *keys, *values))
        if size > WAITING_BYTES and size > bytes_that_may_wait(queries[0]):
            return False
        own = zip(copies(queries), copies(keys), copies(values), strict=True)
        for layer, tensors in zip(layers, own, strict=True):
            self._layers[layer.name] = layer._replace(own=tensors)
        # Nobody else writes to the ids and masks of the steps from here on.
        self._masks = {key: mask.with_own_padding() for key, mask in self._masks.items()}
        self._ids = [torch.cat(self._ids, 1)]
        self._undo.close()
        self._cache = None
        return True

    def _steps_of(
        self, layer: WaitingLayer, step: Step, count: int, masks: dict[Any, Any]
    ) -> LateCall:
        """Return all steps of one attention as one call."""
        _, tap, cached, buffers, known, slid, own = layer
        assert known is not None
        evicted = 0
        if own is not None:
            queries, keys, values = own
        else:
            queries = buffers.queries[:, :, :count]
            keys = cached.layer.keys
            values = cached.layer.values
        if slid is not None:
            # Put the keys that have slid away before the new ones.
            assert buffers.keys is not None
            assert buffers.values is not None
            evicted = known - slid[0].shape[2]
            keys = torch.cat([slid[0], buffers.keys[:, :, :count]], 2)
            values = torch.cat([slid[1], buffers.values[:, :, :count]], 2)
        # Layers of one mask share its translation.
        mask = self._masks[id(step.mask)]
        key = (id(mask), keys.shape[2], evicted)
        if isinstance(mask, LazyMask) and key not in masks:
            more = {"q_length": count, "q_offset": known}
            if slid is not None or own is not None:
                more |= {"kv_offset": evicted, "kv_length": keys.shape[2]}
            masks[key] = LazyMask.of(mask.own, {**mask.arguments, **more}, mask.dtype)
        made = LateCall(
            implementation_of(tap.module),
            tap.module,
            (queries, keys, values),
            masks.get(key, mask),
            dict(step.options),
        )
        made.stored = StoredKeys()
        if own is None:
            memory = KeyMemory.held_by(cached.layer, cached.layer.keys)
            made.stored = StoredKeys((memory,), stay=True)
        return made

    @torch.no_grad()
    def _record(self, made: LateCall, edits: Any, *, are_steps: bool = False) -> None:
        """Record a call as edited; steps are known to continue what was recorded."""
        handler = self.interceptor.handler
        made.edits = edits.every
        handled = self.interceptor.handle(id(made.module), made)
        if edits.of_scores:
            made.describe_edited(handled, edits.of_scores)
        handler.before(handled)
        handled.follows = handled.follows or are_steps
        handled.are_steps = are_steps
        handler.after(handled, made.tensors[0])
