"""The notes' five examples, as attentions that run: each scene holds a trace of real numbers and what it shows.

Where the notes print numbers, these are theirs; where they only draw, small vectors are constructed and say so.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text
from torch import Tensor

from ...attention import Attention, causal
from ...attention.definition import Normalizer
from ...trace.geometry import nearness
from ...trace.terminal import lines, table
from ...trace.trace import Trace, trace

BOOK = "the numbers are those of Raschka, Build a Large Language Model, chapter 3"
DRAWN = "the notes draw this without numbers: the vectors are constructed by hand, not learned"


@dataclass(frozen=True)
class ExampleScene:
    """One attention of an example: what to look at, the trace, and the word whose row is written out."""

    title: str
    says: str
    trace: Trace
    query: str
    findings: tuple[str, ...] = ()
    given: dict[str, Tensor] = field(default_factory=dict)  # what the queries, keys and values were made of


@dataclass(frozen=True)
class Example:
    """A sentence of the notes, and the scenes that explain it."""

    name: str
    sentence: str
    origin: str
    scenes: tuple[ExampleScene, ...]

    def to_dict(self) -> dict[str, Any]:
        scenes = [
            {
                "title": scene.title,
                "says": scene.says,
                "query": scene.query,
                "findings": list(scene.findings),
                "given": {name: matrix.double().tolist() for name, matrix in scene.given.items()},
                "trace": scene.trace.to_dict(),
            }
            for scene in self.scenes
        ]
        return {"example": self.name, "sentence": self.sentence, "origin": self.origin, "scenes": scenes}


def journey(normalize: Normalizer) -> Example:
    """Notes 003 and 000: without weights, with W_q, W_k, W_v, and looking back only."""
    sentence = "Your journey starts with one step"
    tokens = sentence.split()
    x = _one_head(
        [
            [0.43, 0.15, 0.89],
            [0.55, 0.87, 0.66],
            [0.57, 0.85, 0.64],
            [0.22, 0.58, 0.33],
            [0.77, 0.25, 0.10],
            [0.05, 0.80, 0.55],
        ]
    )
    W_q = torch.tensor([[0.29611194, 0.51656228], [0.25167072, 0.68855679], [0.07397246, 0.86652195]])
    W_k = torch.tensor([[0.13657987, 0.10247904], [0.18405646, 0.72644675], [0.31525391, 0.68710667]])
    W_v = torch.tensor([[0.07563531, 0.19663817], [0.31641197, 0.40174013], [0.11856830, 0.82739538]])
    q, k, v = x @ W_q, x @ W_k, x @ W_v
    free = trace(x, x, x, Attention(scale=1.0, normalize=normalize), tokens)
    scaled = trace(q, k, v, Attention(normalize=normalize), tokens)
    masked = trace(q, k, v, Attention(normalize=normalize, mask=causal), tokens)
    return Example(
        "journey",
        sentence,
        BOOK,
        (
            ExampleScene("Without weights", "every word is query, key and value at once", free, "journey"),
            ExampleScene(
                "With W_q, W_k and W_v",
                "q = x W_q, k = x W_k, v = x W_v: the weights project x to queries, keys and values of width 2",
                scaled,
                "journey",
                (_variance(scaled),),
                {"x": x[0, 0], "W_q": W_q, "W_k": W_k, "W_v": W_v},
            ),
            ExampleScene("Looking back only", "the same, masked: no word sees the words after it", masked, "journey"),
        ),
    )


def thinking_machines(normalize: Normalizer) -> Example:
    """Notes 002: 112 and 96, divided by 8: 14 and 12, softmax 0.88 and 0.12."""
    sentence = "Thinking Machines"
    query, keys = torch.ones(1, 1, 1, 64), torch.tensor([1.75, 1.5])[:, None].expand(1, 1, 2, 64)
    steps = trace(
        query, keys, torch.eye(2)[None, None], Attention(normalize=normalize), (["Thinking"], sentence.split())
    )
    return Example(
        "thinking-machines",
        sentence,
        "112, 96 and 8 are those of Alammar, The Illustrated Transformer; 64 equal features are chosen to give them",
        (
            ExampleScene(
                "The score of Thinking with both words",
                "q1·k1 = 112 and q1·k2 = 96, divided by √64 = 8; v1 = [1 0], v2 = [0 1], so z1 shows the two weights",
                steps,
                "Thinking",
                (_variance(steps),),
            ),
        ),
    )


def lights(normalize: Normalizer) -> Example:
    """Notes 004: y_turn = w11·v_turn + w12·v_off + w13·v_the + w14·v_lights."""
    sentence = "Turn off the lights"
    asks = torch.tensor(
        [[0.0, 3, 1, 2], [3, 1, 0, 2], [0, 0, 1, 3], [2, 1, 1, 1]]
    )  # what each word looks for in the others
    means = torch.tensor([[2.0, 0], [1, 0], [0, 0], [0, 2]])  # (action, thing)
    x = torch.eye(4)[None, None]  # each word its own feature, so that q·k can be read off `asks`
    steps = trace(x @ asks, x, x @ means, Attention(normalize=normalize), sentence.split())
    return Example(
        "lights",
        sentence,
        DRAWN,
        (
            ExampleScene(
                "y of Turn is a weighted sum of all four values",
                "q = x W_q, k = x, v = x W_v: Turn looks for off, and then for lights; values are (action, thing)",
                steps,
                "Turn",
                (_variance(steps),),
                {"x": x[0, 0], "W_q": asks, "W_v": means},
            ),
        ),
    )


def bank(normalize: Normalizer) -> Example:
    """Notes 004, the geometry: context moves a vector, and the same word moves to where its neighbour is."""
    vectors = {"money": [2.0, 0.0, 0.0], "river": [0.0, 2.0, 0.0], "bank": [0.7, 0.7, 1.0]}

    def beside(word: str) -> ExampleScene:
        x = _one_head([vectors[word], vectors["bank"]])
        steps = trace(x, x, x, Attention(normalize=normalize), [word, "bank"])
        before, after = nearness(*x[0, 0]), nearness(*steps.context[0, 0])
        moved = (
            f"{word} and bank before: cosine {before.cosine:.4f}, distance {before.distance:.4f}",
            f"{word} and bank after:  cosine {after.cosine:.4f}, distance {after.distance:.4f}",
        )
        return ExampleScene(
            f"bank beside {word}",
            "inputs are the vectors before, context after",
            steps,
            "bank",
            (*moved, _variance(steps)),
        )

    return Example("bank", "money bank, river bank", DRAWN, (beside("money"), beside("river")))


def telescope(normalize: Normalizer) -> Example:
    """Notes 004: one head has one perspective; two heads read the sentence both ways."""
    sentence = "The man saw the astronomer with a telescope"
    features = {"article": 0, "subject": 1, "seeing": 2, "object": 3, "with": 4, "instrument": 5}
    words = ["article", "subject", "seeing", "article", "object", "with", "article", "instrument"]
    x = torch.eye(len(features))[[features[word] for word in words]]

    def head(*looks: tuple[str, str]) -> Tensor:
        """W_q of a head in which each feature of the first kind looks for one of the second."""
        W_q = torch.zeros(len(features), len(features))
        for asking, asked in looks:
            W_q[features[asking], features[asked]] = 8.0
        return W_q

    common = (("article", "object"), ("subject", "seeing"), ("seeing", "object"), ("object", "seeing"))
    uses = head(*common, ("with", "seeing"), ("instrument", "subject"))
    owns = head(*common, ("with", "object"), ("instrument", "object"))
    queries = torch.stack([x @ uses, x @ owns])[None]
    keys = x.expand(1, 2, *x.shape)
    steps = trace(queries, keys, keys, Attention(normalize=normalize), sentence.split())
    man, astronomer, last = 1, 4, 7
    readings = tuple(
        f"head {i}: telescope → man {weights[man]:.4f}, telescope → astronomer {weights[astronomer]:.4f}; {reading}"
        for i, (weights, reading) in enumerate(
            zip(steps.weights[0, :, last], ("the man used it", "the astronomer had it"), strict=True)
        )
    )
    return Example(
        "telescope",
        sentence,
        "these two heads are constructed to show two readings; telescope explain with a sentence shows learned ones",
        (
            ExampleScene(
                "Two heads, two readings",
                "q = x W_q, k = v = x: the telescope looks for who saw in head 0, and for who was seen in head 1",
                steps,
                "telescope",
                (*readings, _variance(steps)),
                {"x": x, "W_q of head 0": uses, "W_q of head 1": owns},
            ),
        ),
    )


EXAMPLES: dict[str, Callable[[Normalizer], Example]] = {
    "journey": journey,
    "thinking-machines": thinking_machines,
    "lights": lights,
    "bank": bank,
    "telescope": telescope,
}


def _one_head(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows)[None, None]


def _variance(steps: Trace) -> str:
    before, after = steps.score_variance
    d_k = steps.keys.shape[-1]
    return f"variance of the scores: {before:.4f} before ÷√{d_k}, {after:.4f} after, {d_k} times less"


def explain(example: Example, query: str | None = None) -> RenderableType:
    """All scenes of an example; `query` is the word whose row is written out, product by product."""
    words = [token for scene in example.scenes for token in scene.trace.query_tokens]
    if query is not None and query.lower() not in (word.lower() for word in words):
        example.scenes[0].trace.find(query)  # says which word was meant
    opening = Text.assemble((example.sentence, "bold"), "\n", (example.origin, "dim"))
    return Group(opening, *(_scene(i, scene, query) for i, scene in enumerate(example.scenes, 1)))


def _scene(number: int, scene: ExampleScene, query: str | None) -> RenderableType:
    tokens = [token.lower() for token in scene.trace.query_tokens]
    word = query if query is not None and query.lower() in tokens else scene.query
    heads = scene.trace.scores.shape[1]
    parts: list[RenderableType] = [Rule(f"{number}  {scene.title}", align="left", style="dim"), Text(scene.says)]
    parts += [_matrix(name, numbers, tokens=scene.trace.key_tokens) for name, numbers in scene.given.items()]
    parts += [Text(), scene.trace]
    for head in range(heads):
        parts += [Text(f"\nhead {head}" if heads > 1 else "", style="bold"), scene.trace.row(word, head=head)]
    parts += [Text("\n" + "\n".join(scene.findings))] if scene.findings else []
    return Group(Text(), *parts)


def _matrix(name: str, numbers: Tensor, tokens: tuple[str, ...]) -> RenderableType:
    title = Text(f"\n{name}, {numbers.shape[0]} x {numbers.shape[1]}", style="bold cyan")
    return Group(title, table(None, lines(tokens if name == "x" else [""] * len(numbers), numbers)))
