"""Captured steps of decoding without a GPU: a step of fixed shapes that runs as a graph does."""

from contextlib import contextmanager
from importlib import import_module

import pytest

generating = import_module("telescope.decoding.generate")  # `decoding.generate` is the function


class Replayed(generating.CapturedFunction):
    """Do what a captured step does to its inputs, its state and its output, without a GPU."""

    def _capture(self, inputs):
        before = [tensor.clone() for tensor in self.state]
        self.inputs = [tensor.clone() for tensor in inputs]
        try:
            # Two runs that leave no trace: the one before the capture, and the capture.
            self.function(*self.inputs)
            self._restore(before)
            self.output = self.function(*self.inputs).clone()
            self.graph = Replay(self)
        except RuntimeError as problem:
            self.failure = str(problem)
        self._restore(before)

    def _restore(self, before):
        for tensor, value in zip(self.state, before, strict=True):
            tensor.copy_(value)


class Replay:
    def __init__(self, captured):
        self.captured = captured

    def replay(self):
        self.captured.output.copy_(self.captured.function(*self.captured.inputs))


@contextmanager
def replayed_steps():
    """Let decoding capture its steps as it does on a GPU; yield the list of captured steps."""
    made = []

    class Noted(Replayed):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generating, "is_worth_capturing", lambda *_: True)
        patch.setattr(generating, "CapturedFunction", Noted)
        yield made
