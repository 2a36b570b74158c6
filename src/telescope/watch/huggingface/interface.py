"""Watch a model through transformers' attention interface.

While a model is watched, its configs name an attention implementation of ours. Under that name the attention interface
holds `_attention_function`, which runs the model's own function and records the call, and the mask interface holds
`_mask_function`, which returns masks that are not written out. Both are needed: transformers drops the causal mask of
an implementation that has no mask function.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from inspect import signature
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from ...engines import torch_modes
from ...recording.attention_call import AttentionCall
from ...recording.names import Modules, attentions_inside
from ...recording.summaries_call import SummariesCall
from ...survey.exact_rows import masked_rows
from ...words import format_bytes
from ..observer import ModuleHook, Observer, uncompiled
from ..sdpa_lse import SdpaWithLse
from .cache_tracker import CacheTracker
from .call_template import CallArguments, CallTemplate
from .definition import DefinitionReader
from .lazy import LazyMask
from .masks import MaskOffsets
from .proof import OutputChecks
from .transformers_internals import (
    ImplementationName,
    cache_of,
    eager_function_names,
    implementation_of,
    own_attention,
    set_implementation,
    uses_attention_interface,
    weights_are_requested,
)

KNOWN = ("sdpa", "eager", "flex_attention")  # and every name with "flash" in it
OTHER_SEQUENCES = (  # the parameters by which an attention module is passed the sequence of its keys
    "key_value_states",
    "encoder_hidden_states",
    "cross_attention_states",
    "context",
    "context_hidden_states",
)
SHORT = 4096**2  # scores of a head
MAX_WEIGHT_BYTES = 2**30  # of the weights of one attention, for output_attentions=True

# ------------------------------------------------------------------------------------------------- what can be watched


def attentions(modules: Modules) -> dict[str, nn.Module]:
    """Return the modules that use the attention interface, by path; raise a ValueError if the model has none."""
    kinds: set[Any] = set(map(type, modules.values()))
    using = {kind for kind in kinds if uses_attention_interface(kind)}
    found: dict[str, Any] = {path: module for path, module in modules.items() if type(module) in using}
    kind = type(modules[""]).__name__
    if not found:
        raise ValueError(
            f"{kind} does not go through transformers' attention interface: no part of it uses "
            "ALL_ATTENTION_FUNCTIONS, so its attention calls cannot be seen; what ts.load reads can be watched"
        )
    _check_implementations(kind, found)
    return found


def _check_implementations(kind: str, attentions: Mapping[str, Any]) -> None:
    """Raise a ValueError if an attention uses an implementation whose computation is not known here."""
    alike = {(id(module.config), type(module)): (path, module) for path, module in reversed([*attentions.items()])}
    for path, module in reversed(alike.values()):  # the first of each config and class
        implementation = implementation_of(module)
        if implementation not in KNOWN and "flash" not in str(implementation):
            raise ValueError(
                f'{kind} attends by "{implementation}" in {path}, and what that computes is not known here; '
                'model.set_attn_implementation("sdpa") is one that can be watched'
            )
        if implementation == "eager" and len(eager_function_names(module)) != 1:
            raise ValueError(
                f"{kind} has no eager_attention_forward of its own in {path}, so its eager attention cannot be called; "
                'model.set_attn_implementation("sdpa") is one that can be watched'
            )


def embeddings(modules: Modules) -> Iterable[nn.Module]:
    """Return the token embeddings of the model and of the models inside it."""
    found = []
    for module in modules.values():
        if isinstance(module, PreTrainedModel):
            try:
                found.append(module.get_input_embeddings())
            except (NotImplementedError, AttributeError):  # a model of pixels or sound
                continue
    return {id(embedding): embedding for embedding in found if isinstance(embedding, nn.Embedding)}.values()


# -------------------------------------------------------------------------------------------------- while a model runs


class WatchedModel:
    """One watched model: what its attention functions and hooks need while it runs."""

    def __init__(self, observer: Observer, attentions: Mapping[str, nn.Module], configs: Sequence[Any]) -> None:
        self.observer, self.attentions, self.configs = observer, attentions, configs
        self.names = {id(module): name for name, module in attentions.items()}
        self.reader, self.checks = DefinitionReader(), OutputChecks()
        self.passes: dict[int, int] = {}  # through each attention, by id, since the model around it was called
        self.cross = {  # whether the running call of an attention, by id, is cross-attention
            id(module): _is_cross_attention(module, {}) for module in attentions.values()
        }
        self.caches = CacheTracker()
        self.template: CallTemplate | None = None  # of the layers of the running forward pass

    def run_attention(self, arguments: CallArguments) -> tuple[Tensor, Tensor | None]:
        """Run the model's own attention function, record the call, and return the function's result.

        Implementations that return no weights do not get `output_attentions`, about which some would warn; if the
        caller wants weights, they are computed here.
        """
        module, (queries, keys, _) = arguments.module, arguments.tensors
        name, across = self._name(module), self.cross[id(module)]
        follows, keys_stay = self.caches.after_update(name, module, keys, across)
        like = self._template_of(name, arguments, follows) if self.template is not None and not across else None
        requested, recording = weights_are_requested(arguments.options), self.observer.recording
        if like is not None:
            with_lse = like.has_lse
        else:
            with_lse = recording.keep != SummariesCall.keep or not (follows or _is_short(queries, keys))
        output, weights, lse = _run_own(arguments, with_lse)
        if like is not None and self._record_like(name, like, arguments, lse, keys_stay):
            return output, weights
        with torch.no_grad():
            call = self.reader.read_call(*arguments, lse)
            call = call._replace(across=across, follows=follows, keys_stay=keys_stay)
            check = self.checks.add(name, module, call, output, arguments.implementation)
            last = recording.last_call(name)
            before = None if last is None else (last.attention, last.size)
            prepared, recorded = self.observer.record(name, call)
            self.template = None
            if not requested:
                before = before if recorded is last else None
                self.template = CallTemplate.of(arguments, prepared, recorded, before, check)
            return output, weights_of(name, call) if requested and weights is None else weights

    def _template_of(self, name: str, arguments: CallArguments, follows: bool) -> CallTemplate | None:
        """Return the template of the running forward pass if this call can be recorded by it."""
        like = self.template
        assert like is not None
        begins = like.before is None
        if begins if follows else not begins or self.observer.recording.last_call(name) is not None:
            return None
        return like if like.fits(arguments) and self.checks.has(arguments.module, like.check) else None

    def _record_like(
        self, name: str, like: CallTemplate, arguments: CallArguments, lse: Tensor | None, keys_stay: bool
    ) -> bool:
        """Record a call by the template of a layer before it; return whether that was possible."""
        queries, keys, values = arguments.tensors
        if like.has_lse is (lse is None):
            return False
        call = like.call._replace(queries=queries, keys=keys, values=values, lse=lse, keys_stay=keys_stay)
        with torch_modes.recording_mode(queries.device):
            if like.before is not None:
                return self.observer.recording.append_like(name, call, like.call_kind, *like.before)
            return self.observer.recording.begin_like(name, call, like.recorded)

    def before_model(self, inside: Iterable[int], model: PreTrainedModel, args: Any, kwargs: Any) -> None:
        """Before a model or a part of it runs: adopt a changed implementation, and count passes and steps anew."""
        _adopt_implementation(model, self.configs, self.attentions)
        if self.observer.is_recording():
            self.template = None
            self.caches.before_forward(cache_of(kwargs))
            for attention in inside:
                self.passes.pop(attention, None)

    def before_attention(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Before an attention runs: count the pass, and note whether it is cross-attention."""
        if self.observer.is_recording():
            kind: Any = type(module)
            self.passes[id(module)] = self.passes.get(id(module), 0) + 1
            if _may_be_cross_attention(kind):
                given = dict(zip(_forward_parameters(kind), args, strict=False)) | kwargs
                self.cross[id(module)] = _is_cross_attention(module, given)

    def _name(self, module: nn.Module) -> str:
        """Return the name under which the running pass through an attention is recorded.

        Layers that share one module, as ALBERT's do, are passes through that module.
        """
        name, count = self.names[id(module)], self.passes.get(id(module), 1)
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
) -> tuple[Tensor, Tensor | None]:
    """Run the attention of a module that may be watched. Registered with transformers' attention interface.

    The parameters have the names of transformers' own attention functions, since models pass some by keyword.
    """
    watched = _watched.get(id(module))
    if watched is not None and watched.observer.is_recording():
        return watched.run_attention(
            CallArguments(implementation, module, (query, key, value), attention_mask, options)
        )
    return own_attention(implementation, module)(module, query, key, value, attention_mask, **options)


def _run_own(arguments: CallArguments, with_lse: bool) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Run the model's own attention function; return its output, its weights if it has any, and the log-sum-exp."""
    implementation, module, tensors, mask, options = arguments
    if "output_attentions" in options:
        options = {name: value for name, value in options.items() if name != "output_attentions"}
    own = own_attention(implementation, module)
    if not with_lse:
        return *own(module, *tensors, mask, **options), None
    with SdpaWithLse() as fused:
        output, weights = own(module, *tensors, mask, **options)
    return output, weights, fused.lse


def _is_short(queries: Tensor, keys: Tensor) -> bool:
    """Return whether a GPU computes the log-sum-exp again in less time than the host takes to read it."""
    return queries.is_cuda and queries.shape[-2] * keys.shape[-2] <= SHORT


def _mask_function(implementation: str, **arguments: Any) -> Any:
    """Return the mask of a forward pass, not written out. Registered with transformers' mask interface.

    The model's own function may decide that it needs no mask and return None. To find out without writing a mask, the
    own function is called with a pointwise mask function that raises.
    """
    own = ALL_MASK_ATTENTION_FUNCTIONS[implementation]
    offsets = MaskOffsets.of(arguments)
    with _lock:
        models = {*_watched.values()}
    for watched in models:
        watched.reader.remember_offsets(arguments.get("config"), offsets, arguments.get("attention_mask"))
    if implementation not in ("sdpa", "eager"):  # the others write no matrix
        return own(**arguments)

    def evaluate(*indices: Any) -> Tensor:
        raise _MaskIsNeededError

    try:
        return own(**{**arguments, "mask_function": evaluate})
    except _MaskIsNeededError:
        return LazyMask.of(own, arguments, torch.bool if implementation == "sdpa" else arguments["dtype"])


class _MaskIsNeededError(Exception):
    """The model's own mask function began to write a mask."""


def _is_cross_attention(module: nn.Module, given: Mapping[str, Any]) -> bool:
    """Return whether the keys come from another sequence, by the module's class and by the arguments of the call.

    The class comes first: a call that reads its keys from a cache may be passed no other sequence.
    """
    kind: Any = type(module)
    if "Cross" in kind.__name__ or getattr(module, "is_cross_attention", False) is True:
        return True
    others = [given[name] for name in OTHER_SEQUENCES if given.get(name) is not None]
    return any(other is not given.get("hidden_states") for other in others)


@cache
def _may_be_cross_attention(kind: type) -> bool:
    """Return whether a class's forward may be passed the sequence of its keys."""
    return not {*OTHER_SEQUENCES}.isdisjoint(_forward_parameters(kind))


@cache
def _forward_parameters(kind: type) -> tuple[str, ...]:
    """Return the names of the parameters of a class's forward, without self."""
    return tuple(signature(kind.forward).parameters)[1:]  # type: ignore[attr-defined]


def weights_of(name: str, call: AttentionCall) -> Tensor:
    """Compute the weights of a call, (batch, heads, query, key), in the dtype of the queries.

    Raise a ValueError if they would take more than MAX_WEIGHT_BYTES.
    """
    (batch, heads, queries, _), keys = call.queries.shape, call.keys.shape[-2]
    needed = batch * heads * queries * keys * 4
    if needed > MAX_WEIGHT_BYTES:
        raise ValueError(
            f'output_attentions=True would write {format_bytes(needed)} for "{name}", {queries:,} queries x {keys:,} '
            'keys; leave it out, and read the recording: .rows and .map of keep="queries-keys"'
        )
    rows, attention = torch.arange(queries, device=call.queries.device), call.attention_over_present_keys
    masked = masked_rows(call.queries, call.keys, attention, rows, range(keys), range(batch), range(heads))
    return attention.weights(masked).to(call.queries.dtype)


# ------------------------------------------------------------------------------------------------ entering and leaving

_watched: dict[int, WatchedModel] = {}  # by the id of each attention
_switched: dict[int, tuple[Any, int]] = {}  # configs that hold an ImplementationName, and how many watches need them
_lock = Lock()  # held while `_watched`, `_switched` and transformers' registries change


@contextmanager
def observing(modules: Modules, attentions: Mapping[str, nn.Module], observer: Observer) -> Iterator[None]:
    """Record each call of these attentions while the block runs, then check the recorded definitions.

    Raise a ValueError if the model is being watched already, or if a definition does not fit the model's output.
    """
    attributes = [own for own in map(vars, modules.values()) if "config" in own]  # getattr would search weights too
    configs = {id(own["config"]): own["config"] for own in attributes if own["config"] is not None}
    with ExitStack() as undo:
        with _lock:
            if not _watched.keys().isdisjoint(map(id, modules.values())):
                raise ValueError(f"{type(modules['']).__name__} is being watched already; leave that block first")
            watched = WatchedModel(
                observer, attentions, [config for config in configs.values() if hasattr(config, "_attn_implementation")]
            )
            undo.callback(_forget, watched)
            _watched.update(dict.fromkeys(watched.names, watched))
            for config in watched.configs:
                _switch(config)
                undo.callback(_switch_back, config)
            for config in (own.get("generation_config") for own in attributes):
                if config is not None:
                    undo.enter_context(_without_compilation(config))
        undo.enter_context(_hooks(modules, watched))
        yield
        watched.checks.verify()


@contextmanager
def _hooks(modules: Modules, watched: WatchedModel) -> Iterator[None]:
    """Register the hooks that run before each model and before each attention."""
    with ExitStack() as hooks:
        for path, module in modules.items():
            if isinstance(module, PreTrainedModel):
                names = attentions_inside(watched.attentions, path) if path else watched.attentions
                inside = [id(watched.attentions[name]) for name in names]
                before_model = ModuleHook(uncompiled(partial(watched.before_model, inside)))
                hooks.callback(module.register_forward_pre_hook(before_model, with_kwargs=True).remove)
        before_attention = ModuleHook(uncompiled(watched.before_attention))
        for attention in watched.attentions.values():
            hooks.callback(attention.register_forward_pre_hook(before_attention, with_kwargs=True).remove)
        yield


def _forget(watched: WatchedModel) -> None:
    with _lock:
        for module in watched.names:
            _watched.pop(module, None)


def _switch(config: Any) -> None:
    """Let a config name a watched implementation until `_switch_back` was called as often as this."""
    _, count = _switched.get(id(config), (config, 0))
    _switched[id(config)] = (config, count + 1)
    _rename_implementation(config)


def _rename_implementation(config: Any) -> None:
    """Replace the implementation's name in a config by an ImplementationName, and register our functions under it."""
    original = config._attn_implementation
    if original is None or isinstance(original, ImplementationName):
        return
    name = ImplementationName(original)
    AttentionInterface.register(name, uncompiled(partial(_attention_function, str(original))))
    AttentionMaskInterface.register(name, uncompiled(partial(_mask_function, str(original))))
    set_implementation(config, name)


def _switch_back(config: Any) -> None:
    """Undo `_switch`, unless the model's implementation was changed inside the block: that choice stays."""
    with _lock:
        _, count = _switched.pop(id(config))
        if count > 1:
            _switched[id(config)] = (config, count - 1)
        elif isinstance(config._attn_implementation, ImplementationName):
            set_implementation(config, config._attn_implementation.implementation)
        needed = {str(config._attn_implementation) for config, _ in _switched.values()}
        for registry in (AttentionInterface, AttentionMaskInterface):
            for name in [name for name in registry._global_mapping if isinstance(name, ImplementationName)]:
                if str(name) not in needed:
                    del registry._global_mapping[name]


def _adopt_implementation(model: PreTrainedModel, configs: Sequence[Any], attentions: Mapping[str, nn.Module]) -> None:
    """Watch an implementation that was chosen inside the block, or raise a ValueError if it is not known."""
    names = [config._attn_implementation for config in configs]
    if all(name is None or isinstance(name, ImplementationName) for name in names):
        return
    _check_implementations(type(model).__name__, attentions)
    with _lock:
        for config in configs:
            _rename_implementation(config)


@contextmanager
def _without_compilation(config: Any) -> Iterator[None]:
    """Keep `generate` from compiling the model, which it does for a cache of fixed size: compiled code is not seen."""
    if not hasattr(config, "disable_compile"):
        yield
        return
    before, config.disable_compile = config.disable_compile, True
    try:
        yield
    finally:
        config.disable_compile = before
