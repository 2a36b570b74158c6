"""Watch and edit models of transformers while compiled code runs them.

A compiled model is called through a place that Python still runs: the module that torch.compile
returned, a forward or a call that was put into a module, or the function that `generate` asks its
model for. While a model is intercepted, that place calls `run_compiled`. For the time of the run
the attention functions of transformers are replaced by functions that Dynamo traces, and that leave
behind what ran; see ../compiled.py. Dynamo guards what it compiles by these functions: the plain
and the watched version of a model are both kept, and a second block compiles nothing.
"""

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cached_property, lru_cache, partial
from threading import Timer, local
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from ...anatomy import Modules, token_embeddings
from ..compiled import (
    TAP,
    AttentionTap,
    Call,
    EmbeddingTap,
    RunLog,
    Step,
    Tap,
    traced_attention,
)
from ..interceptor import lock
from ..module_hook import AFTER, BEFORE, listen, parked
from .attention_modules import (
    OTHER_SEQUENCES,
    attentions,
    forward_parameters,
    may_be_cross_attention,
)
from .cache_layers import cache_of, expected_masks, is_step, token_ids
from .compiled_terms import prepare_terms
from .masks import LazyMask
from .transformers_internals import (
    LOOKS_UP_EVERY_NAME,
    ImplementationName,
    attention_table,
    implementation_name,
    implementation_of,
    own_attention,
    set_implementation,
)
from .waiting_masks import GraphMask

SECONDS = 2.0  # a compilation that is not explained
logger = logging.getLogger(__name__)


class _Thread(local):
    """The log of a thread: its blocks share it, so that events keep the order in which they ran."""

    def __init__(self) -> None:
        self.log = RunLog()


_thread = _Thread()

# --------------------------------------------------------------------------------------------- runs


def run_compiled(module: nn.Module, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call what torch.compile made of a module, and hand what ran to the blocks around it."""
    log = _thread.log
    around = [block for block in blocks_around if id(module) in block.ids]
    # Inside a compiled run, the outermost place collects what ran.
    if log.is_open or not around:
        return function(*args, **kwargs)
    blocks = [block for block in around if block.interceptor.is_active()]
    if not blocks:
        return function(*args, **kwargs)
    if len(blocks) < len(around):
        raise RuntimeError(
            f"{type(module).__name__} is compiled, and another thread watches or edits it too; "
            "compiled code can be in the blocks of one thread at a time"
        )
    # Masks that are not written out are written now: traced code takes plain tensors.
    masks: dict[int, LazyMask] = {}
    expected = expected_masks(module, args, kwargs)
    if _is_next_step(log, blocks, args, kwargs):
        if log.terms is not None:
            log.terms.advance()
            for block in blocks:
                block.interceptor.handler.note_length(log.terms.length)
    else:
        _prepare(log, blocks, module, args, kwargs)
    if expected and is_step(args, kwargs):
        kwargs = kwargs | expected
    kwargs = {name: _written_out(value, masks) for name, value in kwargs.items()}
    try:
        with _TracedFunctions(blocks), _telling_if_compiled(module, blocks, args, kwargs):
            log.is_open = True
            output = function(*args, **kwargs)
        events = log.events
    except BaseException:
        # What ran of it is not known: the next run is prepared anew.
        log.prepared = ()
        raise
    finally:
        # Also after an exception: what was noted of the run is dropped as a whole.
        log.is_open = False
        log.events = ()
    if log.terms is not None:
        log.terms.end()
    known = _known_masks(events, expected, masks)
    cache = cache_of(kwargs) or getattr(output, "past_key_values", None)
    for block in blocks:
        block.interceptor.after_compiled(events, known, cache)
    return output


def _is_next_step(
    log: RunLog, blocks: Sequence["CompiledCode"], args: Any, kwargs: Mapping[str, Any]
) -> bool:
    """Return whether a run is one more step of the texts that the taps are prepared for."""
    around = [block.interceptor for block in blocks]
    if [one() for one in log.prepared] != around or not is_step(args, kwargs):
        return False
    ids = token_ids(args, kwargs)
    if any(one.handler.adds_to_scores for one in around) and (
        log.terms is None or not log.terms.continues(kwargs, ids)
    ):
        return False
    return all(one.continues_steps(kwargs, ids) for one in around)


def _prepare(
    log: RunLog, blocks: Sequence["CompiledCode"], module: nn.Module, args: Any, kwargs: Any
) -> None:
    """Tell the taps what the blocks around a run need of it, and add what they edit."""
    log.prepared = ()
    log.terms = None
    for block in blocks:
        block.install_taps()
    around = [block.interceptor for block in blocks]
    heads: dict[int, int] = {}
    for block in blocks:
        heads |= block.interceptor.before_compiled(block.attentions, module, args, kwargs)
    log.terms = prepare_terms(around, module, args, kwargs, heads)
    log.prepared = tuple(map(ref, around))


def _written_out(value: Any, masks: dict[int, LazyMask]) -> Any:
    """Return an argument of a model with plain tensors for masks that are not written out, which
    are noted by the tensor's id.
    """
    if type(value) is dict:
        return {name: _written_out(one, masks) for name, one in value.items()}
    if not isinstance(value, LazyMask):
        return value
    masks[id(value.dense)] = value
    return value.dense


def _known_masks(
    events: tuple[Any, ...], expected: Any, masks: Mapping[int, LazyMask]
) -> dict[int, Any]:
    """Return the masks of the events, by the ids of their tensors: as they were before they were
    written out, or as GraphMasks if they were made inside of the graph.
    """
    # Layers share few masks: look at each once.
    tensors = {
        id(event.mask): event
        for event in events
        if isinstance(event, Call | Step) and isinstance(event.mask, Tensor)
    }
    known: dict[int, Any] = {}
    for key, event in tensors.items():
        if key in masks:
            known[key] = masks[key]
        elif event.mask.ndim == 4:
            candidates = [one for one in tree_leaves(expected) if isinstance(one, LazyMask)]
            implementation = implementation_of(event.tap.module)
            known[key] = GraphMask(event.mask, implementation, candidates)
    return known


class _TracedFunctions:
    """Let the models of these blocks look up traced attention functions, under their own names, and
    take our hooks out of them, while a compiled run is under way.
    """

    def __init__(self, blocks: Sequence["CompiledCode"]) -> None:
        self.entries = [entry for block in blocks for entry in block.tables()]
        self.configs = [config for block in blocks for config in block.interceptor.configs]
        self.named: list[tuple[Any, ImplementationName]] = []
        # A hook of the compiled model itself would be a compiled frame of its own.
        self.parked = parked([module for block in blocks for module in block.without_taps()])

    def __enter__(self) -> None:
        self.parked.__enter__()
        with lock:
            for config in self.configs:
                name = implementation_name(config)
                # Traced code cannot compare a string of a class of its own.
                if isinstance(name, ImplementationName):
                    self.named.append((config, name))
                    set_implementation(config, name.implementation)
            for table, name in self.entries:
                _replace(table, name)

    def __exit__(self, *raised: object) -> None:
        with lock:
            for table, name in self.entries:
                _restore(table, name)
            for config, name in self.named:
                set_implementation(config, name)
        self.parked.__exit__(None, None, None)


class _Replaced(NamedTuple):
    """An entry of a table of attention functions that runs have replaced."""

    own: Any
    had_local_entry: bool
    runs: int


_replaced: dict[tuple[int, str], _Replaced] = {}
"""By the id of the table and the name of the entry."""


def _replace(table: Any, name: str) -> None:
    """Put a traced function into the local entries of a table, which are looked up first."""
    key = (id(table), name)
    known = _replaced.get(key)
    if known is not None:
        _replaced[key] = known._replace(runs=known.runs + 1)
        return
    own = None if name == "eager" else table[name]
    _replaced[key] = _Replaced(own, name in table._local_mapping, 1)
    table[name] = _traced(name, own)


def _restore(table: Any, name: str) -> None:
    """Undo `_replace`, once it was undone as often as it was called."""
    known = _replaced.pop((id(table), name))
    if known.runs > 1:
        _replaced[id(table), name] = known._replace(runs=known.runs - 1)
    elif known.had_local_entry:
        table[name] = known.own
    else:
        del table[name]


@lru_cache(maxsize=64)
def _traced(name: str, own: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return the function that stands for an attention function in compiled runs, one object for
    all of them.
    """
    return traced_attention(own, partial(own_attention, name))


_seen: "WeakKeyDictionary[nn.Module, set[Hashable]]" = WeakKeyDictionary()
"""The kinds of runs of each module that may have been compiled already."""


def _telling_if_compiled(
    module: nn.Module, blocks: Sequence["CompiledCode"], args: Any, kwargs: Any
) -> AbstractContextManager[None]:
    """Return a context that logs a line if a run of a kind that was not seen before takes more than
    two seconds.
    """
    first = kwargs.get("input_ids", args[0] if args else None)
    kind = (getattr(first, "shape", None), *[block.kind for block in blocks])
    seen = _seen.setdefault(module, set())
    # Starting a thread takes as long as all else that a block does around a run.
    if kind in seen:
        return nullcontext()
    seen.add(kind)
    return _telling(module)


@contextmanager
def _telling(module: nn.Module) -> Iterator[None]:
    """Log a line if the block takes more than two seconds."""
    timer = Timer(
        SECONDS,
        logger.info,
        ("compiling %s once more, to be watched or edited; this version is kept", _name(module)),
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _name(module: nn.Module) -> str:
    return type(module).__name__


# ------------------------------------------------------------------------------------------- blocks


class CompiledCode:
    """The compiled code of one model, for one block."""

    def __init__(self, interceptor: Any, modules: Modules) -> None:
        self.interceptor = interceptor
        self.modules = modules
        self.attentions: dict[str, nn.Module] = {}
        """All attentions of the model, once compiled code has run."""
        self.models = [*modules.instances(PreTrainedModel).values()]
        self._taps = ExitStack()
        self._tables: dict[tuple[str, ...], list[tuple[Any, str]]] = {}

    def without_taps(self) -> list[nn.Module]:
        """Return the modules with hooks that compiled code has no use for: the models, and what a
        recording of their residual streams listens to.
        """
        return [*self.models, *self.interceptor.handler.only_hooked]

    @cached_property
    def ids(self) -> frozenset[int]:
        """The ids of the model's modules."""
        return frozenset(map(id, self.modules.values()))

    @cached_property
    def kind(self) -> Hashable:
        """What is equal for blocks that need the same code."""
        handler = self.interceptor.handler
        return handler.order, handler.adds_to_scores, getattr(handler, "names", None)

    def install_taps(self) -> None:
        """Put taps into the model's modules when compiled code is about to run first; what an
        earlier run told them is taken back.
        """
        if not self.attentions:
            # All of them, whichever the block is about: traced code then is the same for others.
            self.attentions = attentions(self.modules)
            with lock:
                self._taps.enter_context(_taps(self.modules, self.attentions))
        for module in self.attentions.values():
            vars(module)[TAP].clear()

    def close(self) -> None:
        """Remove the taps."""
        # Terms refer to the model.
        _thread.log.prepared = ()
        _thread.log.terms = None
        with lock:
            self._taps.close()

    def tables(self) -> list[tuple[Any, str]]:
        """Return the tables in which the attentions look their functions up, and the names that
        they look up.
        """
        key = tuple(str(implementation_name(config)) for config in self.interceptor.configs)
        if key not in self._tables:
            found = {}
            for module in self.attentions.values():
                name = implementation_of(module)
                table = attention_table(module)
                found[id(table), name] = (table, name)
                if name == "eager" and not LOOKS_UP_EVERY_NAME:
                    raise RuntimeError(
                        "compiled eager attention can be watched with transformers 5.1 or newer; "
                        "pip install --upgrade transformers, or "
                        'model.set_attn_implementation("sdpa")'
                    )
                tap = vars(module)[TAP]
                tap.own = own_attention(name, module)
                tap.is_sdpa = name == "sdpa"
            self._tables = {key: [*found.values()]}
        return self._tables[key]


blocks_around: list[CompiledCode] = []  # of all threads, in the order in which they were entered

# --------------------------------------------------------------------------------------------- taps


class _Installed(NamedTuple):
    """The tap of a module, and how many blocks need it."""

    tap: Tap
    blocks: int


_installed: dict[int, _Installed] = {}  # by the id of the module


@contextmanager
def _taps(modules: Modules, attended: Mapping[str, nn.Module]) -> Iterator[None]:
    """Keep a tap in every module that a compiled run has to tell of; enter it with the lock
    held.
    """
    log = _thread.log
    models = modules.instances(PreTrainedModel).values()
    embeddings = token_embeddings(modules)
    makers: dict[nn.Module, Callable[[nn.Module, RunLog], Tap]] = {
        **dict.fromkeys(models, Tap),
        **dict.fromkeys(embeddings, EmbeddingTap),
        **dict.fromkeys(attended.values(), _attention_tap),
    }
    for module, make in makers.items():
        known = _installed.get(id(module))
        tap = make(module, log) if known is None else known.tap
        _installed[id(module)] = _Installed(tap, 1 if known is None else known.blocks + 1)
        vars(module)[TAP] = tap
    # Dynamo guards the hooks of a module: every block has them at the same modules.
    unhook_before = listen(makers, partial(_hear_nothing), BEFORE)
    unhook_after = listen(models, partial(_hear_nothing), AFTER)
    try:
        yield
    finally:
        unhook_after()
        unhook_before()
        for module in makers:
            _remove(module)


def _hear_nothing(*arguments: Any) -> None:
    """Listen without effect."""


def _remove(module: nn.Module) -> None:
    tap, blocks = _installed.pop(id(module))
    if blocks > 1:
        _installed[id(module)] = _Installed(tap, blocks - 1)
    else:
        vars(module).pop(TAP, None)


def _attention_tap(module: nn.Module, log: RunLog) -> AttentionTap:
    implementation = implementation_of(module)
    own = own_attention(implementation, module)
    kind: Any = type(module)
    parameters = forward_parameters(kind) if may_be_cross_attention(module) else ()
    others = tuple(name for name in OTHER_SEQUENCES if name in parameters)
    return AttentionTap(module, log, own, implementation == "sdpa", parameters, others)
