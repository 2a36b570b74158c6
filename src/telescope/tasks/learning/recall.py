"""The task of a recipe: a GPT learns lines with spans taken out, if there is a [pretraining], and then to answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from ...decoding import generate
from ...models import GPTConfig, Model
from ...models import config as fits
from ...models.config import Config
from ...text.corpora import TextPair, people, questions
from ...text.corpus_files import Split
from ...training import Training, language
from .recall_data import SPECIAL, TAKEN, Lines, Questions, encode, vocabulary
from .recipe import Recipe, Shape
from .task import Answer, Stage, Task, Work, must_say

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


@dataclass(frozen=True)
class Corruption(Config):
    """[data]: how lines are cut for the pretraining; see `Lines`."""

    block: int = 128
    draws: int = 1

    def check(self) -> None:
        fits.at_least_one(self, "draws")
        fits.at_most(self, 1000, "draws")
        fits.at_most(self, 2**16, "block")
        if self.block < 8:
            raise ValueError(f"block={self.block} is too short for a line and two ⁇; 8 is the shortest")


@dataclass(frozen=True)
class RecallRecipe(Recipe):
    data: Corruption
    model: Shape
    pretraining: Training | None
    training: Training


def prepare(recipe: RecallRecipe, data: Path, tokenizer: Tokenizer | None) -> Work:
    lines = people(data)
    tokenizer = tokenizer or vocabulary(lines)
    model = recipe.model.build(tokenizer.get_vocab_size(), recipe.training.seed)
    if not isinstance(model.config, GPTConfig):
        raise ValueError(f"{type(model).__name__} does not go on writing behind a question; a GPT does")
    model.tokenizer, model.special = tokenizer, SPECIAL
    asked = questions(data, "validation")

    def validate(model: Model) -> dict[str, float]:
        return score(recipe, answered(model, asked))

    stages = {}
    if recipe.pretraining is not None:
        spoilt = Lines(encode(tokenizer, lines), recipe.data.block, recipe.data.draws)
        stages["pretraining"] = Stage(recipe.pretraining, spoilt, language)
    taught = to_be_learnt(tokenizer, questions(data, "train"))
    return Work(model, stages | {"training": Stage(recipe.training, taught, language, validate, "highest accuracy")})


def to_be_learnt(tokenizer: Tokenizer, pairs: Sequence[TextPair]) -> Questions:
    answers = [f"{TAKEN}{place}{TAKEN}" for pair in pairs for place in pair.targets]
    return Questions(encode(tokenizer, [pair.source for pair in pairs]), encode(tokenizer, answers))


def answer(recipe: RecallRecipe, model: Model, data: Path, split: Split) -> list[Answer]:
    return answered(model, questions(data, split))


def answered(model: Model, pairs: Sequence[TextPair]) -> list[Answer]:
    said = answers(model, [pair.source for pair in pairs])
    return [
        {"question": pair.source, "answer": text, "places": list(pair.targets)}
        for pair, text in zip(pairs, said, strict=True)
    ]


def score(recipe: RecallRecipe, answers: list[Answer]) -> dict[str, float]:
    """Of a hundred answers, how many are the place to the letter."""
    must_say(answers, answer=str, places=list)
    if not answers:
        raise ValueError("there are no answers to score")
    if not all(it["places"] for it in answers):
        raise ValueError("the places of the test questions were never published; --split validation can be scored")
    return {"accuracy": 100 * sum(it["answer"] in it["places"] for it in answers) / len(answers)}


RECALL = Task(RecallRecipe, prepare, answer, score)
