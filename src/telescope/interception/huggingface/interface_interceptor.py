"""Intercept the attention calls of a model through transformers' attention interface, to watch or
to edit them.

While a model is intercepted, its configs name an attention implementation of ours. Under that name
the attention interface holds `_attention_function`, which passes each call to the handlers of its
module, and the mask interface holds `_mask_function`, which returns masks that are not
written out. Both are needed: transformers drops the causal mask of an implementation that has no
mask function.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from ..compiled import TAP, Pass, ScoreEdit, TokenIds
from ..interceptor import (
    HandledCall,
    Handler,
    ModelCall,
    Route,
    begin_call,
    end_call,
    interceptors,
    lock,
)
from ..module_hook import runs_for
from ..observer import Observer
from .attention_modules import (
    cross_attention_by_arguments,
    is_cross_attention,
)
from .cache_layers import cache_of, token_ids
from .compiled_steps import Steps
from .compiled_terms import cached_keys, why_no_terms
from .implementation_switch import adopt_implementation
from .interface_call import InterfaceCall, ReadingInterceptor, Result, SoftmaxInputs
from .late_calls import check_memory
from .logged_passes import PassLog
from .masks import LazyMask, MaskOffsets
from .transformers_internals import (
    Prompt,
)

INTERFACE = Route(
    missing="made no call through transformers' attention interface",
    remedy="restore the forward of transformers' own class, let the forward call "
    "ALL_ATTENTION_FUNCTIONS with the "
    'module itself, try model.set_attn_implementation("sdpa"), or read the model by ts.load',
)


class CompiledEdits(NamedTuple):
    """The edits that compiled code has applied to a call."""

    every: tuple[Any, ...] = ()
    of_scores: tuple[ScoreEdit, ...] = ()
    """What they make of its definition."""


class InterfaceInterceptor(ReadingInterceptor):
    """The attentions of a model of transformers, for one block."""

    def __init__(self, handler: Handler, attentions: Mapping[str, nn.Module]) -> None:
        super().__init__(handler, attentions, INTERFACE)
        self.configs: Sequence[Any] = ()
        self.inside: dict[int, Sequence[int]] = {}
        """The ids of the attentions inside of each model, and of each part that is one, by id."""
        self._passes: dict[int, int] = {}
        """How often each attention, by id, has run since the model around it was called."""
        self._awaited: set[int] = set()
        """The attentions, by id, of models that are running."""
        self._repeats = False
        """Whether some attention has run several times in one pass."""
        self._softmax: SoftmaxInputs | None = None  # of the latest call
        self._value_sets = 0
        self.has_value_sets = False
        """Whether some attention multiplies its weights by several sets of values."""
        # Whether the running call of an attention, by id, is cross-attention.
        self._cross = {id(module): is_cross_attention(module, {}) for module in attentions.values()}
        self._queries: dict[int, torch.Size] = {}  # the shape of the latest, by attention
        self.modules_by_id = {id(module): module for module in attentions.values()}
        self.log: PassLog | None = None
        """The calls that wait, of a block that records."""
        self.steps: Steps | None = None
        """Its compiled runs."""

    def handle(self, key: int, made: ModelCall) -> HandledCall:
        assert isinstance(made, InterfaceCall)
        attention = self.names[key]
        self.note_call(attention)
        self.note_queries(key, made.tensors[0])
        # Layers that share one module, as ALBERT's do, are passes through that module.
        count = self._passes.get(key, 1)
        name = attention if count == 1 else f"{attention}.{count}"
        values = self._count_values(made)
        return HandledCall(made, self, attention, name, self._cross[key], values)

    def note_queries(self, key: int, queries: Tensor) -> None:
        """Note the shape of the latest queries of the attention with this id."""
        self._queries[key] = queries.shape

    def _count_values(self, call: InterfaceCall) -> int:
        """Return how many calls just before this one had the same weights, and other values; to be
        asked once a call.

        DiffLlama multiplies each softmax by two halves of its values, in two calls.
        """
        if self._softmax is not None and self._softmax.are_those_of(call):
            self._value_sets += 1
            self.has_value_sets = True
        else:
            self._softmax = SoftmaxInputs.of(call)
            self._value_sets = 0
        return self._value_sets

    def before_model(
        self, inside: Iterable[int], model: PreTrainedModel, args: Any, kwargs: Any
    ) -> None:
        """Before a model or a part of it runs: adopt a changed implementation, count passes anew,
        and begin a forward pass.
        """
        # In another thread, the block of this interceptor may have just been left: its configs are
        # not to be changed.
        if self.is_active():
            ids = token_ids(args, kwargs)
            log = self.log
            is_step = log is not None and log.steps.continues(kwargs, ids)
            is_first = not is_step and log is not None and log.begin_behind_prompt(kwargs, ids)
            # What waits belongs to the passes before, and is counted with these.
            if not (is_step or is_first):
                self.collect()
            self._awaited.update(inside)
            # What a pass that raised has begun is not known to have ended.
            self.silent_runs().difference_update(inside)
            runs_once = set(self._passes.values()) <= {1} and not self._repeats
            self._repeats = not runs_once
            for attention in inside:
                self._passes.pop(attention, None)
            if is_step:
                return
            if not is_first:
                adopt_implementation(model, self.configs, self.attentions, interface_functions)
                if self.handler.follows_text:
                    self.text.begin_pass(cache_of(kwargs))
                if log is not None:
                    log.begin(kwargs, ids)
            if log is None or not log.steps.is_open or not runs_once:
                return
            # Other blocks may count passes of their own.
            if all(len(interceptors.get(key, ())) == 1 for key in self.modules_by_id):
                log.park_hooks([*self.modules_by_id.values()])

    def collect(self) -> None:
        """Record the calls that wait."""
        if self.log is not None:
            self.log.flush()
        if self.steps is not None:
            self.steps.flush()

    def after_model(
        self, inside: Iterable[int], model: PreTrainedModel, args: Any, kwargs: Any, output: Any
    ) -> None:
        """After a model or a part of it ran: report the attentions inside that made no call.

        Each attention could be looked at when its own run ends, by a hook that would run as often.
        """
        if self.is_active():
            self.end_runs(inside)
            self._awaited.difference_update(inside)

    def end_runs(self, keys: Iterable[int]) -> None:
        """Report those of these attentions that have run and made no call."""
        silent = self.silent_runs()
        for key in [key for key in keys if key in silent]:
            self.end_run(key, self.modules_by_id[key])

    def end_direct_runs(self) -> None:
        """Report the attentions that were called directly, not by a model around them, and made no
        call. A run of the model that raised has not ended.
        """
        self.end_runs([key for key in self.modules_by_id if key not in self._awaited])

    def before_attention(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Before an attention runs: count the pass, and note whether it is cross-attention."""
        if self.is_active():
            self.begin_run(id(module))
            self.begin_attention(module, cross_attention_by_arguments(module, args, kwargs))

    def begin_attention(self, module: nn.Module, across: bool | None) -> None:
        """Count a pass through an attention; `across` is None if no argument tells what it is."""
        self._passes[id(module)] = self._passes.get(id(module), 0) + 1
        if across is not None:
            self._cross[id(module)] = across

    def handle_late(self, key: int, made: ModelCall, number: int) -> HandledCall:
        """Return a call that has waited, the pass through its module of this number."""
        self.count_pass(key, number)
        return self.handle(key, made)

    def count_pass(self, key: int, number: int) -> None:
        """Take the pass through the attention with this id as the one of this number."""
        self._passes[key] = number

    def forget_passes(self) -> None:
        """Count passes through each attention anew."""
        self._passes.clear()

    def passes_of(self, key: int) -> int:
        """Return how often the attention with this id has run since the model was called."""
        return self._passes.get(key, 1)

    def is_across(self, key: int) -> bool:
        """Return whether the running call of the attention with this id is cross-attention."""
        return self._cross[key]

    def is_verified(self, module: nn.Module) -> bool:
        """Return whether a definition that was read of a module has been compared."""
        return self.checks.is_verified(module)

    def recorded_modules(self) -> list[tuple[str, nn.Module]]:
        """Return the attentions that are recorded, by name."""
        assert isinstance(self.handler, Observer)
        names = self.handler.names
        return [pair for pair in self.attentions.items() if pair[0] in names]

    # ------------------------------------------------------------------------------- compiled runs

    def continues_steps(self, kwargs: Mapping[str, Any], ids: Tensor | None) -> bool:
        """Return whether a compiled step, of the text that the taps are prepared for, needs nothing
        but `note_length`.
        """
        if self.steps is not None:
            return self.steps.continues(kwargs, ids)
        handler = self.handler
        return not handler.follows_calls or (
            handler.adds_to_scores and not self.text.is_reading_prompt
        )

    def before_compiled(
        self, attentions: Mapping[str, nn.Module], module: nn.Module, args: Any, kwargs: Any
    ) -> dict[int, int]:
        """Prepare a compiled run of the model or of a part of it; return how many heads each
        attention has, by id, as far as that is known. Raise a ValueError if the block cannot handle
        the run.
        """
        problem = self.why_not_compiled(type(module).__name__, lambda: attentions)
        if problem:
            raise ValueError(f"{type(module).__name__} is compiled: {problem}")
        found = {}
        for name, attention in attentions.items():
            shape = self._queries.get(id(attention))
            heads = None if shape is None else shape[1]
            count = self.handler.prepare_compiled(name, heads, vars(attention)[TAP])
            if count is not None:
                found[id(attention)] = count
        self._begin_compiled(module, args, kwargs)
        return found

    def why_not_compiled(self, kind: str, attentions: Callable[[], Mapping[str, nn.Module]]) -> str:
        """Return why the block cannot handle compiled code of a model of this class, which has
        these attentions, as a sentence; "" if it can.
        """
        problem = self.handler.why_not_compiled or ""
        if not problem and self.handler.adds_to_scores:
            problem = why_no_terms(kind, self.configs, attentions())
        return problem

    def _begin_compiled(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Begin the pass of a compiled run."""
        # A part of the model is called within a pass, which has begun already.
        if not isinstance(module, PreTrainedModel):
            return
        ids = token_ids(args, kwargs)
        # Behind a prompt that waits, steps wait too: nothing is recorded between them.
        if self.steps is not None and self.steps.prepare_behind_prompt(module, kwargs, ids):
            return
        self.before_model(self.inside[id(module)], module, args, kwargs)
        if self.steps is not None and not self.steps.prepare(module, kwargs, ids):
            check_memory(self.recorded_modules(), ids)

    def after_compiled(self, events: tuple[Any, ...], masks: Mapping[int, Any], cache: Any) -> None:
        """Hand what a compiled run has noted to the handler.

        masks   what is known of the masks of the events, by the ids of their tensors
        cache   the one that the run was passed, or returned
        """
        if self.handler.adds_to_scores:
            self.handler.finish_compiled(partial(cached_keys, cache, self.attentions))
        # What waits is handed on when it is recorded.
        if self.steps is not None and self.steps.wait(events, masks):
            return
        begun = set()
        for event in events:
            key = id(event.tap.module) if not isinstance(event, TokenIds) else None
            if key not in self.names:
                continue
            if isinstance(event, Pass):
                self.begin_run(key)
                begun.add(key)
            else:
                self.note_call(self.names[key])
                self.handler.note_compiled(self.names[key])
        # Report attentions that ran and made no call of an attention function.
        self.end_runs(begun)
        if self.steps is not None:
            self.steps.receive(events, masks)

    @property
    def has_cross_attention(self) -> bool:
        """Whether some attention has read another sequence."""
        return any(self._cross.values())

    def heads_of_call(self, module: nn.Module, batch: int) -> int | None:
        """Return how many heads the latest call of an attention had; None if it was not called for
        a batch of this size, or more than once in a pass.
        """
        shape = self._queries.get(id(module))
        is_single = self._passes.get(id(module), 1) <= 1 and not self.has_value_sets
        return shape[1] if shape is not None and shape[0] == batch and is_single else None

    def edits_of(self, module: nn.Module) -> CompiledEdits:
        """Return the edits that the latest compiled run has applied to an attention; to be asked
        before the next run, and before a block ends.
        """
        around = interceptors.get(id(module), ())
        every = tuple(
            edit
            for one in around
            if one.is_active()
            for edit in one.handler.edits_of_compiled(one.names[id(module)])
        )
        return CompiledEdits(every, vars(module)[TAP].score_edits)

    @contextmanager
    def reading_prompt(self, prompt: Prompt) -> Iterator[None]:
        """Take the forward passes of the block as reading one prompt, if they are to be
        intercepted.
        """
        if not self.is_active():
            yield
            return
        self.collect()
        with self.text.reading_prompt(prompt.ids, prompt.ends):
            yield
            # Recorded here, the calls are known to belong to the prompt.
            if self.log is None or not self.log.keep_prompt(prompt):
                self.collect()


def _attention_function(
    implementation: str,
    /,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    **options: Any,
) -> Result:
    """Run the attention of a module that may be intercepted. Registered with transformers'
    attention interface.

    The parameters have the names of transformers' own attention functions, since models pass some
    by keyword.
    """
    active = interceptors.get(id(module), ())
    if len(active) > 1:
        active = tuple([one for one in active if one.is_active()])
    # Where a block of this thread records, and none edits, the call runs now and is recorded later.
    if len(active) == 1 and isinstance(active[0], InterfaceInterceptor):
        log = active[0].log
        if log is not None and active[0].is_active():
            tensors = (query, key, value)
            result = log.run(implementation, module, tensors, attention_mask, options)
            if result is not None:
                return result
    made = InterfaceCall(implementation, module, (query, key, value), attention_mask, options)
    handled = begin_call(id(module), made)
    # No block handles this module in this thread: run the call as if nothing were registered.
    if not handled:
        return made.run()
    last = handled[-1]
    assert isinstance(last.interceptor, InterfaceInterceptor)
    output, weights = made.run_handled(last.name, last.interceptor.reader)
    return end_call(handled, output), weights


def _mask_function(implementation: str, **arguments: Any) -> Any:
    """Return the mask of a forward pass, not written out. Registered with transformers' mask
    interface.

    The model's own function may decide that it needs no mask and return None. To find out without
    writing a mask, the own function is called with a pointwise mask function that raises.
    """
    own = ALL_MASK_ATTENTION_FUNCTIONS[implementation]
    offsets = MaskOffsets.of(arguments)
    # Tell every block of this thread where the keys of the mask begin.
    with lock:
        running = {one for known in interceptors.values() for one in known}
    for one in running:
        if isinstance(one, InterfaceInterceptor) and runs_for(one.handler.thread):
            one.reader.remember_offsets(
                arguments.get("config"), offsets, arguments.get("attention_mask")
            )
    if implementation not in ("sdpa", "eager"):  # the others write no matrix
        return own(**arguments)
    dtype = torch.bool if implementation == "sdpa" else arguments["dtype"]

    # The mask of one query is small, and a model that writes waits for it: write it once.
    if offsets.queries == 1:
        written = own(**arguments)
        return None if written is None else LazyMask.of(own, arguments, dtype, written)

    # Try whether the model's own function would write a mask at all.
    def evaluate(*indices: Any) -> Tensor:
        raise _MaskIsNeededError

    try:
        return own(**{**arguments, "mask_function": evaluate})
    except _MaskIsNeededError:
        return LazyMask.of(own, arguments, dtype)


class _MaskIsNeededError(Exception):
    """The model's own mask function began to write a mask."""


@lru_cache(maxsize=64)
def interface_functions(implementation: str) -> tuple[Callable[..., Result], Callable[..., Any]]:
    """Return our attention function and mask function for an implementation of transformers."""
    return partial(_attention_function, implementation), partial(_mask_function, implementation)
