"""Intercept the attention calls of Telescope's own models, through PyTorch's module hooks.

A hook before each `Attend` replaces its definition, queries and keys where an edit says so, and a
hook after it passes on what the call returned.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from threading import get_ident
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from ..anatomy import Modules, token_embeddings
from ..attention import Attention
from ..engines import sdpa, torch_modes
from ..layers import AddNorm, Attend
from ..recording import AttentionCall, RecordedCall, StepsCall, attention_name
from .interceptor import (
    HandledCall,
    Handler,
    Interceptor,
    ModelCall,
    Route,
    StoredKeys,
    begin_call,
    end_call,
    lock,
    registered,
)
from .module_hook import AFTER, AFTER_ALWAYS, BEFORE, Place, listen
from .sdpa_lse import SdpaWithLse
from .text import KeyMemory

ATTEND = Route(
    missing="made no call of its Attend module",
    remedy="let the forward call self.attend(queries, keys, values, attention), or restore the "
    "layer's own forward",
)
# Before the hooks that the model had: they see what an edited call returns.
AFTER_ATTENTION = Place(after=True, first=True, always=True)


# ------------------------------------------------------------------------------- finding attentions


def attentions(modules: Modules) -> dict[str, Attend]:
    """Return the model's attentions by name; of two with one name, the second keeps its path."""
    attends: dict[str, Attend] = {}
    for path, module in modules.instances(Attend).items():
        name = attention_name(path)
        attends[name if name not in attends else path] = module
    return attends


def may_attend_across(attends: Iterable[nn.Module]) -> bool:
    """Return whether some call of these may read its keys from another sequence: of any."""
    return True


def layers_around(modules: Modules, attends: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Return the layer that calls each attention, by the attention's name: the nearest module
    around it with a forward.

    An attention that is the whole model has none.
    """
    paths = {id(module): path for path, module in modules.items()}
    layers: dict[str, nn.Module] = {}
    for name, attend in attends.items():
        path = paths[id(attend)]
        while path:
            path = path.rpartition(".")[0]
            # A list or dictionary of modules has no forward of its own.
            if not isinstance(modules[path], nn.ModuleList | nn.ModuleDict):
                layers[name] = modules[path]
                break
    return layers


# -------------------------------------------------------------------------------------------- calls


class AttendCall(ModelCall):
    """A call of an `Attend`."""

    head_axis = 1

    def __init__(
        self,
        module: Attend,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        attention: Attention,
        *,
        across: bool | None = None,
    ) -> None:
        self.module = module
        self.attend = module
        self.tensors = queries, keys, values
        self.attention = attention
        self.across = across
        self._fused: SdpaWithLse | None = None
        self._reading = ExitStack()

    def read(self, interceptor: Interceptor) -> AttentionCall:
        # Describe the tensors as the fused attention takes them, under autocast in its dtype.
        queries, keys, values = torch_modes.cast_for_autocast(*self.tensors)
        heads = tuple(range(queries.shape[1]))
        dropout = self.attend.dropout if self.attend.training else 0.0
        return AttentionCall(queries, keys, values, self.attention, heads, dropout)

    def change(self, handled: HandledCall, changed: AttentionCall, *, own_keys: bool) -> None:
        self.described = changed
        self.tensors = changed.queries, changed.keys, changed.values
        self.attention = changed.attention

    def read_lse(self) -> None:
        # No other engine returns an lse, and a compiled one runs untouched.
        if self._fused is None and sdpa.cannot(*self.tensors, self.attention) is None:
            self._fused = SdpaWithLse()
            self._reading.enter_context(self._fused)

    def stop_reading_lse(self, context: Tensor | None) -> None:
        """Leave the mode that reads the lse; keep the lse of this context, unless the call
        raised.
        """
        self._reading.close()
        if self._fused is not None and context is not None:
            self.lse = self._fused.lse_of(context)

    def check_output(self, handled: HandledCall, call: AttentionCall, output: Tensor) -> None:
        """Do nothing: the definition is the model's own."""

    def where_keys_lie(self, handled: HandledCall) -> StoredKeys:
        _, keys, values = torch_modes.cast_for_autocast(*self.tensors)
        return StoredKeys((KeyMemory.of(keys), KeyMemory.of(values)))


class RunningCall(NamedTuple):
    """A call between its two hooks."""

    made: AttendCall
    handled: list[HandledCall]


def key_of(module: nn.Module) -> int | None:
    """Return the id of the model's own attention of which a hooked module is a copy, or which it
    is; None without hooks.
    """
    for hook in module._forward_pre_hooks.values():
        for listener in getattr(hook, "listeners", ()):
            if isinstance(listener, partial) and listener.func is _before_attention:
                return int(listener.args[0])
    return None


_running: dict[tuple[int, int], RunningCall] = {}  # by the thread, and the id of the attention


def _before_attention(key: int, module: Attend, args: Any, kwargs: Any) -> Any:
    """Hand a call to the handlers; return the arguments of the edited call, None if no edit changed
    it.

    `key` is the id of the model's own module: decoding runs a copy of the model, which shares the
    hooks.
    """
    made = AttendCall(module, *args, **kwargs)
    handled = begin_call(key, made)
    # Keep the call for the hook after the attention.
    if handled:
        _running[get_ident(), key] = RunningCall(made, handled)
    # Without an edit, torch passes the layer's own arguments on.
    if made.described is None:
        return None
    return (*made.tensors, made.attention), {"across": made.across}


def _after_attention(key: int, module: Attend, args: Any, kwargs: Any, context: Any) -> Any:
    """Hand what a call returned to the handlers; after an exception `context` is None."""
    running = _running.pop((get_ident(), key), None)
    if running is None:
        return None
    # Leave the mode in any case; after an exception there is no output to hand on.
    running.made.stop_reading_lse(context)
    return None if context is None else end_call(running.handled, context)


def _drop_running(keys: Iterable[int]) -> None:
    """Forget calls that were interrupted: an interrupt calls no hook."""
    for key in keys:
        running = _running.pop((get_ident(), key), None)
        if running is not None:
            running.made.stop_reading_lse(None)


# ------------------------------------------------------------------------------------------- blocks


class WaitingSteps(Protocol):
    """Steps that are recorded when somebody reads."""

    def flush(self) -> None:
        """Record the steps."""

    def end_block(self) -> None:
        """Record the steps, or prepare them to wait longer than their block."""


class AttendInterceptor(Interceptor):
    """The attentions of a model of Telescope, for one block."""

    waiting: WaitingSteps | None = None

    def handle(self, key: int, made: ModelCall) -> HandledCall:
        self.collect()
        return super().handle(key, made)

    def collect(self) -> None:
        """Record the steps that wait, once, whatever goes wrong."""
        waiting = self.waiting
        self.waiting = None
        if waiting is not None:
            waiting.flush()


_hooked: dict[int, tuple[int, ExitStack]] = {}
"""By the id of each hooked attention: how many blocks need its hooks, and what removes them."""


@contextmanager
def _hooks(attend: nn.Module) -> Iterator[None]:
    """Keep the hooks of an attention registered while the block runs: one pair for all blocks, so
    that their order does not depend on which block was entered first.
    """
    key = id(attend)
    with lock:
        count, undo = _hooked.get(key, (0, ExitStack()))
        # The first block registers the hooks.
        if not count:
            undo.callback(listen([attend], partial(_before_attention, key), BEFORE))
            undo.callback(listen([attend], partial(_after_attention, key), AFTER_ATTENTION))
        _hooked[key] = count + 1, undo
    try:
        yield
    finally:
        with lock:
            # The last block removes the hooks.
            count, undo = _hooked.pop(key)
            if count > 1:
                _hooked[key] = count - 1, undo
            else:
                undo.close()


@contextmanager
def intercepting(
    modules: Modules, attends: Mapping[str, nn.Module], handler: Handler
) -> Iterator[None]:
    """Hand the calls of these attentions to a handler while the block runs.

    Several threads may watch one model, each its own calls. Raise a ValueError if this thread
    watches it already.
    """
    layers = layers_around(modules, attends)
    interceptor = AttendInterceptor(handler, attends, layers, ATTEND)

    def begin_pass(module: nn.Module, args: Any, kwargs: Any) -> None:
        if handler.is_active():
            # Steps that wait belong to passes before.
            interceptor.collect()
            handler.text.begin_pass()

    def before_layer(key: int, module: nn.Module, args: Any, kwargs: Any) -> None:
        interceptor.begin_run(key)

    def after_layer(key: int, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        interceptor.end_run(key, module)

    with ExitStack() as undo:
        # Follow the passes and the token ids of the model.
        if handler.follows_text:
            # Encoding and decoding do not call the model itself, and embed their tokens first.
            embeddings = [*token_embeddings(modules)]
            begin = {id(one): one for one in (modules[""], *embeddings)}
            undo.callback(listen(begin.values(), begin_pass, BEFORE))
            undo.enter_context(handler.text.listening(embeddings, handler.is_active))
        # Undone after the hooks: forget calls that an interrupt has left behind.
        undo.callback(_drop_running, interceptor.names)
        undo.enter_context(registered(modules, interceptor))
        # The key is that of the module here: decoding runs a copy, which shares the hooks.
        for module in {id(module): module for module in layers.values()}.values():
            undo.callback(listen([module], partial(before_layer, id(module)), BEFORE))
            undo.callback(listen([module], partial(after_layer, id(module)), AFTER))
        for attend in attends.values():
            undo.enter_context(_hooks(attend))
        try:
            yield
        except BaseException:
            # The exception says more than what may go wrong here.
            with suppress(Exception):
                interceptor.collect()
            raise
        if interceptor.waiting is not None:
            interceptor.waiting.end_block()


class ResidualStreams:
    """Record the residual stream around attentions, for keep="steps".

    An attention runs within the forward of its AddNorm, whose input and output are the residual
    stream around it.
    """

    def __init__(self) -> None:
        self._running: list[RunningAddNorm] = []  # the innermost last

    def note(self, call: RecordedCall) -> None:
        """Note a call that was recorded within the AddNorm that runs."""
        if self._running and isinstance(call, StepsCall) and call not in self._running[-1].calls:
            self._running[-1].calls.append(call)

    @contextmanager
    def recording(self, modules: Modules, is_active: Callable[[], bool]) -> Iterator[None]:
        """Record what goes into each AddNorm, and what comes out, while the block runs."""

        def before(module: AddNorm, args: Any, kwargs: Any) -> None:
            if is_active():
                self._running.append(RunningAddNorm(module, args[0] if args else kwargs["x"], []))

        def after(module: AddNorm, args: Any, kwargs: Any, output: Tensor | None) -> None:
            # An AddNorm that began outside of the block has no entry.
            if not is_active() or not self._running or self._running[-1].module is not module:
                return
            _, residual, calls = self._running.pop()
            if output is not None:  # None after an exception
                with torch_modes.recording_mode(output.device):
                    for call in calls:
                        call.add_residual_stream(residual, output)

        with ExitStack() as hooks:
            layers = modules.instances(AddNorm).values()
            hooks.callback(listen(layers, before, BEFORE))
            hooks.callback(listen(layers, after, AFTER_ALWAYS))
            yield


class RunningAddNorm(NamedTuple):
    """An AddNorm whose forward is running, its input, and the attention calls within so far."""

    module: nn.Module
    before: Tensor
    calls: list[StepsCall]
