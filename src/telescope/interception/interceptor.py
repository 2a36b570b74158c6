"""Intercept the attention calls of a running model, and hand each to the blocks around it.

A block (`ts.watch`, `ts.edit`) has an `Interceptor`, which names the model's attentions and follows
its forward passes, and a `Handler`, which is handed each call before it runs and after it. A call
passes the handlers in their order, edits first, so that a watch records the call as edited; what it
returned passes them in the reverse order, so that a watch reads what the edited call computed,
before heads are muted.

    telescope_models.py    finds the calls of Telescope's own layers, by hooks of torch
    huggingface/           finds those of transformers, by its attention interface
    torch_functions/       finds those of any other module, by the functions of torch that it calls
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from threading import RLock, get_ident
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from ..anatomy import Modules
from ..layers import step_observers
from ..recording import AttentionCall, ForwardPass, list_names
from .compiled import AttentionTap, ScoreEdit
from .text import KeyMemory, Text

# -------------------------------------------------------------------------------------------- calls


class ModelCall(ABC):
    """A call of an attention, as the model made it or as edited. All handlers share one object."""

    module: nn.Module
    head_axis: ClassVar[int]
    """The axis of the heads in what the call returns."""
    edits: tuple[Any, ...] = ()
    """The edits of the call, also those that change what it returns alone."""
    across: bool | None = None
    """Whether queries and keys come from two sequences; None if the model does not say."""
    tensors: tuple[Tensor, Tensor, Tensor]
    """Queries, keys and values."""
    described: AttentionCall | None = None
    """What the call computes, if an edit changed that."""
    is_recorded = False
    """Whether some handler records the call."""
    lse: Tensor | None = None
    """The log-sum-exp of each query, once the call has run, if its engine returns one."""

    @abstractmethod
    def read(self, interceptor: "Interceptor") -> AttentionCall:
        """Return what the call computes."""

    @abstractmethod
    def change(self, handled: "HandledCall", changed: AttentionCall, *, own_keys: bool) -> None:
        """Let the call compute `changed`, with the model's own keys or those of another run."""

    @abstractmethod
    def read_lse(self) -> None:
        """Keep the log-sum-exp of the call that is about to run, if that costs nothing."""

    @abstractmethod
    def where_keys_lie(self, handled: "HandledCall") -> "StoredKeys":
        """Return where the keys of the call are stored."""

    def shared_key(self) -> "SharedKey | None":
        """Return what is equal for the calls of a pass that are described alike; None if this call
        is like no other.
        """
        return None

    @abstractmethod
    def check_output(self, handled: "HandledCall", call: AttentionCall, output: Tensor) -> None:
        """Compare what the call returned with its definition, where that was read from outside."""


class SharedKey(NamedTuple):
    """What is equal for calls that are described alike."""

    key: tuple[object, ...]
    alive: tuple[object, ...]
    """The objects whose identities are part of the key."""


class StoredKeys(NamedTuple):
    """Where the keys of a call are stored."""

    memory: tuple[KeyMemory, ...] = ()
    """Of keys, and of values where they tell texts apart; () if that tells nothing."""
    stay: bool = False
    """Whether nothing writes to the memory again."""


@dataclass(slots=True)
class HandledCall:
    """One call on its way through one handler."""

    made: ModelCall
    interceptor: "Interceptor"
    attention: str
    """The name of the attention."""
    name: str
    """The name of the call: that of the attention, with a number if the layer ran before in the
    same forward pass.
    """
    across: bool | None
    """Whether queries and keys come from two sequences; None if that is not known."""
    value_set: int = 0
    """How many calls just before this one had the same weights, and other values."""
    follows: bool = False
    """Whether the keys are known to begin with those of the attention's call before."""
    keys_stay: bool = False
    """Whether nothing writes to the memory of the keys again."""
    are_steps: bool = False
    """Whether each query was a step of its own, and the steps are handed on together."""
    before_change: AttentionCall | None = None
    """The call as it was before the handler changed it, if the handler asked."""

    @property
    def forward_pass(self) -> ForwardPass:
        """The pass that makes the call."""
        return self.interceptor.text.forward_pass

    def describe(self) -> AttentionCall:
        """Return what the call computes, as far as it is edited."""
        # An edit before this handler may have described the call already.
        call = self.made.described or self.made.read(self.interceptor)
        return call._replace(across=self.across, lse=self.made.lse, forward_pass=self.forward_pass)


class Handler(ABC):
    """What a block does with the attention calls of a model: a watch records, an edit changes."""

    order: ClassVar[int]
    """Calls pass handlers of a lower order first."""
    follows_text: bool = True
    """Whether token ids and passes are to be followed, in `text`."""
    thread: int
    """The thread that entered the block. Calls of others are not handled."""
    only_hooked: Sequence[nn.Module] = ()
    """Modules that the block listens to besides: compiled code runs them without our hooks."""

    @cached_property
    def text(self) -> Text:
        """The text that the model reads and writes; made when somebody asks."""
        return Text()

    @property
    def why_not_compiled(self) -> str | None:
        """Why the handler cannot handle what compiled code runs, as a sentence; None if it can."""
        return None

    @property
    def adds_to_scores(self) -> bool:
        """Whether the handler adds to scores, or hides keys, of calls that compiled code runs."""
        return False

    @property
    def follows_calls(self) -> bool:
        """Whether the handler has to see a description of each call before compiled code runs
        it.
        """
        return False

    @abstractmethod
    def prepare_compiled(self, name: str, heads: int | None, tap: AttentionTap) -> int | None:
        """Tell the tap of an attention what compiled code is to do, before it runs; return how many
        heads the attention has, if that is known.
        """

    def score_edit(self, name: str, call: AttentionCall) -> ScoreEdit | None:
        """Return what the handler makes of the definition of a call that compiled code is about to
        run; None if it stays as it is.
        """
        return None

    def note_length(self, tokens: int) -> None:  # noqa: B027
        """Note how long a text is with the compiled step that begins."""

    def finish_compiled(self, find_keys: Callable[[], dict[str, Tensor]]) -> None:  # noqa: B027
        """End a compiled run; `find_keys` returns the keys that its cache holds, by attention."""

    def edits_of_compiled(self, name: str) -> tuple[Any, ...]:
        """Return the edits of an attention that compiled code has run."""
        return ()

    def note_compiled(self, name: str) -> None:  # noqa: B027
        """Note that compiled code has run an attention."""

    def adopt(self, name: str) -> bool:
        """Return whether the calls of a module are to be handled that was not known to attend
        before it made one.
        """
        return False

    @abstractmethod
    def is_active(self) -> bool:
        """Return whether a call that runs now, in this thread, is to be handled."""

    @abstractmethod
    def before(self, call: HandledCall) -> None:
        """Look at a call before it runs, and change it."""

    @abstractmethod
    def after(self, call: HandledCall, output: Tensor) -> Tensor:
        """Look at what a call returned; return that, or something else in its place."""

    @abstractmethod
    def report_bypass(self, bypass: "Bypass") -> None:
        """Report an attention that has just run without a call that was intercepted."""


# ------------------------------------------------------------------------------------- interceptors


class Route(NamedTuple):
    """The place at which calls are intercepted, in words."""

    missing: str
    """What a forward that bypasses the place did not do."""
    remedy: str


class Bypass(NamedTuple):
    """An attention that ran without a call that was intercepted.

    A forward that was put into a module, by a subclass or by a library of kernels, may compute the
    attention elsewhere. The attention would look as if it had been watched and had done nothing.
    """

    name: str
    reason: str
    remedy: str


class Interceptor:
    """The attentions of one model, for one block.

    attentions  the modules whose calls are intercepted, by name
    running     the module around each attention whose run needs a call of it, by name; attentions
                may share one
    route       where calls are intercepted
    """

    def __init__(
        self,
        handler: Handler,
        attentions: Mapping[str, nn.Module],
        running: Mapping[str, nn.Module],
        route: Route,
    ) -> None:
        self.handler = handler
        self.attentions = attentions
        self.names = {id(module): name for name, module in attentions.items()}
        self.running = running
        self._route = route
        self._silent: dict[int, set[int]] = {}
        """The ids of modules whose running pass has made no call yet, by thread."""

    @property
    def text(self) -> Text:
        """The text that the handler follows."""
        return self.handler.text

    def is_active(self) -> bool:
        """Return whether a call that runs now is to be handled."""
        return self.handler.is_active()

    def handle(self, key: int, made: ModelCall) -> HandledCall:
        """Return a call of the attention with this id as the handler sees it."""
        self.note_call(self.names[key])
        return HandledCall(made, self, self.names[key], self.names[key], made.across)

    def begin_run(self, key: int) -> None:
        """Note that a module, of this id, begins to run in this thread."""
        silent = self._silent.get(get_ident())
        if silent is None:
            silent = self._silent[get_ident()] = set()
        silent.add(key)

    def note_call(self, name: str) -> None:
        """Note a call of an attention that was intercepted in this thread."""
        silent = self._silent.get(get_ident())
        if silent and name in self.running:
            silent.discard(id(self.running[name]))

    def silent_runs(self) -> set[int]:
        """Return the ids of the modules that have begun to run in this thread and made no call."""
        return self._silent.get(get_ident(), set())

    def end_run(self, key: int, module: nn.Module) -> None:
        """Report the attentions of a module whose run ends without a call; `module` is the one that
        ran, maybe a copy.

        A run that raises does not end here: its call may not have been reached.
        """
        # A run without an entry began before the block, and nothing can be said of it.
        silent = self.silent_runs()
        if key not in silent:
            return
        silent.discard(key)
        if not self.is_active():
            return
        reason = f"the forward {_forward_name(module)} {self._route.missing}"
        for name, own in self.running.items():
            if id(own) == key:
                self.handler.report_bypass(Bypass(name, reason, self._route.remedy))


def _forward_name(module: nn.Module) -> str:
    """Return the full name of the function that a module runs: its class's, or one that was put
    into the module.
    """
    # Look through a bound method to the function.
    forward: Any = module.forward
    function = getattr(forward, "__func__", forward)
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{getattr(function, '__module__', type(function).__module__)}.{name}"


def describe_bypasses(bypasses: Sequence[Bypass]) -> str:
    """Return a sentence that names the attentions that ran past a watch, why, and what can be
    done.
    """
    listed = list_names([bypass.name for bypass in bypasses])
    subject = f"{len(bypasses)} attentions" if len(bypasses) > 1 else "one attention"
    # Name each reason once.
    reasons = ", and ".join(dict.fromkeys(bypass.reason for bypass in bypasses))
    return f"{subject} ran and cannot be recorded, {listed}: {reasons}; {bypasses[0].remedy}"


# ----------------------------------------------------------------------------------------- registry

interceptors: dict[int, tuple[Interceptor, ...]] = {}
"""By the id of each attention, in the order in which a call passes them."""
lock = RLock()  # held while `interceptors` changes, and what depends on it


@contextmanager
def registered(modules: Modules, interceptor: Interceptor) -> Iterator[None]:
    """Hand the calls of the interceptor's attentions to its handler while the block runs.

    Raise a ValueError if this thread watches the model already.
    """
    handler = interceptor.handler
    with lock:
        # A block may have been entered with a part of this model: look at every module.
        around = []
        if interceptors:
            own = set(map(id, modules.values()))
            around = [one for key in own & interceptors.keys() for one in interceptors[key]]
        if handler.order == WATCH and any(
            one.handler.order == WATCH
            and one.handler is not handler
            and one.handler.thread == handler.thread
            for one in around
        ):
            raise ValueError(
                f"{type(modules['']).__name__} is being watched already; leave that block first"
            )
        for key in interceptor.names:
            _join(key, interceptor)
        step_observers.changes += 1
    try:
        yield
    finally:
        with lock:
            for key in interceptor.names:
                # Other blocks may have joined meanwhile: take out this interceptor alone.
                left = tuple(one for one in interceptors[key] if one is not interceptor)
                if left:
                    interceptors[key] = left
                else:
                    del interceptors[key]
            step_observers.changes += 1


def _join(key: int, interceptor: Interceptor) -> None:
    # Sort by order: edits come before watches, whichever block was entered first.
    known = (*interceptors.get(key, ()), interceptor)
    if len(known) > 1:
        known = tuple(sorted(known, key=lambda one: one.handler.order))
    interceptors[key] = known


def join(key: int, interceptor: Interceptor) -> None:
    """Hand the calls of one more attention, of this id, to an interceptor that is registered."""
    with lock:
        _join(key, interceptor)


# The orders of handlers: a watch comes after edits, and records the call as edited.
EDIT = 0
WATCH = 1


def begin_call(key: int, made: ModelCall) -> list[HandledCall]:
    """Pass a call of the attention with this id to the handlers that are active; return it as each
    of them saw it.
    """
    handled = []
    for one in interceptors.get(key, ()):
        if one.is_active():
            call = one.handle(key, made)
            one.handler.before(call)
            handled.append(call)
    return handled


def end_call(handled: Sequence[HandledCall], output: Tensor) -> Tensor:
    """Pass what a call returned to the handlers that saw the call, the last first."""
    for call in reversed(handled):
        output = call.interceptor.handler.after(call, output)
    return output
