"""`Training`: all settings of a run besides its model and its data; the [training] table of a
recipe.
"""

from dataclasses import dataclass
from math import cos, pi, sqrt
from typing import Literal

from ..models import Config, check_at_least_one, check_at_most, check_positive, check_probabilities


class TrainingError(ValueError):
    """Report a failed run in one sentence: what happened, at which step, which checkpoint is kept,
    and the way out.

    Example:
        >>> from telescope.training import TrainingError
        >>> issubclass(TrainingError, ValueError)
        True
    """


# Of a batch: the positions of all its rows are drawn at once
MAX_ROWS = 2**20
MAX_TOKENS = 2**26
MAX_SEED = 2**40  # multiplied by a million, to give each epoch its own seed, it still fits 63 bits


@dataclass(frozen=True)
class Training(Config):
    """Settings of a run: length, batches, optimiser, validation, precision and intervals.

    Give one of `steps` and `epochs`, and one of `tokens` and `rows`. The sizes of a batch are those
    of all processes together, which share its rows: a recipe means the same on one GPU and on
    eight.

    Args:
        seed: of batches, dropout and gaps.
        steps: the length of the run; or give `epochs`.
        epochs: how often the data is seen.
        tokens: of a batch: its rows times its widest column, with padding; or give `rows`.
        rows: sequences of a batch.
        accumulate: batches of a step; the gradient is that of the mean over all their tokens.
        lr: the peak learning rate.
        schedule: "inverse-sqrt", "cosine" or "constant"; see `learning_rate`.
        warmup: steps in which the rate rises linearly from 0.
        decay: the step at which the cosine reaches the floor; None is the last one.
        floor: the lowest rate after the warm-up, as a share of lr.
        beta_1, beta_2, eps: of AdamW.
        weight_decay: of matrices; vectors, which are biases and norms, have none.
        clip: the largest norm of the gradient; 0 does not clip.
        label_smoothing: the share of the target's probability that is spread over all tokens.
        agreement: the weight of R-Drop, the divergence between two passes with different dropout; 0
            is off.
        average: the weights that are validated and kept are the mean of the last so many snapshots.
        average_every: steps between snapshots; None is once an epoch.
        validate_every: steps between validations; None is once an epoch.
        patience: stop after so many validations without a better one; None does not stop.
        precision: of products on a GPU: "bf16", "tf32" or "fp32"; weights, sums and a CPU use
            float32.
        compile: whether torch.compile is used on a GPU: once for each shape of a batch, so for data
            of few shapes.
        capture: whether each shape of a batch becomes one CUDA graph; on one GPU, without
            accumulation.
        shard: whether weights and AdamW's states are split among the processes (FSDP).
        log_every: steps between events `Logged`.
        watch_every: steps between measurements of the attention heads; 0 is never.
        save_every: steps between checkpoints.

    Raises:
        TypeError: for a field that does not exist or has the wrong type, ValueError for a value
            that does not fit.

    Example:
        >>> from telescope.training import Training
        >>> settings = Training(epochs=3, tokens=4096, lr=2e-3, warmup=100)
        >>> settings.schedule, settings.rows_of(width=64)
        ('cosine', 64)
    """

    seed: int = 0
    steps: int | None = None
    epochs: int | None = None
    tokens: int | None = None  # of a batch: its rows times its widest column, with padding
    rows: int | None = None
    accumulate: int = 1  # batches of a step; the gradient is that of the mean over all their tokens

    lr: float = 1e-3  # peak learning rate
    schedule: Literal["inverse-sqrt", "cosine", "constant"] = "cosine"
    warmup: int = 0  # steps in which the rate rises linearly from 0
    # Step at which the cosine reaches the floor; the last one unless given.
    decay: int | None = None
    floor: float = 0.0  # lowest rate after the warm-up, as a share of lr
    beta_1: float = 0.9
    beta_2: float = 0.98
    eps: float = 1e-8
    weight_decay: float = 0.0  # of matrices; vectors, which are biases and norms, have none
    clip: float = 0.0  # largest norm of the gradient; 0 does not clip
    label_smoothing: float = 0.0
    # Weight of R-Drop: the divergence between two passes with different dropout; 0 is off.
    agreement: float = 0.0

    # The weights that are validated and kept are the mean of the last so many snapshots.
    average: int = 1
    average_every: int | None = None  # steps between snapshots; once an epoch unless given
    validate_every: int | None = None  # steps; once an epoch unless given
    patience: int | None = None  # stop after so many validations without a better one

    # Of products on a GPU; weights, sums and a CPU use float32.
    precision: Literal["bf16", "tf32", "fp32"] = "fp32"
    # torch.compile, on a GPU: once for each shape of a batch, so for data of few shapes.
    compile: bool = False
    # One CUDA graph of a step for each shape of a batch; on one GPU, without accumulation.
    capture: bool = False

    shard: bool = False  # FSDP: weights and AdamW's states are split among the processes

    log_every: int = 50  # steps
    watch_every: int = 0  # steps between measurements of the attention heads; 0 is never
    save_every: int = 1000  # steps

    def _check_fields(self) -> None:
        """Raise a ValueError where the fields do not fit."""
        counts = "steps epochs tokens rows accumulate decay average average_every validate_every"
        check_at_least_one(self, *counts.split(), "patience", "log_every", "save_every")
        check_at_most(self, MAX_ROWS, "rows")
        check_at_most(self, MAX_TOKENS, "tokens")
        if abs(self.seed) > MAX_SEED:
            raise ValueError(
                f"seed={self.seed} is too large; seeds go from -{MAX_SEED:,} to {MAX_SEED:,}"
            )
        check_positive(self, "lr", "eps")
        check_probabilities(self, "floor", "beta_1", "beta_2", "label_smoothing")
        for one, other in (("steps", "epochs"), ("tokens", "rows")):
            if (getattr(self, one) is None) == (getattr(self, other) is None):
                given = "both are given" if getattr(self, one) is not None else "neither is given"
                raise ValueError(f"give one of {one} or {other}; {given}")
        for name in ("warmup", "weight_decay", "clip", "agreement", "watch_every"):
            if not getattr(self, name) >= 0:
                raise ValueError(
                    f"{name}={getattr(self, name)} must be 0, which switches it off, or above"
                )
        if self.capture and self.accumulate > 1:
            raise ValueError(
                f"capture takes one batch a step, not accumulate={self.accumulate}; leave one of "
                "them out"
            )

    def rows_of(self, width: int) -> int:
        """Return the number of rows of a batch whose widest column has this width.

        Args:
            width: the tokens of the widest row, in the batch's narrower or wider side.
        """
        if self.tokens is not None:
            return max(1, self.tokens // width)
        assert self.rows is not None  # `check` saw to it
        return self.rows


def learning_rate(step: int, settings: Training, steps: int) -> float:
    """Return the learning rate of a step, counted from 1 to `steps`.

    The rate rises linearly for `warmup` steps. Then, by `schedule`:

    - "inverse-sqrt": it falls as 1 / √step. (Noam's d_model^-½ · min(step^-½, step · warmup^-1½),
      Vaswani et al. 2017, equation 3, is the same with lr = (d_model · warmup)^-½.)
    - "cosine": it falls along half a cosine to the floor, which it reaches at step `decay`, and
      stays there.
    - "constant": it stays at `lr`.

    Args:
        step: from 1 to `steps`.
        settings: `lr`, `schedule`, `warmup`, `decay` and `floor` are read.
        steps: the length of the run.

    Example:
        >>> from telescope.training import Training, learning_rate
        >>> settings = Training(steps=100, rows=1, lr=1e-3, warmup=10, floor=0.1)
        >>> [f"{learning_rate(step, settings, 100):.1e}" for step in (1, 10, 55, 100)]
        ['1.0e-04', '1.0e-03', '5.5e-04', '1.0e-04']
    """
    if step < settings.warmup:
        return settings.lr * step / settings.warmup
    return settings.lr * max(settings.floor, _decayed_share(step, settings, steps))


def _decayed_share(step: int, settings: Training, steps: int) -> float:
    """Return the rate of a step after the warm-up, as a share of lr."""
    if settings.schedule == "constant":
        return 1.0
    if settings.schedule == "inverse-sqrt":
        return sqrt(max(1, settings.warmup) / step)
    last = steps if settings.decay is None else settings.decay
    progress = min(1.0, (step - settings.warmup) / max(1, last - settings.warmup))
    return settings.floor + (1.0 - settings.floor) * (1.0 + cos(pi * progress)) / 2
