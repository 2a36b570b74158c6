"""Draw attention with matplotlib: one function for each picture, for papers, slides and notebooks.

May import training and what is below it. Read style.py first, then matrices.py. Each function takes
what the library returns (a `Trace`, a `Survey`, one attention of a `Recording`, `Sources`, an
`Atlas`) or plain tensors, and returns a `Picture`, which a notebook shows and `save` writes as PNG,
SVG or PDF. Needs matplotlib.

Example:
    >>> import torch, telescope as ts
    >>> x = torch.eye(3)[None, None]
    >>> steps = ts.trace(
    ...     x, x, x, ts.Attention(mask=ts.causal), ["the", "cat", "sat"]
    ... )
    >>> ts.plot.heatmap(steps).save("weights.svg")
"""

from .images import image
from .matrices import alignment, heads_grid, heatmap
from .style import Picture
from .tables import effects, habits, scatter
from .text import sources, text
from .tracks import entropy, health, received, training
from .vectors import geometry, variance

__all__ = [
    "Picture",
    "alignment",
    "effects",
    "entropy",
    "geometry",
    "habits",
    "heads_grid",
    "health",
    "heatmap",
    "image",
    "received",
    "scatter",
    "sources",
    "text",
    "training",
    "variance",
]
