"""Writing on: a GPT learnt from running text, by characters or BPE, measured by its loss."""

from dataclasses import dataclass
from math import exp
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer

from ...layers.check_sizes import one_of
from ...models import GPTConfig, Model
from ...models.config import Config
from ...text.corpora import TEXTS
from ...text.corpus_files import Split
from ...text.tokenizer import bpe, characters, check_size
from ...training import Training, Windows, language, mean_loss
from .recipe import Recipe, Shape
from .task import Answer, Stage, Task, Work, must_say

LARGEST_LOSS = 700.0  # nats of a token, whose perplexity is still a number


@dataclass(frozen=True)
class Running(Config):
    """[data]: one long text."""

    corpus: str

    def check(self) -> None:
        one_of("corpus", self.corpus, TEXTS)

    def read(self, data: Path, split: Split) -> str:
        return TEXTS[self.corpus](data, split)


@dataclass(frozen=True)
class TextTokenizer(Config):
    """[tokenizer]: BPE of `size` pieces, or every character of the whole text, also of what is held out."""

    kind: Literal["characters", "bpe"] = "characters"
    size: int = 1024

    def check(self) -> None:
        check_size(self.size)

    def learn(self, data: Path, corpus: Running) -> Tokenizer:
        if self.kind == "bpe":
            return bpe(corpus.read(data, "train").splitlines(keepends=True), self.size, special=False)
        return characters("".join(corpus.read(data, split) for split in ("train", "validation", "test")))


@dataclass(frozen=True)
class GenerateRecipe(Recipe):
    data: Running
    tokenizer: TextTokenizer
    model: Shape
    training: Training


def prepare(recipe: GenerateRecipe, data: Path, tokenizer: Tokenizer | None) -> Work:
    tokenizer = tokenizer or recipe.tokenizer.learn(data, recipe.data)
    model = recipe.model.build(tokenizer.get_vocab_size(), recipe.training.seed)
    model.tokenizer = tokenizer
    learnt, held_out = (windows(model, recipe.data.read(data, split)) for split in ("train", "validation"))

    def validate(model: Model) -> dict[str, float]:
        return {"loss": mean_loss(model, held_out, language, recipe.training)}

    return Work(model, {"training": Stage(recipe.training, learnt, language, validate, "lowest loss")})


def windows(model: Model, text: str) -> Windows:
    """As long as the model sees."""
    if not isinstance(model.config, GPTConfig) or model.tokenizer is None:
        raise ValueError(f"{type(model).__name__} does not go on writing; a GPT with a tokenizer does")
    return Windows(model.tokenizer.encode(text).ids, block=model.config.max_positions)


def answer(recipe: GenerateRecipe, model: Model, data: Path, split: Split) -> list[Answer]:
    """How well it guesses each token of the split: one answer."""
    text = recipe.data.read(data, split)
    held_out = windows(model, text)
    loss = mean_loss(model, held_out, language, recipe.training)
    return [{"loss": loss, "tokens": len(held_out.ids) - 1, "characters": len(text)}]


def score(recipe: GenerateRecipe, answers: list[Answer]) -> dict[str, float]:
    """The loss of a token in nats, and of a character, which can be compared between tokenizers."""
    if len(answers) != 1:
        raise ValueError(f"there are {len(answers)} answers; a text that is written on has one, its loss")
    must_say(answers, loss=(float, int), tokens=int, characters=int)
    (it,) = answers
    loss = it["loss"]
    if not 0 <= loss < LARGEST_LOSS or min(it["tokens"], it["characters"]) < 1:
        raise ValueError(f"the answer says a loss of {loss} nats of {it['tokens']} tokens, which none is")
    return {"loss": loss, "perplexity": exp(loss), "per_character": loss * it["tokens"] / it["characters"]}


GENERATE = Task(GenerateRecipe, prepare, answer, score)
