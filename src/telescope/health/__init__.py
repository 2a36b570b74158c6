"""Attention while a model trains: largest logits, entropy, weight on one key, dead heads, alerts;
and two remedies.

Imports interception, recording, measures and layers, and no training library. Read health.py first,
then remedies.py.
"""

from .health import Health
from .health import health_of as health_of  # for other rooms, not public
from .health import record_health as record_health
from .remedies import drifted_key_biases, qk_clip, remove_key_bias
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
