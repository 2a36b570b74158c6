"""Pictures of vectors: how attention moves them, and how their dot products grow with their
dimension.
"""

from collections.abc import Iterable, Sequence

from jaxtyping import Float
from torch import Tensor

from ..recording import RecordedCall, Watched
from ..traces import Trace, plane
from .style import COLOURS, Picture, Width, drawing, inches, visible


def geometry(
    before: Trace | Watched | RecordedCall | Float[Tensor, "n d"],
    after: Float[Tensor, "n d"] | None = None,
    tokens: Sequence[str] | None = None,
    *,
    head: int = 0,
    batch: int = 0,
    title: str | None = None,
    width: Width = "column",
) -> Picture:
    """Draw each vector before and after attention in one plane, joined by an arrow.

    The plane is that of the two largest principal components of both sets together; its axes say
    which share of the variance they show. What lies close in the plane may be far apart in space:
    `ts.trace.geometry` has true cosines.

    Args:
        before: vectors (n, d), with `after` of the same shape; or a `Trace`, whose values of one
            head move to the context; or an attention of a recording with keep="steps", whose
            residual stream moves.
        tokens: the name of each vector; a trace knows its own.
        after: vectors (n, d), where `before` is a tensor.
        head, batch: which head and sequence of a trace.
        title: above the picture; None is none.
        width: "column" (85 mm), "text" (175 mm) or inches.

    Raises:
        ValueError: the two sets do not fit each other.

    Example:
        >>> import torch, telescope as ts
        >>> x = torch.eye(3)
        >>> picture = ts.plot.geometry(x, x.roll(1, 0), ["a", "b", "c"])
        >>> [text.get_text() for text in picture.axes[0].texts if text.get_text()]
        ['a', 'b', 'c']
    """
    # Vectors by themselves have no heads and no batch; whatever holds them has its own `after`.
    is_holder = isinstance(before, Trace | Watched | RecordedCall)
    if is_holder and after is not None:
        raise ValueError(
            f"after= belongs to vectors before; a {type(before).__name__} has both: leave it out"
        )
    if not isinstance(before, Trace) and head != 0:
        raise ValueError(f"head={head} is of a Trace; {type(before).__name__} has no heads to draw")
    if not is_holder and batch != 0:
        raise ValueError(f"batch={batch} is of a Trace or a recording; pass vectors[{batch}]")
    # Take the vectors before and after from whatever holds them.
    if isinstance(before, Trace):
        first = before.head(head)
        start = first.values[batch, 0]
        end = first.context[batch, 0]
        tokens = first.query_tokens if tokens is None else tokens
    elif isinstance(before, Watched | RecordedCall):
        # The residual stream, before and after this attention.
        start = before.before[batch]
        end = before.after[batch]
    elif after is None:
        raise ValueError(
            "geometry takes vectors before and after: geometry(before, after), or a Trace"
        )
    else:
        start = before
        end = after
    if start.shape != end.shape or start.ndim != 2:
        raise ValueError(
            f"there are vectors of shape {tuple(start.shape)} before and {tuple(end.shape)} after; "
            "both must be "
            "(n, d), as in self-attention, where every token is query and key"
        )
    names = [""] * len(start) if tokens is None else list(tokens)
    if len(names) != len(start):
        raise ValueError(f"there are {len(names)} tokens for {len(start)} vectors")

    # Project both sets onto one plane, so that movements can be seen.
    found = plane(start.detach().cpu(), end.detach().cpu())
    with drawing(width, 0.85 * inches(width)) as (picture, axes):
        old = found.before.tolist()
        new = found.after.tolist()
        for i, (name, (x, y), (u, v)) in enumerate(zip(names, old, new, strict=True)):
            # The last colour of the palette, yellow, is left out.
            colour = COLOURS[i % (len(COLOURS) - 1)]
            # An annotation without text draws an arrow between two points.
            axes.annotate(
                "",
                (u, v),
                (x, y),
                arrowprops={
                    "arrowstyle": "-|>",
                    "color": colour,
                    "lw": 0.9,
                    "shrinkA": 3,
                    "shrinkB": 2,
                },
            )
            # A hollow dot is the vector before, a filled one the vector after.
            axes.plot([x], [y], "o", color="white", markeredgecolor=colour, markersize=4.5)
            axes.plot([u], [v], "o", color=colour, markersize=4.5)
            if name:
                # Put the name behind the arrow's tail: heads of arrows often meet in one place.
                right = x >= u
                up = y >= v
                axes.annotate(
                    visible(name),
                    (x, y),
                    (4 if right else -4, 4 if up else -4),
                    textcoords="offset points",
                    ha="left" if right else "right",
                    va="bottom" if up else "top",
                    color=colour,
                    fontsize=7.0,
                )
        axes.margins(0.2)
        axes.set_aspect("equal", adjustable="datalim")  # a distance is the same in every direction
        shares = [f"{share:.0%} of the variance" for share in found.explained]
        axes.set(xlabel=shares[0], ylabel=shares[1], title=title or "○ before   ● after attention")
    return picture


def variance(
    traces: Iterable[Trace], *, title: str | None = None, width: Width = "column"
) -> Picture:
    """Draw the measured variance of the scores against d_k, before and after scaling, beside the
    law.

    The variance of a dot product of d_k independent features is d_k times that of one product, so
    the scores rise along a line; divided by √d_k, they stay where they were.

    Args:
        traces: attentions of random queries and keys with different d_k, as `ts.trace` returns them
        title: above the picture; None is none.
        width: "column" (85 mm), "text" (175 mm) or inches.

    Example:
        >>> import torch, telescope as ts
        >>> traces = [ts.trace(*torch.randn(3, 1, 1, 64, d_k)) for d_k in (2, 8, 32)]
        >>> picture = ts.plot.variance(traces)
        >>> [line.get_label() for line in picture.axes[0].lines]
        ['q·k', 'q·k / √d_k', 'd_k · Var']
    """
    # d_k with the variance before and after scaling, by rising d_k.
    measured = sorted((steps.keys.shape[-1], *steps.score_variance) for steps in traces)
    if not measured:
        raise ValueError("variance takes at least one trace")
    sizes, raw, scaled = zip(*measured, strict=True)
    # Estimate the variance of one product: the mean of variance / d_k.
    one = sum(value / size for size, value in zip(sizes, raw, strict=True)) / len(sizes)
    with drawing(width, 0.72 * inches(width)) as (picture, axes):
        axes.plot(sizes, raw, "o", color=COLOURS[1], markersize=4, label="q·k")
        axes.plot(sizes, scaled, "s", color=COLOURS[0], markersize=4, label="q·k / √d_k")
        axes.plot(
            sizes,
            [one * size for size in sizes],
            color=COLOURS[6],
            linewidth=0.8,
            label="d_k · Var",
        )
        # With two logarithmic axes the law is a straight line.
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set(xlabel="d_k", ylabel="variance of the scores", title=title or "")
        axes.legend()
    return picture
