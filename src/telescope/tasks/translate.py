"""Translating: learnt from pairs of sentences, measured by BLEU."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer

from ..layers.check import one_of
from ..models import Model
from ..models import config as fits
from ..models.config import Config
from ..text.corpora import TRANSLATIONS, Pair, Split, multi30k
from ..text.tokenizer import bpe, from_codes
from ..training import Training
from . import metrics
from .pairs import Column, Decoding, answers, predictions, work
from .recipe import Recipe, Shape
from .task import Answer, Task, Work


@dataclass(frozen=True)
class Translations(Config):
    """[data]: `corpus` is learnt from and measured on; `also` is another one to learn from."""

    corpus: str
    source: Literal["en", "de"]
    target: Literal["en", "de"]
    also: str | None = None
    longest: int = 128  # tokens; a pair with a longer side is not learnt from

    def check(self) -> None:
        fits.at_least_one(self, "longest")
        for name in ("corpus", "also"):
            if getattr(self, name) is not None:
                one_of(name, getattr(self, name), TRANSLATIONS)

    def read(self, data: Path, split: Split, corpus: str | None = None) -> list[Pair]:
        return TRANSLATIONS[corpus or self.corpus](data, split, self.source, self.target)


@dataclass(frozen=True)
class Pieces(Config):
    """[tokenizer]: one for both languages. "multi30k" are the merges that Wu et al. 2021 learnt and gave away."""

    kind: Literal["bpe", "multi30k"] = "bpe"
    size: int = 8000  # of BPE
    lower: bool = False

    def learn(self, texts: Sequence[str], data: Path) -> Tokenizer:
        if self.kind == "multi30k":
            return from_codes(multi30k.codes(data), texts)
        return bpe(texts, self.size, lower=self.lower)


@dataclass(frozen=True)
class Bleu(Config):
    """[metric]: "none" compares texts that are tokens already, with spaces between them."""

    lower: bool = False
    tokens: metrics.Tokens = "13a"


@dataclass(frozen=True)
class TranslateRecipe(Recipe):
    data: Translations
    tokenizer: Pieces
    model: Shape
    training: Training
    decoding: Decoding
    metric: Bleu


def prepare(recipe: TranslateRecipe, data: Path, tokenizer: Tokenizer | None) -> Work:
    learnt = recipe.data.read(data, "train")
    if recipe.data.also is not None:
        learnt += recipe.data.read(data, "train", recipe.data.also)
    if tokenizer is None:
        tokenizer = recipe.tokenizer.learn([text for it in learnt for text in (it.source, *it.targets)], data)
    whole = Column(tokenizer, recipe.data.longest, whole=True)
    held_out = recipe.data.read(data, "validation")

    def figures(answers: list[Answer]) -> dict[str, float]:
        return {"bleu": score(recipe, answers)["bleu"]}

    return work(recipe.model, recipe.training, recipe.decoding, learnt, held_out, whole, whole, "highest bleu", figures)


def answer(recipe: TranslateRecipe, model: Model, data: Path, split: Split) -> list[Answer]:
    assert model.tokenizer is not None
    whole = Column(model.tokenizer, recipe.data.longest, whole=True)
    return answers(model, recipe.data.read(data, split), whole, recipe.decoding)


def score(recipe: TranslateRecipe, answers: list[Answer]) -> dict[str, float]:
    written, right = predictions(answers)
    found = metrics.bleu(written, right, lower=recipe.metric.lower, tokens=recipe.metric.tokens)
    return {**found, "chrf": metrics.chrf(written, right)}


TRANSLATE = Task(TranslateRecipe, prepare, answer, score)
