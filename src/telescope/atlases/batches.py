"""Cut the texts of a shard into sequences of tokens, and group sequences of like length into padded
batches.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from ..files import panics_as_errors
from .texts import Text

DEFAULT_LENGTH = 2048  # tokens of a sequence, where the model would take more
Encode = Callable[[str], list[int]]


class TokenSequence(NamedTuple):
    """A stretch of a text: the number of the text, its first token within the text, and the
    tokens.
    """

    text: int
    first: int
    ids: list[int]


class TokenBatch(NamedTuple):
    """Sequences of like length, padded behind."""

    ids: Int[Tensor, "batch token"]
    lengths: list[int]
    places: Int[Tensor, "batch 2"]
    """The text of each sequence, and its first token within the text."""

    @property
    def is_padded(self) -> bool:
        return min(self.lengths) < self.ids.shape[1]

    def only(self, i: int) -> "TokenBatch":
        """Return a batch of one sequence, without padding."""
        length = self.lengths[i]
        return TokenBatch(self.ids[i : i + 1, :length], [length], self.places[i : i + 1])


def encoder_of(tokenizer: Any) -> Encode:
    """Return a function from a text to its token ids, for tokenizers of tokenizers and of
    transformers.
    """
    if tokenizer is None or not hasattr(tokenizer, "encode"):
        raise ValueError(
            "an atlas reads texts, so it needs a tokenizer: ts.atlas(model, texts, tokenizer=...)"
        )

    def encode(text: str) -> list[int]:
        with panics_as_errors("the tokenizers library panics"):
            encoded = tokenizer.encode(text)
        return list(getattr(encoded, "ids", encoded))

    return encode


def longest_input(model: Any) -> int | None:
    """Return how many tokens a model takes, None where nothing limits it."""
    config = getattr(model, "config", None)
    if getattr(config, "positions", None) in ("rotary", "none", "sinusoidal", "sinusoidal_halves"):
        return None  # of Telescope's models: max_positions is what it was trained on
    for name in ("max_positions", "max_position_embeddings", "n_positions", "max_sequence_length"):
        limit = getattr(config, name, None)
        if isinstance(limit, int) and limit > 0:
            return limit
    return None


def default_length(model: Any) -> int:
    """Return the length of sequences: what the model was trained on, at most DEFAULT_LENGTH."""
    config = getattr(model, "config", None)
    limits = (longest_input(model), getattr(config, "max_positions", None))
    return min([limit for limit in limits if isinstance(limit, int)] + [DEFAULT_LENGTH])


def sequences_of(
    texts: Iterable[tuple[Text, list[int]]], length: int, *, packed: bool
) -> Iterator[TokenSequence]:
    """Yield stretches of at most `length` tokens, at least two: of one text each or, if packed, of
    several in a row.

    A packed sequence has the number of the text that it begins in.
    """
    if not packed:
        for text, ids in texts:
            for first in range(0, len(ids), length):
                if len(ids) - first > 1:
                    yield TokenSequence(text.number, first, ids[first : first + length])
        return
    stretch: list[int] = []
    place = (0, 0)
    for text, ids in texts:
        start = 0
        while start < len(ids):
            place = (text.number, start) if not stretch else place
            taken = ids[start : start + length - len(stretch)]
            stretch = stretch + taken
            start += len(taken)
            if len(stretch) == length:
                yield TokenSequence(*place, stretch)
                stretch = []
    if len(stretch) > 1:
        yield TokenSequence(*place, stretch)


def batches_of(sequences: Iterable[TokenSequence], size: int, pad: int) -> Iterator[TokenBatch]:
    """Yield batches of at most `size` sequences, the shortest first, so that little is padded.

    A batch holds no sequence of less than three quarters of its longest one.
    """
    ordered = sorted(
        sequences, key=lambda sequence: (len(sequence.ids), sequence.text, sequence.first)
    )
    batch: list[TokenSequence] = []
    for sequence in ordered:
        if batch and (len(batch) == size or 4 * len(batch[0].ids) < 3 * len(sequence.ids)):
            yield _padded(batch, pad)
            batch = []
        batch.append(sequence)
    if batch:
        yield _padded(batch, pad)


def _padded(batch: list[TokenSequence], pad: int) -> TokenBatch:
    longest = max(len(sequence.ids) for sequence in batch)
    ids = torch.full((len(batch), longest), pad, dtype=torch.long)
    for i, sequence in enumerate(batch):
        ids[i, : len(sequence.ids)] = torch.tensor(sequence.ids)
    places = torch.tensor([[sequence.text, sequence.first] for sequence in batch])
    return TokenBatch(ids, [len(sequence.ids) for sequence in batch], places)
