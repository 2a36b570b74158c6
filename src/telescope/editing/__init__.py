"""Change attention while a model runs: mute heads, hide or boost keys, freeze a pattern, redefine
an attention.

Imports watch, which it shares the interception of models with, and the rooms below. Read edits.py
first: the values and the order in which they apply; then edit.py: the way of one call.
"""

from . import hidden_sources as hidden_sources  # registers sources(how="hidden")
from .edit import edit
from .edits import Edit, boost, frozen, hide, mute, redefine
from .effect import Effects, effect
from .spans import tokens

__all__ = [
    "Edit",
    "Effects",
    "boost",
    "edit",
    "effect",
    "frozen",
    "hide",
    "mute",
    "redefine",
    "tokens",
]
