"""TensorBoard: every number of a run, in OUT/log."""

from pathlib import Path

from .events import Event, Finished, Logged, Report, Started, Stopped, Validated, Watched
from .extra import needed


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
            case Watched():
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
