"""Let the calls of a model wait while it runs, and record them when somebody reads.

A call is logged by references to its tensors: a prompt call by call, the steps of a model that
writes query by query. Nothing that waits may change meanwhile: calls with a mask or a bias in a
tensor, or with keys that a later pass writes to, are recorded while they run.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any
from weakref import proxy, ref

import torch
from torch import Tensor, nn

from ...attention import Attention
from ...recording import ROOM, AttentionCall, Device, Recording, StepsCall, SummariesCall
from ..interceptor import StoredKeys
from ..module_hook import parked
from ..observer import SHORT
from ..sdpa_lse import SdpaWithLse
from ..text import KeyMemory, version_of
from .cache_layers import CacheLayer, cache_of, static_keys
from .interface_call import Result
from .late_calls import LateCall, LoggedCall, copies
from .masks import LazyMask
from .transformers_internals import Prompt, own_attention, weights_are_requested
from .waiting_masks import causal_mask, is_steady, known_mask, stays

WAITING_BYTES = 2**28  # of the tensors of a pass: a longer text takes longer than its recording
MOST_ROOM = 2  # times the prompt: a cache of fixed size that is copied with its unwritten end


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
        self.is_stepping = False
        """Whether the running pass is a step that waits with those that follow."""
        self._parked = ExitStack()
        self._ids: torch.Size | None = None
        self._bytes = 0
        self._is_recording = False
        self._mask: tuple[LazyMask, LazyMask] | None = None  # of the latest call, and its copy
        self._prompt: Prompt | None = None
        """The prompt that the calls have read, if `generate` has gone on since."""

    # --------------------------------------------------------------------------------------- passes

    def continues(self, kwargs: Mapping[str, Any], ids: Tensor | None) -> bool:
        """Return whether the pass that begins is one more step beside those that wait."""
        cache = cache_of(kwargs)
        if not self.is_stepping or cache is None or cache is not self._cache():
            return False
        if (ids is not None and ids.shape != self._ids) or self.interceptor.text.is_reading_prompt:
            return False
        if not self._steps:
            return True
        count = {len(calls) for calls in self._steps.values()}
        if len(count) > 1 or max(count) >= ROOM:
            return False
        last = [calls[-1] for calls in self._steps.values()]
        if any(self._layers[id(call.module)].keys is not call.tensors[1] for call in last):
            return False
        # Layers share few masks.
        masks = {id(call.mask): call.mask for call in last if call.mask is not None}
        return all(map(is_steady, masks.values()))

    def begin(self, kwargs: Mapping[str, Any], ids: Tensor | None) -> None:
        """Begin a pass. A step that continues the recorded text waits with those that follow it."""
        self._parked.close()
        cache = cache_of(kwargs)
        self._cache = None if cache is None else ref(cache)
        self._ids = None if ids is None else ids.shape
        text = self.interceptor.text
        text.inputs.forget_steps()
        is_step = ids is not None and ids.shape[1] == 1 and self._cache is not None
        self.is_stepping = is_step and not text.is_reading_prompt and self._holds_all()

    def park_hooks(self, modules: Sequence[nn.Module]) -> None:
        """Take the hooks out of attentions while the model makes steps: each attention is known to
        run once in a step, and to make its call.
        """
        self._parked.enter_context(parked(modules))

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
        interceptor.note_queries(key, tensors[0])
        if not self._calls and not self._steps:
            self._check_memory(tensors)
        # The log-sum-exp saves a long survey more than reading it costs.
        queries, keys, _ = tensors
        scores = queries.shape[-2] * keys.shape[-2]
        reads_lse = not self.is_stepping and not (queries.is_cuda and scores <= SHORT)
        own = own_attention(implementation, module)
        passed = options
        if "output_attentions" in options:
            passed = {name: one for name, one in options.items() if name != "output_attentions"}
        lse = None
        result: Result
        if reads_lse:
            with SdpaWithLse() as fused:
                result = own(module, *tensors, mask, **passed)
            lse = fused.lse
        else:
            result = own(module, *tensors, mask, **passed)
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
        for name in DEFINING:
            if options.get(name) is not None:
                return False
        if mask is not None and (not isinstance(mask, LazyMask) or mask.shared):
            return False
        text = self.interceptor.text
        cache = text.cache()
        layer = CacheLayer.of(cache, module, across=False)
        if cache is None or (layer is not None and layer.keys_stay):
            return True
        # The keys of a prompt in a cache of fixed size are copied when the prompt was read.
        fixed = static_keys(cache, module)
        if fixed is None or fixed.window or fixed.keys is not tensors[1]:
            return False
        _, _, queries, _ = tensors[0].shape
        return text.is_reading_prompt and fixed.keys.shape[2] <= MOST_ROOM * queries

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

    def add_compiled(self, calls: Sequence[LoggedCall]) -> bool:
        """Let the calls of a compiled run wait, or return False if they have to be recorded now."""
        can_wait = not self.is_stepping and all(
            self._can_wait(id(one.module), one.module, one.tensors, None, one.options)
            and stays(one.mask)
            for one in calls
        )
        if can_wait and not self._calls:
            self._check_memory(calls[0].tensors)
        for call in calls if can_wait else ():
            self._log(call)
        return can_wait

    def _log(self, call: LoggedCall) -> None:
        key = id(call.module)
        if self.is_stepping and call.tensors[0].shape[-2] == 1 and call.number == 1:
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
            stays(call.mask) and self.interceptor.is_verified(call.module) for call in self._calls
        )

    def keep_prompt(self, prompt: Prompt) -> bool:
        """Let the calls of a prompt wait while `generate` goes on; return False if they have to be
        recorded now.

        What lies in a cache of fixed size is copied, since each step writes to that memory.
        """
        recorded = [id(module) for _, module in self.interceptor.recorded_modules()]
        # One call of each attention, which are all that has run.
        is_single = sorted(id(call.module) for call in self._calls) == sorted(recorded)
        cache = self.interceptor.text.cache()
        is_fixed = all(
            static_keys(cache, call.module) is not None and call.number == 1 for call in self._calls
        )
        if not self._calls or self._steps or not is_single or not is_fixed:
            return False
        if not self.can_wait_longer:
            return False
        keys = copies([call.tensors[1] for call in self._calls])
        values = copies([call.tensors[2] for call in self._calls])
        self._calls = [
            call._replace(
                tensors=(call.tensors[0], own_keys, own_values),
                versions=(call.versions[0], version_of(own_keys)),
            )
            for call, own_keys, own_values in zip(self._calls, keys, values, strict=True)
        ]
        self._prompt = prompt
        return True

    def prompt_in(self, cache: Any) -> Mapping[int, torch.Size]:
        """Return the shapes of the queries of the prompt that waits and that this cache holds, by
        the id of the attention; empty if there is none.
        """
        if self._prompt is None or self._cache is None or self._cache() is not cache:
            return {}
        return {id(call.module): call.tensors[0].shape for call in self._calls}

    def flush(self) -> None:
        """Record the calls that wait."""
        self._parked.close()
        if self._is_recording or not (self._calls or self._steps):
            return
        self._is_recording = True
        try:
            calls = self._calls
            prompt = self._prompt
            self._calls = []
            self._bytes = 0
            self._mask = None
            self._prompt = None
            text = self.interceptor.text
            with nullcontext() if prompt is None else text.reading_prompt(prompt.ids, prompt.ends):
                for call in calls:
                    self._record(call, call.tensors, known_mask(call.mask))
            self._record_steps()
        finally:
            self._is_recording = False

    def _record_steps(self) -> None:
        steps = self._steps
        layers = self._layers
        self._steps = {}
        self._layers = {}
        self.is_stepping = False
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
