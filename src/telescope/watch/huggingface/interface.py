"""The door: under a name of ours, transformers' attention interface has a function that looks on and calls the model's
own, and its mask interface one that leaves masks unwritten. A missing mask function would drop the causal mask."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache, partial
from inspect import signature, unwrap
from itertools import takewhile
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from ...recording.attention_call import AttentionCall
from ...recording.names import Parts, within
from ...survey.exact_rows import masked_rows
from ...words import size
from ..observer import ModuleHook, Observer, uncompiled
from ..sdpa_lse import SdpaWithLse
from .definition import DefinitionReader
from .lazy import LazyMask
from .masks import MaskOffsets
from .proof import Proofs

KNOWN = ("sdpa", "eager", "flex_attention")  # and what has flash in its name
OTHERS = (  # by which names an attention is given a sequence to look at
    "key_value_states",
    "encoder_hidden_states",
    "cross_attention_states",
    "context",
    "context_hidden_states",
)
BY_NAME = hasattr(AttentionInterface, "get_interface")  # before 5.1, what is equal to "eager" is not asked for


class ImplementationName(str):
    """Our name of an implementation: a model that asks whether it is "sdpa" is told what it would be told unwatched."""

    implementation: str

    def __new__(cls, implementation: str) -> "ImplementationName":
        name = super().__new__(cls, f"{implementation}_telescope")
        name.implementation = implementation
        return name

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True or (BY_NAME and other == self.implementation)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """A copy of a model, made or pickled while it is watched, attends by the model's own implementation."""
        return str, (self.implementation,)


# ------------------------------------------------------------------------------------------------ what can be watched


def attentions(parts: Parts) -> dict[str, nn.Module]:
    kinds: set[Any] = set(map(type, parts.values()))
    asking = {kind for kind in kinds if _door_of(kind) is not None}
    found: dict[str, Any] = {path: module for path, module in parts.items() if type(module) in asking}
    kind = type(parts[""]).__name__
    if not found:
        raise ValueError(
            f"{kind} does not go through transformers' attention interface: no part of it asks "
            "ALL_ATTENTION_FUNCTIONS, so nobody can look on; what ts.load reads can be watched"
        )
    _must_be_known(kind, found)
    return found


def _must_be_known(kind: str, attentions: Mapping[str, Any]) -> None:
    """Refuse attention implementations whose computation is not known here."""
    alike = {(id(module.config), type(module)): (path, module) for path, module in reversed([*attentions.items()])}
    for path, module in reversed(alike.values()):  # the first of each
        implementation = _implementation(module)
        if implementation not in KNOWN and "flash" not in str(implementation):
            raise ValueError(
                f'{kind} attends by "{implementation}" in {path}, and what that computes is not known here; '
                'model.set_attn_implementation("sdpa") is one that can be watched'
            )
        if implementation == "eager" and len(_eager_names(module)) != 1:
            raise ValueError(
                f"{kind} has no eager_attention_forward of its own in {path}, so its eager attention cannot be called; "
                'model.set_attn_implementation("sdpa") is one that can be watched'
            )


def embeddings(parts: Parts) -> Iterable[nn.Module]:
    found = []
    for part in parts.values():
        if isinstance(part, PreTrainedModel):
            try:
                found.append(part.get_input_embeddings())
            except (NotImplementedError, AttributeError):  # of pixels or sound
                continue
    return {id(embedding): embedding for embedding in found if isinstance(embedding, nn.Embedding)}.values()


def _door(module: nn.Module) -> Any:
    """The method by which a module asks the interface, if it does."""
    kind: Any = type(module)
    return _door_of(kind)


@cache
def _door_of(kind: type) -> Any:
    methods = (unwrap(method) for owner in _owners(kind) for method in vars(owner).values() if callable(method))
    return next(filter(_asks, methods), None)


def _owners(kind: type) -> Iterable[type]:
    """A whole model asks too, which implementations there are."""
    return takewhile(lambda owner: owner is not PreTrainedModel, kind.__mro__)


def _asks(method: Any) -> bool:
    return "ALL_ATTENTION_FUNCTIONS" in getattr(getattr(method, "__code__", None), "co_names", ())


def _implementation(module: Any) -> str:
    name = module.config._attn_implementation
    return name.implementation if isinstance(name, ImplementationName) else str(name)


def _eager_names(module: nn.Module) -> list[str]:
    return [name for name in _door(module).__code__.co_names if name.endswith("eager_attention_forward")]


def _own(implementation: str, module: nn.Module) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """What the model would have called."""
    names: Any = _door(module).__globals__
    if implementation == "eager":
        own = names[_eager_names(module)[0]]
    else:
        own = names["ALL_ATTENTION_FUNCTIONS"][implementation]
    return own  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------------- while it runs


class WatchedModel:
    """One model that is watched."""

    def __init__(self, eye: Observer, attentions: Mapping[str, nn.Module], configs: Sequence[Any]) -> None:
        self.eye, self.attentions, self.configs = eye, attentions, configs
        self.names = {id(module): name for name, module in attentions.items()}
        self.reader, self.proofs = DefinitionReader(), Proofs()
        self.passes: dict[int, int] = {}  # through each attention since the model around it was called
        self.across: dict[int, bool] = {}  # by the id of an attention, as it was called last

    def begins(self, within: Iterable[int], model: PreTrainedModel, *_: Any) -> None:
        """Before a model, or one within it, runs: follow its implementation, and count the passes anew."""
        _follow(model, self.configs, self.attentions)
        if self.eye.looks():
            for attention in within:
                self.passes.pop(attention, None)

    def passed(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Before an attention runs: count its calls, and note whether its keys are another sequence.

        Layers that share a module, as ALBERT's do, are passes through it.
        """
        if self.eye.looks():
            self.across[id(module)] = _looks_across(module, args, kwargs)
            self.passes[id(module)] = self.passes.get(id(module), 0) + 1

    def name_of(self, module: nn.Module) -> str:
        name, count = self.names[id(module)], self.passes.get(id(module), 1)
        return name if count == 1 else f"{name}.{count}"

    def attended(
        self,
        implementation: str,
        module: nn.Module,
        tensors: tuple[Tensor, Tensor, Tensor],
        mask: Any,
        options: dict[str, Any],
    ) -> tuple[Tensor, Tensor | None]:
        asked = weights_asked_for(options)
        options.pop("output_attentions", None)  # some would warn that they have none
        with SdpaWithLse() as fused:
            output, weights = _own(implementation, module)(module, *tensors, mask, **options)
        with torch.no_grad():
            ran = self.reader.ran(implementation, module, tensors, mask, options, fused.lse)
            ran = ran._replace(across=self.across.get(id(module), _looks_across(module, (), {})))
            name = self.name_of(module)
            self.proofs.add(name, module, ran, output, implementation)
            self.eye.saw(name, ran)
            return output, weights_of(name, ran) if asked and weights is None else weights


_watched: dict[int, WatchedModel] = {}  # by the id of an attention
_switched: dict[int, tuple[Any, int]] = {}  # configs that say our name, and how many watches need them so
_lock = Lock()


def _forward(
    implementation: str,
    /,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Take the parameters of transformers' own attention functions, by their names: models pass some by keyword."""
    looking = _watched.get(id(module))
    if looking is not None and looking.eye.looks():
        return looking.attended(implementation, module, (query, key, value), attention_mask, options)
    return _own(implementation, module)(module, query, key, value, attention_mask, **options)


def _looks_across(module: nn.Module, args: Any, kwargs: Any) -> bool:
    """Return whether the keys are another sequence: by what the module is, or by what it is called with.

    One that has its keys in a cache may be given no other sequence any more, and some are never told what they are.
    """
    kind: Any = type(module)
    if "Cross" in kind.__name__ or getattr(module, "is_cross_attention", False) is True:
        return True
    given = dict(zip(_parameters(kind), args, strict=False)) | kwargs
    others = [given[name] for name in OTHERS if given.get(name) is not None]
    return any(other is not given.get("hidden_states") for other in others)


@cache
def _parameters(kind: type) -> tuple[str, ...]:
    """The names of what its forward takes, by place."""
    return tuple(signature(kind.forward).parameters)[1:]  # type: ignore[attr-defined]


class _WantedError(Exception):
    """A mask has to be written."""


def _mask(implementation: str, **given: Any) -> Any:
    own = ALL_MASK_ATTENTION_FUNCTIONS[implementation]
    place = MaskOffsets.of(given)
    for looking in {*_watched.values()}:
        looking.reader.place(given.get("config"), place, given.get("attention_mask"))
    if implementation not in ("sdpa", "eager"):  # these write no matrix
        return own(**given)

    def wanted(*indices: Any) -> Tensor:
        raise _WantedError

    try:
        return own(**{**given, "mask_function": wanted})  # None where the model's own function needs none
    except _WantedError:
        return LazyMask.of(own, given, torch.bool if implementation == "sdpa" else given["dtype"])


@contextmanager
def looking(parts: Parts, attentions: Mapping[str, nn.Module], eye: Observer) -> Iterator[None]:
    said = [told for told in map(vars, parts.values()) if "config" in told]  # getattr would look for weights too
    configs = {id(told["config"]): told["config"] for told in said if told["config"] is not None}
    with ExitStack() as undo:
        with _lock:
            if not _watched.keys().isdisjoint(map(id, parts.values())):
                raise ValueError(f"{type(parts['']).__name__} is being watched already; leave that block first")
            mine = WatchedModel(
                eye, attentions, [one for one in configs.values() if hasattr(one, "_attn_implementation")]
            )
            undo.callback(_leave, mine)
            _watched.update(dict.fromkeys(mine.names, mine))
            for config in mine.configs:
                _switch(config)
                undo.callback(_switch_back, config)
            for config in (told.get("generation_config") for told in said):
                if config is not None:
                    undo.enter_context(_as_written(config))
        undo.enter_context(_counted(parts, mine))
        yield
        mine.proofs.must_hold()


@contextmanager
def _counted(parts: Parts, looking: WatchedModel) -> Iterator[None]:
    """With the hooks by which the passes through each attention are counted."""
    with ExitStack() as hooks:
        for path, part in parts.items():
            if isinstance(part, PreTrainedModel):
                names = within(looking.attentions, path) if path else looking.attentions
                begins = ModuleHook(
                    uncompiled(partial(looking.begins, [id(looking.attentions[name]) for name in names]))
                )
                hooks.callback(part.register_forward_pre_hook(begins).remove)
        passed = ModuleHook(uncompiled(looking.passed))
        for attention in looking.attentions.values():
            hooks.callback(attention.register_forward_pre_hook(passed, with_kwargs=True).remove)
        yield


def _leave(looking: WatchedModel) -> None:
    for module in looking.names:
        _watched.pop(module, None)


def _switch(config: Any) -> None:
    """The config says our name, until the last who needs it so has gone."""
    _, count = _switched.get(id(config), (config, 0))
    _switched[id(config)] = (config, count + 1)
    _rename(config)


def _rename(config: Any) -> None:
    """Let a config that says the name of an implementation say ours."""
    said = config._attn_implementation
    if said is None or isinstance(said, ImplementationName):
        return
    name = ImplementationName(said)
    AttentionInterface.register(name, uncompiled(partial(_forward, str(said))))
    AttentionMaskInterface.register(name, uncompiled(partial(_mask, str(said))))
    config._attn_implementation_internal = name  # not by the setter, which goes to other configs too


def _switch_back(config: Any) -> None:
    """Undo `_switch`, unless the model's implementation was changed inside the block: that choice stays."""
    with _lock:
        _, count = _switched.pop(id(config))
        if count > 1:
            _switched[id(config)] = (config, count - 1)
        elif isinstance(config._attn_implementation, ImplementationName):
            config._attn_implementation_internal = config._attn_implementation.implementation
        needed = {str(config._attn_implementation) for config, _ in _switched.values()}
        for registry in (AttentionInterface, AttentionMaskInterface):
            for name in [name for name in registry._global_mapping if isinstance(name, ImplementationName)]:
                if str(name) not in needed:
                    del registry._global_mapping[name]


def _follow(model: PreTrainedModel, configs: Sequence[Any], attentions: Mapping[str, nn.Module]) -> None:
    """Watch an implementation that was chosen inside the block like the first one, or refuse it."""
    said = [config._attn_implementation for config in configs]
    if all(name is None or isinstance(name, ImplementationName) for name in said):
        return
    _must_be_known(type(model).__name__, attentions)
    with _lock:
        for config in configs:
            _rename(config)


@contextmanager
def _as_written(config: Any) -> Iterator[None]:
    """`generate` compiles a model of itself where a cache has a fixed size; compiled code runs past everyone."""
    if not hasattr(config, "disable_compile"):
        yield
        return
    before, config.disable_compile = config.disable_compile, True
    try:
        yield
    finally:
        config.disable_compile = before


MOST = 2**30  # bytes for one attention

_collected: Any
try:  # what transformers collects of a call: newer models are told so by nothing else
    from transformers.utils.output_capturing import _active_collector as _collected
except ImportError:
    _collected = ContextVar("_collected", default=None)


def weights_asked_for(options: dict[str, Any]) -> bool:
    return bool(options.get("output_attentions")) or any("attentions" in name for name in _collected.get() or ())


def weights_of(name: str, ran: AttentionCall) -> Tensor:
    """(batch, heads, query, key), in the dtype of the queries."""
    (batch, heads, queries, _), keys = ran.queries.shape, ran.keys.shape[-2]
    needed = batch * heads * queries * keys * 4
    if needed > MOST:
        raise ValueError(
            f'output_attentions=True would write {size(needed)} for "{name}", {queries:,} queries x {keys:,} keys; '
            'leave it out, and ask the recording: .rows and .map of keep="queries-keys"'
        )
    rows = torch.arange(queries, device=ran.queries.device)
    masked = masked_rows(ran.queries, ran.keys, ran.here, rows, range(keys), range(batch), range(heads))
    return ran.here.weights(masked).to(ran.queries.dtype)
