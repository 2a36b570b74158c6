"""Look inside attention while it runs at full speed: one definition, `Attention`, and functions that all take it.

`attend` runs a definition, `plan` says on which engine, `trace` shows every step, `survey` gives exact statistics of
long texts, `watch` records a model while it runs, `edit` changes its attention. Read attention/definition.py first.

Example:
    >>> import telescope as ts, torch
    >>> x = torch.eye(3)[None, None]
    >>> ts.attend(x, x, x, ts.Attention(mask=ts.causal)).shape
    torch.Size([1, 1, 3, 3])
"""

from importlib import import_module
from typing import Any

from . import decoding, layers, models
from .atlas import Atlas, Comparison, atlas, compare
from .atlas import open as open  # not in __all__: `from telescope import *` leaves the builtin alone
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
from .edit import Effects, boost, edit, effect, frozen, hide, mute, redefine, tokens
from .engines import Plan, attend
from .health import Health, HealthReport, qk_clip
from .models import LoadError, export, load
from .recording import Recording
from .survey import Survey, plan, survey
from .trace import Row, Trace, trace
from .watch import watch

__version__ = "0.1.0"

__all__ = [
    "Atlas",
    "Attention",
    "Bias",
    "Comparison",
    "Effects",
    "Health",
    "HealthReport",
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
    "atlas",
    "attend",
    "boost",
    "by_sum",
    "causal",
    "compare",
    "decoding",
    "documents",
    "dot",
    "edit",
    "effect",
    "everyone",
    "export",
    "from_additive",
    "from_forbidden",
    "from_tensor",
    "frozen",
    "general",
    "hide",
    "layers",
    "load",
    "models",
    "mute",
    "padding",
    "plan",
    "prefix",
    "press",
    "qk_clip",
    "redefine",
    "relative",
    "rotary",
    "sinusoidal",
    "softmax",
    "survey",
    "tokens",
    "trace",
    "watch",
    "window",
]

LAZY = (
    "callbacks",
    "explorer",
    "tasks",
    "text",
    "training",
)  # imported at first use, so that `import telescope` stays fast


def __getattr__(name: str) -> Any:
    """Import a lazy room, or a function for another library, at first use."""
    if name == "press":
        return import_module(".watch.huggingface.press", __name__).press
    if name in LAZY:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *LAZY, "press"})
