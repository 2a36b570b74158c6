"""Look inside attention while it runs at full speed: one definition, `Attention`, and functions that all take it.

`attend` runs a definition, `plan` says on which engine, `trace` shows every step, `survey` gives exact statistics of
long texts, `watch` records a model while it runs. Read attention/definition.py first.

Example:
    >>> import telescope as ts, torch
    >>> x = torch.eye(3)[None, None]
    >>> ts.attend(x, x, x, ts.Attention(mask=ts.causal)).shape
    torch.Size([1, 1, 3, 3])
"""

from importlib import import_module
from typing import Any

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

__version__ = "0.1.0"

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

LAZY = (
    "explorer",
    "lessons",
    "plot",
    "tasks",
    "text",
    "training",
)  # imported at first use, so that `import telescope` stays fast


def __getattr__(name: str) -> Any:
    """Import a lazy room at first use."""
    if name in LAZY:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *LAZY})
