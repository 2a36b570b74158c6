"""What the tasks "translate" and "summarize" share: training on pairs of texts, decoding, and
metrics. `PairsRecipe` is their base class.
"""

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar, Literal

from tokenizers import Tokenizer

from ...decoding import beam, generate
from ...files import import_optional
from ...models import Config, Model, check_at_least_one, check_at_most
from ...text import (
    Split,
    TextPair,
    check_vocabulary_size,
    encode,
    encode_with_dropout,
    special_ids,
    train_bpe,
)
from ...training import Examples, Gapped, Training, mean_loss, translation
from .recipe import (
    Answer,
    LeftOut,
    OwnData,
    PreparedModel,
    Recipe,
    Shape,
    TrainingStage,
    check_fields,
)

Ids = list[list[int]]  # the token ids of several texts
MOST_AGAIN = 1000  # most additional copies of the training data
WORD = re.compile(r"[^\W\d_]+")  # letters alone
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

    def _check_fields(self) -> None:
        check_at_least_one(self, "beams", "longest", "rows", "validated")


@dataclass(frozen=True)
class PairTokenizer(Config):
    """The table [tokenizer]: one BPE tokenizer for sources and targets."""

    size: int = 8000
    lower: bool = False
    # So many of the most frequent words of the sources, and of the targets, are one piece each.
    whole: int = 0
    words: str = ""  # more words that are one piece each, separated by spaces
    # Additional copies of the training data, with words cut into other pieces (BPE dropout).
    again: int = 0

    def _check_fields(self) -> None:
        check_vocabulary_size(self.size)
        check_at_most(self, MOST_AGAIN, "again")
        if self.again < 0:
            raise ValueError(f"again={self.again} must be at least 0, which is no copy")
        if not 0 <= self.whole <= self.size:
            raise ValueError(f"whole={self.whole} words are from 0 to size={self.size}")

    def learn(self, pairs: Sequence[TextPair], data: Path) -> Tokenizer:
        """Return a new tokenizer, trained on the texts of these pairs."""
        sources = [pair.source for pair in pairs]
        targets = [target for pair in pairs for target in pair.targets]
        # Words of both sides, each once.
        frequent = [*self._frequent_words(sources), *self._frequent_words(targets)]
        whole = list(dict.fromkeys([*frequent, *self.words.split()]))
        return train_bpe([*sources, *targets], self.size, lower=self.lower, whole=whole)

    def _frequent_words(self, texts: Iterable[str]) -> list[str]:
        counts = Counter(
            word for text in texts for word in WORD.findall(text.lower() if self.lower else text)
        )
        return [word for word, _ in counts.most_common(self.whole)]


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
        if way:
            found = encode_with_dropout(self.tokenizer, texts, dropout=DROPOUT, seed=way)
        else:
            found = encode(self.tokenizer, texts)
        if self.whole:
            return found
        # The last id is the end token.
        cut = self.longest - 1
        return [ids if self.accepts(ids) else [*ids[:cut], ids[-1]] for ids in found]

    def accepts(self, ids: Sequence[int]) -> bool:
        """Return whether a text of these ids is short enough."""
        return len(ids) <= self.longest


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
    start = special_ids(target.tokenizer).start
    assert start is not None
    # A source with several targets is an example for each of them.
    sources, targets = zip(
        *((pair.source, text) for pair in pairs for text in pair.targets), strict=True
    )
    both: list[tuple[list[int], list[int]]] = []
    # First the usual pieces, then other pieces for each copy.
    for way in range(again + 1):
        starting = ([start, *ids] for ids in target.encode(targets, way))
        both += zip(source.encode(sources, way), starting, strict=True)
    short = [
        (ids, others) for ids, others in both if source.accepts(ids) and target.accepts(others)
    ]
    if not short:
        raise ValueError(
            f"all {len(both):,} pairs are too long: a source may have {source.longest} tokens, a "
            f"target {target.longest}; allow more in the table [data]"
        )
    left_out["too long"] += len(both) - len(short)
    return Examples(*zip(*short, strict=True))


@dataclass(frozen=True, kw_only=True)
class PairData(OwnData):
    """The table [data] of a recipe for pairs of texts."""

    @abstractmethod
    def read(
        self, data: Path, split: Split, left_out: Counter[str] | None = None
    ) -> list[TextPair]:
        """Return the pairs of a split; count rows of one's own files that are left out."""

    def read_training(self, data: Path, left_out: Counter[str] | None = None) -> list[TextPair]:
        """Return all pairs to train on and to learn the tokenizer from, in a fixed order."""
        return self.read(data, "train", left_out)

    def more_training(self, pairs: list[TextPair]) -> list[TextPair]:
        """Return further pairs to train on, made from those that were read."""
        return []

    @abstractmethod
    def columns(self, tokenizer: Tokenizer) -> tuple[TextColumn, TextColumn]:
        """Return how sources and targets become ids."""


@dataclass(frozen=True)
class PairsRecipe(Recipe):
    """The tables that both tasks share. The [pretraining], where there is one, restores gaps in the
    sources.
    """

    data: PairData
    tokenizer: PairTokenizer
    model: Shape
    pretraining: Training | None
    training: Training
    decoding: Decoding

    chosen_by: ClassVar[str]  # the name of the figure whose highest chooses the best checkpoint

    @abstractmethod
    def validation_figure(self, answers: list[Answer]) -> float:
        """Return the figure that chooses the best checkpoint."""

    def prepare(self, data: Path, tokenizer: Tokenizer | None) -> PreparedModel:
        """Build the model and its stages of training."""
        # Read the data, and learn the tokenizer from what is read.
        left_out = LeftOut()
        training = self.data.read_training(data, left_out.training)
        tokenizer = tokenizer or self.tokenizer.learn(training, data)
        training = training + self.data.more_training(training)
        held_out = self.data.read(data, "validation", left_out.validation)

        model = self.model.build(tokenizer.get_vocab_size(), self.training.seed)
        model.tokenizer = tokenizer
        model.special = special_ids(tokenizer)

        # Validate by the loss of all held-out pairs, and by what is written for some of them: every
        # n-th pair, not the first ones, since a file may be sorted by length.
        source, target = self.data.columns(tokenizer)
        held_out_examples = examples(held_out, source, target, left_out.validation)
        written = held_out[:: -(-len(held_out) // self.decoding.validated)]

        def validate(model: Model) -> dict[str, float]:
            loss = mean_loss(model, held_out_examples, translation, self.training)
            greedy = answers(model, written, source, self.decoding, beams=1)
            return {"loss": loss, self.chosen_by: self.validation_figure(greedy)}

        # A pretraining restores gaps in the sources, each of which counts once.
        stages = {}
        if self.pretraining is not None:
            assert model.special.start is not None
            texts = list(dict.fromkeys(pair.source for pair in training))
            gapped = Gapped(source.encode(texts), model.special.start)
            stages["pretraining"] = TrainingStage(self.pretraining, gapped, translation)
        # Only the training has copies in other pieces; validation has the usual ones.
        pairs = examples(training, source, target, left_out.training, self.tokenizer.again)
        stages["training"] = TrainingStage(
            self.training,
            pairs,
            translation,
            validate,
            f"highest {self.chosen_by}",
            left_out.counts(),
        )
        return PreparedModel(model, stages)

    def answer(self, model: Model, data: Path, split: Split) -> list[Answer]:
        """Write a text for every source of a split."""
        assert model.tokenizer is not None
        source, _ = self.data.columns(model.tokenizer)
        return answers(model, self.data.read(data, split), source, self.decoding)


# ------------------------------------------------------------------------------ what a model writes


def answers(
    model: Model,
    pairs: Sequence[TextPair],
    source: TextColumn,
    decoding: Decoding,
    *,
    beams: int | None = None,
) -> list[Answer]:
    """Return the text that the model writes for each source, and the right ones."""
    sources = source.encode([pair.source for pair in pairs])
    beams = beams or decoding.beams
    texts = [""] * len(sources)
    # Batches of similar length, to save padding.
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    for first in range(0, len(order), decoding.rows):
        batch = order[first : first + decoding.rows]
        written = _write_batch(model, [sources[i] for i in batch], decoding, beams)
        for i, text in zip(batch, written, strict=True):
            texts[i] = text or ""
    return [
        {"source": pair.source, "prediction": text, "references": list(pair.targets)}
        for pair, text in zip(pairs, texts, strict=True)
    ]


def _write_batch(model: Model, sources: Ids, decoding: Decoding, beams: int) -> list[str | None]:
    longest = decoding.longest
    # One beam is greedy decoding.
    if beams == 1:
        greedy = generate(model, sources, max_new_tokens=longest, temperature=0)
        return [written.text for written in greedy]
    found = beam(
        model,
        sources,
        beams=beams,
        max_new_tokens=longest,
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
    written = [answer["prediction"] for answer in answers]
    return written, [answer["references"] for answer in answers]


# ------------------------------------------------------------------------------------------ metrics

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
    # multi-bleu does not smooth.
    smooth = "none" if tokens == "none" else "exp"
    # `force` is for texts that are tokenized already, which sacrebleu warns of.
    metric = _import_metric("sacrebleu").metrics.BLEU(
        lowercase=lower, tokenize=tokens, smooth_method=smooth, force=True
    )
    found = metric.corpus_score(list(predictions), _streams(references))
    return {"bleu": found.score, "brevity": found.bp}


def chrf(predictions: Sequence[str], references: References) -> float:
    """Return sacrebleu's chrF2 (Popović 2015), in %. It compares letters, so an almost right word
    counts in part.
    """
    metric = _import_metric("sacrebleu").metrics.CHRF()
    return float(metric.corpus_score(list(predictions), _streams(references)).score)


def rouge(predictions: Sequence[str], references: References) -> dict[str, float]:
    """Return rouge-score's F1 of words, word pairs and the longest common subsequence, stemmed, in
    % (Lin 2004).
    """
    kinds = ["rouge1", "rouge2", "rougeL"]
    scorer = _import_metric("rouge_score.rouge_scorer").RougeScorer(kinds, use_stemmer=True)
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


def _import_metric(module: str) -> Any:
    return import_optional(module, "training", "train")
