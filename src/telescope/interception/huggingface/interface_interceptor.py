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
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from ..compiled import TAP, Pass, RunLog, TokenIds
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
from ..module_hook import runs_for, uncompiled
from ..observer import Observer
from .attention_modules import (
    check_implementations,
    cross_attention_by_arguments,
    is_cross_attention,
)
from .cache_layers import cache_of
from .compiled_steps import Steps
from .interface_call import InterfaceCall, ReadingInterceptor, Result, SoftmaxInputs
from .logged_passes import PassLog
from .masks import LazyMask, MaskOffsets
from .transformers_internals import (
    ImplementationName,
    Prompt,
    set_implementation,
)

INTERFACE = Route(
    missing="made no call through transformers' attention interface",
    remedy="restore the forward of transformers' own class, let the forward call "
    "ALL_ATTENTION_FUNCTIONS with the "
    'module itself, try model.set_attn_implementation("sdpa"), or read the model by ts.load',
)


class InterfaceInterceptor(ReadingInterceptor):
    """The attentions of a model of transformers, for one block."""

    def __init__(self, handler: Handler, attentions: Mapping[str, nn.Module]) -> None:
        super().__init__(handler, attentions, INTERFACE)
        self.configs: Sequence[Any] = ()
        self._passes: dict[int, int] = {}
        """How often each attention, by id, has run since the model around it was called."""
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
        self._queries[key] = made.tensors[0].shape
        # Layers that share one module, as ALBERT's do, are passes through that module.
        count = self._passes.get(key, 1)
        name = attention if count == 1 else f"{attention}.{count}"
        values = self._count_values(made)
        return HandledCall(made, self, attention, name, self._cross[key], values)

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
            is_step = self.log is not None and self.log.continues(kwargs, ids)
            # What waits belongs to the passes before, and is counted with these.
            if not is_step:
                self.collect()
            for attention in inside:
                self._passes.pop(attention, None)
            if is_step:
                return
            _adopt_implementation(model, self.configs, self.attentions)
            if self.handler.follows_text:
                self.text.begin_pass(cache_of(kwargs))
            if self.log is not None:
                self.log.begin(kwargs, ids)

    def collect(self) -> None:
        """Record the calls that wait."""
        if self.log is not None:
            self.log.flush()
        if self.steps is not None:
            self.steps.flush()

    def before_attention(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Before an attention runs: count the pass, and note whether it is cross-attention."""
        if self.is_active():
            self.begin_attention(module, cross_attention_by_arguments(module, args, kwargs))

    def begin_attention(self, module: nn.Module, across: bool | None) -> None:
        """Count a pass through an attention; `across` is None if no argument tells what it is."""
        self.begin_run(id(module))
        self._passes[id(module)] = self._passes.get(id(module), 0) + 1
        if across is not None:
            self._cross[id(module)] = across

    def after_attention(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """After an attention ran: report it if it made no call through the interface."""
        self.end_run(id(module), module)

    def handle_late(self, key: int, made: ModelCall, number: int) -> HandledCall:
        """Return a call that has waited, the pass through its module of this number."""
        self._passes[key] = number
        return self.handle(key, made)

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

    def next_step(self, log: RunLog, args: Any, kwargs: Any) -> bool:
        """Return whether a compiled run is one more step beside those that wait; let it write to
        the next row of the buffers, for which the taps are prepared.
        """
        steps = self.steps
        if steps is None or log.prepared is None or log.prepared() is not self:
            return False
        if not steps.continues(kwargs, token_ids(args, kwargs)):
            return False
        steps.aim()
        return True

    def before_compiled(
        self, attentions: Mapping[str, nn.Module], module: nn.Module, args: Any, kwargs: Any
    ) -> None:
        """Prepare a compiled run of the model or of a part of it; raise a ValueError if the block
        cannot handle it.
        """
        problem = self.handler.why_not_compiled
        if problem is not None:
            raise ValueError(f"{type(module).__name__} is compiled: {problem}")
        for name, attention in attentions.items():
            shape = self._queries.get(id(attention))
            heads = None if shape is None else shape[1]
            self.handler.prepare_compiled(name, heads, vars(attention)[TAP])
        # A part of the model is called within a pass, which has begun already.
        if not isinstance(module, PreTrainedModel):
            return
        self.before_model(self._attentions_of(module), module, args, kwargs)
        if self.steps is not None:
            self.steps.prepare(module, kwargs, token_ids(args, kwargs))

    def after_compiled(self, events: tuple[Any, ...]) -> None:
        """Hand what a compiled run has noted to the handler."""
        # What waits is handed on when it is recorded.
        if self.steps is not None and self.steps.wait(events):
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
        for key in begun:
            self.end_run(key, self.modules_by_id[key])
        if self.steps is not None:
            self.steps.receive(events)

    def _attentions_of(self, module: nn.Module) -> list[int]:
        """Return the ids of the attentions inside of a model."""
        inside = {id(one) for one in module.modules()}
        return [key for key in self.modules_by_id if key in inside]

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

    def edits_of(self, module: nn.Module) -> tuple[Any, ...]:
        """Return the edits that compiled code has applied to an attention."""
        around = interceptors.get(id(module), ())
        return tuple(
            edit
            for one in around
            if one.is_active()
            for edit in one.handler.edits_of_compiled(one.names[id(module)])
        )

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
    active = [one for one in interceptors.get(id(module), ()) if one.is_active()]
    # Where a block of this thread records, and none edits, the call runs now and is recorded later.
    if len(active) == 1 and isinstance(active[0], InterfaceInterceptor):
        log = active[0].log
        if log is not None:
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

    # Try whether the model's own function would write a mask at all.
    def evaluate(*indices: Any) -> Tensor:
        raise _MaskIsNeededError

    try:
        return own(**{**arguments, "mask_function": evaluate})
    except _MaskIsNeededError:
        return LazyMask.of(
            own, arguments, torch.bool if implementation == "sdpa" else arguments["dtype"]
        )


class _MaskIsNeededError(Exception):
    """The model's own mask function began to write a mask."""


def token_ids(args: Any, kwargs: Mapping[str, Any]) -> Tensor | None:
    """Return the token ids that a model is called with, (batch, token)."""
    given = kwargs.get("input_ids", args[0] if args else None)
    return given if isinstance(given, Tensor) and given.ndim == 2 else None


# ------------------------------------------------------------------------------ names of ours

# Configs that hold an ImplementationName, and how many blocks need them.
_switched: dict[int, tuple[Any, int]] = {}


def switch(config: Any) -> None:
    """Let a config name an intercepted implementation until `switch_back` was called as often as
    this.
    """
    _, count = _switched.get(id(config), (config, 0))
    _switched[id(config)] = (config, count + 1)
    _rename_implementation(config)


def _rename_implementation(config: Any) -> None:
    """Replace the implementation's name in a config by an ImplementationName, and register our
    functions under it.
    """
    original = config._attn_implementation
    # The config names no implementation, or ours already.
    if original is None or isinstance(original, ImplementationName):
        return
    name = ImplementationName(original)
    # The keys are plain strings: Dynamo cannot look anything up in a table that has other keys.
    attend, make_mask = _functions(str(original))
    AttentionInterface.register(str(name), uncompiled(attend))
    AttentionMaskInterface.register(str(name), uncompiled(make_mask))
    set_implementation(config, name)


@lru_cache(maxsize=64)
def _functions(implementation: str) -> tuple[Callable[..., Result], Callable[..., Any]]:
    """Return our attention function and mask function for an implementation of transformers."""
    return partial(_attention_function, implementation), partial(_mask_function, implementation)


def switch_back(config: Any) -> None:
    """Undo `switch`, unless the model's implementation was changed inside the block: that choice
    stays.

    Our functions stay registered: another thread may have read their name, and be about to look
    them up.
    """
    with lock:
        _, count = _switched.pop(id(config))
        if count > 1:
            _switched[id(config)] = (config, count - 1)
        elif isinstance(config._attn_implementation, ImplementationName):
            set_implementation(config, config._attn_implementation.implementation)


def _adopt_implementation(
    model: PreTrainedModel, configs: Sequence[Any], attentions: Mapping[str, nn.Module]
) -> None:
    """Intercept an implementation that was chosen inside the block, or raise a ValueError if it is
    not known.
    """
    names = [config._attn_implementation for config in configs]
    # As a rule, nobody has changed the implementation.
    if all(name is None or isinstance(name, ImplementationName) for name in names):
        return
    check_implementations(type(model).__name__, attentions)
    with lock:
        for config in configs:
            _rename_implementation(config)
