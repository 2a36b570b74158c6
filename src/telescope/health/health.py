"""`Health`: measure every layer's attention while a model trains, in any loop."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from warnings import warn

import torch
from jaxtyping import Bool
from torch import Tensor, distributed, nn

from ..attention import real_query_masks
from ..interception import record_calls, tensor_parallel_size
from ..measures import MEASURES, HeadRows
from ..recording import KeepOptions, RecordedCall, Recording, list_names
from .remedies import drifted_key_biases, qk_clip, unwrapped
from .report import DEFAULT_RULES, MEASURED, HeadHealth, HealthReport, Rule, alerts_of

Log = Callable[[dict[str, float], int], object]


class Health:
    """The health of a model's attention while it trains: every N steps, one forward pass of a few
    sequences is watched.

    The pass runs on the module inside torch.compile and DDP, in eval mode and without gradients, so
    that neither gradients nor random numbers of the training change. Of a model sharded by FSDP, or
    run by several processes together, every process must call `step`. An alert is a warning, unless
    `on_alert` is given.

    Args:
        model: the model that trains, wrapped or not.
        every: measure at each `every`-th call of `step`.
        sequences: how many sequences of a batch are watched.
        rules: when to give an alert; by default a logit above 100, or a head of a mean entropy
            below 0.001 nats.
        log: called with the numbers by name, and the step: lambda numbers, step: wandb.log(numbers,
            step=step).
        on_alert: called with the `HealthReport` where it has alerts.
        tau: after each measurement, `qk_clip` keeps the largest logit of every head at this limit,
            over the batches of all processes; None does nothing.
        run: called with the module and the inputs, to run the forward pass; by default
            module(*inputs, **named), or module(**inputs) where the one input is a dict.

    Example:
        >>> import torch, telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=10, d_model=8, heads=2, blocks=1)
        >>> model = ts.models.GPT(config)
        >>> health = ts.Health(model, every=2)
        >>> reports = [health.step(torch.tensor([[1, 2, 3, 4]])) for _ in range(4)]
        >>> [None if report is None else report.step for report in reports]
        [None, 2, None, 4]
        >>> len(reports[-1].layers["blocks.0.self"].entropy)
        2
        >>> health.measure(torch.tensor([[1, 2, 3, 4]])).alerts
        ()
    """

    def __init__(
        self,
        model: nn.Module,
        every: int = 50,
        *,
        sequences: int = 4,
        rules: Sequence[Rule] = DEFAULT_RULES,
        log: Log | None = None,
        on_alert: Callable[[HealthReport], object] | None = None,
        tau: float | None = None,
        run: Callable[..., object] | None = None,
    ) -> None:
        if every < 1 or sequences < 1:
            raise ValueError(
                f"every={every} and sequences={sequences} are counts; both take 1 or more"
            )
        self.model = model
        self.every = every
        self.sequences = sequences
        self.rules = tuple(rules)
        self.log = log
        self.on_alert = on_alert
        self.tau = tau
        self.run = run
        self.steps = 0
        self.clipped: dict[str, dict[int, float]] = {}
        """What `qk_clip` scaled at the last measurement."""
        # The layers that a warning has named: each is named once, not at every measurement.
        self._told: set[str] = set()

    def step(self, *inputs: Any, **named: Any) -> HealthReport | None:
        """Count a training step; every N steps, measure its batch, log the numbers and return the
        report.

        `inputs` are those of the model. Call this after the optimiser's step.

        Args:
            inputs, named: those of the model.
        """
        self.steps += 1
        return self.measure(*inputs, **named) if self.steps % self.every == 0 else None

    def measure(self, *inputs: Any, **named: Any) -> HealthReport:
        """Measure a batch now; then log, warn and clip as told.

        Args:
            inputs, named: those of the model.
        """
        # Watch the module inside the wrappers, and only a few sequences of the batch.
        module = unwrapped(self.model)
        inputs, named = first_sequences((inputs, named), self.sequences)

        # Pass the inputs as `run` takes them, or as the model does: one dict is its named inputs.
        if self.run is not None:
            inputs = (module, *inputs)
        elif len(inputs) == 1 and not named and isinstance(inputs[0], dict):
            named = inputs[0]
            inputs = ()

        # Watch one forward pass, which leaves the training's state as it was.
        with eager_modules(module), evaluating(module), record_health(module) as recording:
            (self.run or module)(*inputs, **named)
        layers = health_of(recording)
        if not layers:
            what = f"no attention that can be recorded, only {list_names(recording.left_out)},"
            called = what if recording.left_out else "no attention"
            raise ValueError(
                f"{type(module).__name__} called {called} for this batch, so there is nothing to "
                "measure"
            )

        # Report the layers, the rules they break and the key biases that have drifted.
        alerts = [*alerts_of(layers, self.rules), *_drift_alerts(module)]
        report = HealthReport(self.steps, layers, tuple(alerts), recording.left_out)
        if self.log is not None:
            self.log(report.scalars(), self.steps)
        self._tell(report)

        # Clip by the same logits in all processes: their copies of the weights must stay equal.
        if self.tau is not None:
            self.clipped = qk_clip(
                module, self.tau, _largest_of_all_processes(module, report.logits)
            )
        return report

    def _tell(self, report: HealthReport) -> None:
        """Hand alerts on, or warn about each layer once."""
        if not report.alerts:
            return
        if self.on_alert is not None:
            self.on_alert(report)
            return

        # An alert begins with the name of its layer.
        new = [alert for alert in report.alerts if alert.partition(" ")[0] not in self._told]
        self._told |= {alert.partition(" ")[0] for alert in new}
        for alert in new:
            warn(f"step {report.step:,}: {alert}", stacklevel=4)


def record_health(module: nn.Module) -> Any:
    """Record, while the block runs, what `health_of` measures."""
    # The largest weight of each query, with its lse, gives the largest logit.
    return record_calls(module, KeepOptions(top=1))


CountedQueries = Callable[[str], Bool[Tensor, "batch query"]]


def health_of(recording: Recording, counted: CountedQueries | None = None) -> dict[str, HeadHealth]:
    """Return the health of each attention that was called, over all sequences of the recording.

    `counted` returns which queries of an attention count; by default those that see a key besides
    the first token. Calls of one shape are measured together: on a GPU, launching kernels takes
    longer than these run.
    """
    # Group the calls whose tensors can be joined along the heads.
    alike: dict[Any, list[tuple[str, dict[str, Tensor]]]] = {}
    for name, watched in recording.items():
        for call in watched.calls:
            parts = _parts(call)
            if counted is not None:
                parts["counted"] = counted(name)[:, None].expand(parts["entropy"].shape)
            shapes = tuple(
                (each, part.shape[0], part.shape[2], part.device) for each, part in parts.items()
            )
            alike.setdefault((call.across, shapes), []).append((name, parts))

    measured: dict[str, list[Tensor]] = {}
    # Measure each group at once, and divide the numbers by call again.
    for (across, _), calls in alike.items():
        joined = {each: torch.cat([parts[each] for _, parts in calls], 1) for each in calls[0][1]}
        rows = _rows(joined, across)
        numbers = [MEASURES[name].mean(rows).float() for name in MEASURED.values()]
        heads = [parts["entropy"].shape[1] for _, parts in calls]
        of_calls = torch.split(torch.stack(numbers).cpu(), heads, dim=1)  # a GPU is waited for once
        for (name, _), own in zip(calls, of_calls, strict=True):
            measured.setdefault(name, []).append(own)

    # Of several calls the largest logit, and the mean of the other numbers.
    found: dict[str, HeadHealth] = {}
    for name in recording:
        if name in measured:
            each_call = torch.stack(measured[name])
            numbers = [each_call[:, 0].amax(0), *each_call[:, 1:].mean(0)]
            found[name] = HeadHealth(*(tuple(part.tolist()) for part in numbers))
    return found


def _parts(call: RecordedCall) -> dict[str, Tensor]:
    """Return the kept tensors of a call that was recorded with top=1; the second axis of each is
    the heads.
    """
    # Keep only the tensors that the measures read.
    parts = {name: part.tensor for name, part in call._kept.items()}
    kept = ("received", "entropy", "lse")
    chosen: dict[str, Tensor] = {name: parts[name] for name in kept if name in parts}
    # With top=1 the last axis has one entry: the largest weight, and its key.
    chosen |= {name: parts[name][..., 0] for name in ("top_weights", "top_keys")}
    # With padding, the first real token differs by sequence; give it an axis of heads, too.
    if real_query_masks(call.attention) and not call.across:
        batch, heads, _ = chosen["entropy"].shape
        first = call._places(lists=False).first.to(chosen["entropy"].device)
        chosen["first"] = first[:, None, None].expand(batch, heads, 1)
    return chosen


def _rows(parts: dict[str, Tensor], across: bool) -> HeadRows:
    """Return what the measures are summed from."""
    # A query whose largest weight has no key sees nothing.
    seen = parts["top_keys"] >= 0
    counted = parts.get("counted")
    if counted is not None:
        seen = counted
    elif "first" in parts:  # behind padding
        queries = seen.shape[2]
        keys = parts["received"].shape[2]
        place = torch.arange(keys - queries, keys, device=seen.device)
        counted = seen & (place > parts["first"])
    else:
        counted = seen.clone()
        if not across:
            counted[:, :, :1] = False  # the first token has no choice
    return HeadRows(
        received=parts["received"],
        entropy=parts["entropy"],
        peak=parts["top_weights"],
        lse=parts.get("lse"),
        seen=seen,
        counted=counted,
        first=parts["first"][:, 0, 0] if "first" in parts else seen.new_zeros(1, dtype=torch.long),
    )


def _largest_of_all_processes(
    module: nn.Module, logits: dict[str, tuple[float, ...]]
) -> dict[str, tuple[float, ...]]:
    """Return the largest logits over the batches of all processes, so that all of them scale their
    weights alike.
    """
    # A single process has seen all batches itself.
    if (
        not distributed.is_available()
        or not distributed.is_initialized()
        or distributed.get_world_size() == 1
    ):
        return logits
    # With tensor parallelism, each process has other heads: a maximum over them has no meaning.
    if tensor_parallel_size(module) > 1:
        raise ValueError(
            "tau= cannot clip a model whose heads are divided among processes; leave it out"
        )

    # Reduce the logits of all layers at once, then give each layer its own back.
    device = next(module.parameters()).device
    joined = torch.tensor([logit for layer in logits.values() for logit in layer], device=device)
    distributed.all_reduce(joined, distributed.ReduceOp.MAX)
    numbers = iter(joined.tolist())
    return {name: tuple(next(numbers) for _ in layer) for name, layer in logits.items()}


def _drift_alerts(module: nn.Module) -> list[str]:
    return [
        f"{name}: key bias drift, its standard deviation is {keys:.2g} where the queries' is "
        f"{queries:.2g}; it changes "
        "nothing but the size of the scores, and ts.health.remove_key_bias(model) removes it"
        for name, (keys, queries) in drifted_key_biases(module).items()
    ]


# -------------------------------------------------- a forward pass beside the training


@contextmanager
def eager_modules(model: nn.Module) -> Iterator[None]:
    """Put back, while the block runs, every part of a model as it was before torch.compile."""
    with ExitStack() as undo:
        # Copy both lists: children are replaced while the loops run.
        for module in [*model.modules()]:
            # A module that was compiled in place keeps its compiled call in this attribute.
            if module._compiled_call_impl is not None:
                undo.callback(setattr, module, "_compiled_call_impl", module._compiled_call_impl)
                module._compiled_call_impl = None
            # torch.compile(child) is a wrapper, which holds the child itself as _orig_mod.
            for name, child in [*module._modules.items()]:
                if child is not None and "_orig_mod" in child._modules:
                    undo.callback(module._modules.__setitem__, name, child)
                    module._modules[name] = child._modules["_orig_mod"]
        yield


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch dropout off while the block runs; no random number is drawn, so that the training goes
    on unchanged.
    """
    # Remember which modules train: parts that the user froze in eval mode must stay there.
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def first_sequences(inputs: Any, count: int) -> Any:
    """Return the first sequences of a batch: of a tensor, or of all tensors in a dict, list or
    tuple.

    Tensors whose first axis is not the batch's, and everything else, are left as they are.
    """
    # The first tensor that has an axis tells the size of the batch.
    size = next((len(tensor) for tensor in _tensors(inputs) if tensor.ndim), 0)

    def cut(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[:count] if value.ndim and len(value) == size else value
        if isinstance(value, dict) or hasattr(value, "items"):
            return {name: cut(part) for name, part in value.items()}
        # Leave a named tuple as it is: its type takes the parts one by one, not as a list.
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return type(value)(cut(part) for part in value)
        return value

    return cut(inputs)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif hasattr(value, "values") and callable(value.values):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
