"""The task "summarize": an encoder-decoder trained on documents and their summaries, measured by
ROUGE.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from ...models import Model, check_at_least_one, check_at_most
from ...text.corpora import SUMMARIES, TextPair, rename_speakers
from ...text.corpus_files import Split
from . import sequence_pairs
from .own_data import OwnData
from .sequence_pairs import MOST_AGAIN, PairsRecipe, TextColumn, answers, build_work, predictions
from .task import Answer, LeftOut, Task, Work


@dataclass(frozen=True, kw_only=True)
class SummaryData(OwnData):
    """The table [data]. Longer documents are truncated; pairs with a longer summary are left
    out.
    """

    document: str = "document"  # the column of documents, in files of one's own
    summary: str = "summary"  # the column of summaries
    longest: int = 256  # most tokens of a document
    longest_summary: int = 64  # most tokens of a summary
    renamed: int = 0  # additional copies of all chats, with other names for the people in them

    def check(self) -> None:
        check_at_least_one(self, "longest", "longest_summary")
        self.check_source(SUMMARIES)
        check_at_most(self, MOST_AGAIN, "renamed")
        if self.renamed < 0:
            raise ValueError(f"renamed={self.renamed} must be at least 0, which is no copy")

    def read(
        self, data: Path, split: Split, left_out: Counter[str] | None = None
    ) -> list[TextPair]:
        """Return the documents and summaries of a split; count rows of one's own files that are
        left out.
        """
        if self.corpus is None:
            return self.read_pairs(data, split, self.document, self.summary, left_out)
        return SUMMARIES[self.corpus](data, split)


@dataclass(frozen=True)
class SummarizeRecipe(PairsRecipe):
    """The tables of a recipe for this task."""

    data: SummaryData


def prepare(recipe: SummarizeRecipe, data: Path, tokenizer: Tokenizer | None) -> Work:
    """Build the model and its stages of training."""
    left_out = LeftOut()
    training = recipe.data.read(data, "train", left_out.training)
    if tokenizer is None:
        tokenizer = recipe.tokenizer.learn(training, data)
    others = [
        pair for seed in range(recipe.data.renamed) for pair in rename_speakers(training, seed)
    ]
    document = TextColumn(tokenizer, recipe.data.longest, whole=False)
    summary = TextColumn(tokenizer, recipe.data.longest_summary, whole=True)
    held_out = recipe.data.read(data, "validation", left_out.validation)
    return build_work(
        recipe, training + others, held_out, document, summary, "highest chrf", figures, left_out
    )


def figures(answers: list[Answer]) -> dict[str, float]:
    """Return the figure to validate by during training: chrF, which follows ROUGE and is quick."""
    return {"chrf": sequence_pairs.chrf(*predictions(answers))}


def answer(recipe: SummarizeRecipe, model: Model, data: Path, split: Split) -> list[Answer]:
    """Summarise every document of a split."""
    assert model.tokenizer is not None
    document = TextColumn(model.tokenizer, recipe.data.longest, whole=False)
    return answers(model, recipe.data.read(data, split), document, recipe.decoding)


def score(recipe: SummarizeRecipe, answers: list[Answer]) -> dict[str, float]:
    """Return ROUGE-1, ROUGE-2, ROUGE-L and chrF."""
    return sequence_pairs.rouge(*predictions(answers)) | figures(answers)


SUMMARIZE = Task(SummarizeRecipe, prepare, answer, score)
