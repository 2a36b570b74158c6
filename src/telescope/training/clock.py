"""How long learning took, without what is done in between."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter


class Clock:
    def __init__(self, step: int = 0) -> None:
        self.since, self.step = perf_counter(), step

    def lap(self, step: int) -> tuple[float, int]:
        """The seconds and the steps since the last lap."""
        now = perf_counter()
        seconds, steps = now - self.since, step - self.step
        self.since, self.step = now, step
        return max(seconds, 1e-9), steps

    @contextmanager
    def stopped(self) -> Iterator[None]:
        before = perf_counter()
        yield
        self.since += perf_counter() - before
