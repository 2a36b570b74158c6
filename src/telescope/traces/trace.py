"""`trace`: run an attention and keep every step, as data that can be printed, drawn and saved."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, SupportsIndex

import torch
from jaxtyping import Float
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from ..attention import Attention, Keys, Queries, Score, Values, key_heads_of, restrict_to_heads
from ..engines import STEPS, check, formulas, reference, repeat_key_heads, torch_modes
from ..field_words import FieldNames
from ..guesses import OF_TRACE, of_definition
from ..printed import render_text
from ..token_kinds import TokenPlace, Tokens, names_of_sides, token_name
from ..words import check_index, hint, suggests
from .render import (
    ROWS,
    TableRow,
    TraceStep,
    decimal_places,
    format_factor,
    format_number,
    format_sum,
    format_vector,
    indent,
    largest_weight,
    render_html,
    render_steps,
    render_table,
    shortest_numbers,
    table_rows,
    visible_indices,
)

# The axes after the batch, of the steps that have features; the others have a query and a key.
_AXES = {
    "queries": ("head", "query", "d_k"),
    "keys": ("key_head", "key", "d_k"),
    "values": ("key_head", "key", "d_v"),
    "context": ("head", "query", "d_v"),
}

PAIR_STEPS = tuple(name for name in STEPS if name not in _AXES)
"""The steps with a number for each pair of a query and a key, from scores to weights."""


@suggests(
    "trace",
    "the definition is one argument: ts.trace(q, k, v, ts.Attention(mask=...), tokens)",
    **of_definition("ts.trace(q, k, v"),
    **dict.fromkeys(("words", "labels", "names"), "tokens="),
)
def trace(
    queries: Queries,
    keys: Keys,
    values: Values,
    attention: Attention = Attention(),
    tokens: Tokens | None = None,
) -> "Trace":
    """Run an attention with the reference engine and return every step: scores, weights, context
    and those between.

    The memory is that of several matrices of queries x keys: `survey` is for long texts.
    Half-precision inputs are computed in float32. Gradients flow through all steps.

    Args:
        queries: (batch, heads, queries, features).
        keys: (batch, key heads, keys, features); `heads` is a multiple of `key heads`.
        values: (batch, key heads, keys, value features).
        attention: the definition: score, scale, softcap, bias, mask, sink, normaliser.
        tokens: names of the positions, for printing: a list, or what the tokens are (`Grid`,
            `Frames`, `Segments`); (query tokens, key tokens) for two sequences. With fewer queries
            than keys, one list names the keys, and the queries are its last ones.

    Raises:
        ValueError: for shapes that do not fit each other or `tokens` of another length; TypeError
            for arguments that are not tensors or not an `Attention`.

    Example:
        >>> import torch, telescope as ts
        >>> x = torch.eye(3)[None, None]
        >>> causal = ts.Attention(scale=1.0, mask=ts.causal)
        >>> steps = ts.trace(x, x, x, causal, ["the", "cat", "sat"])
        >>> steps.masked[0, 0, 1].tolist()
        [0.0, 1.0, -inf]
        >>> [step.name for step in steps.walk()]
        ['queries', 'keys', 'values', 'scores', 'masked', 'weights', 'context']
    """
    check(queries, keys, values, attention)
    # Names are checked before anything is computed.
    query_tokens, key_tokens = _names(tokens, queries.shape[-2], keys.shape[-2])
    # Under autocast, begin with the dtype that a fused kernel would get, and cast nothing later.
    queries, keys, values = torch_modes.cast_for_autocast(queries, keys, values)
    with torch_modes.without_autocast(queries.device):
        # The same engine that defines every result.
        steps = reference.steps(queries, keys, values, attention)
    return Trace(
        **vars(steps), attention=attention, query_tokens=query_tokens, key_tokens=key_tokens
    )


@dataclass(frozen=True, eq=False)
class Trace(reference.AttentionSteps, FieldNames):
    """Every step of one attention, as `trace` returns it.

    Each step is an attribute: .queries .keys .values .scores .scaled .capped .biased .masked
    .weights .context. The matrices from `scores` to `weights` are (batch, heads, queries, keys). A
    step that the definition does not take equals the step before it.

    `print(steps)` shows tables, a notebook shows HTML, `to_json()` keeps every bit, `row` writes
    one query out.

    Attributes:
        queries: (batch, heads, query, d_q).
        keys: (batch, key_heads, key, d_k).
        values: (batch, key_heads, key, d_v).
        scores, scaled, capped, biased, masked: (batch, heads, query, key), the numbers after each
            step.
        weights: (batch, heads, query, key).
        context: (batch, heads, query, d_v).
        attention: the definition.
        query_tokens, key_tokens: the names of the tokens.

    Example:
        >>> import torch, telescope as ts
        >>> x = torch.eye(2)[None, None]
        >>> by_sum = ts.Attention(scale=1.0, normalize=ts.by_sum)
        >>> steps = ts.trace(x, x, 8 * x, by_sum, ["left", "right"])
        >>> steps.formula
        'by_sum(q·k) v'
        >>> steps.context[0, 0].tolist()
        [[8.0, 0.0], [0.0, 8.0]]
        >>> print(steps.row("left"))
        scores of left: q·k, product by product
           left  1·1 + 0·0 = 1
           right 1·0 + 0·1 = 0
        <BLANKLINE>
        from scores to weights
                        left     right
           scores          1         0
           weights    1.0000    0.0000
        <BLANKLINE>
        context of left: its weights times the values, summed
             1.0000·[8 0] left
           + 0.0000·[0 8] right
           = [8 0]
        >>> [step.name for step in steps.walk()]
        ['queries', 'keys', 'values', 'scores', 'weights', 'context']
        >>> steps.find("right"), steps.head(-1).weights.shape
        (1, torch.Size([1, 1, 2, 2]))
        >>> variances = steps.score_variance  # before and after scaling
        >>> steps.to_json(indent=None)[0], "weights" in str(steps.to_dict())
        ('{', True)
    """

    _theirs = OF_TRACE

    attention: Attention
    query_tokens: tuple[str, ...]
    key_tokens: tuple[str, ...]

    axes: ClassVar[dict[str, tuple[str, ...]]] = {
        name: ("batch", *_AXES.get(name, ("head", "query", "key"))) for name in STEPS
    }

    def walk(self) -> Iterator[TraceStep]:
        """Yield the steps in order, without those that the definition does not take."""
        # The tokens of an axis, by its name; features have none.
        tokens = {"query": self.query_tokens, "key": self.key_tokens}
        for name, formula in formulas(self.attention, self.keys.shape[-1]).items():
            axes = self.axes[name]
            yield TraceStep(
                name, formula, getattr(self, name), axes, tokens[axes[2]], tokens.get(axes[3])
            )

    def row(self, query: TokenPlace, *, head: SupportsIndex = 0, batch: SupportsIndex = 0) -> "Row":
        """Return one query with every product written out: the products that sum to its scores and
        to its context.

        Numbers count from 0; negative numbers count from the end, -1 is the last.

        Args:
            query: the position, the token, or (row, column) of a patch; of equal tokens, the first.
            head: the number of the head.
            batch: the number of the sequence in the batch.

        Raises:
            ValueError: where the trace has no such query, head or sequence.
        """
        i = self.find(query)
        head = check_index("head", head, self.queries.shape[1])
        batch = check_index("batch", batch, self.queries.shape[0])
        # One sequence, in the dtype in which the scores were computed.
        q, k, v = (
            tensor[batch : batch + 1].to(self.scores.dtype)
            for tensor in (self.queries, self.keys, self.values)
        )
        # The products that sum to the scores of this query.
        factors, terms = score_products(
            self.attention.score, q[:, :, i : i + 1], repeat_key_heads(k, q), head
        )
        return Row(
            token=self.query_tokens[i],
            key_tokens=self.key_tokens,
            formula=self.attention.score.formula,
            terms=terms,
            factors=factors,
            steps={
                step.name: step.numbers[batch, head, i]
                for step in self.walk()
                if step.name in PAIR_STEPS  # one number for each key
            },
            values=repeat_key_heads(v, q)[0, head],
            context=self.context[batch, head, i],
        )

    def head(self, number: SupportsIndex) -> "Trace":
        """Return the trace of one head, counted from 0, with the keys and values of that head; -1
        is the last head.

        Args:
            number: of the head, from 0; -1 is the last.

        Raises:
            ValueError: the trace has no such head.
        """
        heads = self.queries.shape[1]
        chosen = torch.tensor([check_index("head", number, heads)])
        # Keys and values of grouped heads: the key head that this head reads.
        indices = {
            name: key_heads_of(chosen, heads, getattr(self, name).shape[1]).tolist()
            for name in STEPS
        }
        return replace(
            self,
            **{name: getattr(self, name)[:, index] for name, index in indices.items()},
            attention=restrict_to_heads(self.attention, chosen, heads),
        )

    def find(self, query: TokenPlace) -> int:
        """Return the position of a query given by its position, also counted from the end, by its
        token, or by the (row, column) of a patch.

        Upper and lower case are one.

        Args:
            query: a position, a token, or the (row, column) of a patch.

        Raises:
            ValueError: the trace has no such query.
        """
        if not isinstance(query, str | tuple):
            return check_index("query", query, len(self.query_tokens))
        query = token_name(query)
        # Upper and lower case are one; of equal tokens the first is meant.
        lower = [token.lower() for token in self.query_tokens]
        if query.lower() not in lower:
            raise ValueError(f'no query is "{query}"; {hint(query, self.query_tokens)}')
        return lower.index(query.lower())

    @property
    def score_variance(self) -> tuple[float, float]:
        """The variance of all scores before and after scaling.

        The variance of a dot product of d_k independent features is d_k times that of one product.
        """
        return self.scores.var(correction=0).item(), self.scaled.var(correction=0).item()

    def to_dict(self) -> dict[str, Any]:
        """Return what `to_json` writes; -inf, inf and nan are strings."""
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
                    "numbers": shortest_numbers(step.numbers),
                }
                for step in self.walk()
            ],
        }

    def to_json(self, indent: int | None = None) -> str:
        """Return the trace as JSON. Numbers read in their dtype have the same bits.

        Args:
            indent: spaces of each level; None writes one line.
        """
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False, indent=indent)

    @property
    def formula(self) -> str:
        """The formula of the whole attention, such as "softmax(mask(q·k / √64)) v"."""
        return self.attention.formula(self.keys.shape[-1])

    def __rich__(self) -> Any:
        return render_steps(self.formula, list(self.walk()), heads=self.scores.shape[1])

    def __str__(self) -> str:
        return render_text(self)

    def _repr_html_(self) -> str:
        return render_html(self.formula, list(self.walk()), heads=self.scores.shape[1])

    def __repr__(self) -> str:
        # Sizes, not numbers: a notebook prints the repr of everything.
        batch, heads, queries, keys = self.scores.shape
        return (
            f"Trace({self.attention}; batch {batch}, heads {heads}, queries {queries}, keys {keys})"
        )


@dataclass(frozen=True, eq=False)
class Row:
    """One query of one head with every product, as `Trace.row` returns it; `print(row)` writes the
    products out.

    Attributes:
        token: the token of the query.
        key_tokens: the token of each key.
        formula: the formula of the score, such as "q·k".
        terms: the products of each score: `terms.sum(-1)` is `scores`.
        factors: what the terms are products of, the query's and each key's; None for a score that
            is no dot product.
        steps: the numbers of each step from "scores" to "weights", by name; steps not taken are
            left out.
        values: the value of each key.
        context: the output: `parts.sum(0)`.

    Example:
        >>> import torch, telescope as ts
        >>> x = torch.tensor([[0.5, -2.0], [3.0, 0.25]])[None, None]
        >>> row = ts.trace(x, x, x, ts.Attention(scale=1.0), ["left", "right"]).row(
        ...     "right"
        ... )
        >>> row.terms.tolist()
        [[1.5, -0.5], [9.0, 0.0625]]
        >>> row.scores.tolist()
        [1.0, 9.0625]
        >>> row.parts.sum(0).allclose(row.context), row.strongest(1).weights.shape
        (True, torch.Size([1]))
        >>> import io, rich
        >>> written = io.StringIO()
        >>> rich.print(row.table(), file=written)
        >>> written.getvalue().split()[:3]
        ['left', 'right', 'scores']
    """

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
        """The score of each key, before scaling."""
        return self.steps["scores"]

    @property
    def weights(self) -> Float[Tensor, " key"]:
        """The weight of each key."""
        return self.steps["weights"]

    @property
    def parts(self) -> Float[Tensor, "key d_v"]:
        """Each key's share of the context: its weight times its value."""
        return self.weights[:, None] * self.values

    def strongest(self, most: int) -> "Row":
        """Return the row with its `most` largest weights alone, in the order of the keys.

        Args:
            most: how many keys.
        """
        if len(self.key_tokens) <= most:
            return self
        # The largest weights, back in the order of the keys.
        which = self.weights.topk(most).indices.sort().values
        return replace(
            self,
            key_tokens=tuple(self.key_tokens[j] for j in which.tolist()),
            terms=self.terms[which],
            factors=None if self.factors is None else (self.factors[0], self.factors[1][which]),
            steps={name: numbers[which] for name, numbers in self.steps.items()},
            values=self.values[which],
        )

    def table(self) -> RenderableType:
        """Return a table from scores to weights for a rich console, with a line for each step."""
        rows: list[TableRow] = []
        for name, numbers in self.steps.items():
            rows += table_rows([name], numbers[None], largest_weight(name, numbers))
        return render_table(self.key_tokens, rows)

    def __rich__(self) -> Any:
        # One line for each key: its products, and its share of the context.
        sums = Table.grid(padding=(0, 1))
        parts = Table.grid(padding=(0, 1))
        for j in visible_indices(len(self.key_tokens), ROWS):
            if j is None:
                sums.add_row("…")
                parts.add_row("", "…")
                continue
            token = self.key_tokens[j]
            weight = format_number(self.weights[j].item(), 4)
            score = format_number(self.scores[j].item(), decimal_places(self.scores))
            sums.add_row(Text(token), self._write_score(j), f"= {score}")
            parts.add_row(
                "+" if j else "",
                f"{weight}·{format_vector(self.values[j])}",
                Text(token, style="dim"),
            )
        # The last line is the sum of all.
        parts.add_row("=", Text(format_vector(self.context), style="bold"))
        return Group(
            Text.assemble(
                "scores of ", (self.token, "bold"), f": {self.formula}, product by product"
            ),
            indent(sums),
            Text("\nfrom scores to weights"),
            self.table(),
            Text.assemble(
                "\ncontext of ", (self.token, "bold"), ": its weights times the values, summed"
            ),
            indent(parts),
        )

    def __str__(self) -> str:
        return render_text(self)

    def _write_score(self, j: int) -> str:
        """Return "0.55·0.43 + 0.87·0.15", or the terms where the score is no dot product."""
        # A score that is no dot product has terms and no factors.
        if self.factors is None:
            return format_sum([format_number(term, 4) for term in self.terms[j].tolist()])
        query, keys = self.factors
        pairs = zip(query.tolist(), keys[j].tolist(), strict=True)
        places = decimal_places(query)
        key_places = decimal_places(keys)
        return format_sum(
            [f"{format_number(a, places)}·{format_factor(b, key_places)}" for a, b in pairs]
        )


def score_products(
    score: Score,
    query: Float[Tensor, "1 heads 1 d_q"],
    keys: Float[Tensor, "1 heads key d_k"],
    head: int = 0,
) -> tuple[
    tuple[Float[Tensor, " term"], Float[Tensor, "key term"]] | None, Float[Tensor, "key term"]
]:
    """Return the factors and the terms of one head's scores, as in `Row`: the terms of a key sum to
    its score.

    The factors are None where the score is no dot product. All heads are given, since a score may
    have parameters for each of them.
    """
    # All heads go in, since a score may have a matrix for each.
    terms = score.terms(query, keys)[0, head, 0]
    if not score.is_dot_product:
        return None, terms
    query_factors, key_factors = score.as_dot(query, keys)
    return (query_factors[0, head, 0], key_factors[0, head]), terms


def _names(
    tokens: Tokens | None, queries: int, keys: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the queries and of the keys; their positions where no names are given."""
    names = (None, None) if tokens is None else names_of_sides(tokens, queries, keys)
    own, read = (
        tuple(map(str, range(count))) if given is None else given
        for given, count in zip(names, (queries, keys), strict=True)
    )
    return own, read
