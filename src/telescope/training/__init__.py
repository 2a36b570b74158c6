"""Train a model on data by an objective: `train` runs the loop that `Training` describes. Needs
telescope[train].

May import: attention, layers, models, survey, watch and files. Read first: loop.py, then step.py;
data is in batch.py.
"""

from .batch import IGNORE, Data, PairBatch, Spec, TextBatch, generator
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
from .examples import Examples
from .json_log import read_log
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
    "read_log",
    "train",
    "translation",
]
