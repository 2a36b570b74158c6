"""The training data of "recall": lines, with a new random span of each cut out in every epoch, and
questions.

All rows of an epoch are made at once, on the device, in the order of the batches: a batch is a
slice of them.
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from tokenizers import Tokenizer
from torch import Tensor

from ...models import Special
from ...text import tokenizer as text
from ...training.batch import IGNORE, TextBatch, generator
from ...training.settings import Training

PAD = 0
GAP = 1
MARKS = PAD_MARK, GAP_MARK = "□", "⁇"
SPECIAL = Special(end=(GAP,), pad=PAD)  # an answer ends at the next ⁇


def vocabulary(lines: Sequence[str]) -> Tokenizer:
    """Return a tokenizer with one id for each character and for the line break, in the order of
    Unicode.
    """
    return text.character_tokenizer("\n".join(lines), special=MARKS)


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
    return text.encode(tokenizer, texts)


SHORTEST = 4  # fewest characters of a line that are kept


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
    kept = (
        SHORTEST + (torch.stack(kept_chances).amax(0) * (longest - SHORTEST + 1)).long()
    ).minimum(lengths)
    taken = (1 + taken_chance * (kept / 2 - 1).clamp(min=0)).long()
    return CutSpans(kept, taken, (start_chance * (kept - taken + 1)).long())


def corrupt(
    lines: Int[Tensor, "lines longest"], spans: CutSpans, length: int
) -> Int[Tensor, "lines length"]:
    """Return each line as prefix ⁇ suffix ⁇ taken □…, padded with □ to `length`."""
    kept, taken, start = (number[:, None] for number in spans)
    at = torch.arange(length, device=lines.device)
    rest = kept - taken  # the length of prefix and suffix together
    from_line = torch.where(
        at < start, at, torch.where(at <= rest, at - 1 + taken, at - rest - 2 + start)
    )
    moved = lines.gather(1, from_line.clamp(0, lines.shape[1] - 1))
    moved = moved.masked_fill((at == start) | (at == rest + 1), GAP)
    return moved.masked_fill(at > kept + 1, PAD)


class IdTable(ABC):
    """Sequences of ids in one matrix, padded to the longest, and a length for each; data as
    `training` takes it.
    """

    chances = 0  # random numbers that a row needs

    def __init__(self, sequences: Sequence[Sequence[int]], lengths: Sequence[int]) -> None:
        longest = max(map(len, sequences))
        self.ids = torch.tensor([[*ids, *[PAD] * (longest - len(ids))] for ids in sequences])
        self.lengths = torch.tensor(lengths)
        self.largest = int(self.ids.max())
        checksum = zlib.crc32(
            self.lengths.numpy().tobytes(), zlib.crc32(self.ids.numpy().tobytes())
        )
        self.description = (
            f"{len(sequences):,} {type(self).__name__.lower()}, checksum {checksum:08x}"
        )

    @abstractmethod
    def rows(
        self, chances: Float[Tensor, "chances rows"]
    ) -> tuple[Int[Tensor, "rows n"], Int[Tensor, "rows n"]]:
        """Return the ids of every row and their targets, where PAD is no target; `chances` are
        random, from 0 to 1.
        """

    def to(self, device: torch.device) -> "IdTable":
        """Move the data to a device, in place."""
        self.ids = self.ids.to(device)
        self.lengths = self.lengths.to(device)
        return self

    def describe(self) -> str:
        """Return a description with a checksum, by which a run that continues recognises its
        data.
        """
        return self.description

    def batches(self, settings: Training, epoch: int | None) -> list[TextBatch]:
        """Return the batches of an epoch, shuffled; for None, which is validation, in order.

        The last batch is filled up with rows that have no targets. Random numbers are drawn on the
        CPU, so that they are the same on every device.
        """
        device = self.ids.device
        n = len(self.ids)
        random = generator(settings.seed, 0 if epoch is None else epoch)
        chances = torch.rand(self.chances, n, generator=random, dtype=torch.float64)
        order = torch.arange(n) if epoch is None else torch.randperm(n, generator=random)

        ids, targets = self.rows(chances.to(device))
        size = settings.rows_of(ids.shape[1])
        order = torch.cat([order, order[:1].expand(-n % size)]).to(device)
        ids = ids[order]
        targets = targets.masked_fill(targets == PAD, IGNORE)[order]
        targets[n:] = IGNORE
        return [
            TextBatch(*both)
            for both in zip(torch.split(ids, size), torch.split(targets, size), strict=True)
        ]

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
        self.chances = draws + 2
        lengths = [min(len(line), self.longest) for line in lines]
        if min(lengths) < SHORTEST:
            raise ValueError(
                f"line {lengths.index(min(lengths))} has {min(lengths)} characters; at least "
                f"{SHORTEST} are needed"
            )
        super().__init__([line[: self.longest] for line in lines], lengths)
        self.description += f", blocks of {block}, {draws} draws"

    def rows(
        self, chances: Float[Tensor, "chances rows"]
    ) -> tuple[Int[Tensor, "rows n"], Int[Tensor, "rows n"]]:
        moved = corrupt(self.ids, draw_spans(self.lengths, chances, self.longest), self.block)
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

    def rows(
        self, chances: Float[Tensor, "chances rows"]
    ) -> tuple[Int[Tensor, "rows n"], Int[Tensor, "rows n"]]:
        at = torch.arange(1, self.ids.shape[1], device=self.ids.device)
        return self.ids[:, :-1], self.ids[:, 1:].masked_fill(at < self.lengths[:, None], PAD)
