"""What looks on: it takes what ran, of the heads that were asked for, and puts it into the recording."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import get_ident
from typing import Any, NamedTuple
from weakref import proxy

import torch
from torch import Tensor, nn

from ..attention import Attention, Mask
from ..attention.padding_queries import padding_in
from ..attention.values import identity
from ..engines import torch_modes
from ..recording.attention_call import AttentionCall
from ..recording.kept import Call
from ..recording.recording import Recording

COMPILED = "watch sees nothing of what torch.compile makes; inside the block, call what is not compiled"


class ModuleHook:
    """A hook for one model. A copy of the model, made or pickled while the hook is there, has one that does nothing."""

    def __init__(self, call: Callable[..., Any] | None = None) -> None:
        self.call = call

    def __call__(self, *args: Any, **options: Any) -> Any:
        return None if self.call is None else self.call(*args, **options)

    def __reduce__(self) -> tuple[type["ModuleHook"], tuple[()]]:
        return ModuleHook, ()


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as one that torch.compile leaves alone: compiled code calls it as it is written.

    Return the function unchanged if torch._dynamo is not imported: importing it takes seconds.
    """
    if "torch._dynamo" not in sys.modules:
        return function
    return torch.compiler.disable(function, reason=COMPILED)  # type: ignore[no-any-return, no-untyped-call]


class TokenInput(NamedTuple):
    """Tokens that came in, and their place among all that did."""

    number: int
    ids: Tensor


class Observer:
    """One watch at work, in the thread that began it."""

    def __init__(self, recording: Recording, heads: tuple[int, ...] | None) -> None:
        self.recording, self.heads, self.thread = recording, heads, get_ident()
        self._real: tuple[Any, Attention, Mask | None, Attention] | None = None  # of the definition that came last
        self.fed: list[TokenInput] = []  # the tokens that came in last, the latest first
        self.count = 0  # of all tokens that came in
        self.asked: dict[str, int] = {}  # of each attention across two sequences: what had come in when it last ran
        self.saw: Callable[[str, AttentionCall], Call] = uncompiled(
            partial(Observer._saw, proxy(self))
        )  # no reference to itself

    def looks(self) -> bool:
        """Return whether a call that runs now is to be recorded.

        What runs during a backward pass is not: gradient checkpointing computes there once more what was recorded.
        """
        if torch.compiler.is_compiling():
            raise RuntimeError(COMPILED)
        if torch._C._current_graph_task_id() != -1:
            return False
        if get_ident() != self.thread:
            self.recording.elsewhere.add(get_ident())
            return False
        return True

    def _saw(self, name: str, ran: AttentionCall) -> Call:
        heads = ran.queries.shape[1]
        if self.heads is not None and max(self.heads) >= heads:
            raise ValueError(f'heads={[*self.heads]}: "{name}" has {heads}, counted from 0')
        with torch_modes.recording_mode(ran.queries.device):
            ran = self._of_real_queries(self._with_ids(name, ran).of_written())
            return self.recording.record(name, ran if self.heads is None else ran.of_heads(self.heads))

    def _with_ids(self, name: str, ran: AttentionCall) -> AttentionCall:
        """With the tokens that came in: the last ones ask; before them, those of another sequence that is asked.

        The other sequence came in after this attention last ran, and before what asks: tokens of an earlier run are
        not those of a model whose other sequence is no text, such as sound.
        """
        batch, (queries, keys) = len(ran.queries), ran.size
        asking = next((fed.ids for fed in self.fed if tuple(fed.ids.shape) == (batch, queries)), None)
        if not ran.looks_across:
            return ran._replace(query_ids=asking)
        since, self.asked[name] = self.asked.get(name, 0), self.count
        others = (fed.ids for fed in self.fed[1:] if fed.number > since and tuple(fed.ids.shape) == (batch, keys))
        return ran._replace(query_ids=asking, key_ids=next(others, None))

    def _of_real_queries(self, ran: AttentionCall) -> AttentionCall:
        """Without what padding asks. The definitions of layers that are given the same mask stay one object."""
        if ran.looks_across:
            return ran
        key, (batch, heads) = (identity(ran.attention), ran.size), ran.queries.shape[:2]
        if self._real is None or self._real[0] != key:
            device = ran.queries.device
            padding = padding_in(ran.attention, batch=batch, heads=heads, size=ran.size, device=device)
            self._real = (key, ran.attention, padding, ran.of_real_queries(padding).attention)
        _, _, padding, attention = self._real
        return ran if padding is None else ran.of_real_queries(padding)._replace(attention=attention)

    @contextmanager
    def reading(self, embeddings: Iterable[nn.Module]) -> Iterator[None]:
        """What goes through these embeddings are the tokens."""

        def feed(module: nn.Module, args: Any) -> None:
            if self.looks() and args and isinstance(args[0], Tensor) and args[0].ndim == 2:
                with torch.inference_mode(False):  # copied for all who keep it: it may be written to again
                    self.count += 1
                    self.fed = [TokenInput(self.count, args[0].detach().clone()), *self.fed[:3]]

        with ExitStack() as hooks:
            hook = ModuleHook(uncompiled(feed))
            for embedding in embeddings:
                hooks.callback(embedding.register_forward_pre_hook(hook).remove)
            yield
