"""Let the calls of a model wait while it runs, and record them when somebody reads.

A call is kept by references to its tensors. It waits until the next pass begins, and longer than
its block only if nothing but the log holds the tensors: then nobody can write to them.
"""

from sys import getrefcount
from typing import Any
from weakref import proxy

import torch
from torch import Tensor

from ...recording import Device, Recording, StepsCall
from ..text import version_of
from ..waiting import WAITING_BYTES, bytes_that_may_wait
from .calls import FunctionCall

OWN_REFERENCES = 2  # of a tensor in a dictionary: that, and the argument of getrefcount


class WaitingCall:
    """A call that waits, and its number in its pass."""

    def __init__(self, made: FunctionCall, number: int) -> None:
        self.made = made
        self.number = number
        self.versions = tuple(map(version_of, made.tensors))

    def was_written(self) -> bool:
        """Return whether somebody has written to queries, keys or values since the call ran."""
        return tuple(map(version_of, self.made.tensors)) != self.versions


class CallLog:
    """The calls of one block that wait to be recorded."""

    def __init__(self, interceptor: Any, recording: Recording) -> None:
        self.interceptor: Any = proxy(interceptor)  # which refers to this object
        self.recording: Recording | None = recording
        handler = interceptor.handler
        # What is kept of these has to be read while the model runs.
        self._is_open = not (
            handler.keeps_gradients or handler.carriers or recording.keep == StepsCall.keep
        )
        self._calls: list[WaitingCall] = []
        self._bytes = 0
        self._limit = WAITING_BYTES

    @property
    def waits(self) -> bool:
        """Whether some call waits."""
        return bool(self._calls)

    def can_wait(self, made: FunctionCall) -> bool:
        """Return whether a call may be recorded later."""
        recording = self.recording
        if not self._is_open or recording is None or recording.on_call is not None:
            return False
        # Tensors of inference mode do not tell that somebody has written to them.
        learns = torch.is_grad_enabled()
        return not any(one.is_inference() or (learns and one.requires_grad) for one in made.tensors)

    def run(self, made: FunctionCall) -> Any:
        """Run a call and let it wait; return what its function returns."""
        interceptor = self.interceptor
        key = id(made.module)
        handled = interceptor.handle(key, made)
        if not self._calls and self.recording is not None and handled.attention in self._names():
            self.recording._check_memory(made.read(interceptor))
        context = made.run()
        made.check_output(handled, made.read(interceptor), context)
        made.is_recorded = handled.attention in self._names()
        returned = made.returned
        # Neither what the model goes on with nor what it passed is kept alive.
        made.release()
        number = interceptor.calls_of(handled.attention)
        self._calls.append(WaitingCall(made, number))
        self._bytes += sum(tensor.nbytes for tensor in made.tensors)
        if not self._may_wait(made.tensors[0]):
            self.flush()
        return returned

    def _names(self) -> frozenset[str]:
        return self.interceptor.handler.names  # type: ignore[no-any-return]

    def _may_wait(self, queries: Tensor) -> bool:
        # To ask how much memory a GPU has takes a while: once for each text.
        if self._bytes > self._limit:
            self._limit = max(self._limit, bytes_that_may_wait(queries))
        return self._bytes <= self._limit

    def end_pass(self) -> None:
        """Record the calls of a pass that has ended, if somebody may write to what they hold."""
        if self._calls and not self.keep():
            self.flush()

    def keep(self) -> bool:
        """Return whether the calls may wait although the pass ends: nobody else holds what they
        hold.
        """
        if self.recording is None or not isinstance(self.recording._options.store, Device):
            return False
        if not all(call.made.is_fixed and not call.was_written() for call in self._calls):
            return False
        # Held here, so that no two of them have one identity.
        tensors = [one for call in self._calls for one in call.made.tensors]
        bases = {id(one._base): one._base for one in tensors if one._base is not None}
        held: dict[int, set[int]] = {}
        for one in (*tensors, *bases.values()):
            held.setdefault(one.untyped_storage()._cdata, set()).add(id(one))
        # A storage counts its tensors, and the object that stands for it in Python.
        for key, own in held.items():
            if torch._C._storage_Use_Count(key) > len(own) + 1:
                return False
        # Tensors that ours are views of: nobody refers to them but this function.
        return all(getrefcount(bases[key]) <= OWN_REFERENCES for key in bases)

    def flush(self) -> None:
        """Record the calls that wait."""
        calls = self._calls
        self._calls = []
        self._bytes = 0
        self._limit = WAITING_BYTES
        for call in calls:
            self._record(call)

    @torch.no_grad()
    def _record(self, call: WaitingCall) -> None:
        made = call.made
        interceptor = self.interceptor
        key = id(made.module)
        if call.was_written():
            raise RuntimeError(
                f'queries, keys or values of "{interceptor.names[key]}" were written to after the '
                'attention had run, before they were recorded; keep="steps" copies them while the '
                "model runs"
            )
        made.has_waited = True
        handled = interceptor.handle_pass(key, made, call.number)
        handler = interceptor.handler
        handler.before(handled)
        handler.after(handled, made.tensors[0])
