"""Tatoeba (CC BY 2.0, tatoeba.org and manythings.org/anki): everyday sentences in English and German."""

import re
from hashlib import sha256
from pathlib import Path

from .files import Split, columns, set_folder
from .languages import grouped, ordered
from .pair import Pair

TATOEBA_SOURCE = "www.manythings.org/anki (deu-eng.zip)"
TATOEBA_HUNDREDTHS = {"validation": range(0, 1), "test": range(1, 3), "train": range(3, 100)}


def sentences(data: Path, split: Split, source: str, target: str) -> list[Pair]:
    """Many English sentences are there several times, each with another translation: all of them are one Pair."""
    pairs = columns(set_folder(data, "tatoeba_de_en", TATOEBA_SOURCE) / "deu.txt", 2)
    ours = (pair for pair in pairs if split_of(pair[0]) == split)
    return grouped([ordered(english, german, source, target) for english, german in ours])


def split_of(english: str) -> Split:
    """By the words of the English side, so that "Run!" and "Run." are in the same part, with all their translations."""
    words = re.sub(r"\W+", " ", english.casefold()).strip()
    part = int.from_bytes(sha256(words.encode()).digest()[:8], "big") % 100
    if part in TATOEBA_HUNDREDTHS["train"]:
        return "train"
    return "test" if part in TATOEBA_HUNDREDTHS["test"] else "validation"
