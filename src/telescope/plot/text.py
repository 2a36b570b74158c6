"""A picture of a text whose tokens are highlighted by a share: what an answer comes from, what receives weight."""

from collections.abc import Sequence

from torch import Tensor

from ..trace.numbers import text_colour
from .style import Picture, Width, inches, new_picture, styled, visible

LARGEST = 2000  # tokens that are drawn
LINE = 0.19  # inches from one line of text to the next
SIZE = 7.5  # points of the font


def text(
    tokens: Sequence[str],
    shares: Sequence[float] | Tensor,
    *,
    title: str | None = None,
    width: Width = "text",
) -> Picture:
    """Draw a text with each token highlighted by its share, from white for 0 to dark blue for the largest.

    tokens  pieces of the text; a piece that begins with a space begins a word, and one with a line break ends a line
    shares  a number for each token, 0 or more: a row of weights, what each key receives, the sources of an answer

    Raises ValueError where the numbers do not fit.

    Example:
        >>> import telescope as ts
        >>> picture = ts.plot.text(["The", " cat", " sat"], [0.1, 0.7, 0.2])
        >>> [piece.get_text() for piece in picture.axes[0].texts]
        ['The', ' cat', ' sat']
    """
    numbers = [float(share) for share in shares]
    if len(numbers) != len(tokens):
        raise ValueError(f"there are {len(numbers)} shares for {len(tokens)} tokens")
    if not 0 < len(tokens) <= LARGEST:
        raise ValueError(f"there are {len(tokens):,} tokens; 1 to {LARGEST:,} can be drawn")
    if not all(share >= 0.0 for share in numbers):
        raise ValueError(f"shares[{[share >= 0.0 for share in numbers].index(False)}] is below 0, or not a number")
    peak, wide = max(numbers) or 1.0, inches(width)
    with styled():
        measure = new_picture(wide, 1.0)
        renderer = measure.canvas.get_renderer()  # type: ignore[attr-defined]
        widths = []
        for token in tokens:
            drawn = measure.text(0, 0, _shown(token).replace(" ", "\u00a0"), fontsize=SIZE)
            widths.append(drawn.get_window_extent(renderer).width / measure.dpi)
        places, x, line = [], 0.0, 0
        for token, size in zip(tokens, widths, strict=True):
            if x and x + size > wide - 0.2:
                x, line = 0.0, line + 1
            places.append((x, line))
            x += size
            if token.endswith("\n"):
                x, line = 0.0, line + 1
        height = LINE * (places[-1][1] + 1) + (0.4 if title else 0.15)
        picture = new_picture(wide, height)
        axes = picture.subplots()
        axes.set(xlim=(0.0, wide - 0.15), ylim=(LINE * (places[-1][1] + 1), 0.0), title=title or "")
        axes.set_axis_off()
        for token, share, (x, line) in zip(tokens, numbers, places, strict=True):
            colour = _blue(share / peak)
            axes.text(
                x,
                LINE * (line + 0.5),
                _shown(token if x else token.lstrip(" ") or token),
                fontsize=SIZE,
                va="center",
                color=text_colour(colour),
                bbox={"boxstyle": "square,pad=0.12", "facecolor": [c / 255 for c in colour], "linewidth": 0},
            )
    return picture


def _shown(token: str) -> str:
    bare = token.rstrip("\n") or "↵"
    return visible(bare) if bare.strip() else bare


def _blue(share: float) -> tuple[int, int, int]:
    """Return a colour from white (0) to the palette's blue (1): its brightness alone tells the share."""
    ends = ((255, 255, 255), (0, 82, 140))
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(*ends, strict=True))
    return red, green, blue
