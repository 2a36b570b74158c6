"""The queue of requests: answers are computed in threads, a few at a time, and browsers take turns.

A class shares one server. A browser that sends a hundred requests waits for its own; between two of
them every other browser that waits has its turn.
"""

from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from threading import Event, Lock

import anyio
from anyio import create_task_group, to_thread
from starlette.types import Receive

from .answers import Refusal
from .api import HttpAnswer

# Requests that may be queued or computed: forty browsers with the six connections that each opens.
MOST_WAITING = 256
MOST_OF_ONE = 96  # of one browser, so that it alone cannot fill the queue


class Computing:
    """The answers that are queued or being computed: at most `at_once` of them in threads at a
    time.

    Models read texts one at a time, in a queue of their own: those who wait for one take no thread
    from the others.
    """

    def __init__(self, at_once: int) -> None:
        self.stopping = False
        """Whether the server ends: nobody waits any longer for a thread that still computes."""
        self.threads = 0
        """How many threads compute, those included that nobody waits for."""
        self._turns = Turns(at_once, 1)
        self._lock = Lock()
        self._waiting: dict[str, int] = {}

    async def run(
        self,
        receive: Receive,
        compute: Callable[[Callable[[], bool]], HttpAnswer],
        browser: str = "",
        *,
        reads: bool = False,
    ) -> HttpAnswer | None:
        """Return what `compute` returns, or None if the reader has left.

        `compute` runs in a thread and is given a function that tells whether the reader has left. A
        reader who leaves the queue is not computed for. `reads` says that a model has to read a
        text. Raises Refusal 503 if the queue is full, or the share of this browser.
        """
        # Refuse at once what would only wait: the queue must not grow without limit.
        waiting = self._waiting.get(browser, 0)
        if waiting >= MOST_OF_ONE or sum(self._waiting.values()) >= MOST_WAITING:
            raise Refusal(503, "busy", "too many requests at once; try again in a second")
        has_left = Event()
        began = False
        answer = None
        failed: Exception | None = None  # raised outside of the task group, which would wrap it

        async def wait_for_leaving() -> None:
            nonlocal failed
            try:
                # Drop whatever else arrives until the connection ends.
                while (await receive())["type"] != "http.disconnect":
                    pass
            except Refusal as refusal:
                failed = refusal  # a body that is too large, of a request that should have none
            has_left.set()
            # A thread cannot be ended from outside: while the server runs, its slot stays taken
            # until it returns.
            if self.stopping or not began:
                group.cancel_scope.cancel()

        # One task waits for the reader to leave while the answer is computed in a thread.
        self._waiting[browser] = waiting + 1
        try:
            async with create_task_group() as group:
                group.start_soon(wait_for_leaving)
                # Wait for a slot: for a reader who leaves before that, nothing is computed.
                async with self._turns.slot(browser, reads=reads):
                    began = True
                    try:
                        answer = await to_thread.run_sync(
                            self._count, compute, has_left.is_set, abandon_on_cancel=True
                        )
                    except Exception as problem:
                        failed = failed or problem
                # The answer is there: end the task that waits for the reader to leave.
                group.cancel_scope.cancel()
        finally:
            self._waiting[browser] -= 1
            if not self._waiting[browser]:
                del self._waiting[browser]
        if failed is not None:
            raise failed
        return None if has_left.is_set() else answer

    def _count(
        self, compute: Callable[[Callable[[], bool]], HttpAnswer], has_left: Callable[[], bool]
    ) -> HttpAnswer:
        # Under a lock: `+=` of two threads at once could lose one.
        with self._lock:
            self.threads += 1
        try:
            return compute(has_left)
        finally:
            with self._lock:
                self.threads -= 1


class Turns:
    """Slots that browsers are given in turn; `reading` of the slots, at most, to requests for which
    a model reads a text.

    All methods run in the event loop, so that they need no lock.
    """

    def __init__(self, slots: int, reading: int) -> None:
        self._free = slots
        self._free_to_read = reading
        # The browser whose turn is next is the first; each has its requests in their order.
        self._queues: OrderedDict[str, deque[_Request]] = OrderedDict()

    @asynccontextmanager
    async def slot(self, browser: str, *, reads: bool) -> AsyncIterator[None]:
        """Wait for a slot, and hold it inside of the block."""
        request = _Request(reads)
        self._queues.setdefault(browser, deque()).append(request)
        self._give()
        try:
            await request.turn.wait()
            yield
        finally:
            # A request that had a slot frees it; one that had none yet leaves the queue.
            if request.turn.is_set():
                self._free += 1
                self._free_to_read += request.reads
            else:
                self._take_out(browser, request)
            self._give()

    def _give(self) -> None:
        """Give the free slots to the browsers that come next."""
        given = True
        while given and self._free:
            given = False
            for browser, queue in self._queues.items():
                # A question need not wait behind a sentence of the same browser.
                able = (one for one in queue if self._free_to_read or not one.reads)
                request = next(able, None)
                if request is not None:
                    self._take_out(browser, request)
                    self._free -= 1
                    self._free_to_read -= request.reads
                    request.turn.set()
                    given = True
                    break

    def _take_out(self, browser: str, request: "_Request") -> None:
        """Take a request out of its queue; the browser is then the last in turn."""
        queue = self._queues[browser]
        queue.remove(request)
        self._queues.move_to_end(browser)
        if not queue:
            del self._queues[browser]


class _Request:
    def __init__(self, reads: bool) -> None:
        self.reads = reads
        self.turn = anyio.Event()
