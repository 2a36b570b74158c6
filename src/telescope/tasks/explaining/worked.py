"""Worked examples as data: the matrices, how queries, keys and values are made of them, and what
each scene shows.

Python evaluates this data (examples.py), and so does the page (web/engine/):
tools/worked_examples.py writes it as web/engine/examples.json.

An expression is the name of an input, or a tuple of an operation and what it is applied to:

("matmul", a, b)      the matrix product
("add", a, b)         the sum; b may be a single row, which is added to each row of a
("relu", a)           negative numbers become 0
("transpose", a)      rows become columns
("rows", a, 0, 2)     rows 0 and 2
("below", a, b)       the rows of a, then those of b
("with_ones", a)      one more column, of ones
("repeat", a, 64)     the only column of a, 64 times
("identity", 2)       the identity matrix of 2 rows
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

# Written as a nested list in JSON.
Expression = str | tuple[Any, ...]
Rows = Sequence[Sequence[float]]

BOOK = "the numbers are those of Raschka, Build a Large Language Model, chapter 3"
DRAWN = "the notes draw this without numbers: the vectors are constructed by hand, not learned"


@dataclass(frozen=True)
class WorkedInput:
    """A matrix that an example is computed from; `rows` labels its rows where they are words."""

    name: str
    numbers: Rows
    rows: Sequence[str] | None = None


@dataclass(frozen=True)
class WorkedScene:
    """One attention of an example.

    query     the word whose row is written out, product by product
    queries   an expression for each head; keys and values likewise
    score     ("dot",), ("general", W) or ("additive", W_q, W_k, v), with expressions
    scale     the factor of every score; None is 1/√d_k
    mask      "everyone" or "causal"
    findings  what is computed and said after the trace: ("variance",) of the scores, ("nearness",)
              of two words, or ("readings", query, keys, meanings), a sentence for each head
    given     whether the matrices are printed before the trace
    moves     whether the context can be compared with the inputs: both have the same features
    """

    title: str
    caption: str
    query: str
    query_tokens: Sequence[str]
    key_tokens: Sequence[str]
    queries: Sequence[Expression]
    keys: Sequence[Expression]
    values: Sequence[Expression]
    score: Sequence[Expression] = ("dot",)
    scale: float | None = None
    mask: str = "everyone"
    findings: Sequence[Sequence[Any]] = ()
    given: bool = False
    moves: bool = False


@dataclass(frozen=True)
class WorkedExample:
    """A sentence, where its numbers come from, and the scenes that explain it.

    together  whether all scenes share one picture of the geometry
    """

    name: str
    sentence: str
    origin: str
    inputs: Sequence[WorkedInput]
    scenes: Sequence[WorkedScene]
    together: bool = False


def inputs_of(example: WorkedExample, scene: WorkedScene) -> list[str]:
    """Return the names of the inputs that a scene is computed from, in their order."""

    def names_in(expression: Any) -> set[str]:
        if isinstance(expression, str):
            return {expression}
        parts = expression if isinstance(expression, tuple) else ()
        return set().union(*map(names_in, parts[1:]))

    parts = (*scene.queries, *scene.keys, *scene.values, tuple(scene.score))
    used = set().union(*map(names_in, parts))
    return [one.name for one in example.inputs if one.name in used]


def to_json(examples: Sequence[WorkedExample]) -> list[dict[str, Any]]:
    """Return examples as JSON holds them; each scene also names its inputs."""
    found = []
    for example in examples:
        packed = asdict(example)
        for scene, own in zip(packed["scenes"], example.scenes, strict=True):
            scene["inputs"] = inputs_of(example, own)
        found.append(packed)
    return found


# -------------------------------------------------------------------------------------- the journey

JOURNEY_WORDS = ("Your", "journey", "starts", "with", "one", "step")
# Queries, keys and values of the scenes with matrices.
PROJECTED: dict[str, Any] = {
    "query": "journey",
    "query_tokens": JOURNEY_WORDS,
    "key_tokens": JOURNEY_WORDS,
    "queries": (("matmul", "x", "W_q"),),
    "keys": (("matmul", "x", "W_k"),),
    "values": (("matmul", "x", "W_v"),),
}
JOURNEY = WorkedExample(
    "journey",
    " ".join(JOURNEY_WORDS),
    BOOK,
    (
        WorkedInput(
            "x",
            (
                (0.43, 0.15, 0.89),
                (0.55, 0.87, 0.66),
                (0.57, 0.85, 0.64),
                (0.22, 0.58, 0.33),
                (0.77, 0.25, 0.10),
                (0.05, 0.80, 0.55),
            ),
            JOURNEY_WORDS,
        ),
        WorkedInput(
            "W_q", ((0.29611194, 0.5165623), (0.25167072, 0.6885568), (0.07397246, 0.86652195))
        ),
        WorkedInput(
            "W_k", ((0.13657987, 0.10247904), (0.18405646, 0.72644675), (0.3152539, 0.68710667))
        ),
        WorkedInput(
            "W_v", ((0.07563531, 0.19663817), (0.31641197, 0.40174013), (0.1185683, 0.8273954))
        ),
    ),
    (
        # Without matrices scores are not scaled; with them they are divided by √2.
        WorkedScene(
            "Without weights",
            "every word is query, key and value at once",
            "journey",
            JOURNEY_WORDS,
            JOURNEY_WORDS,
            ("x",),
            ("x",),
            ("x",),
            scale=1.0,
            moves=True,
        ),
        WorkedScene(
            "With W_q, W_k and W_v",
            "q = x W_q, k = x W_k, v = x W_v: the weights project x to queries, keys and values of "
            "width 2",
            findings=(("variance",),),
            given=True,
            **PROJECTED,
        ),
        WorkedScene(
            "Looking back only",
            "the same, masked: no word sees the words after it",
            mask="causal",
            **PROJECTED,
        ),
    ),
)

# ----------------------------------------------------------------------------------- one score each

MACHINES_WORDS = ("Thinking", "Machines")
THINKING_MACHINES = WorkedExample(
    "thinking-machines",
    "Thinking Machines",
    "112, 96 and 8 are those of Alammar, The Illustrated Transformer; 64 equal features are chosen "
    "to give them",
    (
        WorkedInput("q", ((1.0,),), ("Thinking",)),
        WorkedInput("k", ((1.75,), (1.5,)), MACHINES_WORDS),
    ),
    (
        WorkedScene(
            "The score of Thinking with both words",
            "q1·k1 = 112 and q1·k2 = 96, divided by √64 = 8; v1 = [1 0], v2 = [0 1], so z1 shows "
            "the two weights",
            "Thinking",
            ("Thinking",),
            MACHINES_WORDS,
            (("repeat", "q", 64),),  # the same number in all features
            (("repeat", "k", 64),),
            (("identity", 2),),
            findings=(("variance",),),
        ),
    ),
)

LIGHTS_WORDS = ("Turn", "off", "the", "lights")
LIGHTS = WorkedExample(
    "lights",
    " ".join(LIGHTS_WORDS),
    DRAWN,
    (
        WorkedInput(
            "x",
            (
                (1.0, 0.0, 0.0, 0.0),
                (0.0, 1.0, 0.0, 0.0),
                (0.0, 0.0, 1.0, 0.0),
                (0.0, 0.0, 0.0, 1.0),
            ),
            LIGHTS_WORDS,
        ),
        # W_q[i, j] is the score of word i with word j, since each word is a feature of its own.
        WorkedInput(
            "W_q",
            (
                (0.0, 3.0, 1.0, 2.0),
                (3.0, 1.0, 0.0, 2.0),
                (0.0, 0.0, 1.0, 3.0),
                (2.0, 1.0, 1.0, 1.0),
            ),
        ),
        WorkedInput("W_v", ((2.0, 0.0), (1.0, 0.0), (0.0, 0.0), (0.0, 2.0))),  # (action, thing)
    ),
    (
        WorkedScene(
            "y of Turn is a weighted sum of all four values",
            "q = x W_q, k = x, v = x W_v: Turn looks for off, and then for lights; values are "
            "(action, thing)",
            "Turn",
            LIGHTS_WORDS,
            LIGHTS_WORDS,
            (("matmul", "x", "W_q"),),
            ("x",),
            (("matmul", "x", "W_v"),),
            findings=(("variance",),),
            given=True,
        ),
    ),
)

# ------------------------------------------------------------------------------------- two meanings


def _bank_beside(word: str, row: int) -> WorkedScene:
    both = ("rows", "x", row, 2)
    return WorkedScene(
        f"bank beside {word}",
        "inputs are the vectors before, context after",
        "bank",
        (word, "bank"),
        (word, "bank"),
        (both,),
        (both,),
        (both,),
        findings=(("nearness",), ("variance",)),
        moves=True,
    )


BANK = WorkedExample(
    "bank",
    "money bank, river bank",
    DRAWN,
    (
        WorkedInput(
            "x", ((2.0, 0.0, 0.0), (0.0, 2.0, 0.0), (0.7, 0.7, 1.0)), ("money", "river", "bank")
        ),
    ),
    (_bank_beside("money", 0), _bank_beside("river", 1)),
    together=True,
)

TELESCOPE_WORDS = ("The", "man", "saw", "the", "astronomer", "with", "a", "telescope")
# The feature that each of these words has.
KINDS = ("article", "subject", "seeing", "article", "object", "with", "article", "instrument")
FEATURES = ("article", "subject", "seeing", "object", "with", "instrument")
COMMON = (
    ("article", "object"),
    ("subject", "seeing"),
    ("seeing", "object"),
    ("object", "seeing"),
)


def _head(*pairs: tuple[str, str]) -> Rows:
    """Return W_q of a head in which the query of each pair's first feature scores 8 with keys of
    the second.
    """
    return [[8.0 if (row, column) in pairs else 0.0 for column in FEATURES] for row in FEATURES]


TELESCOPE = WorkedExample(
    "telescope",
    " ".join(TELESCOPE_WORDS),
    "these two heads are constructed to show two readings; telescope explain with a sentence shows "
    "learned ones",
    (
        WorkedInput(
            "x",
            [[1.0 if feature == kind else 0.0 for feature in FEATURES] for kind in KINDS],
            TELESCOPE_WORDS,
        ),
        WorkedInput("W_q of head 0", _head(*COMMON, ("with", "seeing"), ("instrument", "subject"))),
        WorkedInput("W_q of head 1", _head(*COMMON, ("with", "object"), ("instrument", "object"))),
    ),
    (
        WorkedScene(
            "Two heads, two readings",
            "q = x W_q, k = v = x: the telescope looks for who saw in head 0, and for who was seen "
            "in head 1",
            "telescope",
            TELESCOPE_WORDS,
            TELESCOPE_WORDS,
            (("matmul", "x", "W_q of head 0"), ("matmul", "x", "W_q of head 1")),
            ("x", "x"),  # both heads have the same keys; only their queries differ
            ("x", "x"),
            findings=(
                (
                    "readings",
                    "telescope",
                    ("man", "astronomer"),
                    ("the man used it", "the astronomer had it"),
                ),
                ("variance",),
            ),
            given=True,
        ),
    ),
)

# ------------------------------------------------------------------------------------ two sequences

SOURCE = ("I", "love", "you")
TARGET = ("Ich", "liebe", "dich")


def _luong(title: str, caption: str, score: Sequence[Expression]) -> WorkedScene:
    return WorkedScene(
        title,
        caption,
        "liebe",
        TARGET,
        SOURCE,
        ("s",),
        ("h",),
        ("h",),
        score=score,
        scale=1.0,
        given=True,
    )


def _diagonal(*numbers: float) -> Rows:
    return [[x if i == j else 0.0 for j in range(len(numbers))] for i, x in enumerate(numbers)]


LUONG = WorkedExample(
    "luong",
    "I love you → Ich liebe dich",
    DRAWN,
    (
        WorkedInput("s", ((3.0, 0.5, 0.0), (0.0, 3.0, 0.5), (0.5, 0.0, 3.0)), TARGET),
        WorkedInput("h", ((1.0, 0.1, 0.0), (0.0, 1.0, 0.2), (0.1, 0.0, 1.0)), SOURCE),
        WorkedInput("W_a", _diagonal(1.0, 2.0, 0.5)),
        WorkedInput("W_s", _diagonal(0.5, 0.5, 0.5)),
        WorkedInput("W_h", _diagonal(1.5, 1.5, 1.5)),
        WorkedInput("v_a", ((-4.0, -4.0, -4.0),)),
    ),
    (
        _luong(
            "From one sequence to another",
            "queries are the decoder's states s, keys and values the encoder's states h: Luong's "
            "score is s·h",
            ("dot",),
        ),
        _luong(
            "General: a matrix between s and h",
            "Luong's second score is s W_a h: W_a says how much each feature of s counts with each "
            "of h, here the second twice and the third half",
            ("general", "W_a"),
        ),
        _luong(
            "Concat: a small network scores each pair",
            "Luong's third score is v_a·tanh(W_a [s; h]), with W_s and W_h the two halves of W_a: "
            "where s and h are large in the same place, one tanh saturates and not two; v_a is "
            "negative, so that these pairs score highest",
            ("additive", "W_s", "W_h", "v_a"),
        ),
    ),
)

# ------------------------------------------------------------------------------------- without keys

SYNTHESIZER_WORDS = ("Where", "was", "Jane", "born")
SYNTHESIZER = WorkedExample(
    "synthesizer",
    " ".join(SYNTHESIZER_WORDS),
    DRAWN,
    (
        WorkedInput("x", _diagonal(1.0, 1.0, 1.0, 1.0), SYNTHESIZER_WORDS),
        WorkedInput("A", ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.5, 2.0))),
        WorkedInput("b1", ((0.0, -0.5),)),
        WorkedInput("B", ((0.5, 0.0, 2.0, 0.0), (1.0, 0.5, 1.5, 0.0))),
        WorkedInput("b2", ((0.1, 0.0, 0.2, 0.0),)),
        WorkedInput("V", ((1.0, 0.0), (0.5, 0.5), (0.0, 2.0), (1.0, 1.0))),
    ),
    (
        WorkedScene(
            "Scores without keys",
            "q = [ReLU(x A + b1), 1], and column j of B with b2 below it stands for k: a score "
            "depends on where a key is, not on what it is",
            "born",
            SYNTHESIZER_WORDS,
            SYNTHESIZER_WORDS,
            # One more feature, which is 1, adds b2 to the scores.
            (("with_ones", ("relu", ("add", ("matmul", "x", "A"), "b1"))),),
            (("transpose", ("below", "B", "b2")),),
            (("matmul", "x", "V"),),
            scale=1.0,
            mask="causal",
            given=True,
        ),
    ),
)

WORKED = (JOURNEY, THINKING_MACHINES, LIGHTS, BANK, TELESCOPE, LUONG, SYNTHESIZER)
