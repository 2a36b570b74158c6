"""Intercept the attention calls of a model through transformers' attention interface, to watch or
to edit them.

While a model is intercepted, its configs name an attention implementation of ours. Under that name
the attention interface holds `_attention_function`, which passes each call through the interceptors
of its module, and the mask interface holds `_mask_function`, which returns masks that are not
written out. Both are needed: transformers drops the causal mask of an implementation that has no
mask function.

A call passes the interceptors in the order of their class: edits change it first, then a watch
records it as edited.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Lock, get_ident
from typing import Any, ClassVar, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from ...recording.attention_call import AttentionCall
from ...recording.names import Modules, attentions_inside
from ...surveys import masked_rows
from ...words import format_bytes
from ..module_hook import AFTER, BEFORE, listen, runs_for, uncompiled
from ..run_tracker import Bypass, Route, RunTracker
from ..running_text import RunningText
from .attention_modules import (
    check_implementations,
    cross_attention_by_arguments,
    is_cross_attention,
)
from .definition import DefinitionReader
from .lazy import LazyMask
from .masks import MaskOffsets
from .transformers_internals import (
    ImplementationName,
    Prompt,
    announcing_prompts,
    own_attention,
    set_implementation,
)

MAX_WEIGHT_BYTES = 2**30  # of the weights of one attention, for output_attentions=True
INTERFACE = Route(
    missing="made no call through transformers' attention interface",
    remedy="restore the forward of transformers' own class, let the forward call "
    "ALL_ATTENTION_FUNCTIONS with the "
    'module itself, try model.set_attn_implementation("sdpa"), or read the model by ts.load',
)
Result = tuple[Tensor, Tensor | None]
"""What an attention function returns: the context, (batch, query, heads, d_v), and the weights or
None.
"""

# -------------------------------------------------------------------------------- intercepted calls


class ModelCall(NamedTuple):
    """A call of an attention function by a model, as the model made it or as edited."""

    implementation: str
    module: nn.Module
    tensors: tuple[Tensor, Tensor, Tensor]
    """Queries, keys and values."""
    mask: Any
    options: dict[str, Any]
    edits: tuple[Any, ...] = ()
    """The edits that were made of the call, also those that change its output alone."""
    described: AttentionCall | None = None
    """What the call computes, if an edit changed that."""
    own_keys: bool = True
    """Whether the call attends to the model's own keys."""
    run_edited: Callable[[], Result] | None = None
    """Computes `described`; None if the model's own function does, with `tensors`."""
    passed: tuple[Tensor, ...] = ()
    """Queries and keys as the model passed them, before any edit."""

    def run(self) -> Result:
        """Run the call: by the model's own attention function, or as an edit says."""
        if self.run_edited is not None:
            return self.run_edited()
        own = own_attention(self.implementation, self.module)
        return own(self.module, *self.tensors, self.mask, **self.options)

    def describe(self, reader: DefinitionReader, lse: Tensor | None) -> AttentionCall:
        """Return what the call computes."""
        if self.described is not None:
            return self.described._replace(lse=lse)
        return reader.read_call(
            self.implementation, self.module, self.tensors, self.mask, self.options, lse
        )


class SoftmaxInputs(NamedTuple):
    """Everything that the weights of a call depend on. Tensors are referred to weakly, so that none
    is kept alive.
    """

    module: nn.Module
    passed: tuple["ref[Tensor]", ...]
    versions: tuple[int | None, ...]
    """How often queries and keys had been written to; None for tensors of inference mode, which do
    not count.
    """
    mask: Any
    options: dict[str, Any]

    @classmethod
    def of(cls, call: ModelCall) -> "SoftmaxInputs":
        options = {name: _weak(value) for name, value in call.options.items()}
        return cls(
            call.module,
            tuple(map(ref, call.passed)),
            _versions(call.passed),
            _weak(call.mask),
            options,
        )

    def are_those_of(self, call: ModelCall) -> bool:
        """Return whether another call has the same weights: the same tensors, mask and options,
        whatever its values.
        """
        return (
            call.module is self.module
            and all(known() is now for known, now in zip(self.passed, call.passed, strict=True))
            and self.versions == _versions(call.passed)
            and _is_same(self.mask, call.mask)
            and self.options.keys() == call.options.keys()
            and all(_is_same(known, call.options[name]) for name, known in self.options.items())
        )


def _versions(tensors: Iterable[Tensor]) -> tuple[int | None, ...]:
    return tuple(None if tensor.is_inference() else tensor._version for tensor in tensors)


def _weak(value: Any) -> Any:
    return ref(value) if isinstance(value, Tensor) else value


def _is_same(known: Any, value: Any) -> bool:
    """Return whether a value is the one that `_weak` was given; numbers need only be equal."""
    if isinstance(known, ref):
        return known() is value
    return known is value or (
        isinstance(known, int | float) and isinstance(value, int | float) and known == value
    )


class Interceptor(ABC):
    """What passes the calls of one model's attentions: a watch, or the edits of a block."""

    order: ClassVar[int]
    """Calls pass interceptors of a lower order first."""

    def __init__(self, attentions: Mapping[str, nn.Module], text: RunningText) -> None:
        self.attentions = attentions
        self.thread = get_ident()
        self.text = text
        self.configs: Sequence[Any] = ()
        self.names = {id(module): name for name, module in attentions.items()}
        self.reader = DefinitionReader()
        self.runs = RunTracker(attentions, INTERFACE)
        self.passes: dict[
            int, int
        ] = {}  # through each attention, by id, since the model around it was called
        self.softmax: SoftmaxInputs | None = None  # of the latest call
        self.value_sets = 0
        self.cross = {  # whether the running call of an attention, by id, is cross-attention
            id(module): is_cross_attention(module, {}) for module in attentions.values()
        }

    @abstractmethod
    def is_active(self) -> bool:
        """Return whether a call that runs now, in this thread, is to be intercepted."""

    @abstractmethod
    def run(self, call: ModelCall, following: Callable[[ModelCall], Result]) -> Result:
        """Return the result of a call; `following` runs a call through the interceptors that
        follow.
        """

    @abstractmethod
    def report_bypass(self, bypass: Bypass) -> None:
        """Report an attention that has just run without a call through the interface."""

    def before_model(
        self, inside: Iterable[int], model: PreTrainedModel, args: Any, kwargs: Any
    ) -> None:
        """Before a model or a part of it runs: adopt a changed implementation, and count passes
        anew.
        """
        # In another thread, the block of this interceptor may have just been left: its configs are
        # not to be changed.
        if self.is_active():
            _adopt_implementation(model, self.configs, self.attentions)
            for attention in inside:
                self.passes.pop(attention, None)

    def before_attention(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Before an attention runs: count the pass, and note whether it is cross-attention."""
        if self.is_active():
            self.runs.begin(id(module))
            self.passes[id(module)] = self.passes.get(id(module), 0) + 1
            across = cross_attention_by_arguments(module, args, kwargs)
            if across is not None:
                self.cross[id(module)] = across

    def after_attention(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """After an attention ran: report it if it made no call through the interface."""
        if self.runs.has_called(id(module)) or not self.is_active():
            return
        for bypass in self.runs.bypasses(id(module), module):
            self.report_bypass(bypass)

    @contextmanager
    def reading_prompt(self, prompt: Prompt) -> Iterator[None]:
        """Take the forward passes of the block as reading one prompt, if they are to be
        intercepted.
        """
        if not self.is_active():
            yield
            return
        with self.text.reading_prompt(prompt.ids, prompt.ends):
            yield

    def count_values(self, call: ModelCall) -> int:
        """Return how many calls just before this one had the same weights, and other values; to be
        asked once a call.

        DiffLlama multiplies each softmax by two halves of its values, in two calls.
        """
        if self.softmax is not None and self.softmax.are_those_of(call):
            self.value_sets += 1
        else:
            self.softmax = SoftmaxInputs.of(call)
            self.value_sets = 0
        return self.value_sets

    def name(self, module: nn.Module) -> str:
        """Return the name of the running pass through an attention.

        Layers that share one module, as ALBERT's do, are passes through that module.
        """
        name = self.names[id(module)]
        count = self.passes.get(id(module), 1)
        return name if count == 1 else f"{name}.{count}"


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
    call = ModelCall(
        implementation, module, (query, key, value), attention_mask, options, passed=(query, key)
    )
    active = [one for one in _interceptors.get(id(module), ()) if one.is_active()]
    for one in active:
        one.runs.note_call(one.names[id(module)])
    return _pass_on(active, call)


def _pass_on(interceptors: Sequence[Interceptor], call: ModelCall) -> Result:
    """Run a call through these interceptors."""
    if not interceptors:
        return call.run()
    following = ModelCall.run if len(interceptors) == 1 else partial(_pass_on, interceptors[1:])
    return interceptors[0].run(call, following)


def _mask_function(implementation: str, **arguments: Any) -> Any:
    """Return the mask of a forward pass, not written out. Registered with transformers' mask
    interface.

    The model's own function may decide that it needs no mask and return None. To find out without
    writing a mask, the own function is called with a pointwise mask function that raises.
    """
    own = ALL_MASK_ATTENTION_FUNCTIONS[implementation]
    offsets = MaskOffsets.of(arguments)
    with _lock:
        interceptors = {one for interceptors in _interceptors.values() for one in interceptors}
    for one in interceptors:
        if runs_for(one.thread):
            one.reader.remember_offsets(
                arguments.get("config"), offsets, arguments.get("attention_mask")
            )
    if implementation not in ("sdpa", "eager"):  # the others write no matrix
        return own(**arguments)

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


def weights_of(name: str, call: AttentionCall) -> Tensor:
    """Compute the weights of a call, (batch, heads, query, key), in the dtype of the queries.

    Raise a ValueError if they would take more than MAX_WEIGHT_BYTES.
    """
    batch, heads, queries, _ = call.queries.shape
    keys = call.keys.shape[-2]
    needed = batch * heads * queries * keys * 4
    if needed > MAX_WEIGHT_BYTES:
        raise ValueError(
            f'output_attentions=True would write {format_bytes(needed)} for "{name}", {queries:,} '
            f"queries x {keys:,} "
            'keys; leave it out, and read the recording: .rows and .map of keep="queries-keys"'
        )
    rows = torch.arange(queries, device=call.queries.device)
    attention = call.attention_over_present_keys
    masked = masked_rows(
        call.queries, call.keys, attention, rows, range(keys), range(batch), range(heads)
    )
    return attention.weights(masked).to(call.queries.dtype)


# ----------------------------------------------------------------------------- entering and leaving

_interceptors: dict[
    int, tuple[Interceptor, ...]
] = {}  # by the id of each attention, in the order of a call
_switched: dict[
    int, tuple[Any, int]
] = {}  # configs that hold an ImplementationName, and how many blocks need them
_uncompiled: dict[int, tuple[Any, Any, int]] = {}
"""Configs of `generate` that keep it from compiling, what they said before, and how many blocks
need that.
"""
_lock = Lock()  # held while these, `_PREFILL` of a model and transformers' registries change


@contextmanager
def intercepting(modules: Modules, interceptor: Interceptor) -> Iterator[None]:
    """Pass each call of the interceptor's attentions through the interceptor while the block
    runs.
    """
    attributes = [
        own for own in map(vars, modules.values()) if "config" in own
    ]  # getattr would search weights too
    configs = {id(own["config"]): own["config"] for own in attributes if own["config"] is not None}
    interceptor.configs = [
        config for config in configs.values() if hasattr(config, "_attn_implementation")
    ]
    with ExitStack() as undo:
        with _lock:
            undo.callback(_remove, interceptor)
            for module in interceptor.names:
                known = (*_interceptors.get(module, ()), interceptor)
                _interceptors[module] = tuple(sorted(known, key=lambda one: one.order))
            for config in interceptor.configs:
                _switch(config)
                undo.callback(_switch_back, config)
            for config in (own.get("generation_config") for own in attributes):
                if hasattr(config, "disable_compile"):
                    _forbid_compilation(config)
                    undo.callback(_allow_compilation, config)
            for part in modules.values():
                if isinstance(part, PreTrainedModel):
                    undo.enter_context(_announcing(part, interceptor))
        undo.enter_context(_hooks(modules, interceptor))
        yield


@contextmanager
def _announcing(model: PreTrainedModel, interceptor: Interceptor) -> Iterator[None]:
    """Announce the prompts that a model's `generate` reads to an interceptor; enter it with the
    lock held.
    """
    announcing = announcing_prompts(model, interceptor.reading_prompt)
    announcing.__enter__()
    try:
        yield
    finally:
        with _lock:
            announcing.__exit__(None, None, None)


def _remove(interceptor: Interceptor) -> None:
    with _lock:
        for module in interceptor.names:
            left = tuple(one for one in _interceptors.get(module, ()) if one is not interceptor)
            if left:
                _interceptors[module] = left
            else:
                _interceptors.pop(module, None)


@contextmanager
def _hooks(modules: Modules, interceptor: Interceptor) -> Iterator[None]:
    """Register the hooks that run before each model, and before and after each attention."""
    with ExitStack() as hooks:
        for path, module in modules.items():
            if isinstance(module, PreTrainedModel):
                names = (
                    attentions_inside(interceptor.attentions, path)
                    if path
                    else interceptor.attentions
                )
                inside = [id(interceptor.attentions[name]) for name in names]
                hooks.callback(listen(module, partial(interceptor.before_model, inside), BEFORE))
        for attention in interceptor.attentions.values():
            hooks.callback(listen(attention, interceptor.before_attention, BEFORE))
            hooks.callback(listen(attention, interceptor.after_attention, AFTER))
        yield


def _switch(config: Any) -> None:
    """Let a config name an intercepted implementation until `_switch_back` was called as often as
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
    if original is None or isinstance(original, ImplementationName):
        return
    name = ImplementationName(original)
    AttentionInterface.register(name, uncompiled(partial(_attention_function, str(original))))
    AttentionMaskInterface.register(name, uncompiled(partial(_mask_function, str(original))))
    set_implementation(config, name)


def _switch_back(config: Any) -> None:
    """Undo `_switch`, unless the model's implementation was changed inside the block: that choice
    stays.

    Our functions stay registered: another thread may have read their name, and be about to look
    them up.
    """
    with _lock:
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
    if all(name is None or isinstance(name, ImplementationName) for name in names):
        return
    check_implementations(type(model).__name__, attentions)
    with _lock:
        for config in configs:
            _rename_implementation(config)


def _forbid_compilation(config: Any) -> None:
    """Keep `generate` from compiling the model, which it does for a cache of fixed size: compiled
    code is not seen.
    """
    _, before, count = _uncompiled.get(id(config), (config, config.disable_compile, 0))
    _uncompiled[id(config)] = (config, before, count + 1)
    config.disable_compile = True


def _allow_compilation(config: Any) -> None:
    """Undo `_forbid_compilation`, once it was called as often as this."""
    with _lock:
        _, before, count = _uncompiled.pop(id(config))
        if count > 1:
            _uncompiled[id(config)] = (config, before, count - 1)
        else:
            config.disable_compile = before
