"""The observer of one `ts.watch` block: complete each attention call and hand it to the recording."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..attention import Attention, Mask
from ..attention.padding_queries import find_padding
from ..engines import torch_modes
from ..recording.attention_call import AttentionCall
from ..recording.recorded_call import RecordedCall
from ..recording.recording import Recording
from ..words import index_range

COMPILED = "watch sees nothing of what torch.compile makes; inside the block, call what is not compiled"
INPUTS = 4  # token inputs that are remembered; an encoder-decoder needs two


class Observer:
    """The observer of one `ts.watch` block. It records calls of the thread that created it, and of no other."""

    def __init__(self, recording: Recording, heads: tuple[int, ...] | None) -> None:
        self.recording, self.heads, self.thread = recording, heads, get_ident()
        self.inputs: list[TokenInput] = []  # the latest token inputs, the latest first
        self.input_count = 0
        self.inputs_seen: dict[str, int] = {}  # by each cross-attention: `input_count` when it last ran
        self._last_padding: PaddingOfDefinition | None = None

    def is_recording(self) -> bool:
        """Return whether a call that runs now is to be recorded; raise a RuntimeError inside compiled code.

        Calls in other threads are not recorded, nor calls during a backward pass, in which gradient checkpointing runs
        recorded calls again.
        """
        if torch.compiler.is_compiling():
            raise RuntimeError(COMPILED)
        if torch._C._current_graph_task_id() != -1:
            return False
        if get_ident() != self.thread:
            self.recording.unwatched_threads.add(get_ident())
            return False
        return True

    def record(self, name: str, call: AttentionCall) -> tuple[AttentionCall, RecordedCall]:
        """Record the selected heads of a call, with its token ids, without unwritten keys and padding queries.

        Return that part of the call, and the recorded call that it began or continues.
        """
        heads = self._selected_heads(name, call.queries.shape[1])
        with torch_modes.recording_mode(call.queries.device):
            call = self._with_token_ids(name, call).without_unwritten_keys()
            call = self._without_padding_queries(call)
            call = call if heads is None else call.select_heads(heads)
            return call, self.recording.record(name, call)

    def _selected_heads(self, name: str, count: int) -> tuple[int, ...] | None:
        """Return the numbers of the selected heads of an attention with `count` heads; None is all."""
        if self.heads is None:
            return None
        numbers = tuple(count + number if number < 0 else number for number in self.heads)
        if not all(0 <= number < count for number in numbers):
            raise ValueError(f'heads={[*self.heads]}: "{name}" has {count}, numbered {index_range(count)}')
        if len(set(numbers)) < len(numbers):
            raise ValueError(f'heads={[*self.heads]} names a head of "{name}" twice: it has {count} heads')
        return numbers

    def _with_token_ids(self, name: str, call: AttentionCall) -> AttentionCall:
        """Return the call with the token ids of its queries and, in cross-attention, of its keys.

        The queries are the latest input of their shape. The keys of cross-attention are an input before that, which
        came after this attention last ran: if the other sequence is no text, such as sound, then the inputs of an
        earlier run are not mistaken for it.
        """
        batch, (queries, keys) = len(call.queries), call.size
        query_ids = next((given.ids for given in self.inputs if tuple(given.ids.shape) == (batch, queries)), None)
        if not call.is_cross_attention:
            return call._replace(query_ids=query_ids)
        seen, self.inputs_seen[name] = self.inputs_seen.get(name, 0), self.input_count
        earlier = (given for given in self.inputs[1:] if given.number > seen)
        key_ids = next((given.ids for given in earlier if tuple(given.ids.shape) == (batch, keys)), None)
        return call._replace(query_ids=query_ids, key_ids=key_ids)

    def _without_padding_queries(self, call: AttentionCall) -> AttentionCall:
        """Return the call with a definition in which padding queries see nothing.

        Layers with one definition get one new definition, so that the survey queue can batch them.
        """
        if call.is_cross_attention:
            return call
        key, (batch, heads) = (call.attention.identity, call.size), call.queries.shape[:2]
        if self._last_padding is None or self._last_padding.key != key:
            device = call.queries.device
            padding = find_padding(call.attention, batch=batch, heads=heads, size=call.size, device=device)
            hidden = call.without_padding_queries(padding).attention
            self._last_padding = PaddingOfDefinition(key, call.attention, padding, hidden)
        _, _, padding, attention = self._last_padding
        return call if padding is None else call.without_padding_queries(padding)._replace(attention=attention)

    @contextmanager
    def token_inputs(self, embeddings: Iterable[nn.Module]) -> Iterator[None]:
        """Remember, while the block runs, the token ids that are passed to these embeddings."""

        def remember(module: nn.Module, args: Any) -> None:
            if self.is_recording() and args and isinstance(args[0], Tensor) and args[0].ndim == 2:
                with torch.inference_mode(False):  # a copy that all calls share: the model may write to its input
                    self.input_count += 1
                    self.inputs = [TokenInput(self.input_count, args[0].detach().clone()), *self.inputs[: INPUTS - 1]]

        with ExitStack() as hooks:
            hook = ModuleHook(uncompiled(remember))
            for embedding in embeddings:
                hooks.callback(embedding.register_forward_pre_hook(hook).remove)
            yield


class TokenInput(NamedTuple):
    """Token ids that were passed to the model, and how many inputs there were with it."""

    number: int
    ids: Tensor


class PaddingOfDefinition(NamedTuple):
    """The padding of the definition that was recorded last."""

    key: Any
    original: Attention  # kept alive, so that no other definition gets its identity
    padding: Mask | None
    without_padding_queries: Attention


class ModuleHook:
    """A module hook of one model. In a copy of the model, made or pickled inside the block, the hook does nothing."""

    def __init__(self, call: Callable[..., Any] | None = None) -> None:
        self.call = call

    def __call__(self, *args: Any, **options: Any) -> Any:
        return None if self.call is None else self.call(*args, **options)

    def __reduce__(self) -> tuple[type["ModuleHook"], tuple[()]]:
        return ModuleHook, ()


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function wrapped so that torch.compile does not trace it: compiled code calls it as it is written.

    Return the function unchanged if torch._dynamo is not imported: importing it takes seconds.
    """
    if "torch._dynamo" not in sys.modules:
        return function
    return torch.compiler.disable(function, reason=COMPILED)  # type: ignore[no-any-return, no-untyped-call]
