"""The task "recall": a GPT learns facts by restoring spans of lines ([pretraining]), then to answer
questions. First its recipe, then its training data: lines, of which another random span is cut out
in every epoch, and questions.
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from tokenizers import Tokenizer
from torch import Tensor

from ...decoding import generate
from ...models import Config, GPTConfig, Model, Special, check_at_least_one, check_at_most
from ...text import Split, TextPair, character_tokenizer, read_births, read_people
from ...text import encode as encode_texts
from ...training import IGNORE, TextBatch, Training, generator, language
from .recipe import Answer, PreparedModel, Recipe, Shape, TrainingStage, check_fields

# The ids of MARKS, in their order.
PAD = 0
GAP = 1
MARKS = PAD_MARK, GAP_MARK = "□", "⁇"
SPECIAL = Special(end=(GAP,), pad=PAD)  # an answer ends at the next ⁇
LONGEST = 32  # most characters of an answer; the longest place has 15
BATCH = 512  # questions answered together
SHORTEST = 4  # fewest characters of a line that are kept


@dataclass(frozen=True)
class Corruption(Config):
    """The table [data]: how lines are cut for the pretraining; see `Lines`."""

    block: int = 128
    draws: int = 1

    def _check_fields(self) -> None:
        check_at_least_one(self, "draws")
        check_at_most(self, 1000, "draws")
        check_at_most(self, 2**16, "block")
        if self.block < 8:
            raise ValueError(
                f"block={self.block} is too short for a line and two ⁇; 8 is the shortest"
            )


@dataclass(frozen=True)
class RecallRecipe(Recipe):
    """The tables of a recipe for this task."""

    data: Corruption
    model: Shape
    pretraining: Training | None
    training: Training

    def prepare(self, data: Path, tokenizer: Tokenizer | None) -> PreparedModel:
        """Build the model and its stages: restoring spans, where the recipe has a [pretraining],
        then answering.
        """
        lines = read_people(data)
        tokenizer = tokenizer or vocabulary(lines)
        model = self.model.build(tokenizer.get_vocab_size(), self.training.seed)
        if not isinstance(model.config, GPTConfig):
            raise ValueError(f"a {type(model).__name__} does not continue a question; a GPT does")
        model.tokenizer = tokenizer
        model.special = SPECIAL
        held_out = read_births(data, "validation")

        def validate(model: Model) -> dict[str, float]:
            return self.score(answer_pairs(model, held_out))

        stages = {}
        if self.pretraining is not None:
            corrupted = Lines(encode(tokenizer, lines), self.data.block, self.data.draws)
            stages["pretraining"] = TrainingStage(self.pretraining, corrupted, language)
        questions = encode_questions(tokenizer, read_births(data, "train"))
        stages["training"] = TrainingStage(
            self.training, questions, language, validate, "highest accuracy"
        )
        return PreparedModel(model, stages)

    def answer(self, model: Model, data: Path, split: Split) -> list[Answer]:
        """Answer every question of a split."""
        return answer_pairs(model, read_births(data, split))

    def score(self, answers: list[Answer]) -> dict[str, float]:
        """Return the share of answers, in %, that equal the place letter by letter."""
        check_fields(answers, answer=str, places=list)
        if not answers:
            raise ValueError("there are no answers to score")
        if not all(answer["places"] for answer in answers):
            raise ValueError(
                "the places of the test questions were never published; --split validation can be "
                "scored"
            )
        right = sum(answer["answer"] in answer["places"] for answer in answers)
        return {"accuracy": 100 * right / len(answers)}


def answer_questions(model: Model, questions: Sequence[str]) -> list[str]:
    """Return the model's answer to each question. Raises ValueError for a model that was not
    trained to recall.
    """
    if model.tokenizer is None or model.special != SPECIAL:
        raise ValueError(
            "this model was not trained to recall; telescope train recipes/recall-rotary.toml "
            "trains one"
        )
    # The ⁇ after a question asks for the answer.
    prompts = encode(model.tokenizer, [question + GAP_MARK for question in questions])
    answers: list[str] = []
    for first in range(0, len(prompts), BATCH):
        batch = prompts[first : first + BATCH]
        written = generate(model, batch, max_new_tokens=LONGEST, temperature=0.0)
        answers += [one.text or "" for one in written]
    return answers


def answer_pairs(model: Model, pairs: Sequence[TextPair]) -> list[Answer]:
    """Answer the question of each pair; the pair's targets are the right places."""
    texts = answer_questions(model, [pair.source for pair in pairs])
    return [
        {"question": pair.source, "answer": text, "places": list(pair.targets)}
        for pair, text in zip(pairs, texts, strict=True)
    ]


def as_question(name: str) -> str:
    """Return the question about a person in the wording of the training; a question is returned as
    it is.
    """
    return name if name.endswith("?") else f"Where was {name} born?"


# ---------------------------------------------------------------------------------------------- ids


def vocabulary(lines: Sequence[str]) -> Tokenizer:
    """Return a tokenizer with one id for each character and for the line break, in the order of
    Unicode.
    """
    return character_tokenizer("\n".join(lines), special=MARKS)


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of each text; raise a ValueError for a character that the tokenizer does not
    have.
    """
    vocabulary = tokenizer.get_vocab()
    for line in texts:
        unknown = sorted(set(line) - vocabulary.keys())
        if unknown:
            raise ValueError(
                f'"{line}" has {unknown[0]!r}, which is none of the {len(vocabulary)} characters '
                "learnt"
            )
    return encode_texts(tokenizer, texts)


def encode_questions(tokenizer: Tokenizer, pairs: Sequence[TextPair]) -> "Questions":
    """Return questions and places as training data."""
    answers = [f"{GAP_MARK}{place}{GAP_MARK}" for pair in pairs for place in pair.targets]
    return Questions(encode(tokenizer, [pair.source for pair in pairs]), encode(tokenizer, answers))


# ------------------------------------------------------------------------------------ training data


class CutSpans(NamedTuple):
    """The span that is cut out of each line.

    kept   how many characters of the line's beginning are used
    taken  how many of these are cut out
    start  where the cut begins
    """

    kept: Int[Tensor, " lines"]
    taken: Int[Tensor, " lines"]
    start: Int[Tensor, " lines"]


def draw_spans(
    lengths: Int[Tensor, " lines"], chances: Float[Tensor, "chances lines"], longest: int
) -> CutSpans:
    """Return the spans that random numbers from 0 to 1, at least three for each line, select.

    kept    uniform from 4 to `longest`, at most the whole line; with more than three numbers, the
            longest of several draws
    taken   uniform from one to less than half of `kept`, so a quarter on average
    start   uniform over all places where the span fits
    """
    *kept_chances, taken_chance, start_chance = chances
    # The longest of several draws: more draws show the ends of lines more often.
    drawn = (torch.stack(kept_chances).amax(0) * (longest - SHORTEST + 1)).long()
    kept = (SHORTEST + drawn).minimum(lengths)
    taken = (1 + taken_chance * (kept / 2 - 1).clamp(min=0)).long()
    return CutSpans(kept, taken, (start_chance * (kept - taken + 1)).long())


def corrupt(
    lines: Int[Tensor, "lines longest"], spans: CutSpans, length: int
) -> Int[Tensor, "lines length"]:
    """Return each line as prefix ⁇ suffix ⁇ taken □…, padded with □ to `length`."""
    kept, taken, start = (number[:, None] for number in spans)
    at = torch.arange(length, device=lines.device)
    rest = kept - taken  # the length of prefix and suffix together
    # Where each place takes its character from: the prefix, the suffix after its ⁇, the span.
    after_gap = torch.where(at <= rest, at - 1 + taken, at - rest - 2 + start)
    from_line = torch.where(at < start, at, after_gap)
    moved = lines.gather(1, from_line.clamp(0, lines.shape[1] - 1))
    # Put both ⁇ in their places, then pad.
    moved = moved.masked_fill((at == start) | (at == rest + 1), GAP)
    return moved.masked_fill(at > kept + 1, PAD)


Rows = tuple[Int[Tensor, "rows n"], Int[Tensor, "rows n"]]  # ids, and the id after each of them


class IdTable(ABC):
    """Sequences of ids in one matrix, padded to the longest, and a length for each; data as
    `training` takes it.

    All rows of an epoch are made at once, on the device, in the order of the batches: a batch is a
    slice of them.
    """

    chances = 0  # random numbers that a row needs

    def __init__(self, sequences: Sequence[Sequence[int]], lengths: Sequence[int]) -> None:
        longest = max(map(len, sequences))
        self.ids = torch.tensor([[*ids, *[PAD] * (longest - len(ids))] for ids in sequences])
        self.lengths = torch.tensor(lengths)
        self.largest = int(self.ids.max())
        # A run that continues recognises its data by the checksum.
        checksum = zlib.crc32(self.lengths.numpy().data, zlib.crc32(self.ids.numpy().data))
        kind = type(self).__name__.lower()
        self.description = f"{len(sequences):,} {kind}, checksum {checksum:08x}"

    @abstractmethod
    def rows(self, chances: Float[Tensor, "chances rows"]) -> Rows:
        """Return the ids of every row and their targets, where PAD is no target; `chances` are
        random, from 0 to 1.
        """

    def to(self, device: torch.device) -> "IdTable":
        """Move the data to a device, in place."""
        self.ids = self.ids.to(device)
        self.lengths = self.lengths.to(device)
        return self

    def describe(self) -> str:
        """Return the number of rows and a checksum."""
        return self.description

    def batches(self, settings: Training, epoch: int | None) -> list[TextBatch]:
        """Return the batches of an epoch, shuffled; for None, which is validation, in order.

        The last batch is filled up with rows that have no targets. Random numbers are drawn on the
        CPU, so that they are the same on every device.
        """
        device = self.ids.device
        n = len(self.ids)
        # Validation always draws the numbers of epoch 0.
        random = generator(settings.seed, 0 if epoch is None else epoch)
        chances = torch.rand(self.chances, n, generator=random, dtype=torch.float64)
        order = torch.arange(n) if epoch is None else torch.randperm(n, generator=random)

        # Make all rows, then put them in order and fill up the last batch.
        ids, targets = self.rows(chances.to(device))
        size = settings.rows_of(ids.shape[1])
        # Copies of one row fill up the last batch; their targets are removed below.
        order = torch.cat([order, order[:1].expand(-n % size)]).to(device)
        ids = ids[order]
        targets = targets.masked_fill(targets == PAD, IGNORE)[order]
        targets[n:] = IGNORE
        both = zip(torch.split(ids, size), torch.split(targets, size), strict=True)
        return list(starmap(TextBatch, both))

    def take(self, spec: TextBatch) -> TextBatch:
        """Return the batch itself: `batches` has made it already."""
        return spec


class Lines(IdTable):
    """Lines about people, as prefix ⁇ suffix ⁇ taken □…; every character but the first is a target.

    Of a block of 128 characters, a line fills at most 112, which is 7/8; the model reads 127. How
    many characters are kept is drawn `draws` times, and the largest number counts: more draws show
    the end of a line more often.
    """

    def __init__(self, lines: Sequence[Sequence[int]], block: int, draws: int = 1) -> None:
        self.block = block
        self.longest = block * 7 // 8
        # The draws of the length, and one number each for the span's length and its start.
        self.chances = draws + 2
        lengths = [min(len(line), self.longest) for line in lines]
        shortest = min(lengths)
        if shortest < SHORTEST:
            raise ValueError(
                f"line {lengths.index(shortest)} has {shortest} characters; at least {SHORTEST} "
                "are needed"
            )
        super().__init__([line[: self.longest] for line in lines], lengths)
        self.description += f", blocks of {block}, {draws} draws"

    def rows(self, chances: Float[Tensor, "chances rows"]) -> Rows:
        moved = corrupt(self.ids, draw_spans(self.lengths, chances, self.longest), self.block)
        # Each character is to predict the next one.
        return moved[:, :-1], moved[:, 1:]


class Questions(IdTable):
    """Questions as question ⁇ place ⁇ □…, of which ⁇ place ⁇ are the targets.

    Rows are padded to the longest question, not to the model's block: padding after the answer
    changes nothing.
    """

    def __init__(
        self, questions: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
    ) -> None:
        whole = [[*question, *answer] for question, answer in zip(questions, answers, strict=True)]
        super().__init__(whole, [len(question) for question in questions])

    def rows(self, chances: Float[Tensor, "chances rows"]) -> Rows:
        at = torch.arange(1, self.ids.shape[1], device=self.ids.device)
        # The characters of the question are read, and no targets.
        return self.ids[:, :-1], self.ids[:, 1:].masked_fill(at < self.lengths[:, None], PAD)
