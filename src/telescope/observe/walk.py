"""A walk through the steps of an attention, for a terminal."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from .step import Step, peak
from .table import lines, table


def walk(formula: str, steps: Sequence[Step], heads: int, batch: int = 0) -> RenderableType:
    """Every step in order, head by head. Where queries, keys and values are the same inputs, they are shown once."""
    queries, keys, values, *rest = steps
    if queries.numbers is keys.numbers is values.numbers:
        steps = [queries._replace(name="inputs", formula="x: each is query, key and value"), *rest]
    parts: list[RenderableType] = [Text(formula, style="bold")]
    for head in range(heads):
        if heads > 1:
            parts.append(Text(f"\nhead {head}", style="bold"))
        for number, step in enumerate(steps, 1):
            matrix = step.matrix(batch, head, heads)
            title = Text.assemble((f"\n{number}  {step.name}", "bold cyan"), f" = {step.formula}")
            parts += [title, table(step.columns, lines(step.rows, matrix, peak(step.name, matrix)))]
    return Group(*parts)
