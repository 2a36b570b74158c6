"""Stop a run on request: SIGTERM and SIGINT end it after the current step, with a checkpoint of
that step.
"""

import signal
import threading
from time import monotonic
from types import FrameType, TracebackType
from typing import Any, Self

import torch
from torch import distributed

from . import processes

DOUBLED = 1.0  # seconds: torchrun passes Ctrl-C on to processes that the terminal has told already


class StopRequest:
    """Note the signals SIGTERM and SIGINT inside a `with` block, and let all processes agree on
    when to stop.

    A second SIGINT raises KeyboardInterrupt at once. Signals for which the program has a handler of
    its own are left to that handler, and so are all signals outside of the main thread.
    """

    def __init__(self) -> None:
        self.received = 0  # number of the signal; 0 is none
        self._first_time = 0.0
        self._before: dict[int, Any] = {}
        # Flags are exchanged on the CPU, by a group of their own: the steps' group may be one of
        # GPUs, and reading a flag from a GPU would wait for the step.
        self._group = distributed.new_group(backend="gloo") if processes.is_distributed() else None
        self._exchange: tuple[torch.Tensor, Any] | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number, default in (
                (signal.SIGTERM, signal.SIG_DFL),
                (signal.SIGINT, signal.default_int_handler),
            ):
                if signal.getsignal(number) == default:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = monotonic()
        if (
            number == signal.SIGINT
            and self.received == signal.SIGINT
            and now - self._first_time > DOUBLED
        ):
            raise KeyboardInterrupt
        if not self.received:
            self.received = number
            self._first_time = now

    def agreed(self, *, last: bool = False) -> int:
        """Return the signal for which all processes stop after this step, or 0. Every process asks
        after each step.

        Several processes exchange their flags while the next step runs, so that no step waits: they
        stop one step after the signal. `last` waits for the flags of this step.
        """
        if self._group is None:
            return self.received
        found = self._finish_exchange()
        flag = torch.tensor(self.received)
        self._exchange = (
            flag,
            distributed.all_reduce(flag, distributed.ReduceOp.MAX, self._group, async_op=True),
        )
        return max(found, self._finish_exchange()) if last or found else found

    def _finish_exchange(self) -> int:
        """Return the largest flag of all processes in the exchange that was begun last."""
        if self._exchange is None:
            return 0
        flag, work = self._exchange
        work.wait()
        self._exchange = None
        return int(flag)


def stop_error(number: int) -> BaseException:
    """Return what a stopped run raises: KeyboardInterrupt for SIGINT, SystemExit(128 + number) for
    others.
    """
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
