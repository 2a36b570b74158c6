"""Enter and leave the blocks that intercept a model of transformers, and end their recordings."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from ...anatomy import Modules, token_embeddings
from ...recording import attentions_inside
from ..interceptor import (
    Handler,
    lock,
    registered,
)
from ..late_recording import end_recording
from ..module_hook import AFTER, BEFORE, listen
from ..observer import Observer
from .attention_modules import attentions as all_attentions
from .compiled_places import calling_compiled
from .compiled_steps import Steps
from .implementation_switch import switch, switch_back
from .interface_interceptor import InterfaceInterceptor, interface_functions
from .logged_passes import PassLog
from .transformers_internals import LOOKS_UP_EVERY_NAME, announcing_prompts

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
    if isinstance(handler, Observer):
        interceptor.log = PassLog(interceptor, handler.recording)
        interceptor.steps = Steps(interceptor, handler.recording)
        handler.recording._queue.collect_steps = interceptor.collect
    # Older versions look eager attention up by no name that could be replaced.
    problem = interceptor.why_not_compiled(
        type(modules[""]).__name__, lambda: all_attentions(modules)
    )
    may_not_compile = bool(problem) or not LOOKS_UP_EVERY_NAME
    with ExitStack() as undo:
        if handler.follows_text:
            embeddings = token_embeddings(modules)
            undo.enter_context(handler.text.listening(embeddings, handler.is_active))
        undo.enter_context(registered(modules, interceptor))
        # Change configs with the lock held: other threads may enter and leave blocks, too.
        with lock:
            for config in interceptor.configs:
                switch(config, interface_functions)
                undo.callback(switch_back, config)
            undo.enter_context(calling_compiled(interceptor, modules))
            for config in (own.get("generation_config") for own in attributes):
                # `generate` compiles by itself, but need not.
                if may_not_compile and hasattr(config, "disable_compile"):
                    _forbid_compilation(config)
                    undo.callback(_allow_compilation, config)
            for part in modules.instances(PreTrainedModel).values():
                undo.enter_context(_announcing(part, interceptor))
        undo.enter_context(_hooks(modules, interceptor))
        try:
            yield
        except BaseException:
            # The exception says more than what may go wrong here.
            with suppress(Exception):
                interceptor.collect()
            if isinstance(handler, Observer):
                handler.recording._queue.collect_steps = None
            raise
        if isinstance(handler, Observer):
            end_recording(interceptor, handler)
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
    """Register the hooks that run before and after each model, and before each attention."""
    with ExitStack() as hooks:
        # Passes are counted anew when a model around the attentions begins to run.
        attentions = interceptor.attentions
        for path, module in modules.instances(PreTrainedModel).items():
            names = attentions_inside(attentions, path) if path else attentions
            inside = [id(attentions[name]) for name in names]
            interceptor.inside[id(module)] = inside
            hooks.callback(listen([module], partial(interceptor.before_model, inside), BEFORE))
            hooks.callback(listen([module], partial(interceptor.after_model, inside), AFTER))
        hooks.callback(listen(attentions.values(), interceptor.before_attention, BEFORE))
        yield
        interceptor.end_direct_runs()


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
