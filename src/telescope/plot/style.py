"""`Picture`, a matplotlib figure that a notebook shows and `save` writes, and the style that all
pictures share.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import Any, Literal

try:
    import matplotlib
    from cycler import cycler
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LogNorm, Normalize, PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.image import imread
    from matplotlib.patches import Rectangle
except ImportError:
    raise ImportError("ts.plot needs matplotlib: pip install 'telescope-attention[plot]'") from None

from ..files import atomic_file
from ..words import hint

__all__ = [
    "COLOURS",
    "MOST_TICKS",
    "SEQUENTIAL",
    "LogNorm",
    "Normalize",
    "Picture",
    "PowerNorm",
    "Rectangle",
    "Width",
    "add_colour_bar",
    "drawing",
    "imread",
    "inches",
    "name_ticks",
    "new_picture",
    "styled",
    "visible",
]

Width = float | Literal["column", "text"]

WIDTHS = {"column": 3.35, "text": 6.9}
"""Inches: one column of a page with two columns (85 mm), and the whole text of a page (175 mm)."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""The palette of Okabe and Ito (2008): eight colours that people with any colour vision tell apart.
"""

# Rises in brightness all the way, so that a grey print and any colour vision can read it.
SEQUENTIAL = "viridis"

STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture on every machine
    "font.size": 7.0,
    "axes.titlesize": 8.0,
    "axes.labelsize": 7.0,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=list(COLOURS)),
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.2,
    "legend.frameon": False,
    "legend.fontsize": 6.5,
    "pdf.fonttype": 42,  # text stays text: it can be searched, and edited in a drawing program
    "svg.fonttype": "none",
    # With a fixed salt the ids within an SVG file are the same each time.
    "svg.hashsalt": "telescope",
    "figure.dpi": 120.0,
    "savefig.dpi": 300.0,
}
FORMATS = ("png", "svg", "pdf")
MOST_TICKS = 48  # tokens that can be named along one side


class Picture(Figure):
    """A matplotlib figure with `save`; every function of `ts.plot` returns one.

    `picture.axes` are matplotlib's axes, for changes. The figure is not known to pyplot, so that
    nothing is shown twice and nothing has to be closed.

    Example:
        >>> import torch, telescope as ts
        >>> picture = ts.plot.heatmap(
        ...     torch.eye(3), tokens=["a", "b", "c"], width="column"
        ... )
        >>> picture.save("identity.pdf")
        >>> float(picture.get_figwidth())
        3.35
    """

    def save(self, path: str | os.PathLike[str], *, dpi: float = 300.0) -> None:
        """Write the picture as PNG, SVG or PDF, by the ending of `path`; `dpi` are the pixels of an
        inch of a PNG.

        The same picture gives the same bytes. An earlier file of this name is replaced as a whole
        or not at all.

        Args:
            path: its ending, .png, .svg or .pdf, names the format.
            dpi: the pixels of an inch of a PNG.

        Raises:
            ValueError: another ending, or the file cannot be written.
        """
        ending = os.fspath(path).rpartition(".")[2].lower()
        if ending not in FORMATS:
            raise ValueError(
                f'"{os.fspath(path)}" is not a .png, .svg or .pdf; {hint(ending, FORMATS)}'
            )

        # Without a date, the same picture gives the same bytes.
        dated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
        # The style again: matplotlib reads settings such as the type of fonts when it saves.
        with styled(), atomic_file(path) as new:
            self.savefig(new, format=ending, dpi=dpi, metadata=dated.get(ending))

    def _repr_png_(self) -> bytes:
        page = BytesIO()
        with styled():
            self.savefig(page, format="png", dpi=144)
        return page.getvalue()


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the style of this room within this context."""
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        yield


def inches(width: Width) -> float:
    """Return a width in inches; "column" and "text" are those of a printed page."""
    if isinstance(width, str):
        if width not in WIDTHS:
            raise ValueError(
                f'width="{width}" is not known; {hint(width, WIDTHS)}, or a number of inches'
            )
        return WIDTHS[width]
    if not 0.5 <= width <= 100.0:
        raise ValueError(f"width={width} inches is not possible; 0.5 to 100 are")
    return float(width)


def new_picture(width: Width, height: float) -> Picture:
    """Return an empty picture; `height` is in inches."""
    picture = Picture(figsize=(inches(width), height), layout="constrained")
    # The canvas attaches itself to the figure, which then needs no pyplot to be drawn.
    FigureCanvasAgg(picture)
    return picture


@contextmanager
def drawing(width: Width, height: float) -> Iterator[tuple[Picture, Any]]:
    """Draw one picture with one pair of axes, in the style of this room."""
    with styled():
        picture = new_picture(width, height)
        yield picture, picture.subplots()


def add_colour_bar(picture: Picture, image: Any, axes: Any, label: str, **options: float) -> None:
    """Add the scale of an image's colours beside it, without a frame."""
    bar: Any = picture.colorbar(image, ax=axes, label=label, **options)  # type: ignore[arg-type]
    bar.outline.set_visible(False)


def name_ticks(
    axes: Axes, side: Literal["x", "y"], names: Sequence[str] | None, count: int
) -> None:
    """Name the positions along one side: every token where they fit, else none."""
    axis = axes.xaxis if side == "x" else axes.yaxis
    if names is None or count > MOST_TICKS:
        return
    axis.set_ticks(range(count), [visible(name) for name in names])
    axis.set_tick_params(length=0)
    if side == "x":
        # Names that would take more than 60 letters side by side are turned upright.
        long = max(map(len, names), default=0) * count > 60
        axis.set_tick_params(rotation=90 if long else 0)


def visible(token: str) -> str:
    """Return a token as it can be drawn: spaces and line breaks as signs, `$` as text and not as a
    formula.
    """
    text = token.replace("\n", "↵").replace("\t", "⇥").replace("$", r"\$")
    # A token of spaces alone would be invisible: draw a sign for each space.
    return text if text.strip() else "␣" * max(1, len(text))
