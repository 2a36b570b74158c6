"""What happens while a model learns, told to whoever wants to show or keep it: a function of an event."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .processes import needed


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
class HeadsWatched:
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


Event = Started | Logged | HeadsWatched | Validated | Saved | Stopped | Finished
Report = Callable[[Event], None]


def tensorboard(folder: Path) -> Report:
    """What a run that goes on will say again is forgotten: all after the step from which it goes on."""
    needed("tensorboard")
    writer = None

    def report(event: Event) -> None:
        nonlocal writer
        match event:
            case Started():
                writer = needed("torch.utils.tensorboard").SummaryWriter(folder, purge_step=event.step + 1)
                return
            case Logged():
                numbers = {"loss": event.loss, "lr": event.lr, "tokens_per_second": event.tokens_per_second}
                numbers |= {} if event.norm is None else {"norm": event.norm}
                numbers = {f"train/{name}": number for name, number in numbers.items()}
            case Validated():
                numbers = {f"validation/{name}": number for name, number in event.metrics.items()}
            case HeadsWatched():
                numbers = {
                    f"{what}/{name}.{head}": number
                    for what, heads in (("entropy", event.entropy), ("largest_logit", event.logit))
                    for name, several in heads.items()
                    for head, number in enumerate(several)
                }
            case _:
                numbers = {}
        assert writer is not None, "it is told first that a run has started"
        for name, number in numbers.items():
            writer.add_scalar(name, number, event.step)
        if isinstance(event, Finished | Stopped):
            writer.close()

    return report
