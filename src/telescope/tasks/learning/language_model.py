"""The task "generate": a GPT trained on running text, of characters or BPE tokens, measured by its
loss.
"""

from collections import Counter
from dataclasses import dataclass
from math import exp
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer

from ...models import Config, GPTConfig, Model
from ...text.corpora import TEXTS
from ...text.corpus_files import Split
from ...text.tokenizer import character_tokenizer, check_vocabulary_size, train_bpe
from ...training import Training, Windows, language, mean_loss
from .own_data import OwnData
from .recipe import Recipe, Shape
from .task import Answer, LeftOut, Stage, Task, Work, check_fields

LARGEST_LOSS = 700.0  # nats per token; the perplexity of larger losses overflows a float


@dataclass(frozen=True)
class RunningText(OwnData):
    """The table [data]: one long text, of a corpus or of files of one's own."""

    text: str | None = None  # the column of texts, where the file is a table

    def check(self) -> None:
        self.check_source(TEXTS)

    def read(self, data: Path, split: Split, left_out: Counter[str] | None = None) -> str:
        """Return the text of a split; count rows of one's own tables that are left out."""
        if self.corpus is None:
            return self.read_whole_text(data, split, self.text, left_out)
        return TEXTS[self.corpus](data, split)


@dataclass(frozen=True)
class TextTokenizer(Config):
    """The table [tokenizer]: BPE of `size` pieces, or all characters of the text, the held-out
    splits included.
    """

    kind: Literal["characters", "bpe"] = "characters"
    size: int = 1024

    def check(self) -> None:
        check_vocabulary_size(self.size)

    def learn(self, data: Path, corpus: RunningText) -> Tokenizer:
        """Return a new tokenizer, trained on the corpus."""
        if self.kind == "bpe":
            return train_bpe(
                corpus.read(data, "train").splitlines(keepends=True), self.size, special=False
            )
        return character_tokenizer(
            "".join(corpus.read(data, split) for split in ("train", "validation", "test"))
        )


@dataclass(frozen=True)
class GenerateRecipe(Recipe):
    """The tables of a recipe for this task."""

    data: RunningText
    tokenizer: TextTokenizer
    model: Shape
    training: Training


def prepare(recipe: GenerateRecipe, data: Path, tokenizer: Tokenizer | None) -> Work:
    """Build the model and its one stage of training."""
    tokenizer = tokenizer or recipe.tokenizer.learn(data, recipe.data)
    model = recipe.model.build(tokenizer.get_vocab_size(), recipe.training.seed)
    model.tokenizer = tokenizer
    left_out = LeftOut()
    training = windows(model, recipe.data.read(data, "train", left_out.training))
    held_out = windows(model, recipe.data.read(data, "validation", left_out.validation))

    def validate(model: Model) -> dict[str, float]:
        return {"loss": mean_loss(model, held_out, language, recipe.training)}

    stage = Stage(recipe.training, training, language, validate, "lowest loss", left_out.counts())
    return Work(model, {"training": stage})


def windows(model: Model, text: str) -> Windows:
    """Return a text cut into windows as long as the model has positions."""
    if not isinstance(model.config, GPTConfig) or model.tokenizer is None:
        raise ValueError(
            f"a {type(model).__name__} does not continue a text; a GPT with a tokenizer does"
        )
    return Windows(model.tokenizer.encode(text).ids, block=model.config.max_positions)


def answer(recipe: GenerateRecipe, model: Model, data: Path, split: Split) -> list[Answer]:
    """Return one answer for the whole split: the mean loss over its tokens."""
    text = recipe.data.read(data, split)
    held_out = windows(model, text)
    loss = mean_loss(model, held_out, language, recipe.training)
    return [{"loss": loss, "tokens": len(held_out.ids) - 1, "characters": len(text)}]


def score(recipe: GenerateRecipe, answers: list[Answer]) -> dict[str, float]:
    """Return the loss per token in nats, and per character, which can be compared between
    tokenizers.
    """
    if len(answers) != 1:
        raise ValueError(
            f"there are {len(answers)} answers; the task generate has one, the loss of the text"
        )
    check_fields(answers, loss=(float, int), tokens=int, characters=int)
    (answer,) = answers
    loss = answer["loss"]
    tokens = answer["tokens"]
    characters = answer["characters"]
    if not 0 <= loss < LARGEST_LOSS or min(tokens, characters) < 1:
        raise ValueError(
            f"the answer says a loss of {loss} nats for {tokens} tokens of {characters} "
            "characters; "
            f"a loss is from 0 to {LARGEST_LOSS:g}, of at least 1 token"
        )
    return {"loss": loss, "perplexity": exp(loss), "per_character": loss * tokens / characters}


GENERATE = Task(GenerateRecipe, prepare, answer, score)
