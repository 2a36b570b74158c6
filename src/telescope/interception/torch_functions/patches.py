"""Put functions of ours into the place of attention functions while a block runs.

A function is replaced wherever models find it by its name: in its library, and in the files of the
model that have a name of their own for it. Nothing else of torch is changed, so that a model runs
as fast as before. A call is passed on unless a module of an intercepted model made it, which the
frames of the interpreter tell: the innermost method of such a module.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, wraps
from inspect import signature
from threading import local
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from ...engines import torch_modes
from ..interceptor import lock
from .calls import FlexCall, FunctionCall
from .functions import FUNCTIONS, call_of
from .multi_head import FastCall, Weighing, WeighingCall
from .reach import Binding

Intercept = Callable[[nn.Module, Callable[[], FunctionCall], Callable[[], Any]], Any]
"""intercept(module, make, run): hand the call that `make` returns on, or `run` it as it is."""

blocks: list[Any] = []
"""The interceptors of all blocks that run; each has the ids of its model's modules in `paths`."""
_intercept: list[Intercept] = []  # one, set by interception.py


class _State(local):
    """What runs in a thread."""

    inside = False
    """Whether a call is being run or handled, whose own calls are parts of it."""
    weighing: Weighing | None = None
    """The call of nn.MultiheadAttention that computes weights."""
    across: bool | None = None
    """Whether the running nn.MultiheadAttention reads another sequence; None outside of one."""


state = _State()


def caller(frame: FrameType | None) -> nn.Module | None:
    """Return the module of an intercepted model whose method runs in this frame, or in the nearest
    around it.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_argcount:
            first = frame.f_locals.get(code.co_varnames[0])
            if isinstance(first, nn.Module) and any(id(first) in one.paths for one in blocks):
                return first
        frame = frame.f_back
    return None


def _is_watched() -> bool:
    """Return whether a call may belong to a block. Code that is being compiled is left alone."""
    return not torch.compiler.is_compiling() and bool(blocks) and not state.inside


@cache
def replacement(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that takes the place of an attention function."""
    kind = call_of(original)
    assert kind is not None

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        module = caller(sys._getframe(1)) if _is_watched() else None
        if module is None:
            return original(*args, **kwargs)
        return _intercept[0](
            module,
            lambda: kind(original, module, *args, **kwargs),
            lambda: original(*args, **kwargs),
        )

    call.original = original  # type: ignore[attr-defined]
    return call


def _multi_head(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what takes the place of multi_head_attention_forward. With need_weights=False it calls
    scaled_dot_product_attention; else two products compute the weights and the context.
    """
    parameters = signature(original)

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        module = caller(sys._getframe(1)) if _is_watched() else None
        if module is None:
            return original(*args, **kwargs)
        bound = parameters.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        weighing = None
        if given["need_weights"]:
            dropout = given["dropout_p"] if given["training"] else 0.0
            weighing = state.weighing = Weighing(module, given["num_heads"], dropout)
        state.across = not _are_one(given["query"], given["key"])
        try:
            # Others see a product of torch replaced for this one call alone.
            with _replaced(_PRODUCTS) if weighing is not None else nullcontext():
                output, weights = original(*args, **kwargs)
        finally:
            state.weighing = None
            state.across = None
        if weighing is not None and weighing.edited is not None:
            edited = weighing.edited.mean(1) if given["average_attn_weights"] else weighing.edited
            weights = edited.reshape(weights.shape)  # unbatched, without the first axis
        return output, weights

    return call


def _are_one(queries: Tensor, keys: Tensor) -> bool:
    """Return whether two sequences are one, which a layer may have computed twice."""
    if queries is keys:
        return True
    # Tensors without memory of their own are refused later.
    no_memory = queries.is_nested or keys.is_nested or queries.is_meta or keys.is_meta
    if no_memory or torch_modes.is_transformed() or queries.shape != keys.shape:
        return False
    return queries.data_ptr() == keys.data_ptr() or torch.equal(queries, keys)


def _product(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what takes the place of bmm or baddbmm inside of multi_head_attention_forward."""

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        # Asked first: compiled code has a constant there.
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        weighing = state.weighing
        if weighing is None:
            return original(*args, **kwargs)
        # The first product gives the scores.
        if weighing.scored is None:
            weighing.scored = args
            return original(*args, **kwargs)
        state.weighing = None
        return _intercept[0](
            weighing.module,
            lambda: WeighingCall(original, weighing, (args[0], args[1])),
            lambda: original(*args, **kwargs),
        )

    return call


def _fast(original: Any) -> Callable[..., Any]:
    """Return what takes the place of torch's fused nn.MultiheadAttention."""

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        module = caller(sys._getframe(1)) if _is_watched() else None

        def run() -> Any:
            return original(*args, **kwargs)

        if module is None:
            return run()
        hidden = kwargs.get("mask", args[9] if len(args) > 9 else None)
        hidden_type = kwargs.get("mask_type", args[12] if len(args) > 12 else None)
        return _intercept[0](
            module,
            lambda: FastCall(original, module, args[0], run, hidden, hidden_type),
            run,
        )

    return call


def _fast_layer(original: Any) -> Callable[..., Any]:
    """Return what takes the place of torch's fused nn.TransformerEncoderLayer."""

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        layer: Any = caller(sys._getframe(1)) if _is_watched() else None

        def run() -> Any:
            return original(*args, **kwargs)

        if layer is None:
            return run()
        hidden = kwargs.get("mask", args[18] if len(args) > 18 else None)
        hidden_type = kwargs.get("mask_type", args[19] if len(args) > 19 else None)

        def make() -> FastCall:
            tokens = args[0]
            if layer.norm_first:
                norm = layer.norm1
                width = norm.normalized_shape
                tokens = layer_norm(tokens, width, norm.weight, norm.bias, norm.eps)
            return FastCall(original, layer.self_attn, tokens, run, hidden, hidden_type)

        return _intercept[0](layer.self_attn, make, run)

    return call


_PRODUCTS = [(Binding(vars(torch), name), _product) for name in ("bmm", "baddbmm")]
_PARTS = (
    (torch.nn.functional, "multi_head_attention_forward", _multi_head),
    (torch, "_native_multi_head_attention", _fast),
    (torch, "_transformer_encoder_layer_fwd", _fast_layer),
)


class Place:
    """A place where a function was replaced, and how many blocks need that."""

    def __init__(self, binding: Binding, own: Any) -> None:
        self.namespace = binding.namespace
        self.name = binding.name
        self.original = self.namespace[self.name]
        self.own = own
        self.count = 0


_places: dict[tuple[int, str], Place] = {}


def _wanted(bindings: Sequence[Binding]) -> Iterator[tuple[Binding, Callable[..., Any]]]:
    """Yield every place and what makes the replacement."""
    for one in FUNCTIONS:
        module = sys.modules.get(one.module)
        # A name that a lazy library has not imported yet is nobody's.
        if module is not None and one.name in vars(module):
            yield Binding(vars(module), one.name), replacement
    for library, name, make in _PARTS:
        yield Binding(vars(library), name), make
    for binding in bindings:
        yield binding, replacement


@contextmanager
def patched(bindings: Sequence[Binding], intercept: Intercept) -> Iterator[None]:
    """Replace the attention functions while the block runs; other blocks may need that, too."""
    _intercept[:] = [intercept]
    with _known_to_dynamo(bindings), _replaced(_wanted(bindings)):
        yield


@contextmanager
def _known_to_dynamo(bindings: Sequence[Binding]) -> Iterator[None]:
    """Keep what Dynamo knows of torch's functions right: it finds them by name, once, and must not
    find ours.
    """
    # Without a compiler, flex_attention traces itself.
    traces = any(call_of(one.namespace[one.name]) is FlexCall for one in bindings)
    is_loaded = traces or "torch._dynamo" in sys.modules
    if is_loaded:
        _table_of_dynamo()()
    try:
        yield
    finally:
        # What it may have found in the block, it finds anew.
        if not is_loaded and "torch._dynamo" in sys.modules:
            _table_of_dynamo().cache_clear()


def _table_of_dynamo() -> Any:
    """Return the function that reads Dynamo's table of torch's functions, and keeps it."""
    from torch._dynamo import trace_rules

    return trace_rules.get_torch_obj_rule_map


@contextmanager
def _replaced(wanted: Iterable[tuple[Binding, Callable[..., Any]]]) -> Iterator[None]:
    """Replace functions while the block runs: each place, and what makes the replacement."""
    taken = []
    with lock:
        for binding, make in wanted:
            key = binding.key
            place = _places.get(key)
            if place is None:
                own = make(binding.namespace[binding.name])
                place = _places[key] = Place(binding, own)
                binding.namespace[binding.name] = own
            if key not in taken:
                place.count += 1
                taken.append(key)
    try:
        yield
    finally:
        with lock:
            for key in taken:
                place = _places[key]
                place.count -= 1
                # Somebody else's replacement of ours stays.
                if not place.count:
                    del _places[key]
                    if place.namespace.get(place.name) is place.own:
                        place.namespace[place.name] = place.original


@contextmanager
def running(interceptor: Any) -> Iterator[None]:
    """Take calls of the modules of an interceptor's model as its own while the block runs."""
    with lock:
        blocks[:] = [*blocks, interceptor]
    try:
        yield
    finally:
        with lock:
            blocks[:] = [one for one in blocks if one is not interceptor]
