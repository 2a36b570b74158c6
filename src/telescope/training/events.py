"""Events of a training run. A report is a function that receives them; see reports.py."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Started:
    """A run starts at `step`: 0, or the step of a checkpoint.

    Attributes:
        steps: the last step.
        parameters: number of parameters of the model.
        data: description of the data.
        device: device of the first process, and `processes`, how many share the run.
        left_out: how many rows of the data files are not in the data, by the reason.
        step: the first step.
        processes: how many share the run.

    Example:
        >>> from telescope.training import Started
        >>> Started(
        ...     0, 100, parameters=5, data="2 examples", device="cpu", processes=1
        ... ).steps
        100
    """

    step: int
    steps: int
    parameters: int
    data: str
    device: str
    processes: int
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Logged:
    """Figures of the steps since the last `Logged`.

    Attributes:
        loss: mean over all targets, in nats.
        lr, norm: learning rate of the last step, and norm of its gradient before clipping; None
            without clipping.
        tokens_per_second: targets, without padding.
        seconds_left: estimated from these steps.
        step, steps: the step, and the last one.
        epoch: the number of the epoch, from 0.

    Example:
        >>> from telescope.training import Logged
        >>> fields = {"step": 1, "steps": 4, "epoch": 0, "lr": 1e-3, "norm": None}
        >>> Logged(loss=2.5, tokens_per_second=1e3, seconds_left=3.0, **fields).loss
        2.5
    """

    step: int
    steps: int
    epoch: int
    loss: float
    lr: float
    norm: float | None
    tokens_per_second: float
    seconds_left: float


@dataclass(frozen=True)
class HeadsWatched:
    """The mean entropy of each head's queries, in nats, and each head's largest logit, by the name
    of the attention.

    Attributes:
        step: after which the heads were measured.
        entropy: of each head, the mean over its queries in nats, by the name of the attention.
        logit: of each head the largest score, by the name of the attention.

    Example:
        >>> from telescope.training import HeadsWatched
        >>> entropy = {"blocks.0.self": (1.2, 0.1)}
        >>> HeadsWatched(
        ...     step=10, entropy=entropy, logit={"blocks.0.self": (3.0, 9.5)}
        ... ).step
        10
    """

    step: int
    entropy: Mapping[str, tuple[float, ...]]
    logit: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Validated:
    """The metrics of a validation, and whether it is the best so far.

    Attributes:
        step: after which the model was validated.
        metrics: the numbers by name.
        best: whether no earlier validation was better.

    Example:
        >>> from telescope.training import Validated
        >>> Validated(step=10, metrics={"loss": 1.5}, best=True).metrics["loss"]
        1.5
    """

    step: int
    metrics: Mapping[str, float]
    best: bool


@dataclass(frozen=True)
class Saved:
    """A checkpoint of `step` was written to `folder`.

    Attributes:
        step: whose state was written.
        folder: of the checkpoint.

    Example:
        >>> from pathlib import Path
        >>> from telescope.training import Saved
        >>> Saved(step=10, folder=Path("out/checkpoints/step-00000010")).folder.name
        'step-00000010'
    """

    step: int
    folder: Path


@dataclass(frozen=True)
class Stopped:
    """The run was interrupted or failed at `step`. It can resume from the checkpoint of step
    `saved`; 0 is none.

    Attributes:
        step: the last step that was run.
        saved: the step of the last checkpoint; 0 is none.

    Example:
        >>> from telescope.training import Stopped
        >>> Stopped(step=131, saved=100).saved
        100
    """

    step: int
    saved: int


@dataclass(frozen=True)
class Finished:
    """The run is done at `step`, with the weights of step `kept`: the best by validation, or the
    last.

    Attributes:
        step: the last step.
        kept: the step whose weights are kept.

    Example:
        >>> from telescope.training import Finished
        >>> Finished(step=100, kept=80).kept
        80
    """

    step: int
    kept: int


# Each event is a value of its own: a report matches those that it wants.
Event = Started | Logged | HeadsWatched | Validated | Saved | Stopped | Finished
"""Everything that a training reports.

Example:
    >>> from telescope.training import Event, Finished
    >>> isinstance(Finished(step=100, kept=80), Event)
    True
"""
Report = Callable[[Event], None]
"""What `train(report=...)` takes: a function that is called with each event.

Example:
    >>> from telescope.training import Report
    >>> events = []
    >>> report: Report = events.append
"""
