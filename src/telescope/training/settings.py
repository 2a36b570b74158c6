"""`Training`: everything that a run is besides its model and its data; the [training] table of a recipe."""

from dataclasses import dataclass
from math import cos, pi, sqrt
from typing import Literal

from ..models import config as fits
from ..models.config import Config


class TrainingError(ValueError):
    """One sentence: what happened, at which step, which checkpoint is there, and the way out."""


MOST_ROWS, MOST_TOKENS = 2**20, 2**26  # of a batch: the places of all its rows are drawn at once
LARGEST_SEED = 2**40  # times a million, to tell epochs apart, it is still a number of 63 bits


@dataclass(frozen=True)
class Training(Config):
    """How long, in which batches, by which steps, how often looked at. One of steps and epochs, of tokens and rows.

    A batch is that of all processes together: they share its rows, so a recipe means the same on one GPU and on eight.
    """

    seed: int = 0
    steps: int | None = None
    epochs: int | None = None
    tokens: int | None = None  # of a batch: its rows · its widest column, padding counted
    rows: int | None = None
    accumulate: int = 1  # batches of a step; the gradient is that of the mean over all their tokens

    lr: float = 1e-3  # the highest
    schedule: Literal["inverse-sqrt", "cosine", "constant"] = "cosine"
    warmup: int = 0  # steps in which it climbs from nothing
    decay: int | None = None  # the step at which the cosine has come down to the floor; the last unless given
    floor: float = 0.0  # below which the schedule never falls, as a share of lr
    beta_1: float = 0.9
    beta_2: float = 0.98
    eps: float = 1e-8
    weight_decay: float = 0.0  # of matrices; vectors, which are biases and norms, have none
    clip: float = 0.0  # the longest gradient; 0 is any
    label_smoothing: float = 0.0
    agreement: float = 0.0  # the price of guessing differently when other things are dropped (R-Drop); 0 is none

    average: int = 1  # the weights that are validated and kept are the mean of so many
    average_every: int | None = None  # steps between those; once an epoch unless given
    validate_every: int | None = None  # steps; once an epoch unless given
    patience: int | None = None  # validations without a better one, after which it stops

    precision: Literal["bf16", "tf32", "fp32"] = "fp32"  # of products on a GPU; weights, sums and a CPU are float32
    compile: bool = False  # by torch.compile, on a GPU: for every shape of a batch anew, so for data of one shape
    capture: bool = False  # a step is one CUDA graph for each shape of a batch; on one GPU, without accumulation

    shard: bool = False  # weights and what AdamW keeps are shared out among the processes: FSDP

    log_every: int = 50  # steps
    watch_every: int = 0  # steps between two looks at the attention; 0 is never
    save_every: int = 1000

    def check(self) -> None:
        fits.at_least_one(self, "steps", "epochs", "tokens", "rows", "accumulate", "decay", "average", "average_every")
        fits.at_least_one(self, "validate_every", "patience", "log_every", "save_every")
        fits.at_most(self, MOST_ROWS, "rows")
        fits.at_most(self, MOST_TOKENS, "tokens")
        if abs(self.seed) > LARGEST_SEED:
            raise ValueError(f"seed={self.seed} is too large; at most {LARGEST_SEED:,} can be")
        fits.positive(self, "lr", "eps")
        fits.probabilities(self, "floor", "beta_1", "beta_2", "label_smoothing")
        for one, other in (("steps", "epochs"), ("tokens", "rows")):
            if (getattr(self, one) is None) == (getattr(self, other) is None):
                given = "both are given" if getattr(self, one) is not None else "neither is given"
                raise ValueError(f"{one} or {other} says it, and {given}")
        for name in ("warmup", "weight_decay", "clip", "agreement", "watch_every"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)} must not be below 0, which is none")
        if self.capture and self.accumulate > 1:
            raise ValueError(f"capture takes one batch a step, not accumulate={self.accumulate}; leave one of them out")

    def rows_of(self, width: int) -> int:
        """How many rows of this width a batch has."""
        return self.rows if self.tokens is None else max(1, self.tokens // width)  # type: ignore[return-value]


def learning_rate(step: int, settings: Training, steps: int) -> float:
    """That of step 1, 2, …, `steps`.

    It climbs in a line for `warmup` steps, and then

    inverse-sqrt  falls as 1 / √step. (Noam's d_model^-½ · min(step^-½, step · warmup^-1½), Vaswani et al. 2017,
                  equation 3, is the same with lr = (d_model · warmup)^-½.)
    cosine        falls along half a cosine, to its floor at step `decay`, and stays there
    constant      stays
    """
    if step < settings.warmup:
        return settings.lr * step / settings.warmup
    return settings.lr * max(settings.floor, _share(step, settings, steps))


def _share(step: int, settings: Training, steps: int) -> float:
    if settings.schedule == "constant":
        return 1.0
    if settings.schedule == "inverse-sqrt":
        return sqrt(max(1, settings.warmup) / step)
    last = steps if settings.decay is None else settings.decay
    gone = min(1.0, (step - settings.warmup) / max(1, last - settings.warmup))
    return settings.floor + (1.0 - settings.floor) * (1.0 + cos(pi * gone)) / 2
