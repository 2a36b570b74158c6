"""The public names of the package, imported from their rooms; `telescope/__init__.py` hands them on
at first use.
"""

from . import decoding, layers, models
from .atlases import Atlas, Comparison, atlas, compare

# Not in __all__: `from telescope import *` leaves the builtin alone.
from .atlases import open as open
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
from .circuitry import Circuits, HeadCircuits, circuits
from .editing import (
    Effects,
    boost,
    edit,
    effect,
    frozen,
    hide,
    mute,
    patch,
    redefine,
    resample,
    tokens,
)
from .engines import Plan, attend
from .health import Health, HealthReport, qk_clip
from .interception import watch
from .interception.huggingface.press import press
from .models import LoadError, export, load
from .recording import Recording, alignments
from .surveys import Survey, plan, survey
from .token_kinds import Frames, Grid, Segments
from .traces import Row, Trace, trace

__all__ = [
    "Atlas",
    "Attention",
    "Bias",
    "Circuits",
    "Comparison",
    "Effects",
    "Frames",
    "Grid",
    "HeadCircuits",
    "Health",
    "HealthReport",
    "LoadError",
    "Mask",
    "Pairs",
    "Plan",
    "Recording",
    "Row",
    "Score",
    "Segments",
    "Survey",
    "Trace",
    "additive",
    "alibi",
    "alignments",
    "atlas",
    "attend",
    "boost",
    "by_sum",
    "causal",
    "circuits",
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
    "patch",
    "plan",
    "prefix",
    "press",
    "qk_clip",
    "redefine",
    "relative",
    "resample",
    "rotary",
    "sinusoidal",
    "softmax",
    "survey",
    "tokens",
    "trace",
    "watch",
    "window",
]
