"""Events of a training run, and the reports that receive them: a report is a function of an
event.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .processes import import_required


@dataclass(frozen=True)
class Started:
    """A run starts at `step`: 0, or the step of a checkpoint.

    steps       the last step
    parameters  number of parameters of the model
    data        description of the data
    device      device of the first process, and `processes`, how many share the run
    left_out    how many rows of the data files are not in the data, by the reason

    Example:
        >>> from telescope.training import Started
        >>> Started(step=0, steps=100, parameters=5, data="2 examples", device="cpu", processes=1).steps
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

    loss               mean over all targets, in nats
    lr, norm           learning rate of the last step, and norm of its gradient before clipping;
                       None without clipping
    tokens_per_second  targets, without padding
    seconds_left       estimated from these steps

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

    Example:
        >>> from telescope.training import HeadsWatched
        >>> HeadsWatched(step=10, entropy={"blocks.0.self": (1.2, 0.1)}, logit={"blocks.0.self": (3.0, 9.5)}).step
        10
    """

    step: int
    entropy: Mapping[str, tuple[float, ...]]
    logit: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Validated:
    """The metrics of a validation, and whether it is the best so far.

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

    Example:
        >>> from telescope.training import Finished
        >>> Finished(step=100, kept=80).kept
        80
    """

    step: int
    kept: int


Event = Started | Logged | HeadsWatched | Validated | Saved | Stopped | Finished
Report = Callable[[Event], None]


def tensorboard(folder: Path) -> Report:
    """Return a report that writes TensorBoard logs to the folder.

    When a run resumes, logs after the step from which it resumes are purged: the run will write
    them again.
    """
    import_required("tensorboard")
    writer = None

    def report(event: Event) -> None:
        nonlocal writer
        match event:
            case Started():
                writer = import_required("torch.utils.tensorboard").SummaryWriter(
                    folder, purge_step=event.step + 1
                )
                return
            case Logged():
                numbers = {
                    "loss": event.loss,
                    "lr": event.lr,
                    "tokens_per_second": event.tokens_per_second,
                }
                numbers |= {} if event.norm is None else {"norm": event.norm}
                numbers = {f"train/{name}": number for name, number in numbers.items()}
            case Validated():
                numbers = {f"validation/{name}": number for name, number in event.metrics.items()}
            case HeadsWatched():
                numbers = {
                    f"{measure}/{name}.{head}": number
                    for measure, by_name in (
                        ("entropy", event.entropy),
                        ("largest_logit", event.logit),
                    )
                    for name, per_head in by_name.items()
                    for head, number in enumerate(per_head)
                }
            case _:
                numbers = {}
        assert writer is not None, "the first event must be Started"
        for name, number in numbers.items():
            writer.add_scalar(name, number, event.step)
        if isinstance(event, Finished | Stopped):
            writer.close()

    return report
