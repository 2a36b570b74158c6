"""Pictures of tables: heads by two of their columns, habits of all heads as a grid, effects of
edits as bars.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isnan, nan
from typing import Any

from ..atlases import Atlas, Comparison
from ..measures import COLUMNS, MEASURES
from ..recording import Heads
from ..words import hint
from .style import COLOURS, SEQUENTIAL, Picture, Width, add_colour_bar, drawing, inches

Row = Mapping[str, Any]
# Heads, an Atlas, a Comparison, Effects, a frame of pandas or polars, columns by name, or rows.
TableLike = Any

# Labels of the colour bar that replace the unit of the measure.
UNITS = {"spread": "effective number of keys", "largest_logit": "largest logit"}
MARKERS = "os^Dvp*X<>"  # a kind has a colour and a shape, so that it can be told without colours


def rows_of(table: TableLike) -> list[Row]:
    """Return the rows of a table as mappings: of Heads, an Atlas, a frame, columns by name, or
    rows.

    Raises TypeError for anything else, ValueError for a table without rows.
    """
    if isinstance(table, Heads | Comparison):
        rows: Any = table.to_dict()
    elif isinstance(table, Atlas):
        rows = [*table.rows()]
    # Effects of edits keep their columns by name.
    elif hasattr(table, "columns") and isinstance(table.columns, Mapping):
        rows = rows_of(table.columns)
    elif hasattr(table, "to_dicts"):  # polars
        rows = table.to_dicts()
    elif hasattr(table, "to_dict"):  # pandas
        rows = table.to_dict("records")
    elif isinstance(table, Mapping):
        rows = [
            dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)
        ]
    else:
        rows = list(table) if isinstance(table, Iterable) else None
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise TypeError(
            f"{type(table).__name__} is no table; a frame, Heads, or a list of dicts is"
        )
    if not rows:
        raise ValueError("the table has no rows, so there is nothing to draw")
    return rows


def column(rows: Sequence[Row], name: str) -> list[Any]:
    """Return one column; raise a ValueError that suggests a name where there is no such column."""
    if name not in rows[0]:
        raise ValueError(f'there is no column "{name}"; {hint(name, list(rows[0]))}')
    return [row[name] for row in rows]


def scatter(
    table: TableLike,
    x: str = "previous",
    y: str = "induction",
    *,
    colour: str = "kind",
    label: str | None = None,
    title: str | None = None,
    width: Width = "column",
) -> Picture:
    """Draw each row of a table, such as each head of a model, as a point by two of its columns.

    A point of an atlas is a mean over the corpus; its thin lines reach from the 25 % to the 75 %
    quantile of the texts. Rows where a number is unknown are left out.

    Args:
        table: `recording.heads()`, an atlas, a pandas or polars frame, or a list of dicts.
        colour: a column of words; each word has a colour and a shape.
        label: a column to write beside each point.
        x, y: the columns that place a point.
        title: above the picture; None is none.
        width: "column" (85 mm), "text" (175 mm) or inches.

    Example:
        >>> import telescope as ts
        >>> first = {"kind": "first", "previous": 0.1, "induction": 0.0}
        >>> previous = {"kind": "previous", "previous": 0.9, "induction": 0.1}
        >>> len(ts.plot.scatter([first, previous]).axes[0].collections)
        2
    """
    rows = rows_of(table)
    kinds = [str(kind) for kind in column(rows, colour)] if colour in rows[0] else [""] * len(rows)

    # Leave out the rows in which one of the two numbers is unknown.
    points = [
        (across, up, kind, row)
        for across, up, kind, row in zip(column(rows, x), column(rows, y), kinds, rows, strict=True)
        if _known(across) and _known(up)
    ]
    if not points:
        raise ValueError(f'no row has both "{x}" and "{y}", so there is nothing to draw')
    with drawing(width, 0.8 * inches(width)) as (picture, axes):
        # Sorted, so that the colour of a kind does not depend on the order of the rows.
        for i, kind in enumerate(sorted(set(kinds))):
            chosen = [(across, up) for across, up, own, _ in points if own == kind]
            if chosen:
                axes.scatter(
                    [across for across, _ in chosen],
                    [up for _, up in chosen],
                    s=16,
                    marker=MARKERS[i % len(MARKERS)],
                    color=COLOURS[i % len(COLOURS)],
                    alpha=0.8,
                    linewidths=0,
                    label=kind,
                )

        # An atlas has quantiles over its texts: draw these as thin lines behind the points.
        for across, up, _, row in points:
            low_high: Any = [(row.get(f"{name}.q25%"), row.get(f"{name}.q75%")) for name in (x, y)]
            if all(_known(end) for pair in low_high for end in pair):
                axes.plot(low_high[0], [up, up], color="grey", linewidth=0.4, zorder=0)
                axes.plot([across, across], low_high[1], color="grey", linewidth=0.4, zorder=0)
        # Write each label two typographic points to the right of its point and above.
        if label is not None:
            for (across, up, *_), name in zip(
                points, column([row for *_, row in points], label), strict=True
            ):
                axes.annotate(
                    str(name), (across, up), (2, 2), textcoords="offset points", fontsize=5.5
                )
        axes.set(xlabel=x, ylabel=y, title=title or "")
        if any(kinds):
            # Put the legend beside the axes, where it hides no point.
            axes.legend(
                title=colour, title_fontsize=6.5, loc="upper left", bbox_to_anchor=(1.0, 1.0)
            )
    return picture


def habits(
    heads: Heads, habit: str = "induction", *, title: str | None = None, width: Width = "column"
) -> Picture:
    """Draw a square for each head, layers from top to bottom, brighter for a larger share of the
    weight.

    Args:
        heads: `recording.heads()`, `atlas.heads()`, or a part of them.
        habit: a column of the table: itself, previous, first, sink, same, induction, punctuation,
            far, streaming, retrieval, spread, largest_logit, neighbours, patches, seconds.
        title: above the picture; None is none.
        width: "column" (85 mm), "text" (175 mm) or inches.

    Example:
        >>> import torch, telescope as ts
        >>> layer = ts.layers.MultiHeadAttention(8, 2)
        >>> with ts.watch(layer) as recording:
        ...     _ = layer(torch.randn(1, 5, 8))
        >>> ts.plot.habits(recording.heads(), "previous").axes[0].get_title()
        'previous'
    """
    if habit not in COLUMNS:
        raise ValueError(f'there is no habit "{habit}"; {hint(habit, COLUMNS)}')
    if not heads:
        raise ValueError("there is no head in this table, so there is nothing to draw")

    # Rows are the layers that a selection of heads still has, in the order of the model.
    shown = {head.layer for head in heads}
    layers = [layer for layer in heads.layers if layer in shown]
    # A head that is missing stays NaN, and its square empty.
    squares = [[nan] * (1 + max(head.number for head in heads)) for _ in layers]
    for head in heads:
        squares[layers.index(head.layer)][head.number] = getattr(head, habit)
    wide = inches(width)
    measure = MEASURES[habit]
    # Inches: cells are about square, unless the picture would become higher than 9.
    height = min(9.0, 0.6 + 0.8 * wide * len(layers) / max(4, len(squares[0])))
    with drawing(wide, height) as (picture, axes):
        image = axes.imshow(
            squares,
            cmap=SEQUENTIAL,
            vmin=0.0,
            # All shares have the scale 0 to 1, so that pictures can be compared.
            vmax=1.0 if measure.is_share else None,
            aspect="auto",
        )
        axes.set(xlabel="head", title=title or habit, yticks=range(len(layers)), yticklabels=layers)
        axes.set_xticks(range(len(squares[0])))
        axes.spines[:].set_visible(False)
        add_colour_bar(picture, image, axes, UNITS.get(habit, measure.unit), pad=0.02)
    return picture


def effects(
    table: TableLike,
    measure: str | None = None,
    *,
    name: str = "edit",
    most: int = 20,
    title: str | None = None,
    width: Width = "column",
) -> Picture:
    """Draw what each edit of a model changed, the largest change on top.

    Args:
        table: what measuring edits returned: a frame, columns by name, or a list of dicts. A row
            whose `name` is None is the model as it is, drawn as a line to compare with.
        measure: the column to draw; the first one with numbers unless given.
        name: the column that names each row.
        most: rows that are drawn.
        title: above the picture; None is none.
        width: "column" (85 mm), "text" (175 mm) or inches.

    Example:
        >>> import telescope as ts
        >>> table = {
        ...     "edit": [None, "head 0 muted", "head 1 muted"],
        ...     "loss": [2.0, 2.1, 2.5],
        ... }
        >>> # From below
        >>> [
        ...     label.get_text()
        ...     for label in ts.plot.effects(table).axes[0].get_yticklabels()
        ... ]
        ['head 0 muted', 'head 1 muted']
    """
    rows = rows_of(table)
    names = column(rows, name)
    # The columns that hold numbers, judged by the last row.
    numeric = [key for key, value in rows[-1].items() if key != name and _known(value)]
    if measure is None and not numeric:
        raise ValueError(
            f"the table has no column with numbers; it has {', '.join(map(str, rows[0]))}"
        )
    measure = measure or numeric[0]
    numbers = column(rows, measure)

    # The row without a name is the model without edits: changes are measured from there.
    plain = next((number for own, number in zip(names, numbers, strict=True) if own is None), None)
    changed = [
        (str(own), number)
        for own, number in zip(names, numbers, strict=True)
        if own is not None and _known(number)
    ]
    # Rank by the size of the change, and keep the largest ones.
    changed.sort(key=lambda row: -abs(row[1] - (plain or 0.0)))
    del changed[most:]
    if not changed:
        raise ValueError(f'no edit has a "{measure}", so there is nothing to draw')
    with drawing(width, 0.55 + 0.16 * len(changed)) as (picture, axes):
        # Bars are drawn from below, so that the largest change comes last.
        axes.barh(
            [own for own, _ in changed][::-1],
            [number for _, number in changed][::-1],
            color=COLOURS[0],
            height=0.7,
        )
        if plain is not None and _known(plain):
            axes.axvline(plain, color=COLOURS[1], linewidth=0.9, label="as it is")
            axes.legend(loc="lower right")
        axes.set(xlabel=measure, title=title or "")
        axes.tick_params(axis="y", length=0)
    return picture


def _known(number: Any) -> bool:
    # In Python a bool is an int, and it is no measurement.
    return isinstance(number, int | float) and not isinstance(number, bool) and not isnan(number)
