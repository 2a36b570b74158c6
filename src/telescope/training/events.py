"""What happens while a model learns, told to whoever wants to show or keep it: a function of an event."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Started:
    """`step` is where it goes on from: 0, or a checkpoint's."""

    step: int
    steps: int
    parameters: int
    data: str
    device: str
    processes: int


@dataclass(frozen=True)
class Logged:
    """Since the last one: the mean loss of every target, the length of the last gradient, if it is clipped."""

    step: int
    steps: int
    epoch: int
    loss: float
    lr: float
    norm: float | None
    tokens_per_second: float  # targets that count
    seconds_left: float


@dataclass(frozen=True)
class Watched:
    """For each head of each attention, by name: the mean entropy of its queries, and its largest logit."""

    step: int
    entropy: Mapping[str, tuple[float, ...]]
    logit: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Validated:
    step: int
    metrics: Mapping[str, float]
    best: bool


@dataclass(frozen=True)
class Saved:
    step: int
    folder: Path


@dataclass(frozen=True)
class Stopped:
    """By whoever runs it, or by a fault. The same command goes on from the checkpoint of step `saved`; 0 is none."""

    step: int
    saved: int


@dataclass(frozen=True)
class Finished:
    """`kept` is the step whose weights it has: the last one's, or the best by validation."""

    step: int
    kept: int


Event = Started | Logged | Watched | Validated | Saved | Stopped | Finished
Report = Callable[[Event], None]
