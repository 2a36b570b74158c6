"""Pictures along a text or a training: what keys receive, the entropy of queries, losses and the
health of heads.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import torch
from jaxtyping import Float
from torch import Tensor

from ..files import import_optional
from ..health import HealthReport
from ..token_kinds import TokenKind, read_part
from ..training import Event, HeadsWatched, Logged, Validated
from .inputs import Seen, known_names, track_of
from .style import (
    COLOURS,
    MOST_TICKS,
    SEQUENTIAL,
    LogNorm,
    Picture,
    Width,
    add_colour_bar,
    drawing,
    name_ticks,
    new_picture,
    styled,
)

MOST_LINES = 4  # heads up to which each is a line; more are rows of a heat map
LARGEST_LOGIT = 100.0  # above which the default rules of ts.Health give an alert
MOST_POINTS = 600  # places along a text that are drawn; a longer text is averaged in blocks


def received(
    seen: Seen,
    tokens: TokenKind | Sequence[str] | None = None,
    *,
    batch: SupportsIndex = 0,
    title: str | None = None,
    width: Width = "text",
) -> Picture:
    """Draw the weight that each key receives from all queries together, for every head.

    Up to four heads are lines, more are rows of a heat map, whose colours rise with the logarithm:
    a sink receives a thousand times more than other keys. A text of more than 600 tokens is
    averaged in blocks.

    Args:
        seen: a `Survey`, one attention of a recording, a `Trace` or a tensor of weights.
        tokens: the name of each key, or what the keys are, such as a `Grid`; a recording made with
            tokens= knows its own.
        batch: which sequence.
        title: above the picture; None is none.
        width: "column" (85 mm), "text" (175 mm) or inches.

    Example:
        >>> import torch, telescope as ts
        >>> q, k = torch.randn(2, 1, 2, 50, 8)
        >>> len(ts.plot.received(ts.survey(q, k)).axes[0].lines)
        2
    """
    track, names = track_of(seen, "received", batch)
    tokens = known_names(seen)[1] if tokens is None else read_part(tokens).names
    return _draw_track(
        track, names, tokens, "weight received", "key", title, width, logarithmic=True
    )


def entropy(
    seen: Seen,
    tokens: TokenKind | Sequence[str] | None = None,
    *,
    batch: SupportsIndex = 0,
    title: str | None = None,
    width: Width = "text",
) -> Picture:
    """Draw the entropy of each query's weights, in nats, for every head: 0 where all weight is on
    one key.

    The arguments are those of `received`; `tokens` name the queries.

    Args:
        seen, batch: as in `received`.
        tokens: the name of each query, or what the queries are.
        title: above the picture; None is none.
        width: "column" (85 mm), "text" (175 mm) or inches.

    Example:
        >>> import torch, telescope as ts
        >>> q, k = torch.randn(2, 1, 8, 50, 8)
        >>> picture = ts.plot.entropy(ts.survey(q, k))
        >>> picture.axes[0].get_ylabel()
        'head'
    """
    track, names = track_of(seen, "entropy", batch)
    tokens = known_names(seen)[0] if tokens is None else read_part(tokens).names
    return _draw_track(
        track, names, tokens, "entropy (nats)", "query", title, width, logarithmic=False
    )


def _draw_track(
    track: Float[Tensor, "heads place"],
    names: Sequence[int],
    tokens: Sequence[str] | None,
    measure: str,
    places: str,
    title: str | None,
    width: Width,
    *,
    logarithmic: bool,
) -> Picture:
    heads, count = track.shape
    if tokens is not None and len(tokens) != count:
        raise ValueError(
            f"there are {len(tokens)} tokens for {count} "
            f"{'queries' if places == 'query' else 'keys'}"
        )

    # Average neighbouring places in blocks, so that at most MOST_POINTS are drawn.
    step = max(1, -(-count // MOST_POINTS))
    blocks = (
        torch.stack([track[:, i : i + step].mean(-1) for i in range(0, count, step)], -1)
        if count
        else track
    )
    # Place each block at its middle; the last block may be short, so stay within the text.
    at = [min(step * i + (step - 1) / 2, count - 1) for i in range(blocks.shape[-1])]

    # Inches: lines have one height; a heat map grows with its heads, up to 8.
    with drawing(width, 1.5 if heads <= MOST_LINES else min(8.0, 0.7 + 0.12 * heads)) as (
        picture,
        axes,
    ):
        if heads <= MOST_LINES:
            for i, (number, line) in enumerate(zip(names, blocks.tolist(), strict=True)):
                axes.plot(at, line, color=COLOURS[i], label=f"head {number}")
            axes.set(ylabel=measure, xlim=(-0.5, max(count, 1) - 0.5))
            axes.set_ylim(bottom=0.0)
            if heads > 1:
                axes.legend(ncols=heads)
        else:
            # A logarithm has no zero: begin at the smallest positive number, at least 0.001.
            low = float(blocks[blocks > 0].min()) if bool((blocks > 0).any()) else 0.1
            norm = LogNorm(max(low, 1e-3), max(float(blocks.max()), 2e-3)) if logarithmic else None
            image = axes.imshow(
                blocks.numpy(),
                cmap=SEQUENTIAL,
                norm=norm,
                vmin=None if logarithmic else 0.0,
                aspect="auto",
                interpolation="nearest",
                # The axis counts places of the text, not blocks.
                extent=(-0.5, count - 0.5, heads - 0.5, -0.5),
            )
            axes.set(ylabel="head", yticks=range(heads), yticklabels=list(names))
            axes.spines[:].set_visible(False)
            add_colour_bar(picture, image, axes, measure, pad=0.01)
        name_ticks(axes, "x", tokens, count)
        axes.set(xlabel=places if tokens is None or count > MOST_TICKS else "", title=title or "")
    return picture


# ----------------------------------------------------------------------------------------- training


def training(
    run: Iterable[Event] | str | os.PathLike[str],
    *,
    title: str | None = None,
    width: Width = "text",
) -> Picture:
    """Draw the health of a training: losses, and for every head its mean entropy and its largest
    logit.

    An entropy that falls to 0 is a head that attends to one key alone; logits that rise without end
    end in overflow.

    Args:
        run: the events of a training (`report=events.append` collects them), or the folder that
            `telescope train` wrote, whose TensorBoard logs are read. Entropies and logits are there
            where `watch_every` or `--watch` was set.
        title: above the picture; None is none.
        width: "column" (85 mm), "text" (175 mm) or inches.

    Example:
        >>> import telescope as ts
        >>> from telescope.training import HeadsWatched
        >>> entropy, logit = (
        ...     {"blocks.0.self": (1.0, 0.5)},
        ...     {"blocks.0.self": (2.0, 9.0)},
        ... )
        >>> events = [HeadsWatched(step, entropy, logit) for step in (10, 20)]
        >>> [axes.get_title() for axes in ts.plot.training(events).axes]
        ['entropy of each head (nats)', 'largest logit of each head']
    """
    curves = _read_logs(Path(run)) if isinstance(run, str | os.PathLike) else _curves(run)
    # Leave out panels without lines: a run may have been trained without a watch.
    panels = {name: lines for name, lines in curves.items() if lines}
    if not panels:
        raise ValueError("there are no losses and no heads to draw in this run")

    # Draw the panels side by side.
    with styled():
        picture = new_picture(width, 1.9)
        grid = picture.subplots(1, len(panels), squeeze=False)[0]
        for axes, (name, lines) in zip(grid, panels.items(), strict=True):
            for i, (label, points) in enumerate(lines.items()):
                steps, numbers = zip(*sorted(points.items()), strict=True)
                # Many lines overlap: draw these half transparent, and without a legend.
                few = len(lines) <= MOST_LINES
                axes.plot(
                    steps,
                    numbers,
                    # The last colour of the palette, yellow, is left out.
                    color=COLOURS[i % 7],
                    alpha=1.0 if few else 0.5,
                    label=label,
                    linewidth=1.0,
                )
            axes.set(title=name, xlabel="step")
            if len(lines) <= MOST_LINES:
                axes.legend()
        if title:
            picture.suptitle(title, fontsize=8.0)
    return picture


# The fields of a layer's health, and the title of the panel of each.
HEALTH = {"logit": "largest logit", "entropy": "mean entropy (nats)", "one_key": "share on one key"}


def health(
    reports: HealthReport | Iterable[HealthReport],
    *,
    title: str | None = None,
    width: Width = "text",
) -> Picture:
    """Draw what `ts.Health` measured of each head: its largest logit, mean entropy and largest
    share on one key.

    A layer has a colour. The dashed line is the logit from which on the default rules give an
    alert.

    Args:
        reports: one `HealthReport`, drawn as a point for each head of each layer, or those of
            several steps, drawn as lines.
        title: above the picture; None is none.
        width: "column" (85 mm), "text" (175 mm) or inches.

    Example:
        >>> import torch, telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=10, d_model=8, heads=2, blocks=1)
        >>> model = ts.models.GPT(config)
        >>> report = ts.Health(model).measure(torch.tensor([[1, 2, 3, 4]]))
        >>> [axes.get_title() for axes in ts.plot.health(report).axes]
        ['largest logit', 'mean entropy (nats)', 'share on one key']
    """
    found = [reports] if isinstance(reports, HealthReport) else list(reports)
    if not found or not all(isinstance(report, HealthReport) for report in found):
        raise TypeError(
            "health takes what ts.Health(model).measure(batch) returns, or a list of these"
        )

    # Order the reports by step; the latest one names the layers.
    found.sort(key=lambda report: report.step)
    layers = list(found[-1].layers)
    with styled():
        picture = new_picture(width, 1.9)
        for axes, (measure, label) in zip(
            picture.subplots(1, len(HEALTH)), HEALTH.items(), strict=True
        ):
            for i, layer in enumerate(layers):
                rows = [(report.step, getattr(report.layers[layer], measure)) for report in found]
                # One report: a dot for each head, above the name of its layer.
                if len(rows) == 1:
                    axes.plot(
                        [i] * len(rows[0][1]), rows[0][1], ".", color=COLOURS[i % 7], markersize=4
                    )
                else:
                    # Several reports: a line for each head over the steps.
                    steps, numbers = zip(*rows, strict=True)
                    axes.plot(steps, numbers, color=COLOURS[i % 7], linewidth=0.9, alpha=0.8)
                    # An empty line gives each layer one entry in the legend, not one for each head.
                    axes.plot([], [], color=COLOURS[i % 7], label=layer)

            # Small logits keep the axis: show the alert limit where one exceeds half of it.
            largest = max(
                number for row in found[-1].layers.values() for number in getattr(row, measure)
            )
            if measure == "logit" and largest > 0.5 * LARGEST_LOGIT:
                axes.axhline(LARGEST_LOGIT, color="black", linewidth=0.7, linestyle="--")
            axes.set(title=label, xlabel="step" if len(found) > 1 else "")
            # Begin at zero, unless a number lies below.
            axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
            if len(found) == 1:
                axes.set_xticks(range(len(layers)), layers, rotation=90, fontsize=5.5)
            elif measure == "logit" and len(layers) <= MOST_LINES:
                axes.legend()
        if title:
            picture.suptitle(title, fontsize=8.0)
    return picture


Curves = dict[str, dict[str, dict[int, float]]]  # panel, line, step

# The title of each panel, by the part of a TensorBoard tag that names it.
PANELS = {
    "loss": "loss (nats)",
    "entropy": "entropy of each head (nats)",
    "largest_logit": "largest logit of each head",
}


def _curves(events: Iterable[Event]) -> Curves:
    curves: Curves = {panel: {} for panel in PANELS.values()}

    def add(panel: str, line: str, step: int, number: float) -> None:
        # A step that comes twice keeps its last number.
        curves[PANELS[panel]].setdefault(line, {})[step] = number

    for event in events:
        match event:
            case Logged():
                add("loss", "training", event.step, event.loss)
            case Validated():
                if "loss" in event.metrics:
                    add("loss", "validation", event.step, event.metrics["loss"])
            case HeadsWatched():
                # Each head is a line, named as in the TensorBoard logs.
                for panel, by_name in (("entropy", event.entropy), ("largest_logit", event.logit)):
                    for name, numbers in by_name.items():
                        for head, number in enumerate(numbers):
                            add(panel, f"{name}.{head}", event.step, number)
            case _:
                pass
    return curves


def _read_logs(folder: Path) -> Curves:
    """Return the curves of the TensorBoard logs in a folder; of several stages, the last one's."""
    files = sorted(folder.rglob("events.out.tfevents.*"))
    if not files:
        raise ValueError(f"there are no TensorBoard logs in {folder}; telescope train writes them")
    module = import_optional(
        "tensorboard.backend.event_processing.event_accumulator", "training", "train"
    )
    # A size of 0 keeps every point; by default TensorBoard keeps a sample of a long curve.
    logs: Any = module.EventAccumulator(str(files[-1].parent), size_guidance={"scalars": 0})
    logs.Reload()
    tags: Mapping[str, Any] = logs.Tags()
    curves: Curves = {panel: {} for panel in PANELS.values()}
    for tag in tags["scalars"]:
        kind, _, name = tag.partition("/")
        # A tag is train/loss or validation/loss, or entropy/LAYER.HEAD and the like.
        panel = "loss" if name == "loss" else kind
        if panel in PANELS:
            line = {"train": "training"}.get(kind, kind) if panel == "loss" else name
            curves[PANELS[panel]][line] = {point.step: point.value for point in logs.Scalars(tag)}
    return curves
