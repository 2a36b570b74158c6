"""The places at which Python calls what torch.compile made of a model, or of a part of it."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import MethodType
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from ...anatomy import Modules
from ..interceptor import lock
from .compiled_runs import CompiledCode, blocks_around, run_compiled


@contextmanager
def calling_compiled(interceptor: Any, modules: Modules) -> Iterator[CompiledCode]:
    """Let every place that calls compiled code of the model tell the block while it runs; enter
    it with the lock held.
    """
    code = CompiledCode(interceptor, modules)
    with ExitStack() as undo:
        blocks_around.append(code)
        undo.callback(blocks_around.remove, code)
        undo.callback(code.close)
        for module in _that_call_compiled(modules):
            for attribute in _compiled_attributes(module):
                undo.enter_context(_place(module, attribute))
        undo.enter_context(_compiled_modules())
        leaving = undo.pop_all()
    try:
        yield code
    finally:
        # Other threads may enter and leave blocks, too.
        with lock:
            leaving.close()


def _that_call_compiled(modules: Modules) -> list[nn.Module]:
    """Return the modules that may have an attribute of `_compiled_attributes`: most have none."""
    replaced = [
        module
        for module in modules.values()
        if "forward" in module.__dict__ or "_compiled_call_impl" in module.__dict__
    ]
    return [*dict.fromkeys([*modules.instances(PreTrainedModel).values(), *replaced])]


def _compiled_attributes(module: nn.Module) -> Iterator[str]:
    """Yield the attributes of a module that call, or return, what was compiled of it."""
    own = vars(module)
    # module.compile() replaces the module's call, and a user may replace its forward.
    if own.get("_compiled_call_impl") is not None:
        yield "_compiled_call_impl"
    if "forward" in own and hasattr(own["forward"], "get_compiler_config"):
        yield "forward"
    if isinstance(module, PreTrainedModel) and hasattr(type(module), "get_compiled_call"):
        yield "get_compiled_call"


class CompiledPlace:
    """Stand for an attribute of a module, through which compiled code is called, while blocks need
    to know of the calls.

    A copy of the module, made or pickled inside the block, has the attribute that the module had.
    """

    def __init__(self, module: nn.Module, attribute: str) -> None:
        self.module = module
        self.attribute = attribute
        self.own = vars(module).get(attribute)
        self.count = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.attribute != "get_compiled_call":
            assert self.own is not None
            return run_compiled(self.module, self.own, *args, **kwargs)
        # `generate` asks for the compiled model, and calls that.
        found = _own_attribute(self.module, self.attribute, self.own)(*args, **kwargs)
        is_compiled = hasattr(found, "get_compiler_config")
        return partial(run_compiled, self.module, found) if is_compiled else found

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _own_attribute(memo.get(id(self.module), self.module), self.attribute, self.own)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _own_attribute, (self.module, self.attribute, self.own)


def _own_attribute(module: Any, attribute: str, own: Any) -> Any:
    return MethodType(getattr(type(module), attribute), module) if own is None else own


@contextmanager
def _place(module: nn.Module, attribute: str) -> Iterator[None]:
    """Replace an attribute of a module; all blocks share one replacement."""
    own = vars(module)
    known = own.get(attribute)
    place = known if isinstance(known, CompiledPlace) else CompiledPlace(module, attribute)
    own[attribute] = place
    place.count += 1
    try:
        yield
    finally:
        place.count -= 1
        # Leave the module alone if somebody has replaced the place since.
        if not place.count and own.get(attribute) is place:
            if place.own is None:
                del own[attribute]
            else:
                own[attribute] = place.own


_patched: list[Any] = []  # the class of compiled modules and its own __call__, once for each block


@contextmanager
def _compiled_modules() -> Iterator[None]:
    """Let modules that torch.compile returned tell of their calls.

    Nothing in a model refers to the module that torch.compile made of it, so that their class is
    changed while blocks run. If torch._dynamo is not imported, there is no such module.
    """
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is None:
        yield
        return
    kind: Any = frames.OptimizedModule
    if not _patched:
        own = kind.__call__

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            return run_compiled(self._orig_mod, partial(own, self), *args, **kwargs)

        kind.__call__ = call
        _patched.append(own)
    _patched.append(None)
    try:
        yield
    finally:
        _patched.pop()
        if len(_patched) == 1:
            kind.__call__ = _patched.pop()
