"""The observer of one `ts.watch` block: complete each attention call and hand it to the
recording.
"""

from collections.abc import Mapping
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..attention import Attention, RealQueries
from ..engines import torch_modes
from ..recording.attention_call import AttentionCall, Carrier
from ..recording.head_gradients import check_dropout
from ..recording.names import head_numbers
from ..recording.recorded_call import RecordedCall
from ..recording.recording import Recording
from .module_hook import COMPILED
from .run_tracker import Bypass
from .running_text import RunningText
from .token_inputs import TokenInputs


class Observer:
    """The observer of one `ts.watch` block. It records calls of the thread that created it, and of
    no other.
    """

    def __init__(
        self,
        recording: Recording,
        heads: tuple[int, ...] | None,
        carriers: Mapping[str, Carrier] | None = None,
        *,
        keeps_gradients: bool = False,
    ) -> None:
        self.recording = recording
        self.heads = heads
        self.thread = get_ident()
        self.carriers = carriers or {}
        self.keeps_gradients = keeps_gradients
        self.tokens = TokenInputs()
        self.text = RunningText()
        self.bypasses: dict[str, Bypass] = {}
        """The attentions that ran without a call that could be recorded, by name."""
        self._last_padding: PaddingOfDefinition | None = None

    def is_recording(self) -> bool:
        """Return whether a call that runs now is to be recorded; raise a RuntimeError inside
        compiled code.

        Calls in other threads are not recorded, nor calls during a backward pass, in which gradient
        checkpointing runs recorded calls again.
        """
        if torch.compiler.is_compiling():
            raise RuntimeError(COMPILED)
        if torch._C._current_graph_task_id() != -1:
            return False
        if get_ident() != self.thread:
            self.recording.unwatched_threads.add(get_ident())
            return False
        return True

    def note_bypass(self, bypass: Bypass) -> None:
        """Note an attention that ran without a call that could be recorded."""
        self.bypasses.setdefault(bypass.name, bypass)
        self.recording.leave_out(bypass.name, bypass.reason)

    def record(
        self, name: str, call: AttentionCall, context: Tensor, head_axis: int = 1
    ) -> tuple[AttentionCall, RecordedCall]:
        """Record the selected heads of a call, with its token ids, without unwritten keys and
        padding queries.

        `context` is the tensor that the attention returned, unedited, with its heads along
        `head_axis`. Return the part of the call that was recorded, and the recorded call that it
        began or continues.
        """
        heads = self._selected_heads(name, call.queries.shape[1])
        with torch_modes.recording_mode(call.queries.device):
            call = self._with_token_ids(name, call).without_unwritten_keys()
            call = self._without_padding_queries(call)
            call = self._with_carrier(name, call)
            if self.keeps_gradients and heads is not None:
                check_dropout(name, heads, call)
            part = call if heads is None else call.select_heads(heads)
            recorded = self.recording.record(name, part)
        if self.keeps_gradients:
            recorded.keep_gradient(call, context, head_axis)
        return part, recorded

    def note(self, call: AttentionCall) -> None:
        """Note the tokens of a self-attention that is not recorded: a cross-attention after it has
        the same queries.
        """
        if not call.is_cross_attention:
            self.text.real_tokens(call.without_unwritten_keys())

    def record_values(
        self, name: str, call: AttentionCall, number: int, context: Tensor, head_axis: int
    ) -> None:
        """Record one more set of values of the call that was recorded last, whose queries and keys
        are the same.
        """
        heads = self._selected_heads(name, call.queries.shape[1])
        recorded = self.recording.last_call(name)
        assert recorded is not None
        with torch_modes.recording_mode(call.queries.device):
            call = self._with_carrier(name, call.without_unwritten_keys())
            recorded.add_values(call if heads is None else call.select_heads(heads), number)
        if self.keeps_gradients:
            recorded.keep_gradient(call, context, head_axis)

    def _with_carrier(self, name: str, call: AttentionCall) -> AttentionCall:
        """Return the call with its output projection, if norms are kept."""
        if not self.carriers:
            return call
        # A further pass through a shared layer has the name of the first and a number.
        return call._replace(
            carrier=self.carriers.get(name, self.carriers.get(name.rpartition(".")[0]))
        )

    def _selected_heads(self, name: str, count: int) -> tuple[int, ...] | None:
        """Return the numbers of the selected heads of an attention with `count` heads; None is
        all.
        """
        return None if self.heads is None else head_numbers(name, self.heads, count)

    def _with_token_ids(self, name: str, call: AttentionCall) -> AttentionCall:
        """Return the call with the token ids of its queries and, in cross-attention, of its
        keys.
        """
        across = call.is_cross_attention
        query_ids, key_ids = self.tokens.of_call(name, len(call.queries), call.size, across)
        return call._replace(query_ids=query_ids, key_ids=key_ids if across else call.key_ids)

    def _without_padding_queries(self, call: AttentionCall) -> AttentionCall:
        """Return the call with a definition in which padding queries see nothing.

        Layers with one definition get one new definition, so that the survey queue can batch them.
        """
        found = self.text.real_tokens(call)
        call = call._replace(ends=self.text.ends(call))
        if found.mask is None:
            return call
        key = (call.attention.identity, call.size, id(found.mask))
        if self._last_padding is None or self._last_padding.key != key:
            real = RealQueries(found.mask, found.tokens - call.size[1])
            hidden = call.without_padding_queries(real).attention
            self._last_padding = PaddingOfDefinition(key, call.attention, real, hidden)
        _, _, real, attention = self._last_padding
        return call.without_padding_queries(real)._replace(attention=attention)


class PaddingOfDefinition(NamedTuple):
    """The padding of the definition that was recorded last."""

    key: Any
    original: Attention
    """Kept alive, so that no other definition gets its identity; the mask of `real` is, too."""
    real: RealQueries
    without_padding_queries: Attention
