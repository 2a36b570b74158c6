"""The public names of the package, imported from their rooms; `telescope/__init__.py` hands them on at first use."""

from . import decoding, layers, models
from .attention import (
    Attention,
    Bias,
    Mask,
    Pairs,
    Score,
    additive,
    alibi,
    by_sum,
    causal,
    documents,
    dot,
    everyone,
    from_additive,
    from_forbidden,
    from_tensor,
    general,
    padding,
    prefix,
    relative,
    rotary,
    sinusoidal,
    softmax,
    window,
)
from .engines import Plan, attend
from .models import LoadError, export, load
from .recording import Recording
from .recording import open as open  # not in __all__: `from telescope import *` leaves the builtin alone
from .survey import Survey, plan, survey
from .trace import Row, Trace, trace
from .watch import watch

__all__ = [
    "Attention",
    "Bias",
    "LoadError",
    "Mask",
    "Pairs",
    "Plan",
    "Recording",
    "Row",
    "Score",
    "Survey",
    "Trace",
    "additive",
    "alibi",
    "attend",
    "by_sum",
    "causal",
    "decoding",
    "documents",
    "dot",
    "everyone",
    "export",
    "from_additive",
    "from_forbidden",
    "from_tensor",
    "general",
    "layers",
    "load",
    "models",
    "padding",
    "plan",
    "prefix",
    "relative",
    "rotary",
    "sinusoidal",
    "softmax",
    "survey",
    "trace",
    "watch",
    "window",
]
