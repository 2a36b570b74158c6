"""Running text, to be written on: one string."""

from pathlib import Path

from .files import Split, read, set_folder

SHAKESPEARE_SOURCE = "github.com/karpathy/char-rnn (data/tinyshakespeare)"
WIKITEXT_SOURCE = "github.com/pytorch/examples (word_language_model/data/wikitext-2)"
SHAKESPEARE_TRAIN = 0.9  # of the characters, nanoGPT's way
WIKITEXT_FILES: dict[Split, str] = {
    "train": "train.articles_permuted.txt",
    "validation": "valid.txt",
    "test": "test.txt",
}


def shakespeare(data: Path, split: Split) -> str:
    """Tiny Shakespeare: the first 90 % to learn from, the last 10 % to be measured on, as validation and as test."""
    text = read(set_folder(data, "tiny_shakespeare", SHAKESPEARE_SOURCE) / "input.txt")
    cut = int(SHAKESPEARE_TRAIN * len(text))
    return text[:cut] if split == "train" else text[cut:]


def wikitext(data: Path, split: Split) -> str:
    """WikiText-2 (Merity et al. 2016), words with spaces between them, rare ones as <unk>."""
    return read(set_folder(data, "wikitext2", WIKITEXT_SOURCE) / WIKITEXT_FILES[split])
