"""Pictures of what a query sees of an image: its weights over the patches, one head or all."""

import os
from collections.abc import Mapping
from math import ceil
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ..recording import RecordedCall, Watched
from ..surveys import Survey
from ..token_kinds import Grid, TokenKind, TokenPlace, Tokens, split_tokens, token_name
from ..traces import Trace
from ..words import check_index, hint
from .inputs import Seen, with_batch_and_heads
from .style import (
    COLOURS,
    SEQUENTIAL,
    Normalize,
    Picture,
    Rectangle,
    Width,
    imread,
    inches,
    new_picture,
    styled,
    visible,
)

Pixels = Shaped[np.ndarray, "height width *colour"]

MOST_ACROSS = 4  # pictures of heads in one row
BAR = 0.42  # inches beside a picture for its scale
MOST_HIGH = 4.5  # inches of one picture
MOST_BESIDE = 3  # tokens besides the patches whose weights are written out


def image(
    seen: Seen,
    query: TokenPlace | None = None,
    *,
    head: SupportsIndex | None = None,
    image: Any = None,
    tokens: Tokens | None = None,
    batch: SupportsIndex = 0,
    title: str | None = None,
    width: Width | None = None,
) -> Picture:
    """Draw how much weight one query gives to each patch of an image, over the picture if it is
    given.

    The query's own patch has a frame. What the query gives to tokens that are no patches, such as
    class tokens, stands below. Of a recording of summaries, the weights that were kept are drawn,
    and below stands what part of the weight these are.

    Args:
        seen: an attention of a recording, a `Trace`, a `Survey`, or a tensor (query, key), (heads,
            query, key) or (batch, heads, query, key).
        query: the token that looks: (row, column) of a patch, a name such as "[CLS]", or a
            position; None draws what each patch receives from all queries together.
        head: the number of the head in the model; None draws all heads.
        image: the picture that the patches were cut from, with the shape of the grid: a file, an
            image of PIL, or an array or tensor (height, width), (height, width, colour) or (colour,
            height, width); of several grids a dict from their names to pictures.
        tokens: what the tokens are, a `Grid` or `Segments`, or (query tokens, key tokens); a
            recording made with tokens= knows its own.
        width: "column" (85 mm) or "text" (175 mm), or inches; by default as wide as is needed.
        batch: which sequence.
        title: above the picture; None is none.

    Example:
        >>> import torch, telescope as ts
        >>> x = torch.randn(1, 2, 5, 4)
        >>> steps = ts.trace(x, x, x, tokens=ts.Grid(2, 2, before=["[CLS]"]))
        >>> picture = ts.plot.image(
        ...     steps, "[CLS]", tokens=ts.Grid(2, 2, before=["[CLS]"])
        ... )
        >>> [axes.get_title() for axes in picture.axes[:2]]
        ['head 0', 'head 1']
    """
    found = _weights(seen, query, tokens, batch)
    heads = [*range(len(found.names))] if head is None else [_place(found.names, head)]
    grids = {
        part.name: (first, part) for first, part in found.keys._parts() if isinstance(part, Grid)
    }
    if not grids:
        raise ValueError(
            f"tokens={found.keys} has no patches to draw; give tokens=ts.Grid(rows, columns)"
        )
    pictures = _pictures(image, {name: grid for name, (_, grid) in grids.items()})

    # A row for each head with several images, else the heads side by side.
    panels = [(place, name) for place in heads for name in grids]
    across = len(grids) if len(grids) > 1 else min(len(panels), MOST_ACROSS)
    if len(grids) == 1 and len(panels) > MOST_ACROSS:
        across = next((n for n in (4, 3) if len(panels) % n == 0), MOST_ACROSS)
    down = ceil(len(panels) / across)
    wide = inches(width or ("column" if len(panels) == 1 else "text"))
    # Several images have one height; beside each stand the scale and its numbers.
    ratios = [grid.columns / grid.rows for _, grid in grids.values()]
    ratios = ratios if len(grids) > 1 else ratios * across
    room = max(0.5 * wide, wide - BAR * across)
    each = min(MOST_HIGH, room / sum(ratios))
    with styled():
        picture = new_picture(wide, min(60.0, down * (each + 0.38) + 0.25))
        axes = picture.subplots(down, across, squeeze=False, width_ratios=ratios).flatten().tolist()
        for empty in axes[len(panels) :]:
            empty.remove()
        for one, (place, name) in zip(axes, panels, strict=False):
            first, grid = grids[name]
            drawn = _draw(one, found, place, first, grid, pictures.get(name))
            # What other tokens get is the same beside each image.
            if name == next(iter(grids)):
                one.set_xlabel(_beside(found, place), fontsize=6.0, labelpad=2.0)
            one.set_title(_title(found, place, name), fontsize=7.0, pad=2.5)
            # Each panel has a scale of its own, as high as it: its largest weight may be small.
            scale = one.inset_axes((1.03, 0.0, 0.05 * grid.rows / grid.columns, 1.0))
            bar: Any = picture.colorbar(drawn, cax=scale)
            bar.outline.set_visible(False)
            bar.ax.tick_params(labelsize=5.5, length=1.5, pad=1.0)
        looking = "received from all queries" if query is None else f"from {_shown(query, found)}"
        picture.suptitle(f"{title}: {looking}" if title else looking, fontsize=8.0)
    return picture


class _Found(NamedTuple):
    """The weights of one query, or what keys receive, of every head of one sequence."""

    numbers: Float[Tensor, "heads key"]
    names: tuple[int, ...]
    """The numbers of the heads in the model."""
    keys: TokenKind
    query: int | None
    """The position of the query among the keys, where both are one text."""
    label: str | None
    """The name of the query, where it has one."""
    known: Float[Tensor, " heads"] | None
    """The share of the weight that was kept; None where all of it was."""


def _weights(
    seen: Seen, query: TokenPlace | None, tokens: Tokens | None, batch: SupportsIndex
) -> _Found:
    """Return the numbers to draw, of one sequence, in float64 on the CPU."""
    call = seen.call if isinstance(seen, Watched) else seen
    size, count = _sizes(call)
    sides = _kinds(call, tokens, size)
    queries, keys = sides
    number = check_index("batch", batch, count)
    names: tuple[int, ...] = call.heads if isinstance(call, RecordedCall) else ()
    is_one_text = queries is keys or queries == keys
    if query is None:
        received = _received(call)[number].detach().double().cpu()
        return _Found(received, names or _count(received), keys, None, None, None)

    # The queries of one text are the last of its tokens.
    ahead = size[1] - size[0] if is_one_text else 0
    position = _find(query, queries, ahead + size[0])
    row = _kept_row(call, position - ahead, query)
    weights, known = _row(call, row, number)
    label = queries.names[position] if queries is not None and position < len(queries) else None
    own = position if is_one_text else None
    return _Found(weights, names or _count(weights), keys, own, label, known)


def _count(numbers: Tensor) -> tuple[int, ...]:
    return tuple(range(len(numbers)))


def _sizes(seen: Any) -> tuple[tuple[int, int], int]:
    """Return the number of queries and keys, and of sequences."""
    if isinstance(seen, RecordedCall):
        return seen.size, seen._facts.shape[0]
    if isinstance(seen, Survey):
        return (seen.queries.shape[-2], seen.keys.shape[-2]), len(seen.queries)
    weights = seen.weights if isinstance(seen, Trace) else seen
    if not isinstance(weights, Tensor) or not 2 <= weights.ndim <= 4:
        raise TypeError(
            f"{type(seen).__name__} holds no weights to draw; an attention of a recording, such as "
            'recording["blocks.0.attn"], a Trace, a Survey or a tensor (query, key) does'
        )
    return (weights.shape[-2], weights.shape[-1]), len(with_batch_and_heads(weights))


def _kinds(
    seen: Any, tokens: Tokens | None, size: tuple[int, int]
) -> tuple[TokenKind | None, TokenKind]:
    """Return what the queries and the keys are."""
    sides = seen._facts.tokens if isinstance(seen, RecordedCall) else None
    if tokens is not None:
        sides, _ = split_tokens(tokens)
    if sides is None or sides.keys is None:
        raise ValueError(
            "it is not known which tokens are patches: give tokens=ts.Grid(rows, columns) here, or "
            "to ts.watch"
        )
    if tokens is not None and len(sides.keys) != size[1]:
        split = sides.keys
        raise ValueError(
            f"tokens={split} has {len(split)} tokens, and there are {size[1]} keys to draw"
        )
    return sides.queries, sides.keys


def _find(query: TokenPlace, kind: TokenKind | None, count: int) -> int:
    """Return the position of a query; without names only a number tells it."""
    if kind is not None and isinstance(query, str | tuple):
        return kind.find(query)
    if isinstance(query, str | tuple):
        raise ValueError(
            f'the queries have no names, so that "{token_name(query)}" is none; give its position, '
            f"from 0 to {count - 1}"
        )
    return check_index("query", query, count)


def _kept_row(seen: Any, row: int, query: TokenPlace) -> int:
    """Return where a query stands among those that were kept."""
    rows = seen.rows if isinstance(seen, RecordedCall) else None
    if row < 0 or (rows is not None and row not in rows):
        name = token_name(query) if isinstance(query, str | tuple) else str(query)
        raise ValueError(f'the query "{name}" was not kept: leave queries= out of ts.watch')
    return row if rows is None else rows.index(row)


def _received(seen: Any) -> Float[Tensor, "batch heads key"]:
    if isinstance(seen, RecordedCall):
        return seen.survey().received
    if isinstance(seen, Survey):
        return seen.received
    weights = seen.weights if isinstance(seen, Trace) else seen
    return with_batch_and_heads(weights).sum(-2)


def _row(
    seen: Any, row: int, number: int
) -> tuple[Float[Tensor, "heads key"], Float[Tensor, " heads"] | None]:
    """Return the weights of one query, and what share of them is known where some are not."""
    survey = seen.survey() if isinstance(seen, RecordedCall) else seen
    if not isinstance(survey, Survey):
        weights = survey.weights if isinstance(survey, Trace) else survey
        return with_batch_and_heads(weights)[number, :, row].detach().double().cpu(), None
    if not survey.queries.is_meta:
        return survey.rows([row])[number, :, 0].detach().double().cpu(), None
    # A summary holds the largest weights alone; -1 is no key.
    top = survey.top
    weights = top.weights[number, :, row].detach().double().cpu()
    keys = top.keys[number, :, row].detach().cpu().long()
    if not weights.shape[-1]:
        raise ValueError(
            'this recording kept no weights: ts.watch(model, keep="queries-keys"), or top=8, does'
        )
    dense = weights.new_zeros(len(weights), survey.keys.shape[-2])
    dense.scatter_add_(1, keys.clamp(min=0), weights.masked_fill(keys < 0, 0.0))
    return dense, dense.sum(-1)


def _place(names: tuple[int, ...], head: SupportsIndex) -> int:
    """Return where a head, given by its number in the model, stands among the heads that were
    kept.
    """
    if head in names:
        return names.index(int(head))
    return check_index("head", head, len(names))


def _draw(
    axes: Any, found: _Found, place: int, first: int, grid: Grid, pixels: Pixels | None
) -> Any:
    """Draw one head over one image, and return what has the scale of the colours."""
    start = first + grid.first
    weights = found.numbers[place, start : start + grid.count].view(grid.rows, grid.columns)
    norm = Normalize(0.0, float(weights.max()) or 1.0)
    extent = (-0.5, grid.columns - 0.5, grid.rows - 0.5, -0.5)
    if pixels is not None:
        grey = pixels.mean(-1) if pixels.ndim == 3 else pixels
        # The picture in pale grey: colours are those of weights alone.
        axes.imshow(grey, cmap="gray", vmin=-0.6, vmax=1.0, extent=extent, aspect="equal")
    # Over a picture, patches of little weight let it through.
    shares = np.asarray(norm(weights.numpy()))
    alpha = 1.0 if pixels is None else 0.85 * np.sqrt(shares)
    drawn = axes.imshow(
        weights.numpy(),
        cmap=SEQUENTIAL,
        norm=norm,
        alpha=alpha,
        extent=extent,
        aspect="equal",
        interpolation="nearest",
    )
    own = -1 if found.query is None else found.query - start
    if 0 <= own < grid.count:
        corner = (own % grid.columns - 0.5, own // grid.columns - 0.5)
        axes.add_patch(
            Rectangle(corner, 1, 1, fill=False, edgecolor=COLOURS[1], linewidth=1.6, zorder=3)
        )
    axes.set(xticks=[], yticks=[], xlim=extent[:2], ylim=extent[2:])
    axes.spines[:].set_visible(False)
    return drawn


def _beside(found: _Found, place: int) -> str:
    """Return what the query gives to tokens that are no patches: the largest by name, the rest in
    one sum.
    """
    numbers = found.numbers[place]
    is_patch = torch.zeros(len(numbers), dtype=torch.bool)
    for first, part in found.keys._parts():
        if isinstance(part, Grid):
            is_patch[first + part.first : first + part.first + part.count] = True
    others = [i for i in range(len(numbers)) if not is_patch[i]]
    others.sort(key=lambda i: -float(numbers[i]))
    # Tokens that were written later have no names.
    names = (*found.keys.names, *map(str, range(len(found.keys), len(numbers))))
    shown = [f"{visible(names[i])} {float(numbers[i]):.2f}" for i in others[:MOST_BESIDE]]
    rest = float(numbers[others[MOST_BESIDE:]].sum())
    if len(others) > MOST_BESIDE:
        shown.append(f"{len(others) - MOST_BESIDE} others {rest:.2f}")
    if found.known is not None:
        shown.append(f"{float(found.known[place]):.0%} of the weight is known")
    return ", ".join(shown)


def _title(found: _Found, place: int, name: str) -> str:
    head = f"head {found.names[place]}"
    return f"{head}: {name}" if name else head


def _shown(query: TokenPlace, found: _Found) -> str:
    given = token_name(query) if isinstance(query, str | tuple) else str(query)
    return visible(found.label or f"query {given}")


# ----------------------------------------------------------------------------------------- pictures


def _pictures(given: Any, grids: Mapping[str, Grid]) -> dict[str, Pixels]:
    """Return the pixels of each grid's picture, from 0 to 1; none where none are given."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        if len(grids) > 1:
            raise ValueError(
                f"there are {len(grids)} images; image= takes a dict from their names to pictures: "
                f"{', '.join(grids)}"
            )
        given = dict.fromkeys(grids, given)
    for name in given:
        if name not in grids:
            raise ValueError(f'image has the name "{name}", which no grid has; {hint(name, grids)}')
    return {name: _fitting(_pixels(one), grids[name]) for name, one in given.items()}


def _pixels(given: Any) -> Pixels:
    """Return a picture as numbers from 0 to 1: (height, width), or with colours last."""
    if isinstance(given, str | os.PathLike):
        try:
            given = imread(os.fspath(given))
        except (OSError, ValueError, SyntaxError) as problem:
            raise ValueError(f'image="{os.fspath(given)}" is no picture: {problem}') from None
    array = given.detach().cpu().float().numpy() if isinstance(given, Tensor) else np.asarray(given)
    # Models read (colour, height, width), and files have the colours last.
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] not in (1, 3, 4):
        array = np.moveaxis(array, 0, 2)
    is_picture = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))
    if not is_picture or array.dtype.kind not in "buif" or 0 in array.shape:
        raise ValueError(
            f"image has the shape {array.shape}, which is no picture; (height, width), (height, "
            "width, 3) and (3, height, width) are"
        )
    array = array[..., :3] if array.ndim == 3 else array
    if array.dtype.kind != "f":
        return array.astype(np.float64) / max(1, int(array.max()) if array.max() > 255 else 255)
    # Pixels that were normalised for a model have no fixed range.
    low = float(array.min())
    high = float(array.max())
    if low < 0.0 or high > 1.0:
        return (array - low) / ((high - low) or 1.0)
    return array


def _fitting(pixels: Pixels, grid: Grid) -> Pixels:
    """Return the picture; raise a ValueError unless it has the shape of the grid, to half a
    patch and a tenth of its side.
    """
    height, width = pixels.shape[:2]
    rows = height * grid.columns / width
    columns = width * grid.rows / height
    # Models that take any shape round it to whole patches.
    off = min(abs(rows - grid.rows), abs(columns - grid.columns))
    if off <= min(0.5, 0.1 * grid.rows, 0.1 * grid.columns):
        return pixels
    # The largest part of the picture that has the shape of the grid.
    side = min(width / grid.columns, height / grid.rows)
    fits = f"{round(side * grid.columns)} x {round(side * grid.rows)}"
    raise ValueError(
        f"image has {width} x {height} pixels (width x height), and {grid.rows} rows x "
        f"{grid.columns} columns of square patches do not cover that; give what the model read, "
        f"such as {fits} pixels of it"
    )
