"""Callbacks for other people's trainers: the health of attention in transformers' Trainer and in
Lightning.

Neither library is imported here: their trainers ask a callback for methods by name, and do without
a base class.
"""

import sys
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch

from .health import Health

__all__ = ["LightningCallback", "TransformersCallback"]


class TransformersCallback:
    """Measure attention every N steps of a transformers Trainer, and log it to wherever the Trainer
    logs.

    callback = telescope.callbacks.TransformersCallback(every=50)
    trainer = transformers.Trainer(model, ..., callbacks=[callback])

    Args:
        every: measure after each `every`-th step of the optimiser.
        probe: the batch to measure, as the model takes it; by default the first batch of the
            training data, so that all measurements are of the same sequences.
        options: those of `ts.Health`: sequences, rules, on_alert, tau, run.

    Example:
        >>> from telescope.callbacks import TransformersCallback
        >>> TransformersCallback(every=100, tau=100.0).every
        100
        >>> from types import SimpleNamespace
        >>> import telescope as ts, torch
        >>> config = ts.models.GPTConfig(vocabulary=10, d_model=8, heads=2, blocks=1)
        >>> model = ts.models.GPT(config)
        >>> callback = TransformersCallback(
        ...     every=1, probe={"ids": torch.tensor([[1, 2, 3]])}
        ... )
        >>> state = SimpleNamespace(global_step=1, log_history=[])
        >>> # As the Trainer calls them
        >>> callback.on_train_begin(None, state, None, model=model)
        >>> callback.on_step_end(None, state, None)
        >>> state.log_history[0]["attention/alerts"]
        0.0
    """

    def __init__(self, every: int = 50, *, probe: Any = None, **options: Any) -> None:
        self.every = every
        self.probe = probe
        self.options = options
        self.health: Health | None = None
        self.trainer: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Take the model and, unless a probe was given, the first batch of the training data.

        Args:
            args, state, control, given: what the Trainer passes.
        """
        self.trainer = _trainer_of(self)
        self.health = Health(given["model"], self.every, log=None, **self.options)
        if self.probe is None:
            data = given.get("train_dataloader")
            if data is None:
                raise ValueError(
                    "this Trainer shows its callbacks no training data; pass a batch: probe=batch"
                )
            with torch.random.fork_rng():  # the training shuffles as if nothing had been drawn
                self.probe = next(iter(data))

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Measure, if it is time, and log.

        Args:
            args, state, control, given: what the Trainer passes.
        """
        if self.health is None or state.global_step % self.every:
            return
        self.health.steps = state.global_step
        device = next(self.health.model.parameters()).device
        batch = {
            name: _to(value, device)
            for name, value in dict(self.probe).items()
            if name != "num_items_in_batch"
        }
        scalars = self.health.measure(batch).scalars()
        if self.trainer is not None:
            wanted = control.should_log
            self.trainer.log(scalars)
            control.should_log = (
                wanted  # which logging switches off: the Trainer's own loss is still to come
            )
        else:
            state.log_history.append({**scalars, "step": state.global_step})

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return a function that does nothing for each event that is not of interest."""
        if name.startswith("on_"):
            return lambda *args, **given: None
        raise AttributeError(name)


class LightningCallback:
    """Measure attention every N batches of a Lightning Trainer, and log it to each of the Trainer's
    loggers.

    trainer = lightning.Trainer(callbacks=[telescope.callbacks.LightningCallback(every=50)])

    Args:
        every: measure after each `every`-th training batch.
        run: called with the LightningModule and a batch, to run its forward pass; by default
            `training_step` with logging switched off. A module that steps its optimisers by hand
            needs `run`.
        options: those of `ts.Health`: sequences, rules, on_alert, tau.

    Example:
        >>> from telescope.callbacks import LightningCallback
        >>> LightningCallback(every=100).every
        100
        >>> from types import SimpleNamespace
        >>> import telescope as ts, torch
        >>> config = ts.models.GPTConfig(vocabulary=10, d_model=8, heads=2, blocks=1)
        >>> model = ts.models.GPT(config)
        >>> trainer = SimpleNamespace(loggers=[], global_step=1, callback_metrics={})
        >>> callback = LightningCallback(
        ...     every=1, run=lambda module, batch: module(batch)
        ... )
        >>> callback.on_train_batch_end(
        ...     trainer, model, None, torch.tensor([[1, 2, 3]]), batch_idx=0
        ... )
        >>> trainer.callback_metrics["attention/alerts"].item()
        0.0
    """

    def __new__(cls, *args: Any, **options: Any) -> Any:
        """Return an object that is a callback of whichever Lightning is installed, whose Trainer
        asks for its class.
        """
        bases = tuple(
            sys.modules[name].Callback
            for name in ("lightning.pytorch", "pytorch_lightning")
            if hasattr(sys.modules.get(name), "Callback")
        )
        if not bases or issubclass(cls, bases):
            return super().__new__(cls)
        return object.__new__(type(cls.__name__, (cls, *bases[:1]), {}))

    def __init__(
        self, every: int = 50, *, run: Callable[..., object] | None = None, **options: Any
    ) -> None:
        self.every = every
        self.own_run = run
        self.options = options
        self.health: Health | None = None

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measure, if it is time, and log.

        Args:
            trainer, pl_module, outputs, batch, batch_idx: what the Trainer passes.
        """
        if self.health is None:
            self.health = Health(pl_module, self.every, run=self._run, **self.options)
        report = self.health.step(batch)
        if report is not None:
            for logger in trainer.loggers:
                logger.log_metrics(report.scalars(), step=trainer.global_step)
            values = {name: torch.tensor(value) for name, value in report.scalars().items()}
            trainer.callback_metrics.update(values)  # for other callbacks, such as EarlyStopping

    def _run(self, module: Any, batch: Any) -> None:
        if self.own_run is not None:
            self.own_run(module, batch)
        elif not module.automatic_optimization:
            raise ValueError(
                "this module steps its optimisers by hand; pass run=lambda module, batch: "
                "module(batch)"
            )
        else:
            with _without_logging(module):
                module.training_step(batch, 0)


@contextmanager
def _without_logging(module: Any) -> Any:
    """Let `log` and `log_dict` of a LightningModule do nothing while the block runs."""
    for name in ("log", "log_dict"):
        object.__setattr__(module, name, lambda *args, **options: None)
    try:
        yield
    finally:
        for name in ("log", "log_dict"):
            object.__delattr__(module, name)


def _trainer_of(callback: object) -> Any:
    """Return the Trainer that calls a callback: transformers hands it over to none, so it is found
    on the stack.
    """
    frame = sys._getframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        handler = getattr(owner, "callback_handler", None)
        if handler is not None and callback in getattr(handler, "callbacks", ()):
            return owner
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _to(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value
