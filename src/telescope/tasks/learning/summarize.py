"""Summarising: learnt from documents and their summaries, measured by ROUGE."""

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from ...layers.check_sizes import one_of
from ...models import Model
from ...models import config as fits
from ...models.config import Config
from ...text.corpora import SUMMARIES, TextPair, renamed
from ...text.corpus_files import Split
from . import sequence_pairs
from .sequence_pairs import MOST_AGAIN, PairsRecipe, TextColumn, answers, predictions, work
from .task import Answer, Task, Work


@dataclass(frozen=True)
class SummaryData(Config):
    """[data]. A document that is longer is cut; of a summary that is longer nothing is learnt."""

    corpus: str
    longest: int = 256  # tokens of a document
    longest_summary: int = 64
    renamed: int = 0  # how often chats are learnt from once more, between people of other names

    def check(self) -> None:
        fits.at_least_one(self, "longest", "longest_summary")
        one_of("corpus", self.corpus, SUMMARIES)
        fits.at_most(self, MOST_AGAIN, "renamed")
        if self.renamed < 0:
            raise ValueError(f"renamed={self.renamed} must not be below 0, which is never")

    def read(self, data: Path, split: Split) -> list[TextPair]:
        return SUMMARIES[self.corpus](data, split)


@dataclass(frozen=True)
class SummarizeRecipe(PairsRecipe):
    data: SummaryData


def prepare(recipe: SummarizeRecipe, data: Path, tokenizer: Tokenizer | None) -> Work:
    learnt = recipe.data.read(data, "train")
    if tokenizer is None:
        tokenizer = recipe.tokenizer.learn([text for it in learnt for text in (it.source, *it.targets)], data)
    others = [pair for seed in range(recipe.data.renamed) for pair in renamed(learnt, seed)]
    document = TextColumn(tokenizer, recipe.data.longest, whole=False)
    summary = TextColumn(tokenizer, recipe.data.longest_summary, whole=True)
    held_out = recipe.data.read(data, "validation")
    return work(recipe, learnt + others, held_out, document, summary, "highest chrf", figures)


def figures(answers: list[Answer]) -> dict[str, float]:
    """While it learns: chrF goes up and down with ROUGE, and is quick."""
    return {"chrf": sequence_pairs.chrf(*predictions(answers))}


def answer(recipe: SummarizeRecipe, model: Model, data: Path, split: Split) -> list[Answer]:
    assert model.tokenizer is not None
    document = TextColumn(model.tokenizer, recipe.data.longest, whole=False)
    return answers(model, recipe.data.read(data, split), document, recipe.decoding)


def score(recipe: SummarizeRecipe, answers: list[Answer]) -> dict[str, float]:
    return sequence_pairs.rouge(*predictions(answers)) | figures(answers)


SUMMARIZE = Task(SummarizeRecipe, prepare, answer, score)
