"""Asking: behind a question and a ⁇ the model writes on, greedily; what stands before the next ⁇ is its answer."""

from collections.abc import Sequence

from ...decoding import generate
from ...models import Model
from .vocabulary import SPECIAL, TAKEN, encode

LONGEST = 32  # of an answer, in characters; the longest place has 15
TOGETHER = 512  # questions


def answers(model: Model, questions: Sequence[str]) -> list[str]:
    """What it says to each of the questions, by itself: they do not see each other."""
    if model.tokenizer is None or model.special != SPECIAL:
        raise ValueError("this model was not taught to recall; telescope train recipes/recall-rotary.toml teaches one")
    prompts = encode(model.tokenizer, [question + TAKEN for question in questions])
    parts = [prompts[first : first + TOGETHER] for first in range(0, len(prompts), TOGETHER)]
    written = [one for part in parts for one in generate(model, part, max_new_tokens=LONGEST, temperature=0.0)]
    return [one.text or "" for one in written]


def about(name: str) -> str:
    """The question as it was taught; what is a question already stays as it is."""
    return name if name.endswith("?") else f"Where was {name} born?"
