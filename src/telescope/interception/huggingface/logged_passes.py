"""Let the calls of a model wait while it runs, and record them when somebody reads.

A call is logged by references to its tensors: a prompt call by call, the steps of a model that
writes query by query. Nothing that waits may change meanwhile: calls with a mask or a bias in a
tensor, or with keys that a later pass writes to, are recorded while they run.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple
from weakref import proxy, ref

import torch
from torch import Tensor, nn

from ...attention import Attention
from ...recording import ROOM, AttentionCall, Device, Recording, StepsCall, SummariesCall
from ..interceptor import HandledCall, StoredKeys
from ..observer import SHORT
from ..sdpa_lse import SdpaWithLse
from ..text import KeyMemory, version_of
from .cache_layers import CacheLayer, cache_of
from .interface_call import InterfaceCall, Result
from .masks import LazyMask, causal_mask, is_steady
from .transformers_internals import own_attention, weights_are_requested

WAITING_BYTES = 2**28  # of the tensors of a pass: a longer text takes longer than its recording


class LateCall(InterfaceCall):
    """A call that is recorded after it ran. Its output is not kept."""

    stored: StoredKeys | None = None
    """Where the keys lie, if that is known; else the cache tells."""
    output: Tensor | None = None
    """What the call returned, if that was kept."""
    has_waited = False
    """Whether the cache may have changed since the call ran."""

    def where_keys_lie(self, handled: HandledCall) -> StoredKeys:
        if self.stored is not None:
            return self.stored
        layer = CacheLayer.of(handled.interceptor.text.cache(), self.module, bool(handled.across))
        if self.has_waited and (layer is None or layer.keys is not self.tensors[1]):
            return StoredKeys()
        return super().where_keys_lie(handled)

    def check_output(self, handled: HandledCall, call: AttentionCall, output: Any) -> None:
        """Compare the definition with what the call returned or, where that was not kept, with the
        model's own function, which runs once more on the tensors of the call.
        """
        if self.output is not None:
            super().check_output(handled, call, output)
        else:
            self.compare(handled, call)


class LoggedCall(NamedTuple):
    """A call as it ran."""

    implementation: str
    module: nn.Module
    tensors: tuple[Tensor, Tensor, Tensor]
    mask: Any
    options: dict[str, Any]
    lse: Tensor | None
    output: Tensor | None
    """Kept until the definition of some call of the module was compared with its output."""
    number: int
    """Which pass through its module the call is."""
    versions: tuple[int | None, int | None]
    """How often queries and keys had been written to."""


class PassLog:
    """The calls of one block that wait to be recorded."""

    def __init__(self, interceptor: Any, recording: Recording) -> None:
        self.interceptor: Any = proxy(interceptor)  # which refers to this object
        self.recording: Recording | None = recording
        handler = interceptor.handler
        # What is kept of these has to be read while the model runs.
        self.is_open = not (
            handler.keeps_gradients or handler.carriers or recording.keep == StepsCall.keep
        )
        self._calls: list[LoggedCall] = []
        self._steps: dict[int, list[LoggedCall]] = {}  # by the id of the attention
        self._layers: dict[int, Any] = {}  # of the cache, likewise
        self._cache: Any = None  # of the running pass; a weak reference
        self._is_stepping = False
        self._ids: torch.Size | None = None
        self._bytes = 0
        self._is_recording = False
        self._mask: tuple[LazyMask, LazyMask] | None = None  # of the latest call, and its copy

    # --------------------------------------------------------------------------------------- passes

    def continues(self, kwargs: Mapping[str, Any], ids: Tensor | None) -> bool:
        """Return whether the pass that begins is one more step beside those that wait."""
        cache = cache_of(kwargs)
        if not self._is_stepping or cache is None or cache is not self._cache():
            return False
        if (ids is not None and ids.shape != self._ids) or self.interceptor.text.is_reading_prompt:
            return False
        if not self._steps:
            return True
        count = {len(calls) for calls in self._steps.values()}
        if len(count) > 1 or max(count) >= ROOM:
            return False
        last = [calls[-1] for calls in self._steps.values()]
        return all(
            self._layers[id(call.module)].keys is call.tensors[1]
            and (call.mask is None or is_steady(call.mask))
            for call in last
        )

    def begin(self, kwargs: Mapping[str, Any], ids: Tensor | None) -> None:
        """Begin a pass. A step that continues the recorded text waits with those that follow it."""
        cache = cache_of(kwargs)
        self._cache = None if cache is None else ref(cache)
        self._ids = None if ids is None else ids.shape
        text = self.interceptor.text
        text.inputs.forget_steps()
        is_step = ids is not None and ids.shape[1] == 1 and self._cache is not None
        self._is_stepping = is_step and not text.is_reading_prompt and self._holds_all()

    def _holds_all(self) -> bool:
        """Return whether the keys that each attention was passed last lie in the cache, and are
        never written to again.
        """
        recording = self.recording
        # A recording of queries keeps the lse of each, which steps that wait do not have.
        if (
            recording is None
            or recording.keep != SummariesCall.keep
            or recording.options.map is not None
        ):
            return False
        if self.interceptor.has_cross_attention or self.interceptor.has_value_sets:
            return False
        for name, module in self.interceptor.recorded_modules():
            layer = CacheLayer.of(self._cache(), module, across=False)
            if layer is None or not layer.keys_stay:
                return False
            if not self.interceptor.text.holds(name, layer.layer):
                return False
        return True

    def _layer(self, module: nn.Module) -> CacheLayer:
        found = CacheLayer.of(self._cache(), module, across=False)
        assert found is not None
        return found

    # ---------------------------------------------------------------------------------------- calls

    def run(
        self,
        implementation: str,
        module: nn.Module,
        tensors: tuple[Tensor, Tensor, Tensor],
        mask: Any,
        options: dict[str, Any],
    ) -> Result | None:
        """Run a call and let it wait; return None if it has to be recorded while it runs."""
        interceptor = self.interceptor
        key = id(module)
        name = interceptor.names[key]
        if name not in interceptor.handler.names:
            return None
        if not self._can_wait(key, module, tensors, mask, options):
            self.flush()
            return None
        interceptor.note_call(name)
        if not self._calls and not self._steps:
            self._check_memory(tensors)
        # The log-sum-exp saves a long survey more than reading it costs.
        queries, keys, _ = tensors
        scores = queries.shape[-2] * keys.shape[-2]
        reads_lse = not self._is_stepping and not (queries.is_cuda and scores <= SHORT)
        own = own_attention(implementation, module)
        passed = {name: value for name, value in options.items() if name != "output_attentions"}
        with SdpaWithLse() if reads_lse else nullcontext() as fused:
            result: Result = own(module, *tensors, mask, **passed)
        lse = fused.lse if fused is not None else None
        self._log(
            LoggedCall(
                implementation,
                module,
                tensors,
                self._own_mask(mask),
                options,
                lse,
                None if interceptor.is_verified(module) else result[0],
                interceptor.passes_of(key),
                (version_of(queries), version_of(keys)),
            )
        )
        return result

    def _can_wait(
        self,
        key: int,
        module: nn.Module,
        tensors: tuple[Tensor, Tensor, Tensor],
        mask: Any,
        options: dict[str, Any],
    ) -> bool:
        """Return whether nobody can change what the call holds."""
        assert self.recording is not None
        if not self.is_open or self.recording.on_call is not None or tensors[0].requires_grad:
            return False
        if self.interceptor.is_across(key) or weights_are_requested(options):
            return False
        if any(options.get(name) is not None for name in DEFINING):
            return False
        if mask is not None and (not isinstance(mask, LazyMask) or mask.shared):
            return False
        cache = self.interceptor.text.cache()
        layer = CacheLayer.of(cache, module, across=False)
        return cache is None or (layer is not None and layer.keys_stay)

    def _own_mask(self, mask: LazyMask | None) -> LazyMask | None:
        """Return a mask with the description that the mask has now: the model may write to it
        before the next layer.
        """
        if mask is None:
            return None
        if self._mask is None or self._mask[0] is not mask:
            own = LazyMask.of(mask.own, mask.arguments, mask.dtype)
            vars(own)["description"] = mask.description
            self._mask = mask, own
        return self._mask[1]

    def _log(self, call: LoggedCall) -> None:
        key = id(call.module)
        if self._is_stepping and call.tensors[0].shape[-2] == 1 and call.number == 1:
            self._steps.setdefault(key, []).append(call)
            self._layers[key] = self._layer(call.module).layer
            return
        self._calls.append(call)
        self._bytes += sum(tensor.nbytes for tensor in call.tensors)
        if self._bytes > WAITING_BYTES:
            self.flush()

    def _check_memory(self, tensors: tuple[Tensor, Tensor, Tensor]) -> None:
        """Raise a ValueError before a text is read of which more would be kept than there is memory
        for.
        """
        assert self.recording is not None
        heads = tuple(range(tensors[0].shape[1]))
        self.recording.check_memory(AttentionCall(*tensors, Attention(), heads, 0.0))

    # ------------------------------------------------------------------------------------ recording

    @property
    def waits(self) -> bool:
        """Whether some call waits."""
        return bool(self._calls or self._steps)

    @property
    def can_wait_longer(self) -> bool:
        """Whether the calls may wait although the block ends: nobody can change what they hold."""
        if (
            self._steps
            or self.recording is None
            or not isinstance(self.recording.options.store, Device)
        ):
            return False
        return all(
            call.mask is None and self.interceptor.is_verified(call.module) for call in self._calls
        )

    def flush(self) -> None:
        """Record the calls that wait."""
        if self._is_recording or not (self._calls or self._steps):
            return
        self._is_recording = True
        try:
            calls = self._calls
            self._calls = []
            self._bytes = 0
            self._mask = None
            for call in calls:
                self._record(call, call.tensors, call.mask)
            self._record_steps()
        finally:
            self._is_recording = False

    def _record_steps(self) -> None:
        steps = self._steps
        layers = self._layers
        self._steps = {}
        self._layers = {}
        self._is_stepping = False
        if not steps:
            return
        # A pass that was interrupted leaves some attentions without their last query.
        count = min(map(len, steps.values()))
        text = self.interceptor.text
        ids = text.inputs.steps(count)
        if ids is not None:
            text.inputs.add(ids)
        masks: dict[Any, Any] = {}
        with text.stepping():
            for calls in steps.values():
                last = calls[count - 1]
                queries = torch.cat([call.tensors[0] for call in calls[:count]], 2)
                key = (id(last.mask), last.tensors[1].shape)
                if key not in masks:
                    masks[key] = _mask_of_steps(last, count)
                memory = KeyMemory.held_by(layers[id(last.module)], last.tensors[1])
                tensors = (queries, *last.tensors[1:])
                self._record(last, tensors, masks[key], StoredKeys((memory,), stay=True))

    @torch.no_grad()
    def _record(
        self,
        call: LoggedCall,
        tensors: tuple[Tensor, ...],
        mask: Any,
        stored: StoredKeys | None = None,
    ) -> None:
        queries, keys, values = tensors
        if (version_of(call.tensors[0]), version_of(call.tensors[1])) != call.versions:
            raise RuntimeError(
                f'queries or keys of "{self.interceptor.names[id(call.module)]}" were written to '
                'after the attention had run, before they were recorded; keep="steps" copies them '
                "while the model runs"
            )
        made = LateCall(
            call.implementation, call.module, (queries, keys, values), mask, call.options
        )
        made.lse = call.lse
        made.stored = stored
        made.has_waited = True
        made.output = None if stored is not None else call.output
        handled = self.interceptor.handle_late(id(call.module), made, call.number)
        handler = self.interceptor.handler
        handler.before(handled)
        if stored is not None:
            handled.follows = handled.are_steps = True
        handler.after(handled, made.output if made.output is not None else queries)


# Options whose tensors are part of a definition.
DEFINING = ("s_aux", "position_bias", "cu_seq_lens_q")


def _mask_of_steps(last: LoggedCall, count: int) -> Any:
    """Return the mask of the last `count` queries of a text, of which the last had this mask."""
    keys = last.tensors[1].shape[2]
    if count == 1 or ("flash" in last.implementation and last.mask is None):
        return last.mask
    if last.mask is not None:
        more = {"q_length": count, "q_offset": keys - count}
        return LazyMask.of(last.mask.own, {**last.mask.arguments, **more}, last.mask.dtype)
    # A single query sees every key: several of them are causal.
    queries = last.tensors[0]
    dtype = torch.bool if last.implementation == "sdpa" else queries.dtype
    like = torch.empty((), dtype=dtype, device=queries.device)
    return causal_mask(last.implementation, like.expand(len(queries), 1, count, keys))
