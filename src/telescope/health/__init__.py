"""Attention while a model trains: largest logits, entropy, sinks, dead heads, alerts; and two
remedies.

Imports watch, recording and layers, and no training library. Read health.py first, then qk_clip.py.
"""

from .health import Health
from .key_bias import drifted_key_biases, remove_key_bias
from .qk_clip import qk_clip
from .report import HeadHealth, HealthReport, Rule

__all__ = [
    "HeadHealth",
    "Health",
    "HealthReport",
    "Rule",
    "drifted_key_biases",
    "qk_clip",
    "remove_key_bias",
]
