"""The same texts in other pieces: merges of a BPE fail now and then (BPE-dropout, Provilkov et al. 2020).

Who has seen a word cut in many ways learns what its parts mean, and can write words that it has hardly seen. The
tokenizers library has this too, but draws anew each time; a run that goes on must find the data that it had.
"""

import json
from collections.abc import Sequence
from itertools import groupby, pairwise
from random import Random

from tokenizers import Tokenizer

WAYS = 8  # in which a word is cut at most, however often it occurs


def other_pieces(tokenizer: Tokenizer, texts: Sequence[str], *, dropout: float, seed: int) -> list[list[int]]:
    """The ids of each text, special ones as ever, every word cut where merges fail with this probability."""
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"dropout={dropout} is a probability, from 0 to 1")
    words = _Words(tokenizer, dropout, Random(seed))
    found = []
    for encoding in tokenizer.encode_batch(list(texts)):
        ids: list[int] = []
        for word, some in groupby(zip(encoding.word_ids, encoding.ids, strict=True), key=lambda it: it[0]):
            pieces = tuple(piece for _, piece in some)
            ids += pieces if word is None else words.again(pieces)
        found.append(ids)
    return found


class _Words:
    """Words, as the ids that they usually are, and the ways in which each was cut so far."""

    def __init__(self, tokenizer: Tokenizer, dropout: float, random: Random) -> None:
        model = json.loads(tokenizer.to_str())["model"]
        if model["type"] != "BPE":
            raise ValueError(f"a tokenizer of the kind {model['type']} has no merges that could fail; BPE has")
        self.ids: dict[str, int] = model["vocab"]
        self.names = {i: piece for piece, i in self.ids.items()}
        self.ranks = {tuple(merge): rank for rank, merge in enumerate(model["merges"])}
        self.end: str = model["end_of_word_suffix"] or ""
        self.dropout, self.random = dropout, random
        self.cut: dict[tuple[int, ...], list[list[int]]] = {}

    def again(self, word: tuple[int, ...]) -> Sequence[int]:
        """The ids of the word cut in some way."""
        ways = self.cut.setdefault(word, [])
        if len(ways) == WAYS:
            return self.random.choice(ways)
        pieces = self._merged(self._letters("".join(self.names[piece] for piece in word)))
        known = all(piece in self.ids for piece in pieces)  # a letter that the vocabulary lacks stays unknown
        ways.append([self.ids[piece] for piece in pieces] if known else list(word))
        return ways[-1]

    def _letters(self, word: str) -> list[str]:
        letters = list(word.removesuffix(self.end))
        return [*letters[:-1], letters[-1] + self.end]

    def _merged(self, pieces: list[str]) -> list[str]:
        """The best merges first, as ever; each may fail each time, and when all do it ends."""
        while True:
            there = [(self.ranks[pair], i) for i, pair in enumerate(pairwise(pieces)) if pair in self.ranks]
            there = [it for it in there if self.random.random() >= self.dropout]
            if not there:
                return pieces
            _, i = min(there)
            pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
