"""Pictures of a text whose tokens are highlighted by a share: what an answer comes from, what
receives weight.
"""

from collections.abc import Sequence

from torch import Tensor

from ..recording import Sources
from ..traces import text_colour
from .style import Picture, Width, inches, new_picture, styled, visible

MOST_TOKENS = 2000  # tokens that are drawn
LINE_HEIGHT = 0.19  # inches from one line of text to the next
FONT_SIZE = 7.5  # points of the font
ANSWER_LETTERS = 70  # of an answer in a title


def text(
    tokens: Sequence[str],
    shares: Sequence[float] | Tensor,
    *,
    title: str | None = None,
    width: Width = "text",
) -> Picture:
    """Draw a text with each token highlighted by its share, from white for 0 to dark blue for the
    largest.

    Args:
        tokens: pieces of the text; a piece that begins with a space begins a word, and one with a
            line break ends a line.
        shares: a number for each token, 0 or more: a row of weights, what each key receives, the
            sources of an answer.
        title: above the picture; None is none.
        width: "column" (85 mm), "text" (175 mm) or inches.

    Raises:
        ValueError: where the numbers do not fit.

    Example:
        >>> import telescope as ts
        >>> picture = ts.plot.text(["The", " cat", " sat"], [0.1, 0.7, 0.2])
        >>> [piece.get_text() for piece in picture.axes[0].texts]
        ['The', ' cat', ' sat']
    """
    numbers = [float(share) for share in shares]
    if len(numbers) != len(tokens):
        raise ValueError(f"there are {len(numbers)} shares for {len(tokens)} tokens")
    if not all(share >= 0.0 for share in numbers):
        raise ValueError(
            f"shares[{[share >= 0.0 for share in numbers].index(False)}] is below 0, or not a "
            "number"
        )
    return _draw(tokens, numbers, title, width)


def sources(found: Sources, *, title: str | None = None, width: Width = "text") -> Picture:
    """Draw the text that an answer comes from, each token highlighted by its score, and the answer
    below it.

    Blue is a score above 0, red one below: hiding that token would make the answer likelier. The
    title is the answer, and how its sources were found.

    Args:
        found: what `recording.sources(span)` returned; of how="hidden", which knows segments alone,
            the tokens of a segment share its score.
        title: above the picture; None is the answer and how its sources were found.
        width: "column" (85 mm), "text" (175 mm) or inches.

    Example:
        >>> import torch, telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=1, heads=2)
        >>> model = ts.models.GPT(config).eval()
        >>> with ts.watch(model, keep="queries-keys") as recording:
        ...     _ = model(torch.tensor([[1, 2, 3, 4]]))
        >>> picture = ts.plot.sources(recording.sources(range(3, 5)))
        >>> [piece.get_text() for piece in picture.axes[0].texts]
        ['0 ', '1 ', '2 ']
    """
    if not isinstance(found, Sources):
        raise TypeError(
            f"{type(found).__name__} holds no sources; recording.sources(span) returns them"
        )

    # The answer becomes one line of the title, cut where it is long.
    answer = " ".join("".join(found.answer).split())
    answer = answer if len(answer) <= ANSWER_LETTERS else f"{answer[: ANSWER_LETTERS - 1]}…"
    return _draw(found.context, found.token_scores(), title or f"“{answer}”, by {found.how}", width)


def _draw(
    tokens: Sequence[str], numbers: Sequence[float], title: str | None, width: Width
) -> Picture:
    """Draw tokens in lines; the largest number without its sign has the darkest background."""
    if not 0 < len(tokens) <= MOST_TOKENS:
        raise ValueError(f"there are {len(tokens):,} tokens; 1 to {MOST_TOKENS:,} can be drawn")
    # Where all numbers are zero, every background is white.
    peak = max(map(abs, numbers)) or 1.0
    wide = inches(width)
    with styled():
        # Measure the width of each token in inches, on a picture that is thrown away.
        measure = new_picture(wide, 1.0)
        renderer = measure.canvas.get_renderer()  # type: ignore[attr-defined]
        widths = []
        for token in tokens:
            drawn = measure.text(0, 0, _shown(token).replace(" ", "\u00a0"), fontsize=FONT_SIZE)
            widths.append(drawn.get_window_extent(renderer).width / measure.dpi)

        # Break lines at the right edge, and after a token that ends in a line break.
        places = []
        x = 0.0
        line = 0
        for token, size in zip(tokens, widths, strict=True):
            if x and x + size > wide - 0.2:
                x = 0.0
                line = line + 1
            places.append((x, line))
            x += size
            if token.endswith("\n"):
                x = 0.0
                line = line + 1

        # The picture is as high as its lines; a title takes a quarter of an inch more.
        height = LINE_HEIGHT * (places[-1][1] + 1) + (0.4 if title else 0.15)
        picture = new_picture(wide, height)
        axes = picture.subplots()
        axes.set(
            xlim=(0.0, wide - 0.15),
            # Inches from the top, so that lines count downwards.
            ylim=(LINE_HEIGHT * (places[-1][1] + 1), 0.0),
            title=title or "",
        )
        axes.set_axis_off()

        # Write each token on its background, in black or white, whichever can be read.
        for token, share, (x, line) in zip(tokens, numbers, places, strict=True):
            colour = _background(share / peak)
            axes.text(
                x,
                LINE_HEIGHT * (line + 0.5),
                # A line does not begin with a space, unless the token is nothing else.
                _shown(token if x else token.lstrip(" ") or token),
                fontsize=FONT_SIZE,
                va="center",
                color=text_colour(colour),
                bbox={
                    "boxstyle": "square,pad=0.12",
                    "facecolor": [c / 255 for c in colour],
                    "linewidth": 0,
                },
            )
    return picture


def _shown(token: str) -> str:
    # A token of line breaks alone is shown as an arrow.
    bare = token.rstrip("\n") or "↵"
    return visible(bare) if bare.strip() else bare


def _background(share: float) -> tuple[int, int, int]:
    """Return a colour from white (0) to the palette's blue (1) or red (-1): its brightness tells
    the size.
    """
    # The colour of a full share in RGB: blue above zero, red below.
    end = (0, 82, 140) if share >= 0 else (176, 48, 0)
    red, green, blue = (round(255 + (one - 255) * abs(share)) for one in end)
    return red, green, blue
