"""Intercept the attention calls of a model through transformers' attention interface, to watch or
to edit them.

While a model is intercepted, its configs name an attention implementation of ours. Under that name
the attention interface holds `_attention_function`, which passes each call to the handlers of its
module, and the mask interface holds `_mask_function`, which returns masks that are not
written out. Both are needed: transformers drops the causal mask of an implementation that has no
mask function.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from ...anatomy import token_embeddings
from ...engines import attend, torch_modes
from ...recording import AttentionCall, Modules, attentions_inside
from ...surveys import masked_rows
from ...words import format_bytes
from ..interceptor import (
    HandledCall,
    Handler,
    Interceptor,
    ModelCall,
    Route,
    SharedKey,
    StoredKeys,
    begin_call,
    end_call,
    interceptors,
    lock,
    registered,
)
from ..module_hook import AFTER, BEFORE, listen, runs_for, uncompiled
from ..sdpa_lse import SdpaWithLse
from ..text import KeyMemory
from .attention_modules import (
    check_implementations,
    cross_attention_by_arguments,
    is_cross_attention,
)
from .definition import DefinitionReader
from .masks import LazyMask, MaskOffsets
from .proof import OutputChecks
from .transformers_internals import (
    CacheLayer,
    ImplementationName,
    Prompt,
    announcing_prompts,
    cache_of,
    own_attention,
    set_implementation,
    weights_are_requested,
)

LONG = 4096**2  # scores of a head beyond which an eager attention is not run again, to be compared
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


class InterfaceCall(ModelCall):
    """A call of an attention function by a model of transformers."""

    head_axis = 2

    def __init__(
        self,
        implementation: str,
        module: nn.Module,
        tensors: tuple[Tensor, Tensor, Tensor],
        mask: Any,
        options: dict[str, Any],
    ) -> None:
        self.implementation = implementation
        self.module = module
        self.tensors = tensors
        self.mask = mask
        self.options = options
        self.passed = tensors[:2]
        """Queries and keys as the model passed them, before any edit."""
        self.own_keys = True
        self.runs_definition = False
        """Whether `described` is computed by `attend`, and not by the model's own function."""
        self._reads_lse = False

    def run(self, *, with_options: bool = True) -> Result:
        """Run the model's own attention function."""
        options = self.options
        if not with_options:
            options = {key: value for key, value in options.items() if key != "output_attentions"}
        own = own_attention(self.implementation, self.module)
        return own(self.module, *self.tensors, self.mask, **options)

    def run_handled(self, name: str, reader: DefinitionReader) -> Result:
        """Run the call as its handlers left it; return its context, and its weights if the caller
        of the model wants them.

        A watched implementation does not get `output_attentions`, about which some would warn.
        """
        # Run the edited definition, or the model's own function, with its lse where that is read.
        wants_weights = weights_are_requested(self.options)
        weights: Tensor | None
        if self.runs_definition:
            assert self.described is not None
            context = run_definition(self.described)
            weights = None
        elif self._reads_lse:
            with SdpaWithLse() as fused:
                context, weights = self.run(with_options=False)
            self.lse = fused.lse
        else:
            context, weights = self.run(with_options=not self.is_recorded)
        # Compute weights that were asked for and that no function returned.
        if wants_weights and weights is None and (self.is_recorded or self.runs_definition):
            weights = weights_of(name, self.described or self._read(reader))
        return context, weights

    def read(self, interceptor: Interceptor) -> AttentionCall:
        assert isinstance(interceptor, InterfaceInterceptor)
        return self._read(interceptor.reader)

    def _read(self, reader: DefinitionReader) -> AttentionCall:
        return reader.read_call(
            self.implementation, self.module, self.tensors, self.mask, self.options, None
        )

    def change(self, handled: HandledCall, changed: AttentionCall, *, own_keys: bool) -> None:
        """Let the call compute `changed`: by the model's own function if the definition is the
        same, else by `attend`.
        """
        before = handled.before_change
        assert before is not None
        # Check the definition before it takes the place of the model's own function.
        self._compare(handled, before)
        self.described = changed
        self.own_keys = self.own_keys and own_keys
        # With the same definition, the model's own function runs on the changed queries and keys.
        is_same = changed.attention is before.attention and changed.keys.shape == before.keys.shape
        if not is_same or self.runs_definition:
            self.runs_definition = True
            return
        _, keys, values = self.tensors
        written = changed.keys.shape[-2]
        if written < keys.shape[-2]:  # a cache of fixed size, whose end is not written yet
            keys = keys.clone()
            keys[:, :, :written] = changed.keys
        else:
            keys = changed.keys
        self.tensors = changed.queries, keys, values

    @torch.no_grad()
    def _compare(self, handled: HandledCall, described: AttentionCall) -> None:
        """Compare the definition that was read with the model's own function, once for each kind of
        call.
        """
        checks = _checks_of(handled)
        if self.described is not None or checks.is_known(
            self.module, described, self.implementation
        ):
            return
        queries, keys = described.size
        if self.implementation == "eager" and queries * keys > LONG:
            return
        output, _ = self.run(with_options=False)
        checks.add(handled.name, self.module, described, output, self.implementation)

    def check_output(self, handled: HandledCall, call: AttentionCall, output: Tensor) -> None:
        kind = "edited" if self.described is not None else self.implementation
        _checks_of(handled).add(handled.name, self.module, call, output, kind)

    def read_lse(self) -> None:
        self._reads_lse = True

    def where_keys_lie(self, handled: HandledCall) -> StoredKeys:
        keys = self.tensors[1]
        layer = CacheLayer.of(handled.interceptor.text.cache(), self.module, bool(handled.across))
        stored = None if layer is None else layer.keys
        if layer is None or stored is None or not self.own_keys:
            return StoredKeys()
        # Trust the layer of the cache only if the keys that were passed lie in its memory.
        if not (stored is keys or _share_memory(stored, keys)):
            return StoredKeys()
        return StoredKeys(
            (KeyMemory.held_by(layer.layer, stored),), layer.keys_stay and stored is keys
        )

    def shared_key(self) -> SharedKey | None:
        """Return what is equal for calls that are described alike.

        A mask or bias in a tensor may be written to between layers, so that such a call is like no
        other.
        """
        mask = self.mask
        options = self.options
        never_changes = mask is None or (isinstance(mask, LazyMask) and not mask.overwritten)
        if not never_changes or self.described is not None or weights_are_requested(options):
            return None
        if options.get("position_bias") is not None or options.get("s_aux") is not None:
            return None
        queries, keys, values = self.tensors
        config = getattr(self.module, "config", None)
        # Options that are objects count by identity, and are kept alive with the key.
        given = tuple((name, _as_key(value)) for name, value in options.items())
        key = (
            type(self.module),
            id(config),
            getattr(self.module, "is_causal", True),
            self.implementation,
            torch_modes.autocast_enabled(queries.device),
            (queries.shape, keys.shape, values.shape, queries.dtype, queries.device),
            id(mask),
            given,
        )
        return SharedKey(key, (config, mask, options))


def _as_key(value: Any) -> Any:
    """Return a number as it is, and any other option as its identity."""
    return value if isinstance(value, int | float) else id(value)


def _checks_of(handled: HandledCall) -> OutputChecks:
    assert isinstance(handled.interceptor, InterfaceInterceptor)
    return handled.interceptor.checks


def _share_memory(stored: Tensor, keys: Tensor) -> bool:
    return stored.untyped_storage().data_ptr() == keys.untyped_storage().data_ptr()


def run_definition(call: AttentionCall) -> Tensor:
    """Run an edited call, and return its context (batch, query, heads, d_v)."""
    definition = call.attention_over_present_keys
    context = attend(call.queries, call.keys, call.values, definition, dropout=call.dropout)
    return context.transpose(1, 2).contiguous()


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
    def of(cls, call: InterfaceCall) -> "SoftmaxInputs":
        options = {name: _weak(value) for name, value in call.options.items()}
        return cls(
            call.module,
            tuple(map(ref, call.passed)),
            _versions(call.passed),
            _weak(call.mask),
            options,
        )

    def are_those_of(self, call: InterfaceCall) -> bool:
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


class InterfaceInterceptor(Interceptor):
    """The attentions of a model of transformers, for one block."""

    def __init__(self, handler: Handler, attentions: Mapping[str, nn.Module]) -> None:
        super().__init__(handler, attentions, attentions, INTERFACE)
        self.configs: Sequence[Any] = ()
        self.reader = DefinitionReader()
        self.checks = OutputChecks()
        self._passes: dict[int, int] = {}
        """How often each attention, by id, has run since the model around it was called."""
        self._softmax: SoftmaxInputs | None = None  # of the latest call
        self._value_sets = 0
        # Whether the running call of an attention, by id, is cross-attention.
        self._cross = {id(module): is_cross_attention(module, {}) for module in attentions.values()}

    def handle(self, key: int, made: ModelCall) -> HandledCall:
        assert isinstance(made, InterfaceCall)
        attention = self.names[key]
        self.note_call(attention)
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
            _adopt_implementation(model, self.configs, self.attentions)
            for attention in inside:
                self._passes.pop(attention, None)
            if self.handler.follows_text:
                self.text.begin_pass(cache_of(kwargs))

    def before_attention(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Before an attention runs: count the pass, and note whether it is cross-attention."""
        if self.is_active():
            self.begin_run(id(module))
            self._passes[id(module)] = self._passes.get(id(module), 0) + 1
            across = cross_attention_by_arguments(module, args, kwargs)
            if across is not None:
                self._cross[id(module)] = across

    def after_attention(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """After an attention ran: report it if it made no call through the interface."""
        self.end_run(id(module), module)

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


def weights_of(name: str, call: AttentionCall) -> Tensor:
    """Compute the weights of a call, (batch, heads, query, key), in the dtype of the queries.

    Raise a ValueError if they would take more than MAX_WEIGHT_BYTES.
    """
    batch, heads, queries, _ = call.queries.shape
    keys = call.keys.shape[-2]
    # Four bytes for each weight, as in float32.
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

# Configs that hold an ImplementationName, and how many blocks need them.
_switched: dict[int, tuple[Any, int]] = {}
_uncompiled: dict[int, tuple[Any, Any, int]] = {}
"""Configs of `generate` that keep it from compiling, what they said before, and how many blocks
need that.
"""


@contextmanager
def intercepting(
    modules: Modules, attentions: Mapping[str, nn.Module], handler: Handler
) -> Iterator[None]:
    """Hand the calls of these attentions to a handler while the block runs, then check the
    definitions that were read.

    Raise a ValueError if this thread watches the model already, or if a definition does not fit
    what the model's own function computed.
    """
    interceptor = InterfaceInterceptor(handler, attentions)
    # vars, since getattr would search the weights, too.
    attributes = [own for own in map(vars, modules.values()) if "config" in own]
    configs = {id(own["config"]): own["config"] for own in attributes if own["config"] is not None}
    interceptor.configs = [
        config for config in configs.values() if hasattr(config, "_attn_implementation")
    ]
    with ExitStack() as undo:
        if handler.follows_text:
            embeddings = token_embeddings(modules)
            undo.enter_context(handler.text.listening(embeddings, handler.is_active))
        undo.enter_context(registered(modules, interceptor))
        # Change configs with the lock held: other threads may enter and leave blocks, too.
        with lock:
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
        # Only after a block that ended well: an exception of the block says more.
        interceptor.checks.verify()


@contextmanager
def _announcing(model: PreTrainedModel, interceptor: InterfaceInterceptor) -> Iterator[None]:
    """Announce the prompts that a model's `generate` reads to an interceptor; enter it with the
    lock held.
    """
    announcing = announcing_prompts(model, interceptor.reading_prompt)
    announcing.__enter__()
    try:
        yield
    finally:
        with lock:
            announcing.__exit__(None, None, None)


@contextmanager
def _hooks(modules: Modules, interceptor: InterfaceInterceptor) -> Iterator[None]:
    """Register the hooks that run before each model, and before and after each attention."""
    with ExitStack() as hooks:
        # Passes are counted anew when a model around the attentions begins to run.
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
    # The config names no implementation, or ours already.
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


def _forbid_compilation(config: Any) -> None:
    """Keep `generate` from compiling the model, which it does for a cache of fixed size: compiled
    code is not seen.
    """
    _, before, count = _uncompiled.get(id(config), (config, config.disable_compile, 0))
    _uncompiled[id(config)] = (config, before, count + 1)
    config.disable_compile = True


def _allow_compilation(config: Any) -> None:
    """Undo `_forbid_compilation`, once it was called as often as this."""
    with lock:
        _, before, count = _uncompiled.pop(id(config))
        if count > 1:
            _uncompiled[id(config)] = (config, before, count - 1)
        else:
            config.disable_compile = before
