"""Intercept the calls of attention functions that the modules of a model make, and name each by the
path of its module.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...anatomy import Modules
from ...engines import torch_modes
from ..interceptor import (
    EDIT,
    Bypass,
    HandledCall,
    Handler,
    ModelCall,
    Route,
    begin_call,
    end_call,
    interceptors,
    join,
    lock,
    registered,
)
from ..late_recording import end_recording
from ..module_hook import AFTER, AFTER_ALWAYS, BEFORE, listen
from ..observer import Observer
from ..proof import OutputChecks
from .axes import UnreadableCallError
from .call_log import CallLog
from .calls import FunctionCall, ReadingInterceptor
from .definition import FunctionReader, is_alike_for_queries
from .patches import blocks, patched, running, state
from .projections import Projections
from .reach import FoundModules, describe_by_hand, find_attending, find_beside, seen_attending

WAYS_OUT = "call torch.nn.functional.scaled_dot_product_attention there, or ts.attend"
FUNCTIONS = Route(
    missing="called no attention function where it can be seen",
    remedy=f"{WAYS_OUT}, by its own name and without torch.compile",
)
ALONE = "attention"
"""The name of an attention that is a whole model."""
# Words in the paths of embeddings of something else than tokens.
NO_TOKENS = ("pos", "type", "seg", "time", "label", "class", "relative")


class FunctionInterceptor(ReadingInterceptor):
    """The attentions of a model that calls attention functions, for one block."""

    def __init__(
        self,
        handler: Handler,
        modules: Modules,
        attentions: Mapping[str, nn.Module],
        *,
        are_beside: bool,
    ) -> None:
        # Torch's own attention always calls one of the functions, and a hook would slow it down.
        running = {
            name: module
            for name, module in attentions.items()
            if not isinstance(module, nn.MultiheadAttention)
        }
        super().__init__(handler, dict(attentions), running, FUNCTIONS)
        self.paths = {id(module): path or ALONE for path, module in modules.items()}
        self.follows_text = handler.follows_text and not are_beside
        """Whether no other interceptor of the model follows its text."""
        self.reader = FunctionReader()
        self.checks = OutputChecks()
        self.log: CallLog | None = None
        """The calls that wait, of a block that records."""
        self.steps = None  # a compiled run is not seen
        self.projections = Projections(handler.carriers if isinstance(handler, Observer) else {})
        self._calls: dict[str, int] = {}  # of each attention in the running pass
        self._depth = 0  # of modules that run whose passes are counted

    # --------------------------------------------------------------------------------------- passes

    def begin_pass(self) -> None:
        """Begin a forward pass: what waits belongs to the passes before."""
        self.collect()
        self._calls.clear()
        if self.follows_text:
            self.text.begin_pass()

    def before_part(self, is_model: bool, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Before the model or a part of it runs: a part alone has passes of its own."""
        if not self.is_active():
            return
        # What an interrupt has left running is over when the model runs anew.
        if is_model:
            self._depth = 0
        if self._depth == 0:
            self.begin_pass()
        self._depth += 1

    def after_part(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """After the model or a part of it ran, also with an exception."""
        if self.is_active():
            self._depth = max(0, self._depth - 1)
            if self._depth == 0 and self.log is not None:
                self.log.end_pass()

    # ---------------------------------------------------------------------------------------- calls

    def adopt(self, module: nn.Module) -> None:
        """Take a module that was not known to attend as an attention, if the handler wants it."""
        path = self.paths[id(module)]
        seen_attending.add(module)
        if not self.handler.adopt(path):
            return
        self.attentions[path] = module  # type: ignore[index]
        self.names[id(module)] = path
        join(id(module), self)

    def handle(self, key: int, made: ModelCall) -> HandledCall:
        assert isinstance(made, FunctionCall)
        attention = self.names[key]
        self.note_call(attention)
        # A module that is called alone, without a part around it, has a pass for each call.
        if self._depth == 0 and attention in self._calls:
            self.begin_pass()
        number = self._calls[attention] = self._calls.get(attention, 0) + 1
        return self.handle_pass(key, made, number)

    def handle_pass(self, key: int, made: ModelCall, number: int) -> HandledCall:
        """Return the call of this number in its pass as the handler sees it."""
        attention = self.names[key]
        name = attention if number == 1 else f"{attention}.{number}"
        return HandledCall(made, self, attention, name, made.across)

    def calls_of(self, attention: str) -> int:
        """Return how many calls an attention has made in the running pass."""
        return self._calls.get(attention, 0)

    def collect(self) -> None:
        """Record the calls that wait."""
        if self.log is not None:
            self.log.flush()

    def refuse(self, module: nn.Module, reason: str) -> None:
        """Report a call that cannot be recorded."""
        name = self.names[id(module)]
        self.note_call(name)
        self.handler.report_bypass(Bypass(name, reason, "leave that out to have it recorded"))


def _active(module: nn.Module) -> list[FunctionInterceptor]:
    """Return the interceptors that a call of this module is to be handed to."""
    key = id(module)
    found = []
    for one in tuple(blocks):
        if key not in one.paths or not one.is_active():
            continue
        if key not in one.names and not _is_claimed(key):
            one.adopt(module)
        if key in one.names:
            found.append(one)
    return found


def _is_claimed(key: int) -> bool:
    """Return whether the module with this id is intercepted in another way."""
    return any(not isinstance(one, FunctionInterceptor) for one in interceptors.get(key, ()))


def intercept(module: nn.Module, make: Callable[[], FunctionCall], run: Callable[[], Any]) -> Any:
    """Hand a call of an attention function to the handlers of the module that made it."""
    active = _active(module)
    if not active:
        return run()
    state.inside = True
    try:
        made = _read(module, make, active)
        if made is None:
            return run()
        log = active[0].log if len(active) == 1 else None
        if log is not None and log.can_wait(made):
            return log.run(made)
        handled = begin_call(id(module), made)
        is_edited = made.described is not None
        context = made.run_described() if is_edited else made.run()
        found = end_call(handled, context)
        for one in active:
            one.projections.note(one.names[id(module)], found)
        # The very object that the function returned, unless an edit changed something.
        if found is context and not is_edited:
            return made.returned
        try:
            return made.result(found)
        except UnreadableCallError as problem:
            for one in active:
                one.refuse(module, str(problem))
            raise
    finally:
        state.inside = False


def _read(
    module: nn.Module, make: Callable[[], FunctionCall], active: list[FunctionInterceptor]
) -> FunctionCall | None:
    """Return a call whose definition was read; None if that is not possible, which is reported."""
    first = active[0]
    edits = any(one.handler.order == EDIT for one in active)
    try:
        if torch_modes.is_transformed():
            raise UnreadableCallError(
                "it was called inside of torch.func, such as vmap or grad, whose tensors stand for "
                "others"
            )
        made = make()
        for tensor in made.tensors:
            _check(tensor)
        rows, columns = made.size
        name = first.names[id(module)]
        made.across = state.across
        if made.across is None:
            made.across = first.reader.is_across(name, rows, columns, is_plain=made.is_plain)
        # An edit computes with the definition, and may learn by it.
        with nullcontext() if edits else torch_modes.recording_mode(made.tensors[0].device):
            call = made.read(first)
        # What hides the same keys from every query tells no order: it may be another's padding.
        if state.across is None and not made.is_plain and is_alike_for_queries(call.attention):
            made.across = first.reader.is_across(name, rows, columns, is_plain=True)
        if not call.fits(*call.size):
            raise UnreadableCallError(
                f"its mask does not fit {rows:,} queries and {columns:,} keys"
            )
    except UnreadableCallError as problem:
        for one in active:
            one.refuse(module, str(problem))
        return None
    return made


def _check(tensor: Tensor) -> None:
    """Raise an UnreadableCallError if queries, keys or values cannot be recorded."""
    if type(tensor) not in (Tensor, nn.Parameter):
        raise UnreadableCallError(f"its tensors are of the class {type(tensor).__name__}")
    if tensor.is_nested:
        raise UnreadableCallError("its tensors are nested, sentences of different lengths in one")
    if tensor.device.type == "meta":
        raise UnreadableCallError("its tensors are on the device meta, which holds no numbers")


# ------------------------------------------------------------------------------------------- blocks


def attentions(modules: Modules) -> dict[str, nn.Module]:
    """Return the modules of a model that attend, by path, as far as their code tells; raise a
    ValueError if there is none, nor anything that looks like one.
    """
    found = modules.notes[FoundModules] = find_attending(modules)
    if found.attending or found.may_attend:
        return _by_name(found)
    kind = type(modules[""]).__name__
    if found.by_hand:
        raise ValueError(
            f"{kind}: {describe_by_hand([path or kind for path in found.by_hand])}; "
            f"{WAYS_OUT}, which are recorded"
        )
    raise ValueError(
        f"{kind} holds no attention: no module calls scaled_dot_product_attention, flex_attention, "
        "nn.MultiheadAttention or ts.attend, is a layer of telescope.layers, or a model of "
        "transformers"
    )


def attentions_beside(modules: Modules, known: Sequence[nn.Module]) -> dict[str, nn.Module]:
    """Return the modules that attend, by path, beside those that are known of a model of
    transformers or of Telescope.
    """
    found = modules.notes[FoundModules] = find_beside(modules, known)
    return _by_name(found)


def _by_name(found: FoundModules) -> dict[str, nn.Module]:
    return {path or ALONE: module for path, module in found.attending.items()}


@contextmanager
def intercepting(
    modules: Modules,
    attentions: Mapping[str, nn.Module],
    handler: Handler,
    *,
    are_beside: bool = False,
) -> Iterator[None]:
    """Hand the calls of these attentions to a handler while the block runs. Those that `are_beside`
    others of the model, which are intercepted in another way, do not wait.

    Raise a ValueError if this thread watches the model already, or if a definition does not fit
    what a function computed.
    """
    interceptor = FunctionInterceptor(handler, modules, attentions, are_beside=are_beside)
    waits = isinstance(handler, Observer) and not are_beside
    if isinstance(handler, Observer) and waits:
        interceptor.log = CallLog(interceptor, handler.recording)
        handler.recording._queue.collect_steps = interceptor.collect
    with ExitStack() as undo:
        if interceptor.follows_text:
            embeddings = _token_embeddings(modules)
            undo.enter_context(handler.text.listening(embeddings, handler.is_active))
        undo.enter_context(registered(modules, interceptor))
        undo.enter_context(running(interceptor))
        undo.enter_context(patched(modules.notes[FoundModules].bindings, intercept))
        if handler.order == EDIT:
            undo.enter_context(_without_fast_path())
        undo.enter_context(_hooks(modules, interceptor))
        undo.enter_context(interceptor.projections.checked())
        try:
            yield
        except BaseException:
            # The exception says more than what may go wrong here.
            with suppress(Exception):
                interceptor.collect()
            if isinstance(handler, Observer) and waits:
                handler.recording._queue.collect_steps = None
            raise
        if isinstance(handler, Observer) and waits:
            end_recording(interceptor, handler)
        # Only after a block that ended well: an exception of the block says more.
        interceptor.checks.verify()


@contextmanager
def _hooks(modules: Modules, interceptor: FunctionInterceptor) -> Iterator[None]:
    """Register the hooks that begin passes, and those that find attentions without a call.

    A hook inside of a layer of torch's own encoder would switch its fast path off.
    """
    with ExitStack() as undo:
        fast = [
            path
            for path, module in modules.items()
            if isinstance(module, nn.TransformerEncoderLayer | nn.MultiheadAttention)
        ]
        free = {
            path: module
            for path, module in modules.items()
            if not any(path == one or path.startswith(f"{one}.") or not one for one in fast)
        }
        # Parts of a model may be called by themselves, as an encoder and a decoder are.
        own = [interceptor.paths[id(module)] for module in interceptor.attentions.values()]
        above = {path.partition(".")[0] for path in own} - {ALONE}
        for path, module in free.items():
            if path == "" or path in above:
                before = partial(interceptor.before_part, path == "")
                undo.callback(listen([module], before, BEFORE))
                undo.callback(listen([module], interceptor.after_part, AFTER_ALWAYS))
        hooked = {id(module) for module in free.values()}
        for module in interceptor.running.values():
            if id(module) in hooked:
                undo.callback(listen([module], partial(_begin_run, interceptor), BEFORE))
                undo.callback(listen([module], partial(_end_run, interceptor), AFTER))
        yield


def _begin_run(interceptor: FunctionInterceptor, module: nn.Module, args: Any, kwargs: Any) -> None:
    interceptor.begin_run(id(module))


def _end_run(
    interceptor: FunctionInterceptor, module: nn.Module, args: Any, kwargs: Any, output: Any
) -> None:
    interceptor.end_run(id(module), module)


def _token_embeddings(modules: Modules) -> list[nn.Module]:
    """Return the embeddings that may be passed token ids, by their names."""
    return [
        module
        for path, module in modules.instances(nn.Embedding).items()
        if not any(word in path.lower() for word in NO_TOKENS)
    ]


_slow: list[bool] = []  # of each block that edits: whether the fast path was on before


@contextmanager
def _without_fast_path() -> Iterator[None]:
    """Let torch's encoder layers call functions that can be edited while the block runs."""
    backend: Any = torch.backends.mha
    with lock:
        _slow.append(backend.get_fastpath_enabled())
        backend.set_fastpath_enabled(False)
    try:
        yield
    finally:
        with lock:
            before = _slow.pop()
            # The last block restores what the first has found.
            if not _slow:
                backend.set_fastpath_enabled(before)
