"""Compute answers in threads, a few at a time, and stop when the reader leaves or the server
ends.
"""

from collections.abc import Callable
from threading import Event, Lock

from anyio import CapacityLimiter, create_task_group, to_thread
from starlette.types import Receive

from .api import HttpAnswer
from .requests import Refusal

WAITING = 128  # most requests that may be queued or computed


class Computing:
    """The answers that are queued or being computed: at most `at_once` of them in threads at a
    time.
    """

    def __init__(self, at_once: int) -> None:
        self.stopping = False
        """Whether the server ends: nobody waits any longer for a thread that still computes."""
        self.threads = 0
        """How many threads compute, those included that nobody waits for."""
        self._limiter = CapacityLimiter(at_once)
        self._lock = Lock()
        self._waiting = 0

    async def run(
        self, receive: Receive, compute: Callable[[Callable[[], bool]], HttpAnswer]
    ) -> HttpAnswer | None:
        """Return what `compute` returns, or None if the reader has left.

        `compute` runs in a thread and is given a function that tells whether the reader has left. A
        reader who leaves the queue is not computed for. Raises Refusal 503 if the queue is full.
        """
        if self._waiting >= WAITING:
            raise Refusal(503, "busy", "too many requests at once; try again in a second")
        has_left = Event()
        began = False
        answer = None
        failed: Exception | None = None  # raised outside of the task group, which would wrap it

        async def wait_for_leaving() -> None:
            nonlocal failed
            try:
                while (await receive())["type"] != "http.disconnect":
                    pass
            except (
                Refusal
            ) as refusal:  # a body that is too large, of a request that should have none
                failed = refusal
            has_left.set()
            # A thread cannot be ended from outside: while the server runs, its slot stays taken
            # until it returns.
            if self.stopping or not began:
                group.cancel_scope.cancel()

        self._waiting += 1
        try:
            async with create_task_group() as group:
                group.start_soon(wait_for_leaving)
                async with self._limiter:
                    began = True
                    try:
                        answer = await to_thread.run_sync(
                            self._count, compute, has_left.is_set, abandon_on_cancel=True
                        )
                    except Exception as problem:
                        failed = failed or problem
                group.cancel_scope.cancel()
        finally:
            self._waiting -= 1
        if failed is not None:
            raise failed
        return None if has_left.is_set() else answer

    def _count(
        self, compute: Callable[[Callable[[], bool]], HttpAnswer], has_left: Callable[[], bool]
    ) -> HttpAnswer:
        with self._lock:
            self.threads += 1
        try:
            return compute(has_left)
        finally:
            with self._lock:
                self.threads -= 1
