"""One query of an attention, with every product written out, as the notes do for z(2)."""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from .numbers import digits, factor, shown, total, vector, write
from .terminal import ROWS, inset, lines, peak, table, text


@dataclass(frozen=True, eq=False)
class Row:
    """`terms` (products of the `factors`) sum to the scores, `parts` (weight times value) to the context."""

    token: str
    key_tokens: tuple[str, ...]
    formula: str
    terms: Float[Tensor, "key term"]
    factors: tuple[Float[Tensor, " term"], Float[Tensor, "key term"]] | None
    steps: dict[str, Float[Tensor, " key"]]
    values: Float[Tensor, "key d_v"]
    context: Float[Tensor, " d_v"]

    @property
    def scores(self) -> Float[Tensor, " key"]:
        return self.steps["scores"]

    @property
    def weights(self) -> Float[Tensor, " key"]:
        return self.steps["weights"]

    @property
    def parts(self) -> Float[Tensor, "key d_v"]:
        return self.weights[:, None] * self.values

    def __rich__(self) -> Any:
        sums, parts = Table.grid(padding=(0, 1)), Table.grid(padding=(0, 1))
        for j in shown(len(self.key_tokens), ROWS):
            if j is None:
                sums.add_row("…")
                parts.add_row("", "…")
                continue
            token, weight = self.key_tokens[j], write(self.weights[j].item(), 4)
            sums.add_row(Text(token), self._sum(j), f"= {write(self.scores[j].item(), digits(self.scores))}")
            parts.add_row("+" if j else "", f"{weight}·{vector(self.values[j])}", Text(token, style="dim"))
        parts.add_row("=", Text(vector(self.context), style="bold"))
        return Group(
            Text.assemble("scores of ", (self.token, "bold"), f": {self.formula}, product by product"),
            inset(sums),
            Text("\nfrom scores to weights"),
            self.table(),
            Text.assemble("\ncontext of ", (self.token, "bold"), ": its weights times the values, summed"),
            inset(parts),
        )

    def table(self) -> RenderableType:
        """From scores to weights, a line for each step."""
        steps = [line for name, n in self.steps.items() for line in lines([name], n[None], peak(name, n))]
        return table(self.key_tokens, steps)

    def __str__(self) -> str:
        return text(self)

    def _sum(self, j: int) -> str:
        """0.55·0.43 + 0.87·0.15 + 0.66·0.89, or the bare terms where the score is no dot product."""
        if self.factors is None:
            return total([write(term, 4) for term in self.terms[j].tolist()])
        query, keys = self.factors
        pairs = zip(query.tolist(), keys[j].tolist(), strict=True)
        return total([f"{write(a, digits(query))}·{factor(b, digits(keys))}" for a, b in pairs])
