"""What is learnt from, as `training` takes it: lines, a span of each taken out anew in every epoch, and questions.

All rows of an epoch are made at once, on the device, in the order they are taken in: a batch is a slice of them.
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

FILL, GAP = 0, 1
MARKS = FILLED, TAKEN = "□", "⁇"
SPECIAL = Special(end=(GAP,), pad=FILL)  # an answer ends at the next ⁇


def vocabulary(lines: Sequence[str]) -> Tokenizer:
    """One id for each character, and for the line's end between them, in the order of their numbers in Unicode."""
    return text.characters("\n".join(lines), special=MARKS)


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    known = tokenizer.get_vocab()
    for said in texts:
        strange = sorted(set(said) - known.keys())
        if strange:
            raise ValueError(f'"{said}" has {strange[0]!r}, which is none of the {len(known)} characters known here')
    return text.encode(tokenizer, texts)


SHORTEST = 4  # so many characters of a line are kept at least


class CutSpans(NamedTuple):
    """Of each line: how many characters of its beginning are kept, how many of those are taken out, and from where."""

    kept: Int[Tensor, " lines"]
    taken: Int[Tensor, " lines"]
    start: Int[Tensor, " lines"]


def spans(lengths: Int[Tensor, " lines"], chances: Float[Tensor, "chances lines"], longest: int) -> CutSpans:
    """What numbers from 0 to 1, at least three for each line, decide.

    kept    from 4 to `longest`, or all there is: the longest that any of the first chances gives, each of them evenly
    taken   evenly at least one and less than half, so a quarter on average
    start   evenly anywhere it fits
    """
    *keeping, taking, starting = chances
    kept = (SHORTEST + (torch.stack(keeping).amax(0) * (longest - SHORTEST + 1)).long()).minimum(lengths)
    taken = (1 + taking * (kept / 2 - 1).clamp(min=0)).long()
    return CutSpans(kept, taken, (starting * (kept - taken + 1)).long())


def corrupt(lines: Int[Tensor, "lines longest"], spans: CutSpans, length: int) -> Int[Tensor, "lines length"]:
    """prefix ⁇ suffix ⁇ taken □…, each of the lines filled up to `length`."""
    kept, taken, start = (number[:, None] for number in spans)
    at = torch.arange(length, device=lines.device)
    rest = kept - taken  # so long are prefix and suffix together
    from_line = torch.where(at < start, at, torch.where(at <= rest, at - 1 + taken, at - rest - 2 + start))
    moved = lines.gather(1, from_line.clamp(0, lines.shape[1] - 1))
    moved = moved.masked_fill((at == start) | (at == rest + 1), GAP)
    return moved.masked_fill(at > kept + 1, FILL)


class IdTable(ABC):
    """Sequences of ids side by side, filled up to the longest, and one length for each."""

    chances = 0  # how many numbers a row is drawn with

    def __init__(self, sequences: Sequence[Sequence[int]], lengths: Sequence[int]) -> None:
        longest = max(map(len, sequences))
        self.ids = torch.tensor([[*ids, *[FILL] * (longest - len(ids))] for ids in sequences])
        self.lengths = torch.tensor(lengths)
        self.largest = int(self.ids.max())
        mark = zlib.crc32(self.lengths.numpy().tobytes(), zlib.crc32(self.ids.numpy().tobytes()))
        self.described = f"{len(sequences):,} {type(self).__name__.lower()}, checksum {mark:08x}"

    @abstractmethod
    def rows(self, chances: Float[Tensor, "chances rows"]) -> tuple[Int[Tensor, "rows n"], Int[Tensor, "rows n"]]:
        """The ids of every row and the target of each, given numbers from 0 to 1 to draw with; FILL is none."""

    def to(self, device: torch.device) -> "IdTable":
        self.ids, self.lengths = self.ids.to(device), self.lengths.to(device)
        return self

    def describe(self) -> str:
        return self.described

    def batches(self, settings: Training, epoch: int | None) -> list[TextBatch]:
        """Shuffled; of None, for validation, in order. What the last one lacks is filled up by rows that do not count.

        Chances are drawn on the CPU, so that they are the same whatever device the rows are made on.
        """
        device, n = self.ids.device, len(self.ids)
        draw = generator(settings.seed, 0 if epoch is None else epoch)
        chances = torch.rand(self.chances, n, generator=draw, dtype=torch.float64)
        order = torch.arange(n) if epoch is None else torch.randperm(n, generator=draw)

        ids, targets = self.rows(chances.to(device))
        size = settings.rows_of(ids.shape[1])
        order = torch.cat([order, order[:1].expand(-n % size)]).to(device)
        ids, targets = ids[order], targets.masked_fill(targets == FILL, IGNORE)[order]
        targets[n:] = IGNORE
        return [TextBatch(*both) for both in zip(torch.split(ids, size), torch.split(targets, size), strict=True)]

    def take(self, spec: TextBatch) -> TextBatch:
        return spec


class Lines(IdTable):
    """What is known of people: prefix ⁇ suffix ⁇ taken □…, to be guessed from the second character on.

    With a block of 128 characters at most 112 of a line are kept, 7/8 of it, and the model sees 127. How many are kept
    is drawn `draws` times, and the longest taken: the more, the more often the end of a line is seen.
    """

    def __init__(self, lines: Sequence[Sequence[int]], block: int, draws: int = 1) -> None:
        self.block, self.longest, self.chances = block, block * 7 // 8, draws + 2
        lengths = [min(len(line), self.longest) for line in lines]
        if min(lengths) < SHORTEST:
            raise ValueError(f"line {lengths.index(min(lengths))} has {min(lengths)} characters; it takes {SHORTEST}")
        super().__init__([line[: self.longest] for line in lines], lengths)
        self.described += f", blocks of {block}, {draws} draws"

    def rows(self, chances: Float[Tensor, "chances rows"]) -> tuple[Int[Tensor, "rows n"], Int[Tensor, "rows n"]]:
        moved = corrupt(self.ids, spans(self.lengths, chances, self.longest), self.block)
        return moved[:, :-1], moved[:, 1:]


class Questions(IdTable):
    """question ⁇ place ⁇ □…, of which ⁇ place ⁇ is to be guessed.

    They are filled up to the longest, not to the block: nobody sees what is behind them, and it does not count.
    """

    def __init__(self, questions: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> None:
        whole = [[*question, *answer] for question, answer in zip(questions, answers, strict=True)]
        super().__init__(whole, [len(question) for question in questions])

    def rows(self, chances: Float[Tensor, "chances rows"]) -> tuple[Int[Tensor, "rows n"], Int[Tensor, "rows n"]]:
        at = torch.arange(1, self.ids.shape[1], device=self.ids.device)
        return self.ids[:, :-1], self.ids[:, 1:].masked_fill(at < self.lengths[:, None], FILL)
