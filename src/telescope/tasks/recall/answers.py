"""Asking: the question is written, and what the model writes behind it, up to the next ⁇, is its answer."""

from collections.abc import Sequence

from ...decoding import generate
from ...models import GPT
from .corpus import Question
from .vocabulary import MASK, encode

LONGEST = 32  # an answer, in characters; the longest place has 15
TOGETHER = 512


def answers(model: GPT, questions: Sequence[str]) -> list[str]:
    """What it says to each, greedily."""
    assert model.tokenizer is not None
    prompts = encode(model.tokenizer, [question + MASK for question in questions])
    return [
        written.text or ""
        for first in range(0, len(prompts), TOGETHER)
        for written in generate(model, prompts[first : first + TOGETHER], max_new_tokens=LONGEST, temperature=0.0)
    ]


def accuracy(model: GPT, questions: Sequence[Question]) -> float:
    """Of a hundred answers, how many are the place to the letter."""
    said = answers(model, [question.text for question in questions])
    right = sum(answer == question.place for answer, question in zip(said, questions, strict=True))
    return 100 * right / len(questions)
