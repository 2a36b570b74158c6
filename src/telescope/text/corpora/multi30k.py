"""Multi30k (Elliott et al. 2016): captions of pictures in English and German; its test set is test2016."""

from pathlib import Path

from .files import Split, lines, set_folder, side_by_side
from .languages import ordered
from .pair import Pair

MULTI30K_SOURCE = "github.com/multi30k/dataset"
MULTI30K_FILES: dict[Split, str] = {"train": "train", "validation": "val", "test": "test_2016_flickr"}


def captions(data: Path, split: Split, source: str, target: str) -> list[Pair]:
    """As they were written."""
    return _captions(set_folder(data, "multi30k", MULTI30K_SOURCE) / "raw", f"{MULTI30K_FILES[split]}.{{}}", source, target)


def tokens(data: Path, split: Split, source: str, target: str) -> list[Pair]:
    """Lower-cased, normalised and tokenised by Moses: words and punctuation with spaces between them."""
    return _captions(set_folder(data, "multi30k", MULTI30K_SOURCE) / "tok", f"{MULTI30K_FILES[split]}.lc.norm.tok.{{}}", source, target)


def codes(data: Path) -> list[str]:
    """The joint BPE of 10,000 merges that Wu et al. 2021 used: its merges, in order."""
    return lines(set_folder(data, "multi30k", MULTI30K_SOURCE) / "bpe10k" / "code")


def _captions(folder: Path, name: str, source: str, target: str) -> list[Pair]:
    both = side_by_side(folder / name.format("en"), folder / name.format("de"))
    sides = (ordered(english, german, source, target) for english, german in both)
    return [Pair(text, (translation,)) for text, translation in sides]
