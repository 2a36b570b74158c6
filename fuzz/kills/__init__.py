"""Kill -9 at any moment of writing: nothing that was there is lost, and the next run finishes as if
undisturbed.

children.py   fork a child, and kill it after some time or at an exact step of its writing
atlas.py      `ts.atlas` with 1 to 3 processes: killed, dead or gone on with by another number of
              processes
saves.py      everything that is saved as a whole: models, recordings, tables, atlases, checkpoints,
              pictures, files
training.py   training, with 1 and 2 processes

A case is one place that is written. The report counts the kills that hit a process before it was
done.
"""

from collections.abc import Callable
from pathlib import Path
from random import Random

from ..supervisor import Done

UNIT = "kills"
SECONDS = 60.0
HUNG = 300.0
BYTES = None

KINDS: dict[Callable[[Random, Path], Done], float] = {}
"""What is killed, and how often it is drawn; filled by `prepare`."""


def prepare() -> None:
    """Make what is written by all cases, and write it once undisturbed."""
    from . import atlas, saves, training  # here, since they use the models of the tests

    saves.prepare()
    atlas.prepare()
    training.prepare()
    KINDS[saves.kill_save] = 0.5
    KINDS[atlas.kill_atlas] = 0.496
    KINDS[atlas.kill_torchrun] = 0.004  # three processes import torch, twice
    KINDS[training.kill_training] = 0.2


def run(dice: Random, folder: Path) -> Done:
    """Kill what writes to one place, and let it go on."""
    (kind,) = dice.choices([*KINDS], [*KINDS.values()])
    return kind(dice, folder)
