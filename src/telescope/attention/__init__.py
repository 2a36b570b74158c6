"""What attention is: a definition made of a score, masks, biases, positions and a normaliser. No
engine, no model.

This room imports torch and no other room. Read definition.py first, then mask.py and masks.py.
"""

from .biases import Bias, alibi, from_additive, relative
from .definition import Attention
from .mask import Mask, everyone
from .masks import causal, documents, from_forbidden, from_tensor, padding, prefix, window
from .normalizers import by_sum, softmax
from .pairs import Pairs
from .positions import rotary, sinusoidal
from .scores import Score, additive, dot, general

__all__ = [
    "Attention",
    "Bias",
    "Mask",
    "Pairs",
    "Score",
    "additive",
    "alibi",
    "by_sum",
    "causal",
    "documents",
    "dot",
    "everyone",
    "from_additive",
    "from_forbidden",
    "from_tensor",
    "general",
    "padding",
    "prefix",
    "relative",
    "rotary",
    "sinusoidal",
    "softmax",
    "window",
]
