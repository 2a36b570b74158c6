"""The training loop: run steps, log, validate, save checkpoints, and resume from the last one."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..files import locked_folder
from ..models import Model
from . import checkpoint, processes
from .batch import Data
from .checkpoint import Checkpoint
from .events import (
    Event,
    Finished,
    HeadsWatched,
    Logged,
    Report,
    Saved,
    Started,
    Stopped,
    Validated,
)
from .objectives import Criterion, Learner, Objective, Validate, WeightAverage, head_health
from .processes import Processes, StopRequest, stop_error
from .reports import Clock, default_report
from .settings import Training, TrainingError, learning_rate
from .step import TrainingStep

T = TypeVar("T")


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
    left_out: Mapping[str, int] | None = None,
) -> Model:
    """Train a copy of the model and return the copy in `eval` mode, on the training device, in
    every process.

    The model passed in is left unchanged: its weights, gradients, device and training mode.

    If `out` holds a checkpoint of the same run, training resumes from there, with the numbers of a
    run that was never interrupted. Under torchrun or accelerate launch all processes share each
    batch. SIGTERM and Ctrl-C stop the run after the current step, with a checkpoint; `train` then
    raises SystemExit(143) or KeyboardInterrupt. A second Ctrl-C stops at once, without.

    Args:
        model: the model to copy and train.
        data: `Examples`, `Windows` or any other `Data`; moved to the training device.
        objective: `language`, `translation` or any other function from model and batch to a summed
            loss.
        settings: length of the run, batches, optimiser and intervals.
        out: folder of the run: checkpoints in out/checkpoints, TensorBoard logs in out/log, and
            out/log.jsonl.
        validate: returns metrics of a model by name, such as {"loss": 1.2, "bleu": 38.0}; called in
            the first process.
        better: the metric that selects the weights to return: "lowest loss", "highest bleu".
            Without `validate` the weights of the last step are returned.
        report: called with each event, in the first process. By default events go to the terminal,
            to TensorBoard and to out/log.jsonl, which `read_log` reads.
        left_out: how many rows the data lacks, by the reason, such as {"empty": 3}; reported with
            the start.

    Raises:
        TrainingError: if `out` holds a checkpoint of another run, if a loss or a weight is not
            finite, or if a checkpoint cannot be written; ValueError if the data has ids outside the
            model's vocabulary, or if another process trains in `out`.

    Example:
        >>> from telescope.models import GPT, GPTConfig
        >>> from telescope.training import Training, Windows, language, train
        >>> model = GPT(
        ...     GPTConfig(vocabulary=4, max_positions=8, d_model=8, blocks=1, heads=2)
        ... )
        >>> events = []
        >>> settings = Training(steps=2, rows=2)
        >>> data = Windows([0, 1, 2, 3] * 8, block=8)
        >>> trained = train(
        ...     model, data, language, settings, "run", report=events.append
        ... )
        >>> [type(event).__name__ for event in events]
        ['Started', 'Logged', 'Saved', 'Finished']
    """
    run = TrainingRun(
        model, data, objective, settings, Path(out), validate, Criterion.parse(better), report
    )
    with locked(Path(out), run.processes):
        return run.run(left_out or {})


@contextmanager
def locked(folder: Path, among: Processes) -> Iterator[None]:
    """Lock the folder of a run in the first process; if another run has the lock, raise a
    ValueError in all.
    """
    with ExitStack() as stack:
        # Entered in the first process alone, and left in it: the others hold nothing.
        among.in_first(lambda: stack.enter_context(locked_folder(folder)))
        yield


@dataclass
class RunState:
    """Progress of a run, as saved in its checkpoints.

    step       optimiser steps done
    epoch      the current epoch, counted from 0
    batch      batches already used in this epoch
    best       best value of the validation metric, and best_step, the step of that validation
    waited     validations since the best one
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    best: float | None = None
    best_step: int | None = None
    waited: int = 0
    finished: bool = False


class TrainingRun:
    """One run of `train`: the model that learns, a second copy for validation, the step and the
    run's state.
    """

    def __init__(
        self,
        model: Model,
        data: Data,
        objective: Objective,
        settings: Training,
        out: Path,
        validate: Validate | None,
        criterion: Criterion,
        report: Report | None,
    ) -> None:
        self.processes = Processes()
        self.device = self.processes.device
        self.objective = objective
        self.settings = settings
        self.out = out
        self.validate = validate
        self.criterion = criterion

        # One copy learns; gradients of the caller's model must not enter its first step.
        self.model = deepcopy(model).to(self.device)
        self.model.zero_grad(set_to_none=True)
        # Another copy is validated and returned: validation never touches the one that learns.
        self.eval_model = deepcopy(self.model).eval()

        self.identity = checkpoint.run_identity(model, data, settings)
        _check_ids(model, data)
        self.data = data.to(self.device)
        per_epoch = -(-len(self.data.batches(settings, 0)) // settings.accumulate)
        self.steps = settings.steps or per_epoch * (settings.epochs or 1)

        # Every process begins with the weights of the first.
        own_weights = self.model.state_dict() if self.processes.is_first else {}
        processes.load_weights(self.model, own_weights)
        self.step = TrainingStep(
            self.processes, Learner(self.model, objective, settings).train(), settings
        )
        self.average = WeightAverage(settings.average)
        self.best_weights: dict[str, Tensor] | None = None
        self.state = RunState()
        self.saved_step = 0
        # Only now: whatever was drawn before must not matter.
        checkpoint.seed_generators(settings.seed, self.processes.rank)
        self.report = report
        if report is None and self.processes.is_first:
            self.report = default_report(self.out)
        self.clock = Clock()
        self.stop = StopRequest()

    # ------------------------------------------------------------------------------------- learning

    def run(self, left_out: Mapping[str, int]) -> Model:
        """Train until the last step and return the model with the best weights."""
        self._restore()
        self._emit(
            Started(
                step=self.state.step,
                steps=self.steps,
                parameters=sum(parameter.numel() for parameter in self.eval_model.parameters()),
                data=self.data.describe(),
                device=str(self.device),
                processes=self.processes.count,
                left_out=left_out,
            )
        )
        self.clock = Clock(self.state.step)
        try:
            with self.stop:
                while not self.state.finished:
                    self._run_epoch()
        # Ctrl-C too: the report tells from where the next run goes on.
        except BaseException:
            self._emit(Stopped(self.state.step, self.saved_step))
            raise
        # The best weights by validation; without a validation, the last ones.
        weights = self.best_weights if self.best_weights is not None else self._candidate_weights()
        kept = self.state.step if self.state.best_step is None else self.state.best_step
        self._emit(Finished(self.state.step, kept))
        processes.load_weights(self.eval_model, weights)
        return self.eval_model

    def _run_epoch(self) -> None:
        """Run the steps that are left of this epoch."""
        state = self.state
        specs = self.data.batches(self.settings, self.state.epoch)
        while state.batch < len(specs) and not state.finished:
            step_specs = specs[state.batch : state.batch + self.settings.accumulate]
            state.step += 1
            state.batch += len(step_specs)
            lr = learning_rate(state.step, self.settings, self.steps)
            self.step([self.data.take(spec) for spec in step_specs], lr)
            state.finished = state.step >= self.steps
            # The state already names the next batch when a checkpoint is saved.
            epoch_ended = state.batch >= len(specs)
            if epoch_ended:
                state.epoch = state.epoch + 1
                state.batch = 0
            self._after_step(epoch_ended)
            self._stop_if_asked()
            if epoch_ended:
                return

    def _after_step(self, epoch_ended: bool) -> None:
        """Log, watch, average, validate and save, each where its interval is over."""
        state = self.state
        settings = self.settings
        if state.step % settings.log_every == 0 or state.finished:
            self._log()
        # What follows is not part of the speed that is reported.
        with self.clock.paused():
            if settings.watch_every and state.step % settings.watch_every == 0:
                self._watch_heads()
            if settings.average > 1 and self._is_due(settings.average_every, epoch_ended):
                self.average.last.append(self._current_weights())
            if self.validate is not None and (
                self._is_due(settings.validate_every, epoch_ended) or state.finished
            ):
                self._validate(self.validate)
            if state.step % settings.save_every == 0 or state.finished:
                self._save()

    def _stop_if_asked(self) -> None:
        """Save a checkpoint and raise, if a signal asks this process or another one to stop."""
        # The last step waits for the flags of all processes: no later step would.
        number = self.stop.agreed(last=self.state.finished)
        if number:
            if self.saved_step != self.state.step:
                self._save()
            raise stop_error(number)

    def _is_due(self, every: int | None, epoch_ended: bool) -> bool:
        return epoch_ended if every is None else self.state.step % every == 0

    # ----------------------------------------------------------------------- logging and validation

    def _log(self) -> None:
        state = self.state
        loss, targets, norm = self.step.read_and_reset()
        seconds, steps = self.clock.lap(state.step)
        self._check_finite(isfinite(loss), f"the loss is {loss}")
        self._emit(
            Logged(
                step=state.step,
                steps=self.steps,
                epoch=state.epoch,
                loss=loss,
                lr=learning_rate(state.step, self.settings, self.steps),
                norm=norm,
                tokens_per_second=targets / seconds,
                seconds_left=(self.steps - state.step) * seconds / max(1, steps),
            )
        )

    def _watch_heads(self) -> None:
        """Report entropy and largest logit of all heads, on the middle batch of the data: the same
        one every time.
        """
        weights = self._current_weights()
        if self.processes.is_first:
            specs = self.data.batches(self.settings, None)
            batch = self.data.take(specs[len(specs) // 2])
            measured = self._evaluate(
                weights, lambda model: head_health(model, batch, self.objective)
            )
            self._emit(HeadsWatched(self.state.step, *measured))

    def _evaluate(self, weights: dict[str, Tensor], function: Callable[[Model], T]) -> T:
        """Call the function on the evaluation model with these weights; the random generators are
        left as they were.
        """
        # Validation draws as it likes: the training goes on with the same random numbers.
        gpus = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(gpus), torch.no_grad():
            self.eval_model.load_state_dict(weights)
            return function(self.eval_model)

    def _validate(self, validate: Validate) -> None:
        """Validate the candidate weights in the first process, and keep them in all processes if
        they are the best.
        """
        state = self.state
        candidate = self._candidate_weights()
        # The first process validates; all must agree on which weights are the best.
        metrics = self.processes.broadcast(
            dict(self._evaluate(candidate, validate)) if self.processes.is_first else {}
        )
        value = self.criterion.value(metrics)
        is_best = self.criterion.is_better(value, state.best)
        state.waited = 0 if is_best else state.waited + 1
        if is_best:
            state.best = value
            state.best_step = state.step
            self.best_weights = candidate
        self._emit(Validated(state.step, metrics, is_best))
        if self.settings.patience is not None and state.waited >= self.settings.patience:
            state.finished = True

    def _candidate_weights(self) -> dict[str, Tensor]:
        """Return the weights to validate or to return: the mean of the last snapshots, or the
        current weights.
        """
        return self.average.mean() if self.average.last else self._current_weights()

    def _current_weights(self) -> dict[str, Tensor]:
        """Return the model's weights on the CPU, and raise a TrainingError if a parameter is not
        finite.
        """
        weights = processes.gather_weights(self.model)
        # Parameters alone: a mask kept as a buffer may hold -inf.
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        finite = all(bool(weights[name].isfinite().all()) for name in parameters)
        self._check_finite(finite, "weights are no longer numbers")
        return weights

    def _check_finite(self, finite: bool, problem: str) -> None:
        if not finite:
            kept = "there is no checkpoint yet"
            if self.saved_step:
                kept = f"the checkpoint of step {self.saved_step:,} is kept"
            raise TrainingError(
                f"at step {self.state.step:,} {problem}; {kept}; a lower lr, a longer warmup or "
                "clip=1.0 usually helps"
            )

    # -------------------------------------------------------------------------- saving and resuming

    def _save(self) -> None:
        """Write a checkpoint from which a resumed run computes the same numbers as this one."""
        state = self.state
        optimiser = processes.gather_optimiser_state(self.model, self.step.optimiser)
        per_process = self.processes.gather(
            checkpoint.generator_states(self.processes.rank, self.device)
        )
        random = {name: tensor for states in per_process for name, tensor in states.items()}
        tensors = {"weights": self._current_weights(), "optimiser": optimiser, "random": random}
        if self.average.last:
            tensors["average"] = self.average.tensors()
        if self.best_weights is not None:
            tensors["best"] = self.best_weights
        # The sum of each process by itself: adding them up here would change how later losses are
        # rounded.
        total, targets = self.step.sums()
        totals = self.processes.gather(total)
        contents = {
            "recipe": self.identity,
            "standing": asdict(state),
            "totals": totals,
            "targets": targets,
        }
        folder = self.processes.in_first(
            lambda: checkpoint.write(self.out, Checkpoint(state.step, contents, tensors))
        )
        self.saved_step = state.step
        self._emit(Saved(state.step, folder))

    def _restore(self) -> None:
        """Load the last checkpoint of `out`, if there is one; raise a TrainingError if it is that
        of another run.
        """
        # The first process reads the checkpoint, and tells the others its JSON.
        found: list[Checkpoint] = []

        def read() -> Mapping[str, Any] | None:
            last = checkpoint.read(self.out, RunState)
            if last is None:
                return None
            found.append(last)
            return last.state

        contents = self.processes.in_first(read)
        if contents is None:
            return
        for difference in checkpoint.differences(self.identity, contents["recipe"]):
            raise TrainingError(
                f"{self.out} holds a checkpoint of another run: {difference}; choose another "
                "folder, or remove its checkpoints to start anew"
            )
        self.processes.in_first(lambda: checkpoint.check_tensors(found[0], self.out, self.model))
        self.state = RunState(**contents["standing"])
        self.saved_step = self.state.step
        # A run that was killed right after it saved has not removed the checkpoint before.
        if self.processes.is_first:
            checkpoint.remove_others(self.out, self.saved_step)

        # All that changes a number: weights, optimiser, sums of losses, random generators.
        tensors: Any = found[0].tensors if found else {}
        processes.load_weights(self.model, tensors.get("weights", {}))
        processes.load_optimiser_state(
            self.model, self.step.optimiser, tensors.get("optimiser", {})
        )
        # Each process takes its own sum; with more or fewer processes, the first takes all.
        totals = contents["totals"]
        if len(totals) == self.processes.count:
            own_total = totals[self.processes.rank]
        else:
            own_total = sum(totals) if self.processes.is_first else 0.0
        self.step.set_sums(own_total, contents["targets"])
        random = self.processes.broadcast(tensors.get("random"))
        checkpoint.restore_generators(random, self.processes.rank, self.device)
        self.average.restore(self.processes.broadcast(tensors.get("average", {})))
        self.best_weights = self.processes.broadcast(tensors.get("best"))

    def _emit(self, event: Event) -> None:
        """Pass an event to the report, in the first process."""
        if self.processes.is_first and self.report is not None:
            self.report(event)


def _check_ids(model: Model, data: Data) -> None:
    """Raise a ValueError if the data has an id outside the model's vocabularies."""
    # An id outside would fail in a GPU kernel, without a sentence.
    sizes = [getattr(model.config, name, None) for name in ("vocabulary", "target_vocabulary")]
    vocabulary = max((size for size in sizes if size is not None), default=None)
    if vocabulary is not None and data.largest >= vocabulary:
        raise ValueError(
            f"the data has the id {data.largest}; the vocabulary is 0 to {vocabulary - 1}"
        )
