"""Hooks that note the residual streams of a model, for `ts.watch(keep="steps")`."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from ..anatomy import Modules, StreamParts, count_heads, find_stream_parts, token_embeddings
from ..authors import Event, StreamLog
from ..authors import log as events
from ..engines import torch_modes
from .interceptor import Handler
from .module_hook import AFTER, BEFORE, listen


@contextmanager
def noting_streams(
    log: StreamLog,
    modules: Modules,
    attentions: Mapping[str, nn.Module],
    handler: Handler,
) -> Iterator[None]:
    """Note what the modules of the residual streams are given and return while the block runs."""
    parts = find_stream_parts(modules, attentions)
    paths = {id(module): path for path, module in modules.items()}
    log.layers = {name: paths[id(layer)] for name, layer in parts.layers.items()}
    log.projections = {name: paths[id(one)] for name, one in parts.projections.items()}
    counts = {name: count_heads(modules, attention) for name, attention in attentions.items()}
    log.heads = {name: count for name, count in counts.items() if count is not None}
    log.unembedding = None if parts.unembedding is None else parts.unembedding[0]
    # Embeddings of tokens and attentions have hooks that compiled code needs.
    tokens = {id(one): one for one in token_embeddings(modules)}
    hooked = [module for _, found in _modules_of(parts) for _, module in found]
    hooked += [] if parts.unembedding is None else [parts.unembedding[1]]
    handler.only_hooked = [module for module in hooked if id(module) not in tokens]

    def is_noted() -> bool:
        return not log.is_paused and handler.is_active()

    def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
        if is_noted():
            log.begin()

    def read(path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        if is_noted():
            running = log.current
            running.add(Event(events.READS, path, running.keep(_first_tensor(args, kwargs)), None))

    def ran(kind: str, path: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not is_noted():
            return
        running = log.current
        written = output[0] if isinstance(output, tuple | list) and output else output
        given = _first_tensor(args, kwargs)
        # What a module hands on as it is was written by another.
        if written is given or not isinstance(written, Tensor):
            return
        with torch_modes.recording_mode(written.device):
            returned = running.keep(written)
            taken = None if kind in (events.WRITE, events.EMBEDDING) else running.keep(given)
            if returned is not None or taken is not None:
                running.add(Event(kind, path, taken, returned))

    def unembedded(module: nn.Module, args: Any, kwargs: Any) -> None:
        given = _first_tensor(args, kwargs)
        if is_noted() and given is not None:
            with torch_modes.recording_mode(given.device):
                log.current.keep_end(given)

    with ExitStack() as hooks:
        hooks.callback(log.finish)
        if parts.unembedding is not None:
            hooks.callback(listen([parts.unembedding[1]], unembedded, BEFORE))
        starts = {id(modules[""]): modules[""], **tokens}
        hooks.callback(listen(starts.values(), begin, BEFORE))
        for name, layer in parts.layers.items():
            hooks.callback(listen([layer], partial(read, name), BEFORE))
        for kind, found in _modules_of(parts):
            for path, module in found:
                hooks.callback(listen([module], partial(ran, kind, path), AFTER))
        yield


def _modules_of(parts: StreamParts) -> Iterable[tuple[str, Iterable[tuple[str, nn.Module]]]]:
    yield events.EMBEDDING, parts.embeddings.items()
    yield events.POSITIONS, parts.positions.items()
    yield events.NORM, parts.norms.items()
    yield events.WRITE, parts.writers.items()
    yield events.HEADS, parts.projections.items()


def _first_tensor(args: Any, kwargs: Any) -> Tensor | None:
    """Return the tensor that a module was given first, which is the stream in all that is known."""
    every = (*args, *kwargs.values())
    return next((one for one in every if isinstance(one, Tensor)), None)
