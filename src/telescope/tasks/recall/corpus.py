"""The four files: what is known of 2,937 people, and where some of them were born."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = "cs224n_a5"


@dataclass(frozen=True)
class Question:
    """Where was Khatchig Mouradian born? — Lebanon"""

    text: str
    place: str


@dataclass(frozen=True)
class Corpus:
    """`text` is one line for each person, from which nothing but the characters and the facts are learnt."""

    text: str
    train: Sequence[Question]
    dev: Sequence[Question]

    @property
    def lines(self) -> list[str]:
        return [line for line in self.text.split("\n") if line]


def read(folder: Path) -> Corpus:
    return Corpus(
        text=(folder / "wiki.txt").read_text(encoding="utf-8").strip("\n"),
        train=questions(folder / "birth_places_train.tsv"),
        dev=questions(folder / "birth_dev.tsv"),
    )


def questions(file: Path) -> list[Question]:
    lines = file.read_text(encoding="utf-8").strip("\n").split("\n")
    for i, line in enumerate(lines, start=1):
        if line.count("\t") != 1:
            raise ValueError(f"{file}, line {i}: {line!r} should be a question, a tab and a place")
    return [Question(*line.split("\t")) for line in lines]


def about(name: str) -> str:
    """The question as the task puts it; what is a question already stays as it is."""
    return name if name.endswith("?") else f"Where was {name} born?"
