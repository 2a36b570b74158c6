"""Translating: learnt from pairs of sentences, measured by BLEU."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

from tokenizers import Tokenizer

from ...layers.check_sizes import one_of
from ...models import Model
from ...models import config as fits
from ...models.config import Config
from ...text.corpora import TRANSLATIONS, TextPair, codes
from ...text.corpus_files import Split
from ...text.tokenizer import from_codes
from . import sequence_pairs
from .sequence_pairs import PairsRecipe, PairTokenizer, TextColumn, answers, predictions, work
from .task import Answer, Task, Work


@dataclass(frozen=True)
class Translations(Config):
    """[data]: `corpus` is learnt from and measured on; `also` is another one to learn from."""

    corpus: str
    source: Literal["en", "de"]
    target: Literal["en", "de"]
    also: str | None = None
    bare: int = 0  # of 100 pairs so many are learnt from once more, without the full stop at their end
    longest: int = 128  # tokens; a pair with a longer side is not learnt from

    def check(self) -> None:
        fits.at_least_one(self, "longest")
        if not 0 <= self.bare <= 100:
            raise ValueError(f"bare={self.bare} of 100 pairs; 0 to 100 can be")
        for name in ("corpus", "also"):
            if getattr(self, name) is not None:
                one_of(name, getattr(self, name), TRANSLATIONS)

    def read(self, data: Path, split: Split, corpus: str | None = None) -> list[TextPair]:
        return TRANSLATIONS[corpus or self.corpus](data, split, self.source, self.target)

    def learnt(self, data: Path) -> list[TextPair]:
        pairs = self.read(data, "train")
        others = [] if self.also is None else self.read(data, "train", self.also)
        random = Random(0)
        return pairs + [without_stop(pair) for pair in pairs if random.randrange(100) < self.bare] + others


def without_stop(pair: TextPair) -> TextPair:
    """People who ask often leave it out; those who write sentences for others do not."""
    return TextPair(pair.source.removesuffix("."), tuple(target.removesuffix(".") for target in pair.targets))


@dataclass(frozen=True)
class TranslationTokenizer(PairTokenizer):
    """[tokenizer]: "multi30k" are the merges that Wu et al. 2021 learnt and gave away."""

    kind: Literal["bpe", "multi30k"] = "bpe"

    def learn(self, texts: Sequence[str], data: Path) -> Tokenizer:
        return from_codes(codes(data), texts) if self.kind == "multi30k" else super().learn(texts, data)


@dataclass(frozen=True)
class Bleu(Config):
    """[metric]: "none" compares texts that are tokens already, with spaces between them."""

    lower: bool = False
    tokens: sequence_pairs.Tokens = "13a"


@dataclass(frozen=True)
class TranslateRecipe(PairsRecipe):
    data: Translations
    tokenizer: TranslationTokenizer
    metric: Bleu


def prepare(recipe: TranslateRecipe, data: Path, tokenizer: Tokenizer | None) -> Work:
    learnt = recipe.data.learnt(data)
    if tokenizer is None:
        tokenizer = recipe.tokenizer.learn([text for it in learnt for text in (it.source, *it.targets)], data)
    whole = TextColumn(tokenizer, recipe.data.longest, whole=True)
    held_out = recipe.data.read(data, "validation")

    def figures(answers: list[Answer]) -> dict[str, float]:
        return {"bleu": score(recipe, answers)["bleu"]}

    return work(recipe, learnt, held_out, whole, whole, "highest bleu", figures)


def answer(recipe: TranslateRecipe, model: Model, data: Path, split: Split) -> list[Answer]:
    assert model.tokenizer is not None
    whole = TextColumn(model.tokenizer, recipe.data.longest, whole=True)
    return answers(model, recipe.data.read(data, split), whole, recipe.decoding)


def score(recipe: TranslateRecipe, answers: list[Answer]) -> dict[str, float]:
    written, right = predictions(answers)
    found = sequence_pairs.bleu(written, right, lower=recipe.metric.lower, tokens=recipe.metric.tokens)
    return {**found, "chrf": sequence_pairs.chrf(written, right)}


TRANSLATE = Task(TranslateRecipe, prepare, answer, score)
