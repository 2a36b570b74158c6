"""What a model made of a text, for people and for programs."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType

from ..decoding import Written
from ..models import Model
from .looking import alignment
from .rewrite import Part
from .show import show as table


def draw(
    model: Model, parts: Sequence[Part], *, before: str = "", between: str = " ", show: bool = False
) -> Iterator[RenderableType]:
    """The text of all parts; where several were asked for, or what they looked at, one after another.

    before   what was written on, if it was
    between  what stands between the parts
    """
    several = any(len(part.found) > 1 for part in parts)
    if not several and not show:
        yield before + between.join(part.text for part in parts)
        return
    for part in parts:
        for number, written in enumerate(part.found, 1):
            label = f"{number}  " if written.score is None else f"{written.score:.4f}  "
            yield f"{label if several else ''}{before}{written.text}"
            if show:
                yield table(alignment(model, part.source, written))


def to_dict(
    model: Model, source: str, parts: Sequence[Part], *, between: str = " ", show: bool = False
) -> dict[str, Any]:
    """The same, with every number."""
    return {
        "source": source,
        "text": between.join(part.text for part in parts),
        "parts": [
            {"source": part.source, "texts": [_text(model, part.source, written, show) for written in part.found]}
            for part in parts
        ],
    }


def _text(model: Model, source: str, written: Written, show: bool) -> dict[str, Any]:
    said: dict[str, Any] = {"text": written.text, "score": written.score, "why": written.why}
    if show:
        looking = alignment(model, source, written)
        said["alignment"] = {
            "attention": looking.layers[looking.sharpest].name,
            "rows": looking.rows.names,
            "columns": looking.columns.names,
            "weights": looking.alignment.double().tolist(),
        }
    return said
