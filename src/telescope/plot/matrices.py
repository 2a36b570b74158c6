"""Pictures of weights: one head as a heat map, all heads as small maps, an alignment of two texts
as ribbons.
"""

from collections.abc import Sequence
from math import ceil
from typing import Any, SupportsIndex

from torch import Tensor

from ..recording import Recording
from ..token_kinds import Tokens
from ..traces import background, text_colour
from ..words import check_index
from .inputs import Matrices, Seen, matrices_of
from .style import (
    COLOURS,
    MOST_TICKS,
    SEQUENTIAL,
    Picture,
    PowerNorm,
    Width,
    add_colour_bar,
    drawing,
    inches,
    name_ticks,
    new_picture,
    styled,
    visible,
)

MOST_NUMBERED = 12  # rows and columns up to which every weight is written into its cell


def heatmap(
    seen: Seen,
    tokens: Tokens | None = None,
    *,
    head: SupportsIndex = 0,
    batch: SupportsIndex = 0,
    title: str | None = None,
    width: Width = "column",
) -> Picture:
    """Draw the weights of one head: a row for each query, a column for each key, brighter for more
    weight.

    Up to 12 tokens every weight is written as a number, and a cell without weight is empty. Above
    48 tokens the colours rise with the power 0.4 of the weight, so that small weights can be seen;
    the colour bar shows it. Above 512 tokens a cell is the share of the weight that a block of
    queries gives to a block of keys; the axes then count tokens.

    Args:
        seen: a `Trace`, a `Survey`, one attention of a recording, or a tensor (query, key), (heads,
            query, key) or (batch, heads, query, key).
        tokens: names of the positions, what they are (`Grid`, `Frames`, `Segments`), or (query
            tokens, key tokens); a trace, and a recording made with tokens=, knows its own.
        head: the number of the head in the model.
        width: "column" (85 mm), "text" (175 mm) or inches.
        batch: which sequence.
        title: above the picture; None is none.

    Example:
        >>> import torch, telescope as ts
        >>> x = torch.eye(3)[None, None]
        >>> picture = ts.plot.heatmap(ts.trace(x, x, x, tokens=["the", "cat", "sat"]))
        >>> [label.get_text() for label in picture.axes[0].get_xticklabels()]
        ['the', 'cat', 'sat']
    """
    found = matrices_of(seen, tokens, batch)
    matrix = found.numbers[_place(found, head)]
    rows, columns = matrix.shape
    wide = inches(width)
    # Cells are square, as far as the picture becomes neither a strip nor a tower.
    height = min(wide * 1.2, max(1.2, 0.82 * wide * rows / max(1, columns) + 0.45))
    with drawing(wide, height) as (picture, axes):
        image = _draw_matrix(axes, matrix, found, peak=_peak(matrix))
        name_ticks(axes, "x", found.columns, columns)
        name_ticks(axes, "y", found.rows, rows)
        axes.set(xlabel="key", ylabel="query", title=title or "")
        if max(rows, columns) <= MOST_NUMBERED:
            _write_numbers(axes, matrix)
        add_colour_bar(picture, image, axes, "weight", shrink=0.8, pad=0.02)
    return picture


def heads_grid(
    seen: Seen | Recording,
    tokens: Tokens | None = None,
    *,
    columns: int | None = None,
    batch: SupportsIndex = 0,
    title: str | None = None,
    width: Width = "text",
) -> Picture:
    """Draw every head as a small heat map. A recording has a row for each attention, and a column
    for each head.

    The colours of each map reach from 0 to its own largest weight: heads are compared by pattern,
    not by strength. The arguments are those of `heatmap`; `columns` is the number of maps in a row.

    Args:
        seen: as in `heatmap`, or a whole recording.
        tokens, batch: as in `heatmap`.
        columns: the number of maps in a row.
        title: above the picture; None is none.
        width: "column" (85 mm), "text" (175 mm) or inches.

    Example:
        >>> import torch, telescope as ts
        >>> q, k = torch.randn(2, 1, 6, 9, 4)
        >>> len(ts.plot.heads_grid(ts.survey(q, k)).axes)
        6
    """
    # A recording has a row of maps for each attention that was called.
    if isinstance(seen, Recording):
        if columns is not None:
            raise ValueError(
                f"columns={columns} is of one attention; a recording has a row for each attention, "
                "and a column for each head"
            )
        rows = [
            (name, matrices_of(watched, tokens, batch))
            for name, watched in seen.items()
            if watched.calls
        ]
        if not rows:
            raise ValueError(
                "the model was not called while it was watched, so there is nothing to draw"
            )
        panels = [[(found, i) for i in range(len(found.numbers))] for _, found in rows]
        labels = [name for name, _ in rows]
    else:
        found = matrices_of(seen, tokens, batch)
        count = len(found.numbers)
        # Up to six heads stand in one row; more form a grid near a square.
        across = columns or (count if count <= 6 else _columns(count))
        every = [(found, i) for i in range(count)]
        panels = [every[first : first + across] for first in range(0, count, across)]
        labels = [""] * len(panels)

    # All maps have the shape of the first one, 0.4 to 1.5 times as high as wide.
    across = max(map(len, panels))
    down = len(panels)
    wide = inches(width)
    shape = panels[0][0][0].numbers.shape
    height = wide / across * min(1.5, max(0.4, shape[-2] / max(1, shape[-1])))
    with styled():
        picture = new_picture(wide, min(60.0, down * (height + 0.12) + 0.2))
        grid = picture.subplots(down, across, squeeze=False)
        for number, (row, cells, label) in enumerate(zip(grid, panels, labels, strict=True)):
            # Remove the empty places of a row that is not full.
            for axes in row[len(cells) :]:
                axes.remove()
            for axes, (found, place) in zip(row, cells, strict=False):
                _draw_matrix(axes, found.numbers[place], found, peak=_peak(found.numbers[place]))
                axes.set(xticks=[], yticks=[])
                axes.set_title(f"head {found.names[place]}", fontsize=6.0, pad=1.5)
            row[0].set_ylabel(label, fontsize=6.0)
            # Few enough tokens are named at the edges of the grid.
            if max(cells[0][0].numbers.shape[-2:]) <= MOST_NUMBERED:
                name_ticks(row[0], "y", cells[0][0].rows, cells[0][0].numbers.shape[-2])
                for axes, (found, _) in zip(row if number == down - 1 else (), cells, strict=False):
                    name_ticks(axes, "x", found.columns, found.numbers.shape[-1])
                    axes.tick_params(axis="x", rotation=90)
        if title:
            picture.suptitle(title, fontsize=8.0)
    return picture


def alignment(
    seen: Seen,
    tokens: Tokens | None = None,
    *,
    head: SupportsIndex = 0,
    batch: SupportsIndex = 0,
    least: float = 0.05,
    title: str | None = None,
    width: Width = "text",
) -> Picture:
    """Draw which keys each query reads, as ribbons from the queries below to the keys above, wider
    for more weight.

    `least` is the smallest weight that is drawn. The other arguments are those of `heatmap`.

    Args:
        seen, tokens, head, batch: as in `heatmap`.
        least: the smallest weight that is drawn.
        title: above the picture; None is none.
        width: "column" (85 mm), "text" (175 mm) or inches.

    Example:
        >>> import torch, telescope as ts
        >>> weights = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
        >>> picture = ts.plot.alignment(weights, (["Guten", "Tag"], ["Good", "day"]))
        >>> len(picture.axes[0].lines)  # four weights, all above 0.05
        4
    """
    found = matrices_of(seen, tokens, batch)
    matrix = found.numbers[_place(found, head)]
    count = max(matrix.shape)
    if found.rows is None or found.columns is None or count > MOST_TICKS:
        raise ValueError(
            f"an alignment is drawn between at most {MOST_TICKS} named tokens, and there are "
            f"{matrix.shape[0]:,} queries and {matrix.shape[1]:,} keys; give tokens=(query tokens, "
            "key tokens), or "
            "draw a heatmap"
        )
    with drawing(width, 1.9) as (picture, axes):
        # Spread both texts over the same width.
        at_query = _spread(found.rows)
        at_key = _spread(found.columns)
        strongest = matrix.argmax(-1).tolist()
        for i, row in enumerate(matrix.tolist()):
            for j, weight in enumerate(row):
                if weight >= least:
                    # The strongest key of each query has a colour; all other ribbons are grey.
                    colour = COLOURS[0] if j == strongest[i] else "#777777"
                    axes.plot(
                        [at_query[i], at_key[j]],
                        [0.0, 1.0],
                        color=colour,
                        linewidth=0.3 + 5.0 * weight,
                        alpha=0.25 + 0.6 * min(1.0, weight),
                        solid_capstyle="round",
                    )

        # Write the tokens just outside the ends of the ribbons.
        for places, names, height, align in (
            (at_query, found.rows, -0.06, "top"),
            (at_key, found.columns, 1.06, "bottom"),
        ):
            for place, name in zip(places, names, strict=True):
                axes.text(place, height, visible(name), ha="center", va=align, fontsize=7.5)
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.25, 1.25), title=title or "")
        axes.set_axis_off()
    return picture


def _place(found: Matrices, head: SupportsIndex) -> int:
    """Return where a head, given by its number in the model, stands among the heads that were
    kept.
    """
    # The number in the model comes first; any other is an index among the kept heads.
    if head in found.names:
        return found.names.index(int(head))
    return check_index("head", head, len(found.names))


def _columns(heads: int) -> int:
    """Return how many maps stand in a row: a whole number of rows where one is near a square."""
    square = ceil(heads**0.5)
    return next((n for n in range(square, 2 * square) if heads % n == 0), square)


def _draw_matrix(axes: Any, matrix: Tensor, found: Matrices, peak: float) -> Any:
    rows, columns = matrix.shape
    # The axes count tokens, also where a cell pools several of them.
    extent = (-0.5, columns * found.pooled[1] - 0.5, rows * found.pooled[0] - 0.5, -0.5)
    # Of many weights most are small: show these too.
    gamma = 1.0 if max(rows, columns) <= MOST_TICKS else 0.4
    image = axes.imshow(
        matrix.numpy(),
        cmap=SEQUENTIAL,
        norm=PowerNorm(gamma, 0.0, peak),
        aspect="auto",
        interpolation="nearest",
        extent=extent,
    )
    axes.spines[:].set_visible(False)
    return image


def _peak(matrix: Tensor) -> float:
    return float(matrix.max()) or 1.0 if matrix.numel() else 1.0


def _write_numbers(axes: Any, matrix: Tensor) -> None:
    peak = _peak(matrix)
    for i, row in enumerate(matrix.tolist()):
        for j, weight in enumerate(row):
            if weight == 0.0:  # masked: an empty cell
                continue
            ink = text_colour(background(weight / peak))
            axes.text(
                j,
                i,
                # Write .25 for 0.25, which is narrower.
                f"{weight:.2f}".lstrip("0") or "0",
                ha="center",
                va="center",
                fontsize=5.5,
                color=ink,
            )


def _spread(names: Sequence[str]) -> list[float]:
    """Return a place from 0 to 1 for each name, wide names farther apart."""
    # The letters of each name, and 1.5 letters between two names.
    widths = [len(name) + 1.5 for name in names]
    ends = [sum(widths[: i + 1]) for i in range(len(widths))]
    return [(end - width / 2) / ends[-1] for end, width in zip(ends, widths, strict=True)]
