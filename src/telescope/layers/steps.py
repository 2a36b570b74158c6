"""How the steps of a model that writes are observed where hooks cannot run: in a CUDA graph.

Decoding asks `step_observers` whether what observes a model can follow captured steps; the room
that registers hooks answers. So neither room knows the other.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from jaxtyping import Bool, Int
from torch import Tensor, nn


class StepFollower(ABC):
    """Follow the captured steps of one generation, in the place of hooks."""

    state: tuple[Tensor, ...]
    """What a step changes besides the caches."""

    @abstractmethod
    def running(self, tokens: Int[Tensor, " rows"]) -> AbstractContextManager[None]:
        """Return the context in which a step runs that reads these tokens. Nothing in it depends on
        the number of the step, so that the step can be captured.

        Raise a RuntimeError where a step of this model cannot be followed.
        """

    @abstractmethod
    def count(self) -> None:
        """Note that one more step has run, captured or not."""

    @abstractmethod
    def is_current(self) -> bool:
        """Return whether the observers of the model are those that the follower was made for."""

    @abstractmethod
    def close(self) -> None:
        """Let the model run its hooks again. Steps that were counted may be read afterwards."""


class StepsToFollow(NamedTuple):
    """The steps that a model is about to write."""

    model: nn.Module
    before: int
    """How many tokens of each row the model has read before the first step."""
    tokens: Int[Tensor, " rows"]
    """The tokens of some step, for their shape and device."""
    real: Callable[[int], Bool[Tensor, "rows token"] | None]
    """Returns which of the latest tokens of each row count, after so many steps; see `OnlyReal`."""


class StepObservers:
    """What observes the models that write."""

    def __init__(self) -> None:
        self.changes = 0
        """How often observers came or went, of whichever model."""
        self.make_follower: Callable[[StepsToFollow], StepFollower | None] | None = None

    def follow(self, steps: StepsToFollow) -> StepFollower | None:
        """Return a follower for all hooks of a model, or None if one of them has to be called."""
        return None if self.make_follower is None else self.make_follower(steps)


step_observers = StepObservers()
