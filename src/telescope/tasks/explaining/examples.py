"""Worked examples, as attentions that run: each scene holds a trace of real numbers and what to see
in it.

The examples are those of lecture notes. Where the notes print numbers, the examples use those;
where the notes only draw, the examples use small vectors constructed by hand, and their `origin`
says so. The examples are data, in worked.py; this file computes and prints them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text
from torch import Tensor

from ...attention import Attention, Normalizer, Score, additive, causal, dot, everyone, general
from ...traces import (
    Trace,
    format_number,
    nearness,
    render_table,
    table_rows,
    trace,
)
from .worked import WORKED, Expression, WorkedExample, WorkedScene, inputs_of

Matrix = Float[Tensor, "row column"]
Inputs = Mapping[str, Matrix]  # matrices by name, in place of an example's own


@dataclass(frozen=True)
class ExampleScene:
    """One attention of an example.

    caption   what the scene shows
    query     the word whose row is written out, product by product
    findings  lines to print after the trace
    given     the matrices that queries, keys and values were made of, by name
    moves     whether the context can be compared with the inputs: both have the same features
    inputs    the names of the inputs that the scene is computed from
    """

    title: str
    caption: str
    trace: Trace
    query: str
    findings: tuple[str, ...] = ()
    given: dict[str, Tensor] = field(default_factory=dict)
    moves: bool = False
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Example:
    """A sentence, where its numbers come from, and the scenes that explain it.

    inputs      the matrices that the example is computed from, by name; the example can be made
                again with others
    input_rows  a label for each row of an input, where its rows are words
    """

    name: str
    sentence: str
    origin: str
    scenes: tuple[ExampleScene, ...]
    inputs: dict[str, Tensor] = field(default_factory=dict)
    input_rows: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the example as data for JSON, with every step of every scene."""
        scenes = [
            {
                "title": scene.title,
                "says": scene.caption,
                "query": scene.query,
                "findings": list(scene.findings),
                "given": {name: matrix.double().tolist() for name, matrix in scene.given.items()},
                "trace": scene.trace.to_dict(),
            }
            for scene in self.scenes
        ]
        return {
            "example": self.name,
            "sentence": self.sentence,
            "origin": self.origin,
            "scenes": scenes,
        }


# ------------------------------------------------------------------------------------- evaluating


def evaluate(expression: Expression, inputs: Mapping[str, Matrix], dtype: torch.dtype) -> Matrix:
    """Return the matrix of an expression, such as ("matmul", "x", "W_q"); see worked.py."""
    if isinstance(expression, str):
        return inputs[expression]
    operation, *given = expression
    if operation == "identity":
        return torch.eye(given[0], dtype=dtype)
    a = evaluate(given[0], inputs, dtype)
    match operation, given[1:]:
        case "matmul", [b]:
            return a @ evaluate(b, inputs, dtype)
        case "add", [b]:
            return a + evaluate(b, inputs, dtype)
        case "below", [b]:
            return torch.cat([a, evaluate(b, inputs, dtype)])
        case "rows", rows:
            return a[list(rows)]
        case "repeat", [times]:
            return a.expand(len(a), times)
        case "relu", []:
            return a.relu()
        case "transpose", []:
            return a.mT
        case "with_ones", []:
            return torch.cat([a, torch.ones(len(a), 1, dtype=dtype)], dim=1)
    raise KeyError(f"the operation {operation!r} is not known")


def make_example(
    worked: WorkedExample,
    normalize: Normalizer,
    inputs: Inputs | None = None,
    dtype: torch.dtype = torch.float32,
) -> Example:
    """Return an example with every scene computed, from other matrices where `inputs` has them."""
    own = {one.name: torch.tensor(one.numbers, dtype=dtype) for one in worked.inputs}
    given = own | {name: matrix.to(dtype) for name, matrix in (inputs or {}).items()}
    return Example(
        worked.name,
        worked.sentence,
        worked.origin,
        tuple(_make_scene(worked, scene, normalize, given, dtype) for scene in worked.scenes),
        given,
        {one.name: tuple(one.rows) for one in worked.inputs if one.rows is not None},
    )


def _make_scene(
    worked: WorkedExample,
    scene: WorkedScene,
    normalize: Normalizer,
    given: dict[str, Matrix],
    dtype: torch.dtype,
) -> ExampleScene:
    made: dict[Sequence[Expression], Tensor] = {}

    def heads_of(expressions: Sequence[Expression]) -> Tensor:
        # One tensor in several roles is printed once.
        if expressions not in made:
            heads = [evaluate(one, given, dtype) for one in expressions]
            made[expressions] = torch.stack(heads)[None]
        return made[expressions]

    name, *parts = scene.score
    matrices = [evaluate(part, given, dtype) for part in parts]
    attention = Attention(
        score=SCORES[str(name)](*matrices),
        scale=scene.scale,
        normalize=normalize,
        mask=MASKS[scene.mask],
    )
    tokens = (list(scene.query_tokens), list(scene.key_tokens))
    queries, keys, values = map(heads_of, (scene.queries, scene.keys, scene.values))
    steps = trace(queries, keys, values, attention, tokens)
    names = inputs_of(worked, scene)
    return ExampleScene(
        title=scene.title,
        caption=scene.caption,
        trace=steps,
        query=scene.query,
        findings=tuple(line for finding in scene.findings for line in _lines(finding, steps)),
        given={name: given[name] for name in names} if scene.given else {},
        moves=scene.moves,
        inputs=tuple(names),
    )


SCORES: dict[str, Callable[..., Score]] = {
    "dot": lambda: dot,
    "general": general,
    # A vector is written as a matrix of one row.
    "additive": lambda W_q, W_k, v: additive(W_q, W_k, v[0]),
}
MASKS = {"everyone": everyone, "causal": causal}


def _lines(finding: Sequence[Any], steps: Trace) -> Iterator[str]:
    """Yield the lines of a finding."""
    match finding[0], finding[1:]:
        case "variance", ():
            before, after = (format_number(x, 4) for x in steps.score_variance)
            d_k = steps.keys.shape[-1]
            less = f"{d_k} times less"
            yield f"variance of the scores: {before} before ÷√{d_k}, {after} after, {less}"
        case "nearness", ():
            both = " and ".join(steps.key_tokens)
            yield f"{both} before: {_near(*steps.values[0, 0])}"
            yield f"{both} after:  {_near(*steps.context[0, 0])}"
        case "readings", (query, keys, meanings):
            i = steps.query_tokens.index(query)
            for head, meaning in enumerate(meanings):
                weights = steps.weights[0, head, i]
                shares = ", ".join(
                    f"{query} → {key} "
                    + format_number(float(weights[steps.key_tokens.index(key)]), 4)
                    for key in keys
                )
                yield f"head {head}: {shares}; {meaning}"


def _near(a: Tensor, b: Tensor) -> str:
    found = nearness(a, b)
    return f"cosine {format_number(found.cosine, 4)}, distance {format_number(found.distance, 4)}"


EXAMPLES: dict[str, Callable[..., Example]] = {
    worked.name: partial(make_example, worked) for worked in WORKED
}
"""Each makes an example: EXAMPLES["bank"](ts.softmax, {"x": …}), both of which may be others."""


# ---------------------------------------------------------------------------------------- printing


def draw_example(example: Example, query: str | None = None) -> RenderableType:
    """Return all scenes of an example for a rich console.

    `query` is the word whose row is written out, product by product, in the scenes that have it.
    Raises ValueError where no scene has it.
    """
    words = [token for scene in example.scenes for token in scene.trace.query_tokens]
    if query is not None and query.lower() not in (word.lower() for word in words):
        example.scenes[0].trace.find(query)  # raises an error that suggests the nearest word
    heading = Text.assemble((example.sentence, "bold"), "\n", (example.origin, "dim"))
    return Group(
        heading, *(_draw_scene(i, scene, query) for i, scene in enumerate(example.scenes, 1))
    )


def _draw_scene(number: int, scene: ExampleScene, query: str | None) -> RenderableType:
    tokens = [token.lower() for token in scene.trace.query_tokens]
    word = query if query is not None and query.lower() in tokens else scene.query
    heads = scene.trace.scores.shape[1]
    parts: list[RenderableType] = [
        Rule(f"{number}  {scene.title}", align="left", style="dim"),
        Text(scene.caption),
    ]
    # The matrices that queries, keys and values are made of; the rows of x are words.
    for name, numbers in scene.given.items():
        title = f"\n{name}, {numbers.shape[0]} x {numbers.shape[1]}"
        labels = scene.trace.key_tokens if name == "x" else [""] * len(numbers)
        parts += [Text(title, style="bold cyan"), render_table(None, table_rows(labels, numbers))]
    # All steps, and one row of each head, product by product.
    parts += [Text(), scene.trace]
    for head in range(heads):
        parts += [
            Text(f"\nhead {head}" if heads > 1 else "", style="bold"),
            scene.trace.row(word, head=head),
        ]
    parts += [Text("\n" + "\n".join(scene.findings))] if scene.findings else []
    return Group(Text(), *parts)
