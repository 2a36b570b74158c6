"""Whole models in `fuzz`: random families, sizes, texts and edits, each compared with an
independent truth.

padding        a padded batch with each of its sentences alone             padding.py
endings        a text that ends early in a batch with the text alone       generation.py
chunks         a prompt read in chunks with the prompt read at once        generation.py
shared layers  edits of passes through an ALBERT, with float64 by hand     by_hand.py
bypasses       an attention past the interception: refused and named       by_hand.py
null           compare() of two draws of texts, of which nothing differs   here

A case is drawn from its seed alone, so that the seed reproduces a failure.
"""

import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf, isfinite
from time import time

import torch

import telescope as ts
from telescope.measures import HABITS, places

from .attentions import Found, WrongError
from .by_hand import FORWARDS, check_bypass, check_shared_layers
from .families import EAGER_ONLY, FAMILIES, FIRST_WORD, GROUPED, VOCABULARY, ModelCase, Sizes
from .generation import check_chunks, check_endings
from .padding import check_padding

# ------------------------------------------------------------------------------------ the null test

LETTERS = "abcdefghijklmnopqrstuvwxyz ,.ABCDEFGHIJKLMNO"[: VOCABULARY - FIRST_WORD]
ERRORS = 3.0  # a change of fewer standard errors may be chance, as the documentation says
SHARES = {"null: changes": 0.03, "null: strongest changes": 0.06}
"""The largest share of changes beyond `ERRORS` standard errors.

Of a normal variable it is 0.3 %; an error that is estimated from 40 texts of very unequal lengths
is itself uncertain, and the strongest of eight changes is the likeliest to be beyond. Of 116 draws,
0.8 % and 3.1 % were.
"""
ENOUGH = 60  # draws, below which the shares say little: the heads of one draw are alike


class Letters:
    """A tokenizer of letters."""

    def encode(self, text: str) -> list[int]:
        return [FIRST_WORD + LETTERS.index(letter) for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(LETTERS[max(token - FIRST_WORD, 0)] for token in ids)


def check_null(case: ModelCase) -> Counter[str]:
    """Count the changes between two draws of texts, and those beyond three standard errors."""
    dice = case.dice()
    known = ["".join(dice.choices(LETTERS[:26], k=dice.randint(1, 5))) for _ in range(12)]
    one, other = (
        ts.atlas(case.model, _texts(known, dice), tokenizer=Letters(), batch=16) for _ in range(2)
    )
    counts = Counter({"null": 1})
    heads = {(head.layer, head.number): head for head in other.heads()}
    errors = {
        name: (one.standard_error(name) ** 2 + other.standard_error(name) ** 2).sqrt()
        for name in HABITS
    }
    indices = {place: i for i, place in enumerate(one.places)}
    for head in one.heads():
        place = (head.layer, head.number)
        for name in HABITS:
            change = abs(getattr(heads[place], name) - getattr(head, name))
            error = float(errors[name][indices[place]])
            if isfinite(change) and error > 0.0:
                counts["null: changes"] += 1
                counts["null: changes beyond"] += change > ERRORS * error
    for compared in ts.compare(one, other):
        if isfinite(compared.errors):
            counts["null: strongest changes"] += 1
            counts["null: strongest changes beyond"] += compared.errors > ERRORS
    return counts


def _texts(known: list[str], dice: random.Random) -> list[str]:
    """Return 40 texts: short ones, and a few long ones that repeat one word or draw from
    several.
    """
    texts = []
    for _ in range(40):
        is_long = dice.random() < 0.2
        size = dice.randint(30, 60) if is_long else dice.randint(6, 12)
        chosen = dice.sample(known, dice.choice((1, 4)) if is_long else 2)
        texts.append(" ".join(dice.choices(chosen, k=size))[:size])
    return texts


def judge_null(counts: Counter[str]) -> list[tuple[str, str]]:
    """Return what is wrong with the shares of changes that are beyond three standard errors."""
    wrong = []
    for name, most in SHARES.items():
        share = counts[f"{name} beyond"] / max(counts[name], 1)
        if counts["null"] >= ENOUGH and share > most:
            message = f"{name}: {share:.1%} are beyond {ERRORS:g} errors, more than {most:.0%}"
            wrong.append((message, "python -m fuzz numbers --of models"))
    return wrong


# ------------------------------------------------------------------------------------------ drawing

CHECKS: dict[str, tuple[Callable[[ModelCase], Counter[str]], tuple[str, ...], int]] = {
    "padding": (check_padding, tuple(FAMILIES), 56),
    "endings": (
        check_endings,
        tuple(name for name, family in FAMILIES.items() if family.writes),
        12,
    ),
    "chunks": (check_chunks, ("llama", "gpt2", "qwen2", "mistral", "gemma2", "diffllama"), 12),
    "shared layers": (check_shared_layers, ("albert",), 8),
    "bypasses": (check_bypass, tuple(FORWARDS), 10),
    "null": (check_null, ("GPT", "llama", "gpt2"), 2),
}
"""Name → the comparison, the families it is for, and how often it is drawn, in percent."""


def drawn(seed: int, device: str = "cpu") -> ModelCase:
    """Draw a random case."""
    dice = random.Random(seed)
    (check,) = dice.choices([*CHECKS], [often for _, _, often in CHECKS.values()])
    family = dice.choice(CHECKS[check][1])
    heads = dice.choice((2, 4)) if family != "diffllama" else 4  # whose key heads come in pairs
    layers = dice.choice((2, 3))
    groups = dice.choice((1, 2)) if family == "albert" else 1
    implementation = "eager" if family in EAGER_ONLY else dice.choice(("eager", "sdpa", "sdpa"))
    # The eager functions of transformers take their softmax in float32, in which the mask of
    # float64 is infinite.
    is_exact = FAMILIES[family].own or implementation == "sdpa"
    sizes = Sizes(
        heads=heads,
        key_heads=dice.choice((heads, heads // 2)) if family in GROUPED else heads,
        layers=layers if groups == 1 else 4,
        groups=groups,
        implementation=implementation,
        dtype=dice.choice(("float64", "float64", "float32")) if is_exact else "float32",
        weights=dice.randrange(
            2 if check == "bypasses" else 3
        ),  # the third GPT has a window, its forward by hand none
    )
    lengths = tuple(dice.randint(4, 14) for _ in range(dice.choice((2, 2, 3))))
    side = dice.choice(FAMILIES[family].sides)
    return ModelCase(check, family, sizes, side, lengths, dice.randrange(10**6), device)


@contextmanager
def lists_of_keys(wanted: bool) -> Iterator[None]:
    """Let the habits of heads be measured as in long texts, by lists of keys, if `wanted`."""
    before = places.SMALL
    places.SMALL = dict.fromkeys(before, 0) if wanted else before
    try:
        yield
    finally:
        places.SMALL = before


def check(case: ModelCase) -> Counter[str]:
    """Run a case and return counts of what was compared; raise a WrongError for a difference or an
    exception.
    """
    try:
        with warnings.catch_warnings(), lists_of_keys(case.seed % 3 == 0):
            warnings.simplefilter(
                "ignore"
            )  # of cases that are unusual on purpose; check_bypass reads its own
            return CHECKS[case.check][0](case)
    except WrongError:
        raise
    except Exception as problem:
        message = (
            f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
        )
        raise WrongError(case.check, message, "") from problem


def script(seed: int, device: str) -> str:
    """Return the lines of Python that run the case of a seed again."""
    return "\n".join(
        (
            f"# {drawn(seed, device)}",
            "from fuzz.numbers.models import check, drawn",
            f"check(drawn({seed}, {device!r}))",
        )
    )


def hunt(first: int, count: int, device: str = "cpu", until: float = inf) -> Found:
    """Draw and check the cases of these seeds until a time in seconds since 1970."""
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    wrong = []
    for seed in range(first, first + count):
        if time() > until:
            break
        case = drawn(seed, device)
        counts["models"] += 1
        counts[f"of {case.family}"] += 1
        try:
            counts += check(case)
        except WrongError as problem:
            wrong.append(
                (f"{case.check} of {case.family}: {problem} (case {seed})", script(seed, device))
            )
    return Found(counts, wrong)
