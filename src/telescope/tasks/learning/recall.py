"""The task "recall": a GPT learns facts by restoring spans of lines ([pretraining]), then to answer
questions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from ...decoding import generate
from ...models import Config, GPTConfig, Model, check_at_least_one, check_at_most
from ...text.corpora import TextPair, read_births, read_people
from ...text.corpus_files import Split
from ...training import Training, language
from .recall_data import GAP_MARK, SPECIAL, Lines, Questions, encode, vocabulary
from .recipe import Recipe, Shape
from .task import Answer, Stage, Task, Work, check_fields

LONGEST = 32  # most characters of an answer; the longest place has 15
BATCH = 512  # questions answered together


def answer_questions(model: Model, questions: Sequence[str]) -> list[str]:
    """Return the model's answer to each question. Raises ValueError for a model that was not
    trained to recall.
    """
    if model.tokenizer is None or model.special != SPECIAL:
        raise ValueError(
            "this model was not trained to recall; telescope train recipes/recall-rotary.toml "
            "trains one"
        )
    prompts = encode(model.tokenizer, [question + GAP_MARK for question in questions])
    batches = [prompts[first : first + BATCH] for first in range(0, len(prompts), BATCH)]
    written = [
        text
        for batch in batches
        for text in generate(model, batch, max_new_tokens=LONGEST, temperature=0.0)
    ]
    return [text.text or "" for text in written]


def as_question(name: str) -> str:
    """Return the question about a person in the wording of the training; a question is returned as
    it is.
    """
    return name if name.endswith("?") else f"Where was {name} born?"


@dataclass(frozen=True)
class Corruption(Config):
    """The table [data]: how lines are cut for the pretraining; see `Lines`."""

    block: int = 128
    draws: int = 1

    def check(self) -> None:
        check_at_least_one(self, "draws")
        check_at_most(self, 1000, "draws")
        check_at_most(self, 2**16, "block")
        if self.block < 8:
            raise ValueError(
                f"block={self.block} is too short for a line and two ⁇; 8 is the shortest"
            )


@dataclass(frozen=True)
class RecallRecipe(Recipe):
    """The tables of a recipe for this task."""

    data: Corruption
    model: Shape
    pretraining: Training | None
    training: Training


def prepare(recipe: RecallRecipe, data: Path, tokenizer: Tokenizer | None) -> Work:
    """Build the model and its stages: restoring spans, where the recipe has a [pretraining], then
    answering.
    """
    lines = read_people(data)
    tokenizer = tokenizer or vocabulary(lines)
    model = recipe.model.build(tokenizer.get_vocab_size(), recipe.training.seed)
    if not isinstance(model.config, GPTConfig):
        raise ValueError(f"a {type(model).__name__} does not continue a question; a GPT does")
    model.tokenizer = tokenizer
    model.special = SPECIAL
    held_out = read_births(data, "validation")

    def validate(model: Model) -> dict[str, float]:
        return score(recipe, answer_pairs(model, held_out))

    stages = {}
    if recipe.pretraining is not None:
        corrupted = Lines(encode(tokenizer, lines), recipe.data.block, recipe.data.draws)
        stages["pretraining"] = Stage(recipe.pretraining, corrupted, language)
    questions = encode_questions(tokenizer, read_births(data, "train"))
    return Work(
        model,
        stages
        | {"training": Stage(recipe.training, questions, language, validate, "highest accuracy")},
    )


def encode_questions(tokenizer: Tokenizer, pairs: Sequence[TextPair]) -> Questions:
    """Return questions and places as training data."""
    answers = [f"{GAP_MARK}{place}{GAP_MARK}" for pair in pairs for place in pair.targets]
    return Questions(encode(tokenizer, [pair.source for pair in pairs]), encode(tokenizer, answers))


def answer(recipe: RecallRecipe, model: Model, data: Path, split: Split) -> list[Answer]:
    """Answer every question of a split."""
    return answer_pairs(model, read_births(data, split))


def answer_pairs(model: Model, pairs: Sequence[TextPair]) -> list[Answer]:
    """Answer the question of each pair; the pair's targets are the right places."""
    texts = answer_questions(model, [pair.source for pair in pairs])
    return [
        {"question": pair.source, "answer": text, "places": list(pair.targets)}
        for pair, text in zip(pairs, texts, strict=True)
    ]


def score(recipe: RecallRecipe, answers: list[Answer]) -> dict[str, float]:
    """Return the share of answers, in %, that equal the place letter by letter."""
    check_fields(answers, answer=str, places=list)
    if not answers:
        raise ValueError("there are no answers to score")
    if not all(answer["places"] for answer in answers):
        raise ValueError(
            "the places of the test questions were never published; --split validation can be "
            "scored"
        )
    return {
        "accuracy": 100
        * sum(answer["answer"] in answer["places"] for answer in answers)
        / len(answers)
    }


RECALL = Task(RecallRecipe, prepare, answer, score)
