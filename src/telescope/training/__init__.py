"""Training: `train` a model on data by an objective, as `Training` says. Needs telescope[train]."""

from .batch import IGNORE, Data, Pair, Spec, Text, generator
from .events import Event, Finished, Logged, Report, Saved, Started, Stopped, Validated, Watched
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
    "Logged",
    "Objective",
    "Pair",
    "Report",
    "Saved",
    "Spec",
    "Started",
    "Stopped",
    "Text",
    "Training",
    "TrainingError",
    "Validate",
    "Validated",
    "Watched",
    "Windows",
    "generator",
    "language",
    "learning_rate",
    "mean_loss",
    "train",
    "translation",
]
