"""Change attention while a model runs: mute heads, hide or boost keys, freeze a pattern, patch
heads from another text, redefine an attention.

Imports watch, which it shares the interception of models with, and the rooms below. Read edits.py
first: the values and the order in which they apply; then edit.py: the way of one call.
"""

from .ablation import Resample, resample
from .edit import edit, running_edits
from .edits import Edit
from .effect import Effects, effect
from .hidden_sources import falls_when_hidden, hiding_edits
from .key_edits import boost, hide
from .measured import LikelyToken, divergence, likeliest, log_probability
from .muting import mute
from .patches import patch
from .pattern_edits import frozen, redefine
from .spans import tokens

__all__ = [
    "Edit",
    "Effects",
    "LikelyToken",
    "Resample",
    "boost",
    "divergence",
    "edit",
    "effect",
    "falls_when_hidden",
    "frozen",
    "hide",
    "hiding_edits",
    "likeliest",
    "log_probability",
    "mute",
    "patch",
    "redefine",
    "resample",
    "running_edits",
    "tokens",
]
