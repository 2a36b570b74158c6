"""The task "translate": an encoder-decoder trained on pairs of sentences, measured by BLEU."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

from tokenizers import Tokenizer

from ...layers import check_choice
from ...models import Config, Model, check_at_least_one
from ...text.corpora import TRANSLATIONS, TextPair, read_multi30k_merges
from ...text.corpus_files import Split
from ...text.tokenizer import bpe_from_merges
from . import sequence_pairs
from .own_data import OwnData
from .sequence_pairs import (
    PairsRecipe,
    PairTokenizer,
    TextColumn,
    answers,
    build_work,
    predictions,
    sources_of,
    targets_of,
)
from .task import Answer, LeftOut, Task, Work


@dataclass(frozen=True, kw_only=True)
class Translations(OwnData):
    """The table [data]: a corpus, or files of one's own; `also` is another corpus to train on.

    source, target  the languages of a corpus, "en" or "de"; the two columns of files of one's own
    """

    source: str
    target: str
    also: str | None = None
    bare: int = 0  # % of the pairs that are added once more without their final full stop
    longest: int = 128  # most tokens of either side; longer pairs are left out of the training

    def check(self) -> None:
        check_at_least_one(self, "longest")
        if not 0 <= self.bare <= 100:
            raise ValueError(f"bare={self.bare} % of the pairs is not possible; 0 to 100 is")
        self.check_source(TRANSLATIONS)
        if self.also is not None:
            check_choice("also", self.also, TRANSLATIONS)
        if self.corpus is not None or self.also is not None:
            for name in ("source", "target"):
                check_choice(name, getattr(self, name), ("en", "de"))
        elif self.source == self.target:
            raise ValueError(
                f'source and target are both "{self.source}"; a translation has two columns'
            )

    def read(
        self,
        data: Path,
        split: Split,
        corpus: str | None = None,
        left_out: Counter[str] | None = None,
    ) -> list[TextPair]:
        """Return the pairs of a split, of `corpus` or of another corpus; count rows of one's own
        that are left out.
        """
        name = corpus or self.corpus
        if name is None:
            return self.read_pairs(data, split, self.source, self.target, left_out)
        return TRANSLATIONS[name](data, split, self.source, self.target)

    def read_training(self, data: Path, left_out: Counter[str] | None = None) -> list[TextPair]:
        """Return all pairs to train on, in a fixed order."""
        pairs = self.read(data, "train", left_out=left_out)
        others = [] if self.also is None else self.read(data, "train", self.also)
        random = Random(0)
        return (
            pairs
            + [without_stop(pair) for pair in pairs if random.randrange(100) < self.bare]
            + others
        )


def without_stop(pair: TextPair) -> TextPair:
    """Return the pair without final full stops, which people who type a sentence often leave
    out.
    """
    return TextPair(
        pair.source.removesuffix("."), tuple(target.removesuffix(".") for target in pair.targets)
    )


@dataclass(frozen=True)
class TranslationTokenizer(PairTokenizer):
    """The table [tokenizer]: "multi30k" uses the BPE merges that Wu et al. 2021 published."""

    kind: Literal["bpe", "multi30k"] = "bpe"

    def learn(self, pairs: Sequence[TextPair], data: Path) -> Tokenizer:
        """Return a new tokenizer, trained on these pairs or made of the published merges."""
        if self.kind == "multi30k":
            return bpe_from_merges(
                read_multi30k_merges(data), [*sources_of(pairs), *targets_of(pairs)]
            )
        return super().learn(pairs, data)


@dataclass(frozen=True)
class Bleu(Config):
    """The table [metric]: tokens="none" is for texts that are tokenized already, with spaces
    between tokens.
    """

    lower: bool = False
    tokens: sequence_pairs.Tokens = "13a"


@dataclass(frozen=True)
class TranslateRecipe(PairsRecipe):
    """The tables of a recipe for this task."""

    data: Translations
    tokenizer: TranslationTokenizer
    metric: Bleu


def prepare(recipe: TranslateRecipe, data: Path, tokenizer: Tokenizer | None) -> Work:
    """Build the model and its stages of training."""
    left_out = LeftOut()
    training = recipe.data.read_training(data, left_out.training)
    if tokenizer is None:
        tokenizer = recipe.tokenizer.learn(training, data)
    whole = TextColumn(tokenizer, recipe.data.longest, whole=True)
    held_out = recipe.data.read(data, "validation", left_out=left_out.validation)

    def figures(answers: list[Answer]) -> dict[str, float]:
        return {"bleu": score(recipe, answers)["bleu"]}

    return build_work(recipe, training, held_out, whole, whole, "highest bleu", figures, left_out)


def answer(recipe: TranslateRecipe, model: Model, data: Path, split: Split) -> list[Answer]:
    """Translate every source of a split."""
    assert model.tokenizer is not None
    whole = TextColumn(model.tokenizer, recipe.data.longest, whole=True)
    return answers(model, recipe.data.read(data, split), whole, recipe.decoding)


def score(recipe: TranslateRecipe, answers: list[Answer]) -> dict[str, float]:
    """Return BLEU, its brevity penalty, and chrF."""
    written, references = predictions(answers)
    figures = sequence_pairs.bleu(
        written, references, lower=recipe.metric.lower, tokens=recipe.metric.tokens
    )
    return {**figures, "chrf": sequence_pairs.chrf(written, references)}


TRANSLATE = Task(TranslateRecipe, prepare, answer, score)
