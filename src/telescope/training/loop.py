"""`train`: the loop. It goes on from where it was, whatever stopped it."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..files.definitions import must_be_savable, told
from ..layers.attend import DefinedLayer
from ..models import Model
from ..models.model import own_definition
from . import checkpoint, processes
from .batch import Data
from .checkpoint import Checkpoint
from .events import Event, Finished, HeadsWatched, Logged, Report, Saved, Started, Stopped, Validated, tensorboard
from .health import Heads, health
from .objectives import Learner, Objective
from .processes import Processes
from .progress import Clock, line
from .settings import Training, TrainingError, learning_rate
from .step import TrainingStep
from .validation import Average, Better, Validate

T = TypeVar("T")

# What may change when a run goes on: none of it changes a number.
FREE = ("compile", "capture", "shard", "log_every", "watch_every", "save_every")


def train(
    model: Model,
    data: Data,
    objective: Objective,
    settings: Training,
    out: Path,
    *,
    validate: Validate | None = None,
    better: str = "lowest loss",
    report: Report | None = None,
) -> Model:
    """Train a copy of the model, and return it ready to be used (`eval`), on the device and in every process.

    The model itself is left as it is: its weights, its gradients, its device, training or not.

    validate  what the model is worth: validate(model) gives figures by name, such as {"loss": 1.2, "bleu": 38.0}
    better    which validation is the best, whose weights are kept: "lowest loss", "highest bleu". Without `validate`
              those of the last step are
    report    is told what happens; unless given, a line on the terminal and TensorBoard in out/log

    Where `out` holds a checkpoint of the same run, it goes on from there, with the numbers it would have had; one of
    another run is refused. Under torchrun or accelerate launch all processes share the work.
    """
    run = TrainingRun(model, data, objective, settings, Path(out), validate, Better.of(better), report)
    return run.until_done()


@dataclass
class RunState:
    """Where a run is: steps done, the batches taken of an epoch, the best validation and how many came after it."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    best: float | None = None
    best_step: int | None = None
    waited: int = 0
    finished: bool = False


class TrainingRun:
    def __init__(
        self,
        model: Model,
        data: Data,
        objective: Objective,
        settings: Training,
        out: Path,
        validate: Validate | None,
        better: Better,
        report: Report | None,
    ) -> None:
        self.processes = Processes()
        self.device = self.processes.device
        self.objective, self.settings, self.out = objective, settings, out
        self.validate, self.better = validate, better
        self.model = deepcopy(model).to(self.device)  # learns
        self.model.zero_grad(set_to_none=True)  # gradients of before are no part of the first step
        self.judged = deepcopy(self.model).eval()  # validated and returned; the one that learns is never touched by it
        _must_be_savable(model)
        self.recipe = _recipe(model, data, settings)
        _must_know_all_ids(model, data)
        self.data = data.to(self.device)
        per_epoch = -(-len(self.data.batches(settings, 0)) // settings.accumulate)
        self.steps = per_epoch * settings.epochs if settings.steps is None else settings.steps  # type: ignore[operator]

        _same_everywhere(self.model)
        self.step = TrainingStep(self.processes, Learner(self.model, objective, settings).train(), settings)
        self.average = Average(settings.average)
        self.best: dict[str, Tensor] | None = None
        self.standing, self.saved = RunState(), 0
        checkpoint.seed(settings.seed, self.processes.rank)
        self.report = _report(self.out) if report is None and self.processes.first else report
        self.clock = Clock()

    # ------------------------------------------------------------------------------------------------------ learning

    def until_done(self) -> Model:
        self._restore()
        self._tell(
            Started(
                step=self.standing.step,
                steps=self.steps,
                parameters=sum(parameter.numel() for parameter in self.judged.parameters()),
                data=self.data.describe(),
                device=str(self.device),
                processes=self.processes.count,
            )
        )
        self.clock = Clock(self.standing.step)
        try:
            while not self.standing.finished:
                self._epoch()
        except BaseException:
            self._tell(Stopped(self.standing.step, self.saved))
            raise
        kept = self.best if self.best is not None else self._candidate()
        best = self.standing.best_step
        self._tell(Finished(self.standing.step, self.standing.step if best is None else best))
        processes.give_weights(self.judged, kept)
        return self.judged

    def _epoch(self) -> None:
        at, specs = self.standing, self.data.batches(self.settings, self.standing.epoch)
        while at.batch < len(specs) and not at.finished:
            some = specs[at.batch : at.batch + self.settings.accumulate]
            at.step += 1
            at.batch += len(some)
            self.step([self.data.take(spec) for spec in some], learning_rate(at.step, self.settings, self.steps))
            at.finished = at.step >= self.steps
            ended = at.batch >= len(specs)
            if ended:
                at.epoch, at.batch = at.epoch + 1, 0
            self._after_a_step(ended)
            if ended:
                return

    def _after_a_step(self, ended: bool) -> None:
        at, settings = self.standing, self.settings
        if at.step % settings.log_every == 0 or at.finished:
            self._log()
        with self.clock.stopped():
            if settings.watch_every and at.step % settings.watch_every == 0:
                self._watch()
            if settings.average > 1 and self._due(settings.average_every, ended):
                self.average.last.append(self._weights())
            if self.validate is not None and (self._due(settings.validate_every, ended) or at.finished):
                self._validate(self.validate)
            if at.step % settings.save_every == 0 or at.finished:
                self._save()

    def _due(self, every: int | None, ended: bool) -> bool:
        return ended if every is None else self.standing.step % every == 0

    # ------------------------------------------------------------------------------------------------------- looking

    def _log(self) -> None:
        at = self.standing
        loss, targets, norm = self.step.read()
        seconds, steps = self.clock.lap(at.step)
        self._must_be_finite(isfinite(loss), f"the loss is {loss}")
        self._tell(
            Logged(
                step=at.step,
                steps=self.steps,
                epoch=at.epoch,
                loss=loss,
                lr=learning_rate(at.step, self.settings, self.steps),
                norm=norm,
                tokens_per_second=targets / seconds,
                seconds_left=(self.steps - at.step) * seconds / max(1, steps),
            )
        )

    def _watch(self) -> None:
        """At a batch from the middle, the same every time."""
        weights = self._weights()
        if self.processes.first:
            specs = self.data.batches(self.settings, None)
            self._tell(HeadsWatched(self.standing.step, *self._judge(weights, self._health(specs[len(specs) // 2]))))

    def _health(self, spec: Any) -> Callable[[Model], tuple[Heads, Heads]]:
        return lambda model: health(model, self.data.take(spec), self.objective)

    def _judge(self, weights: dict[str, Tensor], what: Callable[[Model], T]) -> T:
        """What is said of a model with these weights; randomness is then as if nothing had happened."""
        gpus = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(gpus), torch.no_grad():
            self.judged.load_state_dict(weights)
            return what(self.judged)

    def _validate(self, validate: Validate) -> None:
        """By the first process, with the weights that would be kept."""
        at, candidate = self.standing, self._candidate()
        metrics = self.processes.from_first(dict(self._judge(candidate, validate)) if self.processes.first else {})
        figure = self.better.figure(metrics)
        better = self.better(figure, at.best)
        at.waited = 0 if better else at.waited + 1
        if better:
            at.best, at.best_step, self.best = figure, at.step, candidate
        self._tell(Validated(at.step, metrics, better))
        if self.settings.patience is not None and at.waited >= self.settings.patience:
            at.finished = True

    def _candidate(self) -> dict[str, Tensor]:
        """The weights that would be kept now: the mean of the last ones, or these."""
        return self.average.mean() if self.average.last else self._weights()

    def _weights(self) -> dict[str, Tensor]:
        weights = processes.weights(self.model)
        learnt = dict(self.model.named_parameters(remove_duplicate=False))  # a mask as a buffer may well have -inf
        finite = all(bool(tensor.isfinite().all()) for name, tensor in weights.items() if name in learnt)
        self._must_be_finite(finite, "weights are no longer numbers")
        return weights

    def _must_be_finite(self, finite: bool, what: str) -> None:
        if not finite:
            kept = f"the checkpoint of step {self.saved:,} is kept" if self.saved else "there is no checkpoint yet"
            raise TrainingError(
                f"at step {self.standing.step:,} {what}; {kept}; a lower lr, a longer warmup or clip=1.0 usually helps"
            )

    # ---------------------------------------------------------------------------------------------- saving, going on

    def _save(self) -> None:
        """Everything, so that it could go on from here as if it had not stopped."""
        at = self.standing
        optimiser = processes.optimiser_state(self.model, self.step.optimiser)
        states = self.processes.from_all(checkpoint.state(self.processes.rank, self.device))
        drawn = {name: state for several in states for name, state in several.items()}
        tensors = {"weights": self._weights(), "optimiser": optimiser, "random": drawn}
        if self.average.last:
            tensors["average"] = self.average.tensors()
        if self.best is not None:
            tensors["best"] = self.best
        total, targets = self.step.added_up()
        state = {"recipe": self.recipe, "standing": asdict(at), "total": total, "targets": targets}
        problem, folder = None, self.out
        if self.processes.first:
            try:
                folder = checkpoint.write(self.out, Checkpoint(at.step, state, tensors))
            except TrainingError as error:
                problem = str(error)
        problem = self.processes.from_first(problem)
        if problem is not None:
            raise TrainingError(problem)
        self.saved = at.step
        self._tell(Saved(at.step, folder))

    def _restore(self) -> None:
        found = checkpoint.read(self.out) if self.processes.first else None
        state = self.processes.from_first(None if found is None else found.state)
        if state is None:
            return
        for difference in checkpoint.differences(self.recipe, state["recipe"]):
            raise TrainingError(
                f"{self.out} holds a checkpoint of another run: {difference}; choose another folder, "
                "or remove its checkpoints to start anew"
            )
        self.standing = RunState(**state["standing"])
        self.saved = self.standing.step
        tensors: Any = {} if found is None else found.tensors
        processes.give_weights(self.model, tensors.get("weights", {}))
        processes.give_optimiser_state(self.model, self.step.optimiser, tensors.get("optimiser", {}))
        self.step.add_up(state["total"], state["targets"])
        checkpoint.restore(self.processes.from_first(tensors.get("random")), self.processes.rank, self.device)
        self.average.restore(self.processes.from_first(tensors.get("average", {})))
        self.best = self.processes.from_first(tensors.get("best"))

    def _tell(self, event: Event) -> None:
        if self.processes.first and self.report is not None:
            self.report(event)


def _recipe(model: Model, data: Data, settings: Training) -> dict[str, Any]:
    """What makes a run this run."""
    training = {name: value for name, value in settings.to_dict().items() if name not in FREE}
    config = {"kind": type(model).__name__, **model.config.to_dict()}
    attention = own_definition(model)
    own = {} if attention is None else {"attention": told(attention, {})}
    return {"training": training, "model": config | own, "data": data.describe()}


def _must_know_all_ids(model: Model, data: Data) -> None:
    known = [getattr(model.config, name, None) for name in ("vocabulary", "target_vocabulary")]
    vocabulary = max((size for size in known if size is not None), default=None)
    if vocabulary is not None and data.largest >= vocabulary:
        raise ValueError(f"the data has the id {data.largest}; the vocabulary is 0 to {vocabulary - 1}")


def _must_be_savable(model: Model) -> None:
    """Said before the training, not after it."""
    for name, module in model.named_modules():
        if isinstance(module, DefinedLayer):
            must_be_savable(f"{name}.attention", module.attention)


def _same_everywhere(model: Model) -> None:
    """Every process starts with the weights of the first."""
    for tensor in model.state_dict(keep_vars=True).values():
        processes.spread(None if processes.several() and torch.distributed.get_rank() else tensor.detach(), tensor)


def _report(out: Path) -> Report:
    said = line(), tensorboard(out / "log")

    def report(event: Event) -> None:
        for to in said:
            to(event)

    return report
