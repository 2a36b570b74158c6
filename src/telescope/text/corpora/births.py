"""The recall task of Stanford's CS224N, assignment 5: a line about each of 2,937 people, and where some were born."""

from pathlib import Path

from .files import Split, columns, lines, set_folder
from .pair import Pair

BIRTHS_FOLDER, BIRTHS_SOURCE = "cs224n_a5", "the assignment's student repositories (a5: wiki.txt, birth_*.tsv)"
BIRTHS_FILES: dict[Split, str] = {"train": "birth_places_train.tsv", "validation": "birth_dev.tsv"}


def people(data: Path) -> list[str]:
    return lines(set_folder(data, BIRTHS_FOLDER, BIRTHS_SOURCE) / "wiki.txt")


def questions(data: Path, split: Split) -> list[Pair]:
    """Where was Khatchig Mouradian born? → Lebanon. The places of the test questions were never published."""
    folder = set_folder(data, BIRTHS_FOLDER, BIRTHS_SOURCE)
    if split == "test":
        return [Pair(question, ()) for question in lines(folder / "birth_test_inputs.tsv")]
    return [Pair(question, (place,)) for question, place in columns(folder / BIRTHS_FILES[split], 2)]
