"""Worked examples, as attentions that run: each scene holds a trace of real numbers and what to see
in it.

The examples are those of lecture notes. Where the notes print numbers, the examples use those;
where the notes only draw, the examples use small vectors constructed by hand, and their `origin`
says so.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text
from torch import Tensor

from ...attention import Attention, Normalizer, causal
from ...traces import Trace, nearness, render_table, table_rows, trace

Inputs = Mapping[str, Tensor]  # matrices by name, in place of an example's own
BOOK = "the numbers are those of Raschka, Build a Large Language Model, chapter 3"
DRAWN = "the notes draw this without numbers: the vectors are constructed by hand, not learned"


@dataclass(frozen=True)
class ExampleScene:
    """One attention of an example.

    caption   what the scene shows
    query     the word whose row is written out, product by product
    findings  lines to print after the trace
    given     the matrices that queries, keys and values were made of, by name
    moves     whether the context can be compared with the inputs: both have the same features
    """

    title: str
    caption: str
    trace: Trace
    query: str
    findings: tuple[str, ...] = ()
    given: dict[str, Tensor] = field(default_factory=dict)
    moves: bool = False


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


# The vectors and weight matrices of the book.
JOURNEY = {
    "x": torch.tensor(
        [
            [0.43, 0.15, 0.89],
            [0.55, 0.87, 0.66],
            [0.57, 0.85, 0.64],
            [0.22, 0.58, 0.33],
            [0.77, 0.25, 0.10],
            [0.05, 0.80, 0.55],
        ]
    ),
    "W_q": torch.tensor(
        [[0.29611194, 0.51656228], [0.25167072, 0.68855679], [0.07397246, 0.86652195]]
    ),
    "W_k": torch.tensor(
        [[0.13657987, 0.10247904], [0.18405646, 0.72644675], [0.31525391, 0.68710667]]
    ),
    "W_v": torch.tensor(
        [[0.07563531, 0.19663817], [0.31641197, 0.40174013], [0.11856830, 0.82739538]]
    ),
}


def journey(normalize: Normalizer, inputs: Inputs | None = None) -> Example:
    """Notes 003 and 000: attention without weight matrices, with W_q, W_k, W_v, and with a causal
    mask.
    """
    sentence = "Your journey starts with one step"
    tokens = sentence.split()
    given = JOURNEY | dict(inputs or {})
    x = given["x"][None, None]
    q, k, v = (x @ given[name] for name in ("W_q", "W_k", "W_v"))
    # Without matrices scores are not scaled; with them they are divided by √2.
    free = trace(x, x, x, Attention(scale=1.0, normalize=normalize), tokens)
    scaled = trace(q, k, v, Attention(normalize=normalize), tokens)
    masked = trace(q, k, v, Attention(normalize=normalize, mask=causal), tokens)
    return Example(
        "journey",
        sentence,
        BOOK,
        (
            ExampleScene(
                "Without weights",
                "every word is query, key and value at once",
                free,
                "journey",
                moves=True,
            ),
            ExampleScene(
                "With W_q, W_k and W_v",
                "q = x W_q, k = x W_k, v = x W_v: the weights project x to queries, keys and "
                "values of width 2",
                scaled,
                "journey",
                (_variance(scaled),),
                given,
            ),
            ExampleScene(
                "Looking back only",
                "the same, masked: no word sees the words after it",
                masked,
                "journey",
            ),
        ),
        given,
        {"x": tuple(tokens)},
    )


def thinking_machines(normalize: Normalizer, inputs: Inputs | None = None) -> Example:
    """Notes 002: 112 and 96, divided by 8: 14 and 12, softmax 0.88 and 0.12."""
    sentence = "Thinking Machines"
    given = {"q": torch.ones(1, 1), "k": torch.tensor([[1.75], [1.5]])} | dict(inputs or {})
    query = given["q"].expand(1, 1, 1, 64)
    keys = given["k"].expand(1, 1, 2, 64)  # the same number in all features
    steps = trace(
        query,
        keys,
        torch.eye(2)[None, None],
        Attention(normalize=normalize),
        (["Thinking"], sentence.split()),
    )
    return Example(
        "thinking-machines",
        sentence,
        "112, 96 and 8 are those of Alammar, The Illustrated Transformer; 64 equal features are "
        "chosen to give them",
        (
            ExampleScene(
                "The score of Thinking with both words",
                "q1·k1 = 112 and q1·k2 = 96, divided by √64 = 8; v1 = [1 0], v2 = [0 1], so z1 "
                "shows the two weights",
                steps,
                "Thinking",
                (_variance(steps),),
            ),
        ),
        given,
        {"q": ("Thinking",), "k": tuple(sentence.split())},
    )


def lights(normalize: Normalizer, inputs: Inputs | None = None) -> Example:
    """Notes 004: y_turn = w11·v_turn + w12·v_off + w13·v_the + w14·v_lights."""
    sentence = "Turn off the lights"
    given = {
        "x": torch.eye(4),
        # W_q[i, j] is the score of word i with word j, since each word is a feature of its own
        "W_q": torch.tensor([[0.0, 3, 1, 2], [3, 1, 0, 2], [0, 0, 1, 3], [2, 1, 1, 1]]),
        "W_v": torch.tensor([[2.0, 0], [1, 0], [0, 0], [0, 2]]),  # (action, thing)
    } | dict(inputs or {})
    x = given["x"][None, None]
    W_q = given["W_q"]
    W_v = given["W_v"]
    steps = trace(x @ W_q, x, x @ W_v, Attention(normalize=normalize), sentence.split())
    return Example(
        "lights",
        sentence,
        DRAWN,
        (
            ExampleScene(
                "y of Turn is a weighted sum of all four values",
                "q = x W_q, k = x, v = x W_v: Turn looks for off, and then for lights; values are "
                "(action, thing)",
                steps,
                "Turn",
                (_variance(steps),),
                {"x": x[0, 0], "W_q": W_q, "W_v": W_v},
            ),
        ),
        given,
        {"x": tuple(sentence.split())},
    )


def bank(normalize: Normalizer, inputs: Inputs | None = None) -> Example:
    """Notes 004, geometry: the context of a word moves towards its neighbour, so one word gets two
    vectors.
    """
    names = ("money", "river", "bank")
    given = {"x": torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.7, 0.7, 1.0]])} | dict(
        inputs or {}
    )
    vectors = dict(zip(names, given["x"], strict=True))

    def scene_with(word: str) -> ExampleScene:
        x = torch.stack([vectors[word], vectors["bank"]])[None, None]
        steps = trace(x, x, x, Attention(normalize=normalize), [word, "bank"])
        before = nearness(*x[0, 0])
        after = nearness(*steps.context[0, 0])
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
            moves=True,
        )

    scenes = (scene_with("money"), scene_with("river"))
    return Example("bank", "money bank, river bank", DRAWN, scenes, given, {"x": names})


def telescope(normalize: Normalizer, inputs: Inputs | None = None) -> Example:
    """Notes 004: one head reads the sentence in one way; two heads read it in both ways."""
    sentence = "The man saw the astronomer with a telescope"
    features = {"article": 0, "subject": 1, "seeing": 2, "object": 3, "with": 4, "instrument": 5}
    words = ["article", "subject", "seeing", "article", "object", "with", "article", "instrument"]

    def head(*pairs: tuple[str, str]) -> Tensor:
        """Return W_q of a head in which the query of each pair's first feature scores 8 with keys
        of the second.
        """
        W_q = torch.zeros(len(features), len(features))
        for query, key in pairs:
            W_q[features[query], features[key]] = 8.0
        return W_q

    common = (
        ("article", "object"),
        ("subject", "seeing"),
        ("seeing", "object"),
        ("object", "seeing"),
    )
    given = {
        "x": torch.eye(len(features))[[features[word] for word in words]],
        "W_q of head 0": head(*common, ("with", "seeing"), ("instrument", "subject")),
        "W_q of head 1": head(*common, ("with", "object"), ("instrument", "object")),
    } | dict(inputs or {})
    # `given` keeps its order where inputs from outside replace a matrix.
    x, uses, owns = given.values()
    queries = torch.stack([x @ uses, x @ owns])[None]
    # Both heads have the same keys; only their queries differ.
    keys = x.expand(1, 2, *x.shape)
    steps = trace(queries, keys, keys, Attention(normalize=normalize), sentence.split())
    man = 1  # places of words in the sentence
    astronomer = 4
    last = 7
    meanings = ("the man used it", "the astronomer had it")
    readings = tuple(
        f"head {i}: telescope → man {weights[man]:.4f}, telescope → astronomer "
        f"{weights[astronomer]:.4f}; {meanings[i]}"
        for i, weights in enumerate(steps.weights[0, :, last])
    )
    return Example(
        "telescope",
        sentence,
        "these two heads are constructed to show two readings; telescope explain with a sentence "
        "shows learned ones",
        (
            ExampleScene(
                "Two heads, two readings",
                "q = x W_q, k = v = x: the telescope looks for who saw in head 0, and for who was "
                "seen in head 1",
                steps,
                "telescope",
                (*readings, _variance(steps)),
                given,
            ),
        ),
        given,
        {"x": tuple(sentence.split())},
    )


def luong(normalize: Normalizer, inputs: Inputs | None = None) -> Example:
    """Notes 004, Luong: c_i = Σ_j α_ij h_j between two sequences; a decoder's state is the query, h
    both others.
    """
    source = ("I", "love", "you")
    target = ("Ich", "liebe", "dich")
    given = {
        "s": torch.tensor([[3.0, 0.5, 0.0], [0.0, 3.0, 0.5], [0.5, 0.0, 3.0]]),
        "h": torch.tensor([[1.0, 0.1, 0.0], [0.0, 1.0, 0.2], [0.1, 0.0, 1.0]]),
    } | dict(inputs or {})
    s = given["s"][None, None]
    h = given["h"][None, None]
    steps = trace(s, h, h, Attention(scale=1.0, normalize=normalize), (target, source))
    return Example(
        "luong",
        "I love you → Ich liebe dich",
        DRAWN,
        (
            ExampleScene(
                "From one sequence to another",
                "queries are the decoder's states s, keys and values the encoder's states h: "
                "Luong's score is s·h",
                steps,
                "liebe",
                given=given,
            ),
        ),
        given,
        {"s": target, "h": source},
    )


def synthesizer(normalize: Normalizer, inputs: Inputs | None = None) -> Example:
    """Notes 002, assignment: softmax(ReLU(X A + b1) B + b2) X V, scores that no key takes part
    in.
    """
    tokens = ("Where", "was", "Jane", "born")
    given = {
        "x": torch.eye(4),
        "A": torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.5, 2.0]]),
        "b1": torch.tensor([[0.0, -0.5]]),
        "B": torch.tensor([[0.5, 0.0, 2.0, 0.0], [1.0, 0.5, 1.5, 0.0]]),
        "b2": torch.tensor([[0.1, 0.0, 0.2, 0.0]]),
        "V": torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 2.0], [1.0, 1.0]]),
    } | dict(inputs or {})
    x, A, b1, B, b2, V = given.values()
    hidden = (x @ A + b1).relu()
    # One more feature, which is 1, adds b2 to the scores.
    queries = torch.cat([hidden, torch.ones(len(x), 1)], dim=1)[None, None]
    keys = torch.cat([B, b2]).mT[None, None]
    steps = trace(
        queries,
        keys,
        (x @ V)[None, None],
        Attention(scale=1.0, normalize=normalize, mask=causal),
        tokens,
    )
    return Example(
        "synthesizer",
        " ".join(tokens),
        DRAWN,
        (
            ExampleScene(
                "Scores without keys",
                "q = [ReLU(x A + b1), 1], and column j of B with b2 below it stands for k: a score "
                "depends on where a "
                "key is, not on what it is",
                steps,
                "born",
                given=given,
            ),
        ),
        given,
        {"x": tokens},
    )


EXAMPLES: dict[str, Callable[..., Example]] = {
    "journey": journey,
    "thinking-machines": thinking_machines,
    "lights": lights,
    "bank": bank,
    "telescope": telescope,
    "luong": luong,
    "synthesizer": synthesizer,
}


def _variance(steps: Trace) -> str:
    before, after = steps.score_variance
    d_k = steps.keys.shape[-1]
    return (
        f"variance of the scores: {before:.4f} before ÷√{d_k}, {after:.4f} after, {d_k} times less"
    )


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
