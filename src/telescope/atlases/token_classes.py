"""Classify the tokens of a vocabulary: words, parts of words, numbers, punctuation, space, special
tokens.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ..recording.head_measures import Decode, punctuation_test
from .sums import CLASSES

SPACES = " Ġ▁"  # before a word: a space, as text, in byte-level BPE and in SentencePiece


class TokenClasses:
    """The class of each token id, an index into CLASSES; each token is decoded once, when it first
    occurs.
    """

    def __init__(self, tokenizer: Any) -> None:
        decode: Decode | None = getattr(tokenizer, "decode", None)
        name: Callable[[int], Any] | None = getattr(tokenizer, "id_to_token", None) or getattr(
            tokenizer, "convert_ids_to_tokens", None
        )
        self.known = decode is not None
        self.decode: Decode = decode or (lambda ids: "")
        self.name = name or (lambda number: None)
        self.is_mark = punctuation_test(self.decode)
        self.table = torch.full((0,), -1, dtype=torch.int64)
        self._filled = self.table

    def of(self, ids: Int[Tensor, "batch token"]) -> Int[Tensor, " id"]:
        """Return a table that has the class of every token in `ids`, by its id."""
        present = torch.unique(ids).cpu()
        highest = int(present[-1]) + 1 if len(present) else 0
        if highest > len(self.table):
            more = torch.full((highest - len(self.table),), -1, dtype=torch.int64)
            self.table = torch.cat([self.table, more])
        new = present[self.table[present] < 0]
        if len(new):
            self.table[new] = torch.tensor(
                [CLASSES.index(self._class_of(number)) for number in new.tolist()]
            )
            self._filled = self.table.clamp(min=0)
        return self._filled

    def _class_of(self, number: int) -> str:
        text = self.decode([number])
        name = str(self.name(number) or text)
        bare = text.strip()
        if not text or (
            name[0] == "<" and name[-1] == ">" and any(letter.isalpha() for letter in name)
        ):
            return "special"
        if not bare:
            return "space"
        if self.is_mark(number):
            return "punctuation"
        if all(letter.isdigit() for letter in bare):
            return "number"
        if any(letter.isalpha() for letter in bare):
            return "word" if name[:1] in SPACES or text[:1] == " " else "part of a word"
        return "other"
