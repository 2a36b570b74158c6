"""Training: `train` a model on data by an objective, as `Training` says. Needs telescope[train]."""

from .batch import IGNORE, Data, PairBatch, Spec, TextBatch, generator
from .events import Event, Finished, HeadsWatched, Logged, Report, Saved, Started, Stopped, Validated
from .examples import Examples
from .loop import train
from .objectives import Objective, language, translation
from .settings import Training, TrainingError, learning_rate
from .validation import Validate, mean_loss
from .windows import Gapped, Windows

__all__ = [
    "IGNORE",
    "Data",
    "Event",
    "Examples",
    "Finished",
    "Gapped",
    "HeadsWatched",
    "Logged",
    "Objective",
    "PairBatch",
    "Report",
    "Saved",
    "Spec",
    "Started",
    "Stopped",
    "TextBatch",
    "Training",
    "TrainingError",
    "Validate",
    "Validated",
    "Windows",
    "generator",
    "language",
    "learning_rate",
    "mean_loss",
    "train",
    "translation",
]
