"""What the tasks "translate" and "summarize" share: training on pairs of texts, decoding, and
metrics.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import mean
from typing import Literal

from tokenizers import Tokenizer

from ...decoding import beam, generate
from ...models import Config, Model, check_at_least_one, check_at_most
from ...text.corpora import TextPair
from ...text.tokenizer import (
    check_vocabulary_size,
    encode,
    encode_with_dropout,
    special_ids,
    train_bpe,
)
from ...training import Examples, Gapped, Training, mean_loss, translation
from ...training.processes import import_required
from .recipe import Recipe, Shape
from .task import Answer, LeftOut, Stage, Work, check_fields

Ids = list[list[int]]
MOST_AGAIN = 1000  # most additional copies of the training data
WORD = re.compile(r"[^\W\d_]+")
DROPOUT = 0.1  # share of BPE merges left out where words are cut into other pieces


@dataclass(frozen=True)
class Decoding(Config):
    """The table [decoding]: how a model is decoded for measuring. Validation during training is
    greedy, for speed.
    """

    beams: int = 1  # 1 is greedy
    length_penalty: float = 1.0
    longest: int = 128  # most tokens of a written text
    rows: int = 128  # texts of a batch
    validated: int = 500  # texts written at each validation

    def check(self) -> None:
        check_at_least_one(self, "beams", "longest", "rows", "validated")


@dataclass(frozen=True)
class PairTokenizer(Config):
    """The table [tokenizer]: one BPE tokenizer for sources and targets."""

    size: int = 8000
    lower: bool = False
    # So many of the most frequent words of the sources, and of the targets, are one piece each.
    whole: int = 0
    words: str = ""  # more words that are one piece each, separated by spaces
    again: int = (
        0  # additional copies of the training data, with words cut into other pieces (BPE dropout)
    )

    def check(self) -> None:
        check_vocabulary_size(self.size)
        check_at_most(self, MOST_AGAIN, "again")
        if self.again < 0:
            raise ValueError(f"again={self.again} must be at least 0, which is no copy")
        if not 0 <= self.whole <= self.size:
            raise ValueError(f"whole={self.whole} words are from 0 to size={self.size}")

    def learn(self, pairs: Sequence[TextPair], data: Path) -> Tokenizer:
        """Return a new tokenizer, trained on the texts of these pairs."""
        sources = sources_of(pairs)
        targets = targets_of(pairs)
        words = [
            *self._frequent_words(sources),
            *self._frequent_words(targets),
            *self.words.split(),
        ]
        return train_bpe(
            [*sources, *targets], self.size, lower=self.lower, whole=list(dict.fromkeys(words))
        )

    def _frequent_words(self, texts: Iterable[str]) -> list[str]:
        counts = Counter(
            word for text in texts for word in WORD.findall(text.lower() if self.lower else text)
        )
        return [word for word, _ in counts.most_common(self.whole)]


def sources_of(pairs: Iterable[TextPair]) -> list[str]:
    """Return the source of each pair."""
    return [pair.source for pair in pairs]


def targets_of(pairs: Iterable[TextPair]) -> list[str]:
    """Return all targets of each pair."""
    return [target for pair in pairs for target in pair.targets]


@dataclass(frozen=True)
class PairsRecipe(Recipe):
    """The tables that both tasks share. The [pretraining], where there is one, restores gaps in the
    sources.
    """

    data: Config
    tokenizer: PairTokenizer
    model: Shape
    pretraining: Training | None
    training: Training
    decoding: Decoding


@dataclass(frozen=True)
class TextColumn:
    """How one side of the pairs becomes ids.

    longest  most ids of a text
    whole    whether longer texts are left out; otherwise they are truncated
    """

    tokenizer: Tokenizer
    longest: int
    whole: bool

    def encode(self, texts: Sequence[str], way: int = 0) -> Ids:
        """Return the ids of each text. A truncated text still ends with the end token.

        `way` 0 is the tokenizer's usual encoding; any other number is a seed for cutting words into
        other pieces.
        """
        found = (
            encode_with_dropout(self.tokenizer, texts, dropout=DROPOUT, seed=way)
            if way
            else encode(self.tokenizer, texts)
        )
        return [ids if self.whole else truncate(ids, self.longest) for ids in found]

    def accepts(self, ids: Sequence[int]) -> bool:
        """Return whether a text of these ids is short enough."""
        return len(ids) <= self.longest


def truncate(ids: list[int], longest: int) -> list[int]:
    """Return the first ids and the last one, which is the end token."""
    return ids if len(ids) <= longest else [*ids[: longest - 1], ids[-1]]


def examples(
    pairs: Sequence[TextPair],
    source: TextColumn,
    target: TextColumn,
    left_out: Counter[str],
    again: int = 0,
) -> Examples:
    """Return each source with each of its targets as training data, and `again` copies in other
    pieces.

    The target begins with the start token. Pairs with a side that is too long are left out, and
    counted.
    """
    sources, targets = zip(
        *((pair.source, text) for pair in pairs for text in pair.targets), strict=True
    )
    both = [
        (ids, [_start(target), *others])
        for way in range(again + 1)
        for ids, others in zip(
            source.encode(sources, way), target.encode(targets, way), strict=True
        )
    ]
    short = [
        (ids, others) for ids, others in both if source.accepts(ids) and target.accepts(others)
    ]
    if not short:
        raise ValueError(
            f"all {len(both):,} pairs are too long: a source may have {source.longest} tokens, a "
            "target "
            f"{target.longest}; allow more in the table [data]"
        )
    left_out["too long"] += len(both) - len(short)
    return Examples([ids for ids, _ in short], [ids for _, ids in short])


def gapped(pairs: Sequence[TextPair], source: TextColumn) -> Gapped:
    """Return each source once, as training data for restoring gaps."""
    return Gapped(source.encode(list(dict.fromkeys(pair.source for pair in pairs))), _start(source))


def _start(column: TextColumn) -> int:
    start = special_ids(column.tokenizer).start
    assert start is not None
    return start


def build_work(
    recipe: PairsRecipe,
    training: Sequence[TextPair],
    held_out: Sequence[TextPair],
    source: TextColumn,
    target: TextColumn,
    better: str,
    figures: Callable[[list[Answer]], dict[str, float]],
    left_out: LeftOut,
) -> Work:
    """Build a new model and its stages of training.

    training  the pairs to train on
    held_out  the pairs to validate on, by the loss and by the `figures` of what the model writes
    better    the figure that chooses the best checkpoint, such as "highest bleu"
    left_out  the rows that were left out when the files were read; pairs that are too long are
              added
    """
    tokenizer = target.tokenizer
    settings = recipe.training
    decoding = recipe.decoding
    model = recipe.model.build(tokenizer.get_vocab_size(), settings.seed)
    model.tokenizer = tokenizer
    model.special = special_ids(tokenizer)
    held_out_examples = examples(held_out, source, target, left_out.validation)
    # Every n-th pair, not the first ones: a file may be sorted by length.
    validated = held_out[:: -(-len(held_out) // decoding.validated)]

    def validate(model: Model) -> dict[str, float]:
        loss = mean_loss(model, held_out_examples, translation, settings)
        return {"loss": loss, **figures(answers(model, validated, source, decoding, beams=1))}

    stages = {}
    if recipe.pretraining is not None:
        stages["pretraining"] = Stage(recipe.pretraining, gapped(training, source), translation)
    pairs = examples(training, source, target, left_out.training, recipe.tokenizer.again)
    stages["training"] = Stage(settings, pairs, translation, validate, better, left_out.counts())
    return Work(model, stages)


def answers(
    model: Model,
    pairs: Sequence[TextPair],
    source: TextColumn,
    decoding: Decoding,
    *,
    beams: int | None = None,
) -> list[Answer]:
    """Return the text that the model writes for each source, and the right ones."""
    texts = write_texts(
        model, source.encode([pair.source for pair in pairs]), decoding, beams or decoding.beams
    )
    return [
        {"source": pair.source, "prediction": text, "references": list(pair.targets)}
        for pair, text in zip(pairs, texts, strict=True)
    ]


def write_texts(model: Model, sources: Ids, decoding: Decoding, beams: int) -> list[str]:
    """Return the text that the model writes for each source, computed in batches of similar length
    to save padding.
    """
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    texts = [""] * len(sources)
    for first in range(0, len(order), decoding.rows):
        batch = order[first : first + decoding.rows]
        for i, text in zip(
            batch, _write_batch(model, [sources[i] for i in batch], decoding, beams), strict=True
        ):
            texts[i] = text or ""
    return texts


def _write_batch(model: Model, sources: Ids, decoding: Decoding, beams: int) -> list[str | None]:
    if beams == 1:
        return [
            written.text
            for written in generate(model, sources, max_new_tokens=decoding.longest, temperature=0)
        ]
    found = beam(
        model,
        sources,
        beams=beams,
        max_new_tokens=decoding.longest,
        length_penalty=decoding.length_penalty,
    )
    return [best.text for best, *_ in found]


def predictions(answers: Sequence[Answer]) -> tuple[list[str], list[list[str]]]:
    """Return the predictions and the references of all answers; raise a ValueError where a
    reference is missing.
    """
    check_fields(answers, prediction=str, references=list)
    if not answers or not all(answer["references"] for answer in answers):
        raise ValueError(
            "there are no answers, or one of them has no references to be compared with"
        )
    return [answer["prediction"] for answer in answers], [
        answer["references"] for answer in answers
    ]


Tokens = Literal["13a", "none"]
References = Sequence[Sequence[str]]  # all right texts for each prediction


def bleu(
    predictions: Sequence[str],
    references: References,
    *,
    lower: bool = False,
    tokens: Tokens = "13a",
) -> dict[str, float]:
    """Return sacrebleu's BLEU (Post 2018), in %, and its brevity penalty.

    tokens="none" is for texts that are tokenized already, with spaces between tokens: the result is
    multi-bleu's.
    """
    smooth = "none" if tokens == "none" else "exp"
    metric = import_required("sacrebleu").metrics.BLEU(
        lowercase=lower, tokenize=tokens, smooth_method=smooth, force=True
    )
    found = metric.corpus_score(list(predictions), _streams(references))
    return {"bleu": found.score, "brevity": found.bp}


def chrf(predictions: Sequence[str], references: References) -> float:
    """Return sacrebleu's chrF2 (Popović 2015), in %. It compares letters, so an almost right word
    counts in part.
    """
    found: float = (
        import_required("sacrebleu")
        .metrics.CHRF()
        .corpus_score(list(predictions), _streams(references))
        .score
    )
    return found


def rouge(predictions: Sequence[str], references: References) -> dict[str, float]:
    """Return rouge-score's F1 of words, word pairs and the longest common subsequence, stemmed, in
    % (Lin 2004).
    """
    kinds = ["rouge1", "rouge2", "rougeL"]
    scorer = import_required("rouge_score.rouge_scorer").RougeScorer(kinds, use_stemmer=True)
    found = [
        scorer.score_multi(list(right), prediction)
        for prediction, right in zip(predictions, references, strict=True)
    ]
    return {kind: 100 * mean(scores[kind].fmeasure for scores in found) for kind in kinds}


def _streams(references: References) -> list[list[str | None]]:
    """Return the first reference of each text, the second of each, and so on, as sacrebleu takes
    them.

    None stands for a missing reference.
    """
    return [list(stream) for stream in zip_longest(*references)]
