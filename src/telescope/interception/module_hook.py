"""Hooks of a model that runs in several threads, while some of them enter and leave blocks.

torch keeps a hook and its options, such as with_kwargs, in different dictionaries. A call copies
the hooks of its module, and looks the options of each up when the hook's turn has come. A hook that
another thread adds or removes in between is called without its options: with one argument less.

So a module has one hook of ours for each `Place`, shared by all blocks, whose listeners are
replaced as a whole. The hook is added before its first listener and removed after its last. A
thread inside a block has a listener, so its calls always come with the options; a call without them
is of a thread outside of all blocks, and passes.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from threading import RLock, _DummyThread, current_thread, get_ident
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from .compiled import tap_of

COMPILED = (
    "watch sees nothing of what torch.compile makes of a function around a model, nor of what is "
    "exported; compile the model itself, torch.compile(model), export it outside of the block, or "
    "call what is not compiled"
)

Listener = Callable[..., Any]


class Place(NamedTuple):
    """When a module calls a hook."""

    after: bool
    """Whether the forward has run: listener(module, args, kwargs, output), else listener(module,
    args, kwargs).
    """
    first: bool = False
    """Whether the hook is called before those that the module had."""
    always: bool = False
    """Whether the hook is called after a forward that raised, too, with None as its output."""


BEFORE = Place(after=False)
AFTER = Place(after=True)
# Also after a forward that raised, so that what was begun is ended.
AFTER_ALWAYS = Place(after=True, always=True)


class ModuleHook:
    """The hook of one module at one place. A copy of the module, made or pickled inside a block,
    has no listeners.
    """

    def __init__(self) -> None:
        self.listeners: tuple[Listener, ...] = ()
        self.handle: RemovableHandle | None = None
        # The function of the class, so that the hook refers to no method of its own.
        self._call = uncompiled(type(self).call)

    def __call__(self, module: nn.Module, args: Any, *more: Any) -> Any:
        # A compiled run is under way: the module's tap notes what ran, and the listeners wait.
        tap = tap_of(module)
        if tap is None:
            return self._call(self, module, args, *more)
        if len(more) == 1:
            tap.note(args, more[0])
        return tap.change(more[1]) if len(more) == 2 else None

    def call(self, module: nn.Module, args: Any, *more: Any) -> Any:
        """Call the listeners, each with what the one before returned; None if none of them changed
        anything.
        """
        raise NotImplementedError

    def __reduce__(self) -> tuple[type["ModuleHook"], tuple[()]]:
        return type(self), ()


class HookBefore(ModuleHook):
    """Called as hook(module, args, kwargs); a listener may return other (args, kwargs)."""

    def call(self, module: nn.Module, args: Any, *more: Any) -> Any:
        # Without options, the call belongs to a thread outside of all blocks.
        if not more:
            return None
        changed = None
        # Each listener gets what the one before has returned.
        given = (args, *more)
        for listener in self.listeners:
            returned = listener(module, *given)
            if returned is not None:
                changed = given = returned
        return changed


class HookAfter(ModuleHook):
    """Called as hook(module, args, kwargs, output); a listener may return another output."""

    def call(self, module: nn.Module, args: Any, *more: Any) -> Any:
        # Without options, the call belongs to a thread outside of all blocks.
        if len(more) != 2:
            return None
        changed = None
        kwargs, output = more
        for listener in self.listeners:
            returned = listener(module, args, kwargs, output)
            if returned is not None:
                changed = output = returned
        return changed


_hooks: dict[Place, dict[int, ModuleHook]] = {}  # by the id of the module
_parked: dict[int, "list[tuple[dict[int, Any], int, Any]]"] = {}
"""By the id of a module whose hooks are parked: torch's dictionaries, with what each lacks."""
# Held while `_hooks`, the listeners of a hook and torch's dictionaries change. The garbage
# collector may leave a block while the same thread enters another.
_lock = RLock()


def listen(modules: Iterable[nn.Module], listener: Listener, place: Place) -> Callable[[], None]:
    """Call the listener whenever one of these modules runs, after listeners that came before;
    return what removes it.
    """
    heard = tuple(modules)
    with _lock:
        hooks = _hooks.setdefault(place, {})
        for module in heard:
            _unpark(module)
            hook = hooks.get(id(module))
            if hook is None:
                hook = hooks[id(module)] = _register(module, place)
            # Replace the tuple as a whole: another thread may be iterating over the old one.
            hook.listeners = (*hook.listeners, listener)
    return partial(_remove, heard, listener, place)


def _register(module: nn.Module, place: Place) -> ModuleHook:
    if not place.after:
        before = HookBefore()
        before.handle = module.register_forward_pre_hook(
            before, with_kwargs=True, prepend=place.first
        )
        return before
    after = HookAfter()
    after.handle = module.register_forward_hook(
        after, with_kwargs=True, prepend=place.first, always_call=place.always
    )
    return after


def _remove(heard: Sequence[nn.Module], listener: Listener, place: Place) -> None:
    with _lock:
        hooks = _hooks[place]
        for module in heard:
            _unpark(module)
            hook = hooks[id(module)]
            hook.listeners = tuple([one for one in hook.listeners if one is not listener])
            # torch's hook goes with the last listener.
            if not hook.listeners and hook.handle is not None:
                del hooks[id(module)]
                hook.handle.remove()


@contextmanager
def parked(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Take our hooks out of modules that have no others while a model makes compiled steps, whose
    taps note nothing: compiled code checks the hooks of every module before each run.

    A block that is entered or left meanwhile puts them back.
    """
    with _lock:
        for module in modules:
            _park(module)
    try:
        yield
    finally:
        with _lock:
            for module in modules:
                _unpark(module)


def _park(module: nn.Module) -> None:
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    if id(module) in _parked or not all(isinstance(hook, ModuleHook) for hook in hooks):
        return
    taken = []
    for entries in _entries_of(module):
        taken += [(entries, key, value) for key, value in entries.items()]
        entries.clear()
    _parked[id(module)] = taken


def _unpark(module: nn.Module) -> None:
    for entries, key, value in reversed(_parked.pop(id(module), ())):
        entries[key] = value
        # Before hooks that somebody has added meanwhile.
        if isinstance(entries, OrderedDict):
            entries.move_to_end(key, last=False)


def _entries_of(module: nn.Module) -> "list[dict[int, Any]]":
    """Return the dictionaries in which torch keeps the hooks of a module, and their options."""
    return [
        module._forward_pre_hooks,
        module._forward_pre_hooks_with_kwargs,
        module._forward_hooks,
        module._forward_hooks_with_kwargs,
        module._forward_hooks_always_called,
    ]


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function wrapped so that torch.compile does not trace it: compiled code calls it
    as it is written.

    Return the function unchanged if torch._dynamo is not imported: importing it takes seconds.
    """
    return _uncompiled(function) if "torch._dynamo" in sys.modules else function


@lru_cache(maxsize=16)
def _uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    disabled: Any = torch.compiler.disable(function, reason=COMPILED)  # type: ignore[no-untyped-call]

    def call(*args: Any, **options: Any) -> Any:
        # Outside of traced code the function is called directly: torch's wrapper takes longer than
        # most hooks.
        return (disabled if torch.compiler.is_compiling() else function)(*args, **options)

    return call


def runs_for(thread: int) -> bool:
    """Return whether what runs now was started by this thread: in it, or in a backward pass.

    torch runs the backward pass of a GPU in threads of its own, which are unknown to Python and may
    run for any thread.
    """
    # The thread itself, outside of a backward pass or inside of one on the CPU.
    if get_ident() == thread:
        return True
    # Python knows the threads of autograd, which it did not start, as dummies.
    return torch._C._current_graph_task_id() != -1 and isinstance(current_thread(), _DummyThread)
