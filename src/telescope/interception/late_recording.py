"""End the recording of a block: what can wait is recorded when somebody reads."""

from typing import Any, Protocol
from weakref import ref

from .observer import Observer
from .proof import OutputChecks
from .text import Text


class WaitingInterceptor(Protocol):
    """An interceptor whose calls may wait."""

    log: Any
    """The calls that wait, with `waits`, `keep()` and `recording`; None without a recording."""
    steps: Any
    """Compiled steps that wait, with `count`, `keep()` and `recording`; None if there are none."""
    checks: OutputChecks

    @property
    def text(self) -> Text:
        """The text that the model reads and writes."""

    def collect(self) -> None:
        """Record the calls that wait."""


def end_recording(interceptor: WaitingInterceptor, handler: Observer) -> None:
    """Record what waits when a block ends well; what can wait longer does, until somebody reads."""
    recording = handler.recording
    log = interceptor.log
    assert log is not None
    steps = interceptor.steps
    count = 0 if steps is None else steps.count
    if (log.waits or count > 0) and log.keep() and (count == 0 or steps.keep()):
        recording._queue.collect_steps = LateRecording(interceptor, handler)
        return
    recording._flush()
    recording._queue.collect_steps = None
    interceptor.log = None
    interceptor.steps = None


class LateRecording:
    """Record the calls that wait after their block has ended. Refers to the recording weakly: a
    recording that nobody reads is freed with them.
    """

    def __init__(self, interceptor: WaitingInterceptor, handler: Observer) -> None:
        self.interceptor = interceptor
        self.handler = handler
        self.recording = ref(handler.recording)
        self._hold(None)

    def _hold(self, recording: Any) -> None:
        self.handler.recording = recording
        for waiting in (self.interceptor.log, self.interceptor.steps):
            if waiting is not None:
                waiting.recording = recording

    def __call__(self) -> None:
        recording = self.recording()
        if recording is None:
            return
        # Once, whatever goes wrong.
        recording._queue.collect_steps = None
        self._hold(recording)
        try:
            self.interceptor.collect()
            recording._flush(collects=False)
            self.interceptor.checks.verify()
        finally:
            self._hold(None)
            self.interceptor.text.forward_pass.end()
