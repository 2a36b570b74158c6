"""The handler of one `ts.watch` block: complete each attention call, and hand it to the
recording.
"""

from collections.abc import Collection, Mapping
from threading import get_ident
from typing import Any

import torch
from torch import Tensor

from ..anatomy import OutputProjection
from ..attention import Attention, RealQueries
from ..engines import torch_modes
from ..recording import AttentionCall, Recording, SummariesCall, check_dropout, head_numbers
from .compiled import AttentionTap
from .interceptor import WATCH, Bypass, HandledCall, Handler
from .module_hook import COMPILED
from .telescope_models import ResidualStreams

SHORT = 4096**2  # scores of a head, below which a GPU computes the lse faster than a host reads it


class Observer(Handler):
    """The handler of one `ts.watch` block. It records calls of the thread that created it, and of
    no other.
    """

    order = WATCH

    def __init__(
        self,
        recording: Recording,
        names: Collection[str],
        heads: tuple[int, ...] | None,
        carriers: Mapping[str, OutputProjection],
        *,
        keeps_gradients: bool = False,
        records_every: bool = True,
    ) -> None:
        self.recording = recording
        self.unwatched_threads = recording._unwatched_threads
        self.names = frozenset(names)
        """The attentions that are recorded; of others only the tokens are noted."""
        self.heads = heads
        self.thread = get_ident()
        self.carriers = carriers
        self.keeps_gradients = keeps_gradients
        self._records_every = records_every
        self.residuals = ResidualStreams()
        self.bypasses: dict[str, Bypass] = {}
        """The attentions that ran without a call that could be recorded, by name."""

    @property
    def why_not_compiled(self) -> str | None:
        if self.keeps_gradients:
            return (
                'also="gradients" needs the tensors of every call, which stay inside of compiled '
                "code; leave it out, or call the model as it was before torch.compile"
            )
        return None

    def prepare_compiled(self, name: str, heads: int | None, tap: AttentionTap) -> int | None:
        tap.is_kept = name in self.names
        return heads

    def adopt(self, name: str) -> bool:
        if self._records_every:
            self.names |= {name}
        return self._records_every

    def is_active(self) -> bool:
        """Return whether a call that runs now is to be recorded; raise a RuntimeError inside
        compiled code.

        Calls in other threads are not recorded, nor calls during a backward pass, in which gradient
        checkpointing runs recorded calls again.
        """
        if torch.compiler.is_compiling():
            raise RuntimeError(COMPILED)
        # A backward pass is running: the call was recorded when it first ran.
        if torch._C._current_graph_task_id() != -1:
            return False
        # Note the other thread, so that the error for an empty recording can name the cause.
        if get_ident() != self.thread:
            self.unwatched_threads.add(get_ident())
            return False
        return True

    def report_bypass(self, bypass: Bypass) -> None:
        if bypass.name in self.names:
            self.bypasses.setdefault(bypass.name, bypass)
            self.recording._leave_out(bypass.name, bypass.reason)

    def before(self, call: HandledCall) -> None:
        """Find out whether the call continues the text, and read its lse if that is of use."""
        call.made.is_recorded |= call.attention in self.names
        # A further set of values has the queries and keys of the call before.
        if call.attention not in self.names or call.value_set:
            return
        queries, keys, _ = call.made.tensors
        # Tell whether the keys continue those of the call before, by where they lie in memory.
        stored = call.made.where_keys_lie(call)
        call.follows = self.text.keys_follow(call.name, stored.memory, queries.shape[-2])
        call.keys_stay = stored.stay
        # Summaries of steps, and of short calls on a GPU, are made without the kernel's lse.
        is_short = queries.is_cuda and queries.shape[-2] * keys.shape[-2] <= SHORT
        if self.recording.keep != SummariesCall.keep or not (call.follows or is_short):
            call.made.read_lse()

    @torch.no_grad()
    def after(self, call: HandledCall, output: Tensor) -> Tensor:
        """Record the call; what it returned stays as it is."""
        if call.attention not in self.names:
            self._note(call)
        elif call.value_set:
            self._record_values(call, output)
        else:
            self._record(call, output)
        return output

    def _note(self, call: HandledCall) -> None:
        """Note the tokens of a self-attention that is not recorded: a cross-attention after it has
        the same queries.
        """
        if not call.across:
            described = call.describe()
            if not described.is_cross_attention:
                self.text.real_tokens(described.without_unwritten_keys())

    def _record(self, call: HandledCall, output: Tensor) -> None:
        """Record the selected heads of a call, with its token ids, without unwritten keys and
        padding queries.
        """
        if call.made.edits:
            self.recording._add_edits(call.made.edits)
        # Describe the whole call, and compare its output, before heads are selected.
        whole = self._describe(call)
        call.made.check_output(call, whole, output)
        # Record the selected heads, as tensors that outlive the run.
        with torch_modes.recording_mode(whole.queries.device):
            part = whole
            if self.heads is not None:
                heads = head_numbers(call.name, self.heads, whole.queries.shape[1])
                if self.keeps_gradients:
                    check_dropout(call.name, heads, whole)
                part = whole.select_heads(heads)
            recorded = self.recording._record(call.name, part)
        if self.keeps_gradients:
            recorded._keep_gradient(whole, output, call.made.head_axis)
        self.residuals.note(recorded)

    def _describe(self, call: HandledCall) -> AttentionCall:
        """Return what the call computes, with everything that the recording needs.

        Layers that are called alike in one pass are described once: in a model that writes, this
        takes longer than everything else.
        """
        queries, keys, values = call.made.tensors
        lse = call.made.lse
        # Layers that are called alike share a description, but no norms and no source.
        shared = None if call.across or self.carriers else call.made.shared_key()
        if shared is not None:
            known = call.forward_pass.known((shared.key, lse is None))
            if known is not None:
                return known._replace(  # type: ignore[no-any-return]
                    queries=queries,
                    keys=keys,
                    values=values,
                    lse=lse,
                    follows=call.follows,
                    keys_stay=call.keys_stay,
                    are_steps=call.are_steps,
                )
        # Describe the call anew.
        described = call.describe()._replace(
            follows=call.follows, keys_stay=call.keys_stay, are_steps=call.are_steps
        )
        with torch_modes.recording_mode(queries.device):
            completed = self._complete(call.name, described)
        # A description that has cut the tensors does not fit other layers.
        is_whole = completed.queries is queries and completed.keys is keys and completed.lse is lse
        if shared is not None and is_whole:
            # A description keeps no tensor of the model alive.
            none: Any = {"queries": None, "keys": None, "values": None, "lse": None}
            found = completed._replace(**none)
            call.forward_pass.note((shared.key, lse is None), found, *shared.alive)
        return completed

    def _complete(self, name: str, call: AttentionCall) -> AttentionCall:
        """Return a call with the token ids of its queries and, in cross-attention, of its keys,
        without unwritten keys, in which padding queries see nothing.
        """
        across = call.is_cross_attention
        # Add token ids, drop unwritten keys, and hide padding queries.
        query_ids, key_ids = self.text.inputs.of_call(name, len(call.queries), call.size, across)
        call = call._replace(query_ids=query_ids, key_ids=key_ids if across else call.key_ids)
        call = self._without_padding_queries(call.without_unwritten_keys())
        return self._with_carrier(name, call)

    def _without_padding_queries(self, call: AttentionCall) -> AttentionCall:
        """Return the call with a definition in which padding queries see nothing.

        Layers with one definition get one new definition, so that the survey queue can batch them.
        """
        found = self.text.real_tokens(call)
        call = call._replace(ends=self.text.ends(call))
        mask = found.mask
        if mask is None:
            return call
        ahead = found.tokens - call.size[1]

        def hide_padding() -> tuple[RealQueries, Attention]:
            real = RealQueries(mask, ahead)
            return real, call.without_padding_queries(real).attention

        # Pass on what the key has identities of, to be kept alive with it.
        key = ("padding", call.attention._identity, call.size, id(mask))
        real, attention = call.once(key, hide_padding, call.attention, mask)
        return call.without_padding_queries(real)._replace(attention=attention)

    def _record_values(self, call: HandledCall, output: Tensor) -> None:
        """Record one more set of values of the call that was recorded last, whose queries and keys
        are the same.
        """
        recorded = self.recording._last_call(call.name)
        assert recorded is not None
        whole = call.describe().without_unwritten_keys()
        with torch_modes.recording_mode(whole.queries.device):
            part = whole = self._with_carrier(call.name, whole)
            if self.heads is not None:
                part = whole.select_heads(
                    head_numbers(call.name, self.heads, whole.queries.shape[1])
                )
            recorded._add_values(part, call.value_set)
        if self.keeps_gradients:
            recorded._keep_gradient(whole, output, call.made.head_axis)

    def _with_carrier(self, name: str, call: AttentionCall) -> AttentionCall:
        """Return the call with its output projection, if norms are kept."""
        if not self.carriers:
            return call
        # A further pass through a shared layer has the name of the first and a number.
        first = name.rpartition(".")[0]
        return call._replace(carrier=self.carriers.get(name, self.carriers.get(first)))
