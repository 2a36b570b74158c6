"""`trace`: an attention with every step kept, as data that prints, draws and saves itself."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, SupportsIndex

import torch
from jaxtyping import Float
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from ..attention import Attention, everyone
from ..attention.restrict import key_heads_of, of_heads
from ..engines import reference, torch_modes
from ..engines.check_inputs import check
from ..engines.exact import share_heads
from ..words import hint, whole_number
from .html import html
from .numbers import digits, factor, plain, shown, total, vector, write
from .terminal import ROWS, TraceStep, inset, lines, peak, table, text, walk


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


Tokens = Sequence[str] | tuple[Sequence[str], Sequence[str]]


@dataclass(frozen=True, eq=False)
class Trace(reference.AttentionSteps):
    """Every step of one attention. Prints as a walk; shows as HTML in a notebook; `.to_json()` loses no digit."""

    attention: Attention
    query_tokens: tuple[str, ...]
    key_tokens: tuple[str, ...]

    axes: ClassVar[dict[str, tuple[str, ...]]] = {
        "queries": ("batch", "head", "query", "d_k"),
        "keys": ("batch", "key_head", "key", "d_k"),
        "values": ("batch", "key_head", "key", "d_v"),
        "scores": ("batch", "head", "query", "key"),
        "scaled": ("batch", "head", "query", "key"),
        "capped": ("batch", "head", "query", "key"),
        "biased": ("batch", "head", "query", "key"),
        "masked": ("batch", "head", "query", "key"),
        "weights": ("batch", "head", "query", "key"),
        "context": ("batch", "head", "query", "d_v"),
    }

    def walk(self) -> Iterator[TraceStep]:
        """The steps this definition takes, in order: one it does not use (a softcap, say) is left out."""
        tokens = {"query": self.query_tokens, "key": self.key_tokens}
        for name, formula in formulas(self.attention, self.keys.shape[-1]).items():
            axes = self.axes[name]
            yield TraceStep(name, formula, getattr(self, name), axes, tokens[axes[2]], tokens.get(axes[3]))

    def row(self, query: SupportsIndex | str, *, head: SupportsIndex = 0, batch: SupportsIndex = 0) -> "Row":
        """One query with every product written out: which numbers make its scores, and which its context."""
        i, head, batch = self.find(query), whole_number("head", head), whole_number("batch", batch)
        for name, index, count in (("batch", batch, self.queries.shape[0]), ("head", head, self.queries.shape[1])):
            if not 0 <= index < count:
                raise ValueError(f"there is no {name} {index}; there are {count}, counted from 0")
        q, k, v = (tensor[batch : batch + 1].to(self.scores.dtype) for tensor in (self.queries, self.keys, self.values))
        q, k, v = q[:, :, i : i + 1], share_heads(k, q), share_heads(v, q)[0, head]
        score = self.attention.score
        asked, offered = score.as_dot(q, k) if score.is_dot_product else (None, None)
        return Row(
            token=self.query_tokens[i],
            key_tokens=self.key_tokens,
            formula=score.formula,
            terms=score.terms(q, k)[0, head, 0],
            factors=None if asked is None or offered is None else (asked[0, head, 0], offered[0, head]),
            steps={
                step.name: step.numbers[batch, head, i] for step in self.walk() if step.axes[2:] == ("query", "key")
            },
            values=v,
            context=self.context[batch, head, i],
        )

    def head(self, number: SupportsIndex) -> "Trace":
        """The trace of one head alone, with the keys and values that serve it."""
        number, heads = whole_number("head", number), self.queries.shape[1]
        if not 0 <= number < heads:
            raise ValueError(f"there is no head {number}; there are {heads}, counted from 0")
        which = torch.tensor([number])
        serving = {name: key_heads_of(which, heads, getattr(self, name).shape[1]).tolist() for name in self.axes}
        return replace(
            self,
            **{name: getattr(self, name)[:, some] for name, some in serving.items()},
            attention=of_heads(self.attention, which, heads),
        )

    def find(self, query: SupportsIndex | str) -> int:
        """The position of a query, given as a number or as its token."""
        count = len(self.query_tokens)
        if not isinstance(query, str):
            place = whole_number("query", query)
            if not -count <= place < count:
                raise ValueError(f"there is no query {place}; there are {count}, counted from 0")
            return place % count
        lower = [token.lower() for token in self.query_tokens]
        if query.lower() not in lower:
            raise ValueError(f'no query is "{query}"; {hint(query, self.query_tokens)}')
        return lower.index(query.lower())

    @property
    def score_variance(self) -> tuple[float, float]:
        """The variance of the scores before and after scaling: a dot product has about d_k times that of a product."""
        return self.scores.var(correction=0).item(), self.scaled.var(correction=0).item()

    def to_dict(self) -> dict[str, Any]:
        """What `to_json` writes. -inf, inf and nan are strings, since JSON has no such numbers."""
        return {
            "formula": self.formula,
            "attention": repr(self.attention),
            "query_tokens": list(self.query_tokens),
            "key_tokens": list(self.key_tokens),
            "steps": [
                {
                    "name": step.name,
                    "formula": step.formula,
                    "axes": list(step.axes),
                    "dtype": str(step.numbers.dtype).removeprefix("torch."),
                    "numbers": plain(step.numbers),
                }
                for step in self.walk()
            ],
        }

    def to_json(self, indent: int | None = None) -> str:
        """The whole trace as JSON. Every number is written with all its digits: reading it back gives the same bits."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False, indent=indent)

    @property
    def formula(self) -> str:
        return self.attention.formula(self.keys.shape[-1])

    def __rich__(self) -> Any:
        return walk(self.formula, list(self.walk()), heads=self.scores.shape[1])

    def __str__(self) -> str:
        return text(self)

    def _repr_html_(self) -> str:
        return html(self.formula, list(self.walk()), heads=self.scores.shape[1])

    def __repr__(self) -> str:
        batch, heads, queries, keys = self.scores.shape
        return f"Trace({self.attention}; batch {batch}, heads {heads}, queries {queries}, keys {keys})"


def trace(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    values: Float[Tensor, "batch key_heads key d_v"],
    attention: Attention = Attention(),
    tokens: Tokens | None = None,
) -> Trace:
    """Every step of `attend` kept: .scores .scaled .capped .biased .masked .weights .context.

    `tokens` names the positions: one list, or (query tokens, key tokens) where they are two sequences. With fewer
    queries than keys, one list names the keys and the queries are its last ones.
    """
    check(queries, keys, values, attention)
    query_tokens, key_tokens = _names(tokens, queries.shape[-2], keys.shape[-2])
    queries, keys, values = torch_modes.cast_for_autocast(queries, keys, values)
    with torch_modes.without_autocast(queries.device):
        steps = reference.steps(queries, keys, values, attention)
    return Trace(**vars(steps), attention=attention, query_tokens=query_tokens, key_tokens=key_tokens)


def formulas(attention: Attention, d_k: int) -> dict[str, str]:
    """How each step that a definition takes is made, in order."""
    made = {"queries": "q", "keys": "k", "values": "v", "scores": attention.score.formula}
    before = "scores"
    if attention.scale_for(d_k) != 1.0:
        made["scaled"] = f"scores / √{d_k}" if attention.scale is None else f"scores · {attention.scale:g}"
        before = "scaled"
    if attention.softcap is not None:
        made["capped"] = f"{attention.softcap:g}·tanh({before} / {attention.softcap:g})"
        before = "capped"
    if attention.bias is not None:
        made["biased"] = f"{before} + {attention.bias!r}"
        before = "biased"
    if attention.mask != everyone:
        made["masked"] = f"{before} where {attention.mask!r}, else -inf"
        before = "masked"
    sink = "" if attention.sink is None else "; sink"
    made["weights"] = f"{getattr(attention.normalize, '__name__', 'normalize')}({before}{sink})"
    made["context"] = "weights · v"
    return made


def _names(tokens: Tokens | None, queries: int, keys: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if tokens is None:
        return tuple(map(str, range(queries))), tuple(map(str, range(keys)))
    if isinstance(tokens, str):
        raise TypeError(f'tokens is one string, "{tokens}"; it takes a list with a string for each position')
    if len(tokens) == 2 and not any(isinstance(part, str) for part in tokens):
        asking, asked = (tuple(part) for part in tokens)
    else:
        asked = tuple(str(token) for token in tokens)
        asking = asked[len(asked) - queries :] if queries <= len(asked) else asked
    if (len(asking), len(asked)) != (queries, keys):
        raise ValueError(
            f"tokens name {len(asking)} queries and {len(asked)} keys; there are {queries} queries and {keys} keys; "
            "two sequences are named by tokens=(query tokens, key tokens)"
        )
    return asking, asked
