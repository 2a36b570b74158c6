"""The tasks "translate" and "summarize", of an encoder-decoder, and "generate", of a GPT on running
text: the tables of their recipes, and how a model is measured.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path
from random import Random
from typing import Any, Literal, Self

from tokenizers import Tokenizer

from ...layers import check_choice
from ...models import GPT, Config, GPTConfig, Model, check_at_least_one, check_at_most
from ...text import (
    SUMMARIES,
    TEXTS,
    TRANSLATIONS,
    Split,
    TextPair,
    bpe_from_merges,
    character_tokenizer,
    check_vocabulary_size,
    read_multi30k_merges,
    rename_speakers,
    train_bpe,
)
from ...training import Repeated, Training, Windows, language, mean_loss
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
from .repeats import measure_repeats
from .sequence_pairs import (
    MOST_AGAIN,
    PairData,
    PairsRecipe,
    PairTokenizer,
    TextColumn,
    Tokens,
    bleu,
    chrf,
    predictions,
    rouge,
)

# ---------------------------------------------------------------------------------------- translate


@dataclass(frozen=True, kw_only=True)
class Translations(PairData):
    """The table [data]: a corpus, or files of one's own; `also` is another corpus to train on.

    source, target  the languages of a corpus, "en" or "de"; the two columns of files of one's own
    """

    source: str
    target: str
    also: str | None = None
    without_stop_percent: int = 0  # of the pairs are added once more without their final full stop
    longest: int = 128  # most tokens of either side; longer pairs are left out of the training

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        # Recipes of version 0.1 say `bare`.
        renamed = {"bare": "without_stop_percent"}
        return super().from_dict({renamed.get(name, name): given[name] for name in given})

    def _check_fields(self) -> None:
        check_at_least_one(self, "longest")
        if not 0 <= self.without_stop_percent <= 100:
            raise ValueError(
                f"without_stop_percent={self.without_stop_percent} % of the pairs is not "
                "possible; 0 to 100 is"
            )
        self.check_source(TRANSLATIONS)
        if self.also is not None:
            check_choice("also", self.also, TRANSLATIONS)
        if self.corpus is not None or self.also is not None:
            for name in ("source", "target"):
                check_choice(name, getattr(self, name), ("en", "de"))
        # Of a corpus, source and target are languages; of one's own files, columns.
        elif self.source == self.target:
            raise ValueError(
                f'source and target are both "{self.source}"; a translation has two columns'
            )

    def read(
        self, data: Path, split: Split, left_out: Counter[str] | None = None
    ) -> list[TextPair]:
        if self.corpus is None:
            return self.read_pairs(data, split, self.source, self.target, left_out)
        return TRANSLATIONS[self.corpus](data, split, self.source, self.target)

    def read_training(self, data: Path, left_out: Counter[str] | None = None) -> list[TextPair]:
        pairs = self.read(data, "train", left_out)
        # People who type a sentence often leave out the full stop at its end.
        random = Random(0)
        without_stops = [
            TextPair(
                pair.source.removesuffix("."),
                tuple(target.removesuffix(".") for target in pair.targets),
            )
            for pair in pairs
            if random.randrange(100) < self.without_stop_percent
        ]
        others = []
        if self.also is not None:
            others = TRANSLATIONS[self.also](data, "train", self.source, self.target)
        return pairs + without_stops + others

    def columns(self, tokenizer: Tokenizer) -> tuple[TextColumn, TextColumn]:
        whole = TextColumn(tokenizer, self.longest, whole=True)
        return whole, whole


@dataclass(frozen=True)
class TranslationTokenizer(PairTokenizer):
    """The table [tokenizer]: "multi30k" uses the BPE merges that Wu et al. 2021 published."""

    kind: Literal["bpe", "multi30k"] = "bpe"

    def learn(self, pairs: Sequence[TextPair], data: Path) -> Tokenizer:
        """Return a new tokenizer, trained on these pairs or made of the published merges."""
        if self.kind == "multi30k":
            texts = (text for pair in pairs for text in (pair.source, *pair.targets))
            return bpe_from_merges(read_multi30k_merges(data), texts)
        return super().learn(pairs, data)


@dataclass(frozen=True)
class Bleu(Config):
    """The table [metric]: tokens="none" is for texts that are tokenized already, with spaces
    between tokens.
    """

    lower: bool = False
    tokens: Tokens = "13a"


@dataclass(frozen=True)
class TranslateRecipe(PairsRecipe):
    """The task "translate": an encoder-decoder trained on pairs of sentences, measured by BLEU."""

    data: Translations
    tokenizer: TranslationTokenizer
    metric: Bleu

    chosen_by = "bleu"

    def validation_figure(self, answers: list[Answer]) -> float:
        return self._bleu(answers)["bleu"]

    def score(self, answers: list[Answer]) -> dict[str, float]:
        """Return BLEU, its brevity penalty, and chrF."""
        return {**self._bleu(answers), "chrf": chrf(*predictions(answers))}

    def _bleu(self, answers: list[Answer]) -> dict[str, float]:
        return bleu(*predictions(answers), lower=self.metric.lower, tokens=self.metric.tokens)


# ---------------------------------------------------------------------------------------- summarize


@dataclass(frozen=True, kw_only=True)
class SummaryData(PairData):
    """The table [data]. Longer documents are truncated; pairs with a longer summary are left
    out.
    """

    document: str = "document"  # the column of documents, in files of one's own
    summary: str = "summary"  # the column of summaries
    longest: int = 256  # most tokens of a document
    longest_summary: int = 64  # most tokens of a summary
    renamed: int = 0  # additional copies of all chats, with other names for the people in them

    def _check_fields(self) -> None:
        check_at_least_one(self, "longest", "longest_summary")
        self.check_source(SUMMARIES)
        check_at_most(self, MOST_AGAIN, "renamed")
        if self.renamed < 0:
            raise ValueError(f"renamed={self.renamed} must be at least 0, which is no copy")

    def read(
        self, data: Path, split: Split, left_out: Counter[str] | None = None
    ) -> list[TextPair]:
        if self.corpus is None:
            return self.read_pairs(data, split, self.document, self.summary, left_out)
        return SUMMARIES[self.corpus](data, split)

    def more_training(self, pairs: list[TextPair]) -> list[TextPair]:
        # Not for the tokenizer: names should be cut into pieces as the chats have them.
        return [pair for seed in range(self.renamed) for pair in rename_speakers(pairs, seed)]

    def columns(self, tokenizer: Tokenizer) -> tuple[TextColumn, TextColumn]:
        # A long document is cut; a pair with a long summary is left out.
        document = TextColumn(tokenizer, self.longest, whole=False)
        return document, TextColumn(tokenizer, self.longest_summary, whole=True)


@dataclass(frozen=True)
class SummarizeRecipe(PairsRecipe):
    """The task "summarize": an encoder-decoder trained on documents and their summaries, measured
    by ROUGE.
    """

    data: SummaryData

    chosen_by = "chrf"  # which follows ROUGE, and is quick

    def validation_figure(self, answers: list[Answer]) -> float:
        return chrf(*predictions(answers))

    def score(self, answers: list[Answer]) -> dict[str, float]:
        """Return ROUGE-1, ROUGE-2, ROUGE-L and chrF."""
        return {**rouge(*predictions(answers)), "chrf": chrf(*predictions(answers))}


# ----------------------------------------------------------------------------------------- generate

LARGEST_LOSS = 700.0  # nats per token; the perplexity of larger losses overflows a float


@dataclass(frozen=True)
class TextData(OwnData):
    """The table [data]: one long text, of a corpus or of files of one's own."""

    text: str | None = None  # the column of texts, where the file is a table
    # Of the windows that are trained on: they say their first tokens again and again.
    repeat_percent: int = 0

    def _check_fields(self) -> None:
        self.check_source(TEXTS)
        if not 0 <= self.repeat_percent <= 100:
            raise ValueError(
                f"repeat_percent={self.repeat_percent} % of the windows is not possible; 0 to "
                "100 is"
            )

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

    def _check_fields(self) -> None:
        check_vocabulary_size(self.size)

    def learn(self, data: Path, corpus: TextData) -> Tokenizer:
        """Return a new tokenizer, trained on the corpus."""
        if self.kind == "bpe":
            # Line breaks are characters of the text, too.
            lines = corpus.read(data, "train").splitlines(keepends=True)
            return train_bpe(lines, self.size, special=False)
        # A character that occurs in the held-out text alone could not be encoded later.
        splits: tuple[Split, ...] = ("train", "validation", "test")
        return character_tokenizer("".join(corpus.read(data, split) for split in splits))


@dataclass(frozen=True)
class GenerateRecipe(Recipe):
    """The task "generate": a GPT trained on running text, of characters or BPE tokens, measured by
    its loss.
    """

    data: TextData
    tokenizer: TextTokenizer
    model: Shape
    training: Training

    def prepare(self, data: Path, tokenizer: Tokenizer | None) -> PreparedModel:
        """Build the model and its one stage of training."""
        # A run that continues brings its tokenizer.
        tokenizer = tokenizer or self.tokenizer.learn(data, self.data)
        model = self.model.build(tokenizer.get_vocab_size(), self.training.seed)
        model.tokenizer = tokenizer
        left_out = LeftOut()
        share = self.data.repeat_percent / 100
        training = windows(model, self.data.read(data, "train", left_out.training), share)
        held_out = windows(model, self.data.read(data, "validation", left_out.validation))

        def validate(model: Model) -> dict[str, float]:
            figures = {"loss": mean_loss(model, held_out, language, self.training)}
            assert isinstance(model, GPT)  # `windows` saw to it
            return figures | (measure_repeats(model) if share else {})

        stage = TrainingStage(
            self.training, training, language, validate, left_out=left_out.counts()
        )
        return PreparedModel(model, {"training": stage})

    def answer(self, model: Model, data: Path, split: Split) -> list[Answer]:
        """Return one answer for the whole split: the mean loss over its tokens."""
        text = self.data.read(data, split)
        held_out = windows(model, text)
        loss = mean_loss(model, held_out, language, self.training)
        # The first token is predicted by none, so that it does not count.
        return [{"loss": loss, "tokens": len(held_out.ids) - 1, "characters": len(text)}]

    def score(self, answers: list[Answer]) -> dict[str, float]:
        """Return the loss per token in nats, and per character, which can be compared between
        tokenizers.
        """
        if len(answers) != 1:
            raise ValueError(
                f"there are {len(answers)} answers; the task generate has one, the loss of the text"
            )
        check_fields(answers, loss=(float, int), tokens=int, characters=int)
        loss, tokens, characters = (answers[0][name] for name in ("loss", "tokens", "characters"))
        # Answers may come from a file that was written elsewhere.
        if not 0 <= loss < LARGEST_LOSS or min(tokens, characters) < 1:
            raise ValueError(
                f"the answer says a loss of {loss} nats for {tokens} tokens of {characters} "
                f"characters; a loss is from 0 to {LARGEST_LOSS:g}, of at least 1 token"
            )
        return {"loss": loss, "perplexity": exp(loss), "per_character": loss * tokens / characters}


def windows(model: Model, text: str, share: float = 0.0) -> Windows:
    """Return a text cut into windows as long as the model has positions; a share of them repeats
    its beginning.
    """
    if not isinstance(model.config, GPTConfig) or model.tokenizer is None:
        raise ValueError(
            f"a {type(model).__name__} does not continue a text; a GPT with a tokenizer does"
        )
    ids = model.tokenizer.encode(text).ids
    block = model.config.max_positions
    return Repeated(ids, block, share) if share else Windows(ids, block)
