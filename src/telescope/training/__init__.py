"""Train a model on data by an objective: `train` runs the loop that `Training` describes. Needs
telescope[train].

May import: attention, layers, models, surveys, interception, files and words. Read first: loop.py,
then step.py; data is in batch.py and data.py.
"""

from ..words import format_duration as format_duration
from .batch import IGNORE, Data, PairBatch, Spec, TextBatch, generator
from .data import Examples, Gapped, Repeated, Windows
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

# A name that is imported `as` itself is not public: other rooms of the package use it.
from .loop import locked as locked
from .loop import train
from .objectives import Objective, Validate, language, mean_loss, translation
from .processes import Processes as Processes
from .processes import uses_gpu as uses_gpu
from .reports import format_counts as format_counts
from .reports import read_log
from .settings import Training, TrainingError, learning_rate

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
    "Repeated",
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
