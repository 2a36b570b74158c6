"""Find attentions that run past a watch or an edit: modules that ran without a call that was
intercepted.

Calls are intercepted at one place: transformers' attention interface, or a layer's `Attend`. A
forward that was put into a module, by a subclass or by a library of kernels, may compute the
attention elsewhere. The model then runs as usual, and the attention would look as if it had been
watched and had done nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import get_ident
from typing import Any, NamedTuple

from torch import nn

from ..recording.names import list_names
from .module_hook import AFTER, BEFORE, listen


class Route(NamedTuple):
    """The place at which calls are intercepted, in words."""

    missing: str
    """What a forward that bypasses the place did not do."""
    remedy: str


class Bypass(NamedTuple):
    """An attention that ran without a call that was intercepted."""

    name: str
    reason: str
    remedy: str


class RunTracker:
    """Report each run of an attention that ends without a call that was intercepted.

    modules  the module that runs each attention, by the attention's name; attentions may share a
             module, whose run then needs a call of one of them
    route    where calls are intercepted
    """

    def __init__(self, modules: Mapping[str, nn.Module], route: Route) -> None:
        self._modules = modules
        self._route = route
        self._names: dict[int, list[str]] = {}
        for name, module in modules.items():
            self._names.setdefault(id(module), []).append(name)
        self._called: dict[tuple[int, int], bool] = {}
        """Whether the running pass through a module has made a call, by the thread and the id of
        the module.
        """

    def begin(self, key: int) -> None:
        """Note that a module, of this id, begins to run in this thread."""
        self._called[get_ident(), key] = False

    def note_call(self, name: str) -> None:
        """Note a call of an attention that was intercepted in this thread."""
        if name in self._modules:
            self._called[get_ident(), id(self._modules[name])] = True

    def has_called(self, key: int) -> bool:
        """Return whether the run of a module that ends made a call, or did not begin here; to be
        asked once a run.

        A run that raises does not end here: its call may not have been reached.
        """
        return self._called.pop((get_ident(), key), True)

    def bypasses(self, key: int, module: nn.Module) -> list[Bypass]:
        """Return the attentions of a module whose run ended without a call; `module` is the one
        that ran.
        """
        reason = f"the forward {_forward_name(module)} {self._route.missing}"
        return [Bypass(name, reason, self._route.remedy) for name in self._names[key]]

    @contextmanager
    def tracking(
        self, is_active: Callable[[], bool], report: Callable[[Bypass], None]
    ) -> Iterator[None]:
        """Track the runs of the modules while the block runs.

        is_active  returns whether a run that ends now belongs to the block
        report     is called with the `Bypass` right after the run; if it raises, so does the
                   forward pass

        Only hooks hold the two functions, so that a tracker and its owner form no cycle.
        """

        def before_run(key: int, module: nn.Module, args: Any, kwargs: Any) -> None:
            self.begin(key)

        def after_run(key: int, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if self.has_called(key) or not is_active():
                return
            for bypass in self.bypasses(key, module):
                report(bypass)

        with ExitStack() as hooks:
            for module in {id(module): module for module in self._modules.values()}.values():
                # The key is that of the module here: decoding runs a copy of the model, which
                # shares the hooks.
                hooks.callback(listen(module, partial(before_run, id(module)), BEFORE))
                hooks.callback(listen(module, partial(after_run, id(module)), AFTER))
            yield


def describe_bypasses(bypasses: Sequence[Bypass]) -> str:
    """Return a sentence that names the attentions that ran past a watch, why, and what can be
    done.
    """
    listed = list_names([bypass.name for bypass in bypasses])
    subject = f"{len(bypasses)} attentions" if len(bypasses) > 1 else "one attention"
    reasons = ", and ".join(dict.fromkeys(bypass.reason for bypass in bypasses))
    return f"{subject} ran and cannot be recorded, {listed}: {reasons}; {bypasses[0].remedy}"


def _forward_name(module: nn.Module) -> str:
    """Return the full name of the function that a module runs: its class's, or one that was put
    into the module.
    """
    forward: Any = module.forward
    function = getattr(forward, "__func__", forward)
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{getattr(function, '__module__', type(function).__module__)}.{name}"
