"""Let the calls of a model wait while it runs, and record them when somebody reads.

A call is logged by references to its tensors: a prompt call by call, the steps of a model that
writes query by query (logged_steps.py). Nothing that waits may change meanwhile: calls with a mask
or a bias in a tensor, or with keys that a later pass writes to, are recorded while they run.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any
from weakref import proxy, ref

import torch
from torch import Tensor, nn

from ...attention import Attention
from ...recording import AttentionCall, Device, Recording, StepsCall, SummariesCall
from ..interceptor import StoredKeys
from ..module_hook import parked
from ..observer import SHORT
from ..sdpa_lse import SdpaWithLse
from ..text import version_of
from ..waiting import WAITING_BYTES, bytes_that_may_wait
from .cache_layers import CacheLayer, before_changes, cache_of, static_keys
from .interface_call import Result
from .late_calls import LateCall, LoggedCall, copies
from .logged_steps import StepLog
from .masks import LazyMask
from .transformers_internals import Prompt, own_attention
from .waiting_masks import is_plain, known_mask, stays

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
        self.steps = StepLog(self.interceptor)
        self._cache: Any = None  # of the running pass; a weak reference
        self._undo = ExitStack()  # undone when what waits is recorded
        self._bytes = 0
        self._limit = WAITING_BYTES
        self._verified: set[int] = set()  # the ids of attentions
        self._is_recording = False
        self._mask: tuple[LazyMask, LazyMask] | None = None  # of the latest call, and its copy
        self._prompt: Prompt | None = None
        """The prompt that the calls have read, if `generate` has gone on since."""

    # --------------------------------------------------------------------------------------- passes

    def begin(self, kwargs: Mapping[str, Any], ids: Tensor | None) -> None:
        """Begin a pass. A step that continues the recorded text waits with those that follow it."""
        cache = cache_of(kwargs)
        self._cache = None if cache is None else ref(cache)
        if cache is not None and ids is not None and self._is_step(ids) and self._holds_all():
            self.steps.begin(cache, ids)

    def begin_behind_prompt(self, kwargs: Mapping[str, Any], ids: Tensor | None) -> bool:
        """Begin a pass if it is the first step behind a prompt that waits, so that its steps wait
        with it; return False for any other pass.
        """
        cache = cache_of(kwargs)
        if self._prompt is None or len(self.steps) > 0 or ids is None or not self._is_step(ids):
            return False
        if cache is None or cache is not self._cache():
            return False
        for call in self._calls:
            layer = CacheLayer.of(cache, call.module, across=False)
            if layer is None or not layer.keys_stay or layer.keys is not call.tensors[1]:
                return False
        self.steps.begin(cache, ids)
        return True

    def park_hooks(self, modules: Sequence[nn.Module]) -> None:
        """Take the hooks out of attentions while the model makes steps: each attention is known to
        run once in a step, and to make its call.
        """
        self._undo.enter_context(parked(modules))
        self.steps.are_alike = True

    def _is_step(self, ids: Tensor) -> bool:
        """Return whether a pass reads one token of each text, none of a prompt, and can be recorded
        with those that follow it: a recording of queries keeps the lse of each, which steps that
        wait do not have.
        """
        if ids.shape[1] != 1 or self.interceptor.text.is_reading_prompt:
            return False
        recording = self.recording
        if recording is None or recording.keep != SummariesCall.keep:
            return False
        if self.interceptor.has_cross_attention or self.interceptor.has_value_sets:
            return False
        return recording._options.map is None

    def _holds_all(self) -> bool:
        """Return whether the keys that each attention was passed last lie in the cache, and are
        never written to again.
        """
        for name, module in self.interceptor.recorded_modules():
            layer = CacheLayer.of(self._cache(), module, across=False)
            if layer is None or not layer.keys_stay:
                return False
            if not self.interceptor.text.holds(name, layer.layer):
                return False
        return True

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
        key = id(module)
        known = self.steps.run(key, implementation, tensors, mask, options)
        if known is not None:
            return known
        interceptor = self.interceptor
        name = interceptor.names[key]
        if name not in interceptor.handler.names:
            return None
        if not self._can_wait(key, module, tensors, mask, options):
            self.flush()
            return None
        interceptor.note_call(name)
        interceptor.note_queries(key, tensors[0])
        if not self.waits:
            self._check_memory(tensors)
        # The log-sum-exp saves a long survey more than reading it costs.
        queries, keys, _ = tensors
        scores = queries.shape[-2] * keys.shape[-2]
        reads_lse = not self.steps.is_open and not (queries.is_cuda and scores <= SHORT)
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
                None if self._is_verified(module) else result[0],
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
        if self.interceptor.is_across(key) or not is_plain(mask, options):
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

    def _is_verified(self, module: nn.Module) -> bool:
        """Return whether the definition that is read of an attention was compared."""
        if id(module) in self._verified:
            return True
        is_verified: bool = self.interceptor.is_verified(module)
        if is_verified:
            self._verified.add(id(module))
        return is_verified

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
        can_wait = not self.steps.is_open and all(
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
        if self.steps.add(call):
            return
        self._calls.append(call)
        queries, keys, values = call.tensors
        self._bytes += queries.nbytes + keys.nbytes + values.nbytes
        if not self._may_wait(self._bytes, queries):
            self.flush()

    def _may_wait(self, size: int, queries: Tensor) -> bool:
        """Return whether calls of so many bytes may wait, the last with these queries."""
        # To ask how much memory a GPU has takes a while: once for each text.
        if size > self._limit:
            self._limit = max(self._limit, bytes_that_may_wait(queries))
        return size <= self._limit

    def _check_memory(self, tensors: tuple[Tensor, Tensor, Tensor]) -> None:
        """Raise a ValueError before a text is read of which more would be kept than there is memory
        for.
        """
        assert self.recording is not None
        heads = tuple(range(tensors[0].shape[1]))
        self.recording._check_memory(AttentionCall(*tensors, Attention(), heads, 0.0))

    # ------------------------------------------------------------------------------------ recording

    @property
    def waits(self) -> bool:
        """Whether some call waits."""
        return bool(self._calls) or len(self.steps) > 0

    def _can_wait_longer(self) -> bool:
        """Return whether the calls may wait although the model goes on: there is room, and their
        definitions are known.
        """
        if self.recording is None or not isinstance(self.recording._options.store, Device):
            return False
        last = self.steps.last
        of_steps = sum(tensor.nbytes for call in last for tensor in call.tensors)
        if last and not self._may_wait(self._bytes + of_steps, last[0].tensors[0]):
            return False
        return all(
            stays(call.mask) and self.interceptor.is_verified(call.module)
            for call in (*self._calls, *last)
        )

    def _tell_writes(self) -> bool:
        """Return whether all keys tell if somebody writes to them; tensors of inference mode do
        not.
        """
        return all(call.versions[1] is not None for call in (*self._calls, *self.steps.last))

    def keep(self) -> bool:
        """Let the calls wait although the block ends, without the cache; return False if they have
        to be recorded now.
        """
        if not self._tell_writes() or not self._can_wait_longer():
            return False
        self._undo.close()
        self._cache = None
        self.steps.keep()
        return True

    def keep_prompt(self, prompt: Prompt) -> bool:
        """Let the calls of a prompt wait while `generate` goes on; return False if they have to be
        recorded now.

        What lies in a cache of fixed size is copied, since each step writes to that memory.
        """
        recorded = [id(module) for _, module in self.interceptor.recorded_modules()]
        # One call of each attention, which are all that has run.
        is_single = sorted(id(call.module) for call in self._calls) == sorted(recorded)
        if not self._calls or len(self.steps) > 0 or not is_single or not self._can_wait_longer():
            return False
        cache = self.interceptor.text.cache()
        layers = [CacheLayer.of(cache, call.module, across=False) for call in self._calls]
        if all(layer is not None and layer.keys_stay for layer in layers):
            if not self._tell_writes():
                return False
            # What reorders or resets the cache has the calls recorded before.
            self._undo.enter_context(before_changes(cache, self.flush))
            self._prompt = prompt
            return True
        if any(static_keys(cache, call.module) is None for call in self._calls):
            return False
        # A copy that is no tensor of inference mode tells of writes.
        with torch.no_grad(), torch.inference_mode(False):
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

    @torch.no_grad()
    def flush(self) -> None:
        """Record the calls that wait."""
        if self._is_recording:
            return
        self._undo.close()
        self._is_recording = True
        calls = self._calls
        prompt = self._prompt
        self._calls = []
        self._bytes = 0
        self._limit = WAITING_BYTES
        self._mask = None
        self._prompt = None
        text = self.interceptor.text
        try:
            with ExitStack() as around:
                if prompt is not None:
                    around.enter_context(text.reading_prompt(prompt.ids, prompt.ends))
                if calls:
                    # Nobody writes to what waits before its surveys are launched.
                    assert self.recording is not None
                    around.enter_context(self.recording._queue.referring())
                for call in calls:
                    self._record(call, call.tensors, known_mask(call.mask))
            if prompt is not None and len(self.steps) > 0:
                text.begin_pass(None if self._cache is None else self._cache())
            # Only now: the prompt may be as long as the steps, and ids are found by their shape.
            steps = self.steps.end()
            with text.stepping():
                for one in steps:
                    self._record(*one)
        finally:
            # After an exception, too: steps without their prompt belong to no text.
            self.steps.end()
            self._is_recording = False

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
