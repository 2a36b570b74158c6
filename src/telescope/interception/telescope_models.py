"""Watch Telescope's own models through PyTorch's module hooks."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Lock
from typing import Any, NamedTuple
from weakref import ref

from torch import Tensor, nn

from ..attention import Attention
from ..engines import sdpa, torch_modes
from ..layers import AddNorm, Attend
from ..recording.attention_call import AttentionCall
from ..recording.names import Modules, attention_name
from ..recording.queries_keys_call import StepsCall
from .module_hook import BEFORE, Place, listen, uncompiled
from .observer import Observer
from .run_tracker import Route, RunTracker
from .sdpa_lse import SdpaWithLse

ATTEND = Route(
    missing="made no call of its Attend module",
    remedy="let the forward call self.attend(queries, keys, values, attention), or restore the "
    "layer's own forward",
)
# First of all hooks: an edit that was registered before this watch returns another context.
AFTER_ATTENTION = Place(after=True, first=True, always=True)
AFTER_ADD_NORM = Place(after=True, always=True)


def attentions(modules: Modules) -> dict[str, Attend]:
    """Return the model's attentions by name; of two with one name, the second keeps its path."""
    attends: dict[str, Attend] = {}
    for path, module in modules.items():
        if isinstance(module, Attend):
            name = attention_name(path)
            attends[name if name not in attends else path] = module
    return attends


def layers_around(modules: Modules, attends: Mapping[str, Attend]) -> dict[str, nn.Module]:
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
            if not isinstance(modules[path], nn.ModuleList | nn.ModuleDict):
                layers[name] = modules[path]
                break
    return layers


@contextmanager
def observing(
    modules: Modules,
    attends: Mapping[str, Attend],
    others: Mapping[str, Attend],
    observer: Observer,
) -> Iterator[None]:
    """Register hooks that record each call of `attends` while the block runs, and note the tokens
    of the `others`.

    Several threads may watch one model, each its own calls. Raise a ValueError if this thread
    watches it already.
    """
    runs = RunTracker(layers_around(modules, attends), ATTEND)
    hooks = ModelHooks(observer, runs)
    with ExitStack() as undo:
        undo.callback(hooks.stop_reading_lse)
        marks = {(id(attend), observer.thread) for attend in attends.values()}
        with _lock:
            if any((id(module), observer.thread) in _watched for module in modules.values()):
                raise ValueError(
                    f"{type(modules['']).__name__} is being watched already; leave that block first"
                )
            _watched.update(dict.fromkeys(marks, observer))
        undo.callback(_unmark, marks)
        undo.enter_context(runs.tracking(observer.is_recording, observer.note_bypass))
        for name, attend in attends.items():
            undo.callback(listen(attend, hooks.before_attention, BEFORE))
            undo.callback(
                listen(attend, partial(hooks.after_attention, name=name), AFTER_ATTENTION)
            )
        for attend in others.values():
            undo.callback(listen(attend, hooks.note, BEFORE))
        for module in modules.values() if observer.recording.keep == StepsCall.keep else ():
            if isinstance(module, AddNorm):
                undo.callback(listen(module, hooks.before_add_norm, BEFORE))
                undo.callback(listen(module, hooks.after_add_norm, AFTER_ADD_NORM))
        yield


_watched: dict[
    tuple[int, int], Observer
] = {}  # by the id of an attention, and the thread that watches it
_lock = Lock()  # held while `_watched` changes


def _unmark(marks: set[tuple[int, int]]) -> None:
    with _lock:
        for mark in marks:
            _watched.pop(mark, None)


def observer_of(attend: Attend, thread: int) -> Observer | None:
    """Return who watches an attention in this thread; None if nobody does."""
    return _watched.get((id(attend), thread))


class ModelHooks:
    """The hooks of one watch. They run in the order of a forward pass.

    before_add_norm, before_attention, after_attention, after_add_norm: an attention runs within the
    forward of its AddNorm, whose input and output are the residual stream around it.
    """

    def __init__(self, observer: Observer, runs: RunTracker) -> None:
        self.observer = observer
        self.runs = runs
        self.record = uncompiled(observer.record)
        self.running: list[RunningAddNorm] = []  # the innermost last
        self.fused: SdpaWithLse | None = None  # while an attention runs
        self.memory: dict[
            str, tuple[TokenMemory, TokenMemory]
        ] = {}  # of the latest keys and values, by attention
        self.within = ExitStack()

    def before_add_norm(self, module: AddNorm, args: Any, kwargs: Any) -> None:
        """Remember the residual stream before an AddNorm."""
        if self.observer.is_recording():
            self.running.append(RunningAddNorm(module, args[0] if args else kwargs["x"], []))

    def before_attention(self, module: Attend, args: Any, kwargs: Any) -> None:
        """Begin to read the lse of the fused engine; no other engine returns one, and a compiled
        one runs untouched.
        """
        if self.observer.is_recording() and sdpa.cannot(*_arguments(*args, **kwargs)[:4]) is None:
            self.fused = SdpaWithLse()
            self.within.enter_context(self.fused)

    def note(self, module: Attend, args: Any, kwargs: Any) -> None:
        """Note the tokens of an attention that is not recorded."""
        if self.observer.is_recording():
            queries, keys, values, attention, across = _arguments(*args, **kwargs)
            heads = tuple(range(queries.shape[1]))
            self.observer.note(
                AttentionCall(queries, keys, values, attention, heads, 0.0, across=across)
            )

    def after_attention(
        self, module: Attend, args: Any, kwargs: Any, context: Tensor | None, *, name: str
    ) -> None:
        """Record the call that ended; after an exception `context` is None, and nothing is
        recorded.
        """
        if not self.observer.is_recording():
            return
        fused = self.stop_reading_lse()
        if context is None:
            return
        self.runs.note_call(name)
        queries, keys, values, attention, across = _arguments(*args, **kwargs)
        queries, keys, values = torch_modes.cast_for_autocast(queries, keys, values)
        heads = tuple(range(queries.shape[1]))
        dropout = module.dropout if module.training else 0.0
        lse = None if fused is None else fused.lse_of(context)
        now = (TokenMemory.of(keys), TokenMemory.of(values))
        last = self.memory.get(name)
        follows = last is not None and all(
            map(TokenMemory.follows, now, last, [queries.shape[-2]] * 2)
        )
        self.memory[name] = now
        _, call = self.record(
            name,
            AttentionCall(
                queries,
                keys,
                values,
                attention,
                heads,
                dropout,
                lse,
                across=across,
                follows=follows,
            ),
            context,
        )
        if self.running and isinstance(call, StepsCall) and call not in self.running[-1].calls:
            self.running[-1].calls.append(call)

    def stop_reading_lse(self) -> SdpaWithLse | None:
        """Leave the mode that reads the lse; called at the end of the block too, since an interrupt
        calls no hook.
        """
        fused = self.fused
        self.fused = None
        self.within.close()
        return fused

    def after_add_norm(self, module: AddNorm, args: Any, kwargs: Any, after: Tensor | None) -> None:
        """Record the residual stream around the attentions within; after an exception `after` is
        None.
        """
        if (
            not self.observer.is_recording()
            or not self.running
            or self.running[-1].module is not module
        ):
            return
        _, before, calls = self.running.pop()
        if after is not None:
            with torch_modes.recording_mode(after.device):
                for call in calls:
                    call.add_residual_stream(before, after)


class TokenMemory(NamedTuple):
    """The tensor that the keys or values of a call lie in: a `LayerCache`'s, or they themselves."""

    tensor: "ref[Tensor]"
    version: int | None
    """How often the tensor was written to; None for a tensor of inference mode, which does not
    count.
    """
    tokens: int

    @classmethod
    def of(cls, tokens: Tensor) -> "TokenMemory":
        tensor = tokens if tokens._base is None else tokens._base
        return cls(
            ref(tensor), None if tensor.is_inference() else tensor._version, tokens.shape[-2]
        )

    def follows(self, last: "TokenMemory", queries: int) -> bool:
        """Return whether these are known to begin with those of the call before.

        A step of decoding writes its own keys to the cache, and nothing else; cross-attention
        writes none.
        """
        if (
            self.tensor() is None
            or self.tensor() is not last.tensor()
            or self.version is None
            or last.version is None
        ):
            return False
        written = self.version - last.version
        more = self.tokens - last.tokens
        return (written, more) in ((0, 0), (1, queries))


class RunningAddNorm(NamedTuple):
    """An AddNorm whose forward is running, its input, and the attention calls within so far."""

    module: nn.Module
    before: Tensor
    calls: list[StepsCall]


def _arguments(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    attention: Attention,
    *,
    across: bool | None = None,
) -> tuple[Tensor, Tensor, Tensor, Attention, bool | None]:
    """Return the arguments of Attend.forward, whether they were passed by position or by
    keyword.
    """
    return queries, keys, values, attention, across
