"""What translating and summarising have in common: they are learnt from pairs of texts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import mean
from typing import Literal

from tokenizers import Tokenizer

from ...decoding import beam, generate
from ...models import Model
from ...models import config as fits
from ...models.config import Config
from ...text.corpora import TextPair
from ...text.tokenizer import bpe, check_size, encode, other_pieces, special
from ...training import Examples, Gapped, Training, mean_loss, translation
from ...training.processes import needed
from .recipe import Recipe, Shape
from .task import Answer, Stage, Work, must_say

Ids = list[list[int]]
MOST_AGAIN = 1000  # times that all is learnt from once more
DROPOUT = 0.1  # of the merges of words that are learnt in other pieces


@dataclass(frozen=True)
class Decoding(Config):
    """[decoding]: how texts are written when a model is measured. While it learns it is greedy, which is quick."""

    beams: int = 1  # 1 is greedy
    length_penalty: float = 1.0
    longest: int = 128  # tokens of a text that is written
    rows: int = 128  # texts that are written at a time
    validated: int = 500  # texts that are written at each validation

    def check(self) -> None:
        fits.at_least_one(self, "beams", "longest", "rows", "validated")


@dataclass(frozen=True)
class PairTokenizer(Config):
    """[tokenizer]: BPE, one for both sides."""

    size: int = 8000
    lower: bool = False
    again: int = 0  # how often all is learnt from once more, its words in other pieces

    def check(self) -> None:
        check_size(self.size)
        fits.at_most(self, MOST_AGAIN, "again")
        if self.again < 0:
            raise ValueError(f"again={self.again} must not be below 0, which is never")

    def learn(self, texts: Sequence[str], data: Path) -> Tokenizer:
        return bpe(texts, self.size, lower=self.lower)


@dataclass(frozen=True)
class PairsRecipe(Recipe):
    """What it learns by before, if there is a [pretraining], are the sources alone: to fill their gaps."""

    data: Config
    tokenizer: PairTokenizer
    model: Shape
    pretraining: Training | None
    training: Training
    decoding: Decoding


@dataclass(frozen=True)
class TextColumn:
    """Texts as ids: at most `longest` of each, or, of `whole` texts, none that is longer."""

    tokenizer: Tokenizer
    longest: int
    whole: bool

    def encode(self, texts: Sequence[str], way: int = 0) -> Ids:
        """A text that is cut still ends with the id of the end. Beyond way 0, words are in other pieces."""
        found = other_pieces(self.tokenizer, texts, dropout=DROPOUT, seed=way) if way else encode(self.tokenizer, texts)
        return [ids if self.whole else cut(ids, self.longest) for ids in found]

    def takes(self, ids: Sequence[int]) -> bool:
        return len(ids) <= self.longest


def cut(ids: list[int], longest: int) -> list[int]:
    return ids if len(ids) <= longest else [*ids[: longest - 1], ids[-1]]


def examples(pairs: Sequence[TextPair], source: TextColumn, target: TextColumn, again: int = 0) -> Examples:
    """Every source with each of its targets, and `again` in other pieces. A decoder is first given the start."""
    sources, targets = zip(*((pair.source, text) for pair in pairs for text in pair.targets), strict=True)
    both = [
        (ids, [_start(target), *others])
        for way in range(again + 1)
        for ids, others in zip(source.encode(sources, way), target.encode(targets, way), strict=True)
    ]
    both = [it for it in both if source.takes(it[0]) and target.takes(it[1])]
    return Examples([ids for ids, _ in both], [ids for _, ids in both])


def gapped(pairs: Sequence[TextPair], source: TextColumn) -> Gapped:
    """The sources alone, each once."""
    return Gapped(source.encode(list(dict.fromkeys(pair.source for pair in pairs))), _start(source))


def _start(column: TextColumn) -> int:
    start = special(column.tokenizer).start
    assert start is not None
    return start


def work(
    recipe: PairsRecipe,
    learnt: Sequence[TextPair],
    held_out: Sequence[TextPair],
    source: TextColumn,
    target: TextColumn,
    better: str,
    figures: Callable[[list[Answer]], dict[str, float]],
) -> Work:
    """A new model, to be trained on what is `learnt` and validated on what is `held_out`, by its loss and by `figures`
    of what it writes."""
    tokenizer, settings, decoding = target.tokenizer, recipe.training, recipe.decoding
    model = recipe.model.build(tokenizer.get_vocab_size(), settings.seed)
    model.tokenizer, model.special = tokenizer, special(tokenizer)
    known = examples(held_out, source, target)
    some = held_out[:: -(-len(held_out) // decoding.validated)]  # of all of it, since a file may be sorted by length

    def validate(model: Model) -> dict[str, float]:
        loss = mean_loss(model, known, translation, settings)
        return {"loss": loss, **figures(answers(model, some, source, decoding, beams=1))}

    before = recipe.pretraining
    pairs = examples(learnt, source, target, recipe.tokenizer.again)
    return Work(
        model,
        ({} if before is None else {"pretraining": Stage(before, gapped(learnt, source), translation)})
        | {"training": Stage(settings, pairs, translation, validate, better)},
    )


def answers(
    model: Model, pairs: Sequence[TextPair], source: TextColumn, decoding: Decoding, *, beams: int | None = None
) -> list[Answer]:
    """What the model makes of each source, beside what it should be."""
    texts = write(model, source.encode([pair.source for pair in pairs]), decoding, beams or decoding.beams)
    return [
        {"source": pair.source, "prediction": text, "references": list(pair.targets)}
        for pair, text in zip(pairs, texts, strict=True)
    ]


def write(model: Model, sources: Ids, decoding: Decoding, beams: int) -> list[str]:
    """In batches of about the same length, so that little of them is padding."""
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    texts = [""] * len(sources)
    for first in range(0, len(order), decoding.rows):
        some = order[first : first + decoding.rows]
        for i, text in zip(some, _write(model, [sources[i] for i in some], decoding, beams), strict=True):
            texts[i] = text or ""
    return texts


def _write(model: Model, sources: Ids, decoding: Decoding, beams: int) -> list[str | None]:
    if beams == 1:
        return [it.text for it in generate(model, sources, max_new_tokens=decoding.longest, temperature=0)]
    found = beam(model, sources, beams=beams, max_new_tokens=decoding.longest, length_penalty=decoding.length_penalty)
    return [best.text for best, *_ in found]


def predictions(answers: Sequence[Answer]) -> tuple[list[str], list[list[str]]]:
    must_say(answers, prediction=str, references=list)
    if not answers or not all(it["references"] for it in answers):
        raise ValueError("there are no answers, or one of them has no references to be compared with")
    return [it["prediction"] for it in answers], [it["references"] for it in answers]


Tokens = Literal["13a", "none"]
References = Sequence[Sequence[str]]  # of each text all that are right


def bleu(
    predictions: Sequence[str], references: References, *, lower: bool = False, tokens: Tokens = "13a"
) -> dict[str, float]:
    """sacrebleu (Post 2018). tokens="none" is for words that have spaces between them: then it is multi-bleu's."""
    smooth = "none" if tokens == "none" else "exp"
    metric = needed("sacrebleu").metrics.BLEU(lowercase=lower, tokenize=tokens, smooth_method=smooth, force=True)
    found = metric.corpus_score(list(predictions), _streams(references))
    return {"bleu": found.score, "brevity": found.bp}


def chrf(predictions: Sequence[str], references: References) -> float:
    """sacrebleu's chrF2 (Popović 2015): of letters, so it sees a word that is almost right."""
    found: float = needed("sacrebleu").metrics.CHRF().corpus_score(list(predictions), _streams(references)).score
    return found


def rouge(predictions: Sequence[str], references: References) -> dict[str, float]:
    """rouge-score's F1 of words, pairs of words and the longest common subsequence, stemmed (Lin 2004)."""
    kinds = ["rouge1", "rouge2", "rougeL"]
    scorer = needed("rouge_score.rouge_scorer").RougeScorer(kinds, use_stemmer=True)
    found = [
        scorer.score_multi(list(right), prediction) for prediction, right in zip(predictions, references, strict=True)
    ]
    return {kind: 100 * mean(scores[kind].fmeasure for scores in found) for kind in kinds}


def _streams(references: References) -> list[list[str | None]]:
    """The first of each text, the second of each, …: sacrebleu's way, None where there is no more."""
    return [list(stream) for stream in zip_longest(*references)]
