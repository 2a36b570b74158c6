"""Change attention while a model runs: mute heads, hide or boost keys, freeze a pattern, redefine
an attention.

Imports watch, which it shares the interception of models with, and the rooms below. Read edits.py
first: the values and the order in which they apply; then edit.py: the way of one call.
"""

from .edit import edit, running_edits
from .edits import Edit, mute
from .effect import Effects, effect
from .hidden_sources import falls_when_hidden, hiding_edits
from .key_edits import boost, hide
from .measured import LikelyToken, divergence, likeliest, log_probability
from .pattern_edits import frozen, redefine
from .spans import tokens

__all__ = [
    "Edit",
    "Effects",
    "LikelyToken",
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
    "redefine",
    "running_edits",
    "tokens",
]
