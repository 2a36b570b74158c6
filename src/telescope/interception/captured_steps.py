"""Follow the steps of Telescope's own models while decoding runs them as a CUDA graph.

A graph runs no hooks. So while a step is captured, each `Attend` copies its query into a buffer of
ROOM rows, inside the graph, and the host counts the steps that the graph has run. The steps wait in
the buffers until somebody reads, until the buffers are full, or until the model runs something
else; then they are recorded as one call of many queries, over the keys that the cache holds.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from ..attention import Attention, identity_key, without_room
from ..engines import torch_modes
from ..layers import Attend, OnlyReal, StepFollower, StepsToFollow, step_observers
from ..recording import ROOM, Recording, StepsCall
from ..surveys import record_use
from .compiled import TAP, AttentionTap, RunLog, Tap
from .interceptor import HandledCall, Interceptor, StoredKeys, interceptors
from .module_hook import ModuleHook
from .observer import Observer
from .telescope_models import AttendCall, AttendInterceptor, key_of
from .text import KeyMemory

WAITING_BYTES = 2**28  # of the keys and values that steps keep alive after their block


class CannotFollowError(RuntimeError):
    """A step of the model cannot be followed: hooks have to be called."""


class StepsOfAttend(AttendCall):
    """Steps of an `Attend` that are recorded after they ran."""

    def read_lse(self) -> None:
        """Do nothing: the call has run."""

    def where_keys_lie(self, handled: HandledCall) -> StoredKeys:
        _, keys, values = self.tensors
        # Later steps write behind these keys, and nothing else writes to the cache.
        return StoredKeys((KeyMemory.of(keys), KeyMemory.of(values)), stay=True)


class StepTap(AttentionTap):
    """Copy the query of each step of an attention into a buffer.

    module    the model's own attention
    attend    that of the copy of the model which decoding runs
    around    the blocks that see the attention
    """

    def __init__(
        self, module: nn.Module, attend: Attend, around: tuple[Interceptor, ...], log: "StepLog"
    ) -> None:
        super().__init__(module, log, None)
        self.copied = attend
        self.around = around
        self.steps = log
        self.pass_number = 0
        """The number of the latest pass through the attention."""
        self.tensors: tuple[Tensor, Tensor] | None = None
        """Keys and values, those of a cache with the room behind them."""
        self.attention = Attention()
        """The definition, without a mask of the room behind the keys."""
        self.across = False
        self.is_cached = False
        """Whether the keys are those of a cache that grows."""
        self.shape: tuple[int, ...] = ()
        """The shape of the query."""

    def note(self, args: Any, kwargs: Any) -> None:
        """Copy the query of the step that runs; `args` are those of the `Attend`."""
        if len(args) != 4:
            raise CannotFollowError(f"{type(self.module).__name__} is called in a way of its own")
        queries, keys, values, attention = args
        attention, written = without_room(attention)
        if self.tensors is None:
            self._begin(queries, keys, values, kwargs.get("across"))
            self.attention = attention
            self.is_cached = written is not None
        same = (keys.data_ptr(), keys.shape, values.data_ptr(), values.shape, queries.shape)
        assert self.tensors is not None
        known = (
            *(part for one in self.tensors for part in (one.data_ptr(), one.shape)),
            self.shape,
        )
        is_alike = same == known and identity_key(attention) == identity_key(self.attention)
        # Keys that each step computes anew lie in memory of the graph, which it uses again.
        if not is_alike or self.pass_number == self.steps.pass_number:
            raise CannotFollowError(f"{type(self.module).__name__} does not run alike in each step")
        self.pass_number = self.steps.pass_number
        if self.queries is not None:
            self.queries.index_copy_(2, self.steps.slot, queries.detach())

    def _begin(self, queries: Tensor, keys: Tensor, values: Tensor, across: bool | None) -> None:
        """Ask the blocks what is to be kept, and make room for it."""
        batch, heads, count, width = queries.shape
        if count != 1 or across is None:
            raise CannotFollowError(f"{type(self.module).__name__} is called in a way of its own")
        self.tensors = keys.detach(), values.detach()
        self.shape = queries.shape
        self.across = across
        self.steps.taps.append(self)
        for one in self.around:
            one.handler.prepare_compiled(one.names[id(self.module)], heads, self)
        with torch.inference_mode(False):
            if any(factor != 1.0 for factor in self.asked):
                dtype = torch.promote_types(queries.dtype, torch.float32)
                factors = torch.tensor(self.asked, dtype=dtype, device=queries.device)
                self.factors = factors[:, None, None]
            if self.is_kept:
                self.queries = queries.new_empty(batch, heads, ROOM, width)

    def multiply(self, factors: list[float]) -> None:
        before = self.asked or [1.0] * len(factors)
        self.asked = [one * other for one, other in zip(before, factors, strict=True)]

    def change(self, output: Any) -> Any:
        """Return the context with its heads multiplied; None for no edit, or after an exception."""
        if self.factors is None or output is None:
            return None
        # Not times 0: 0 · NaN would be NaN.
        changed = torch.where(self.factors == 0.0, 0.0, output * self.factors)
        return changed.to(output.dtype)

    def steps_so_far(self, count: int, length: int) -> StepsOfAttend:
        """Return the latest `count` steps as one call, when so many keys were in the cache."""
        assert self.tensors is not None
        keys, values = self.tensors
        if self.is_cached:
            keys = keys[:, :, :length]
            values = values[:, :, :length]
        if self.queries is not None:
            queries = self.queries[:, :, :count]
        else:
            # Only the tokens are noted: the numbers of the queries are not read.
            batch, heads, _, width = self.shape
            queries = keys.new_empty(()).expand(batch, heads, count, width)
        return StepsOfAttend(self.copied, queries, keys, values, self.attention, across=self.across)


class StepLog(RunLog):
    """What all taps of a generation share.

    slot         the row of the buffers that the running step writes to, (1,)
    pass_number  how many steps have run in Python: before capturing, while capturing
    taps         the taps of the attentions that have run, in the order of the model's calls
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.slot = torch.zeros(1, dtype=torch.long, device=device)
        self.pass_number = 0
        self.taps: list[StepTap] = []


class CapturedSteps(StepFollower):
    """Record the captured steps of one generation in the blocks around the model."""

    def __init__(
        self,
        steps: StepsToFollow,
        around: Mapping[int, tuple[Interceptor, ...]],
        watching: AttendInterceptor | None,
    ) -> None:
        self._before = steps.before
        self._real = steps.real
        self._around = around
        self._changes = step_observers.changes
        with torch.inference_mode(False):
            self._log = StepLog(steps.tokens.device)
            self._ids = steps.tokens.new_zeros(len(steps.tokens), ROOM)
        self.state = (self._log.slot,)
        self._watching = watching
        self.count_waiting = 0
        """How many steps wait in the buffers."""
        self._count = 0
        # Hooks stay silent while a step runs: only what attentions compute is followed.
        self._tapped: list[nn.Module] = []
        for module in steps.model.modules():
            vars(module)[TAP] = self._tap_for(module)
            self._tapped.append(module)

    def _tap_for(self, module: nn.Module) -> Tap:
        """Return the tap of a module of the copy that decoding runs."""
        key = key_of(module)
        seen = () if key is None else tuple(one for one in self._around[key] if one.is_active())
        if key is None or not seen or not isinstance(module, Attend):
            return Tap(module, self._log)
        own = seen[0].attentions[seen[0].names[key]]
        return StepTap(own, module, seen, self._log)

    @contextmanager
    def running(self, tokens: Tensor) -> Iterator[None]:
        log = self._log
        log.pass_number += 1
        log.is_open = True
        try:
            yield
        finally:
            log.is_open = False
        self._ids.index_copy_(1, log.slot, tokens[:, None])
        log.slot.add_(1)

    def count(self) -> None:
        self._count += 1
        # An edit tells afterwards which of the attentions it changed have run.
        if self._count == 1:
            for tap in self._log.taps:
                for one in tap.around:
                    one.handler.note_compiled(one.names[id(tap.module)])
        self.count_waiting += 1
        watching = self._watching
        # Without a watch the buffers hold the token ids alone.
        if watching is None:
            if self.count_waiting == ROOM:
                self._begin_buffers()
            return
        if watching.waiting is not self:
            watching.collect()
            watching.waiting = self
            _recording_of(watching)._queue.collect_steps = watching.collect
        if self.count_waiting == ROOM:
            watching.collect()

    def _begin_buffers(self) -> None:
        """Let the next step write to the first row of the buffers."""
        self.count_waiting = 0
        self._log.slot.zero_()

    def is_current(self) -> bool:
        if step_observers.changes != self._changes:
            self._changes = step_observers.changes
            known = self._around
            return all(interceptors.get(key, ()) == one for key, one in known.items())
        return True

    def close(self) -> None:
        for module in self._tapped:
            vars(module).pop(TAP, None)
        self._tapped = []

    # ------------------------------------------------------------------------------------ recording

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors that waiting steps keep alive."""
        taps = self._log.taps
        held = [one for tap in taps for one in (*(tap.tensors or ()), tap.queries)]
        return sum(one.nbytes for one in held if one is not None)

    def end_block(self) -> None:
        """Let the steps wait until somebody reads, where they keep little memory alive."""
        assert self._watching is not None
        if self.nbytes > WAITING_BYTES:
            self._watching.collect()
        else:
            queue = _recording_of(self._watching)._queue
            queue.collect_steps = LateSteps(self._watching)

    @torch.no_grad()
    def flush(self) -> None:
        """Record the steps that wait."""
        taps = self._log.taps
        count = self.count_waiting
        interceptor = self._watching
        assert interceptor is not None
        _recording_of(interceptor)._queue.collect_steps = None
        text = interceptor.text
        text.begin_pass()
        text.inputs.add(self._ids[:, :count])
        length = self._before + self._count
        # Buffers are made on the stream that captures.
        record_use(*(tap.queries for tap in taps if tap.queries is not None))
        try:
            with OnlyReal(self._real(self._count), is_new_text=True), text.stepping():
                for tap in taps:
                    if interceptor in tap.around:
                        self._record(interceptor, tap, count, length)
        finally:
            text.begin_pass()
            self._begin_buffers()

    def _record(self, interceptor: Interceptor, tap: StepTap, count: int, length: int) -> None:
        made = tap.steps_so_far(count, length)
        key = id(tap.module)
        for one in tap.around:
            made.edits += one.handler.edits_of_compiled(one.names[key])
        queries, keys, _ = made.tensors
        # The keys of the call before are known by where they lie, and by how many they were.
        before = keys.shape[2] - (count if tap.is_cached else 0)
        known = interceptor.text.has_keys(interceptor.names[key], KeyMemory.of(keys), before)
        handled = interceptor.handle(key, made)
        interceptor.handler.before(handled)
        handled.follows = known
        handled.are_steps = True
        interceptor.handler.after(handled, queries)


def _recording_of(watching: Interceptor) -> Recording:
    assert isinstance(watching.handler, Observer)
    return watching.handler.recording


class LateSteps:
    """Record the steps that wait after their block has ended. Refers to the recording weakly: a
    recording that nobody reads is freed with them.
    """

    def __init__(self, watching: AttendInterceptor) -> None:
        self.watching = watching
        self.recording = ref(_recording_of(watching))
        self._hold(None)

    def _hold(self, recording: Any) -> None:
        assert isinstance(self.watching.handler, Observer)
        self.watching.handler.recording = recording

    def __call__(self) -> None:
        recording = self.recording()
        if recording is None:
            return
        self._hold(recording)
        try:
            self.watching.collect()
            recording._flush(collects=False)
        finally:
            self._hold(None)


# ----------------------------------------------------------------------------------- who can follow


def follow_steps(steps: StepsToFollow) -> CapturedSteps | None:
    """Return a follower of captured steps, or None if some hook of the model has to be called."""
    # Under autocast, an attention computes with other tensors than it is passed.
    if torch_modes.autocast_enabled(steps.tokens.device):
        return None
    around: dict[int, tuple[Interceptor, ...]] = {}
    for module in steps.model.modules():
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        # A hook of the user wants to be called.
        if not all(isinstance(hook, ModuleHook) for hook in hooks):
            return None
        key = key_of(module)
        if key is None:
            continue
        # Taps are put into a copy of the model alone. A shared module would run twice in a step.
        if key == id(module) or key in around:
            return None
        around[key] = interceptors.get(key, ())
    active = {id(one): one for each in around.values() for one in each if one.is_active()}
    if not active or not all(map(_can_follow, active.values())):
        return None
    # Of two watches, each around a part of the model, steps would wait for two readers.
    watches = [one for one in active.values() if isinstance(one.handler, Observer)]
    if len(watches) > 1:
        return None
    watching = watches[0] if watches else None
    assert watching is None or isinstance(watching, AttendInterceptor)
    return CapturedSteps(steps, around, watching)


def _can_follow(one: Interceptor) -> bool:
    """Return whether a block needs of each step no more than is copied."""
    handler = one.handler
    if not isinstance(one, AttendInterceptor) or handler.why_not_compiled is not None:
        return False
    # The definitions of Telescope's own layers are edited by hooks.
    if handler.adds_to_scores:
        return False
    if not isinstance(handler, Observer):
        return True
    # The residual stream of each step is read by hooks, and `on_call` is called in each step.
    recording = handler.recording
    return recording.keep != StepsCall.keep and recording.on_call is None


step_observers.make_follower = follow_steps
