"""The data sets: one small reader for each, registered under the name that a recipe gives.

A reader takes the folder of all data and a split, and for a translation its two languages. Nothing is downloaded: for a
set that is missing, the error says in one sentence where to get it.
"""

import re
from collections import Counter
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random

from ..layers.check_sizes import one_of
from .corpus_files import Split, columns, lines, read, records, set_folder, side_by_side


@dataclass(frozen=True)
class TextPair:
    """A source and all targets that are right for it: to learn from each of them, to be measured against all."""

    source: str
    targets: tuple[str, ...]


def ordered(english: str, german: str, source: str, target: str) -> tuple[str, str]:
    """The two sides, source first."""
    texts = {"en": english, "de": german}
    one_of("source", source, texts)
    one_of("target", target, texts)
    if source == target:
        raise ValueError(f'source and target are both "{source}"; a translation has two languages')
    return texts[source], texts[target]


def grouped(sides: list[tuple[str, str]]) -> list[TextPair]:
    """Every source once, with all its targets."""
    targets: dict[str, dict[str, None]] = {}
    for source, target in sides:
        targets.setdefault(source, {})[target] = None
    return [TextPair(source, tuple(several)) for source, several in targets.items()]


# The recall task of Stanford's CS224N, assignment 5: a line about each of 2,937 people, and where some were born.
BIRTHS_FOLDER, BIRTHS_SOURCE = "cs224n_a5", "the assignment's student repositories (a5: wiki.txt, birth_*.tsv)"
BIRTHS_FILES: dict[Split, str] = {"train": "birth_places_train.tsv", "validation": "birth_dev.tsv"}


def people(data: Path) -> list[str]:
    return lines(set_folder(data, BIRTHS_FOLDER, BIRTHS_SOURCE) / "wiki.txt")


def questions(data: Path, split: Split) -> list[TextPair]:
    """Where was Khatchig Mouradian born? → Lebanon. The places of the test questions were never published."""
    folder = set_folder(data, BIRTHS_FOLDER, BIRTHS_SOURCE)
    if split == "test":
        return [TextPair(question, ()) for question in lines(folder / "birth_test_inputs.tsv")]
    return [TextPair(question, (place,)) for question, place in columns(folder / BIRTHS_FILES[split], 2)]


# Debian: the descriptions of its packages in English and German (ddtp.debian.org), and their one-line synopses.
DEBIAN_DESCRIPTIONS_SOURCE = "ddtp.debian.org (Translation-de of a Debian mirror, beside its Packages)"
DEBIAN_SYNOPSES_SOURCE = "the Packages file of a Debian mirror"
# There are two parts of each: what is held out serves as validation and as test.
DEBIAN_FILES: dict[Split, str] = {"train": "train", "validation": "valid", "test": "valid"}


def descriptions(data: Path, split: Split, source: str, target: str) -> list[TextPair]:
    """Synopses and paragraphs with their translations."""
    rows = columns(set_folder(data, "debian_ddtp_en_de", DEBIAN_DESCRIPTIONS_SOURCE) / f"{DEBIAN_FILES[split]}.tsv", 4)
    return grouped([ordered(english, german, source, target) for _, _, english, german in rows])


def synopses(data: Path, split: Split) -> list[TextPair]:
    """A description, and the line that says the same in a few words."""
    file = set_folder(data, "debian_synopsis", DEBIAN_SYNOPSES_SOURCE) / f"{DEBIAN_FILES[split]}.jsonl"
    return [TextPair(document, (summary,)) for document, summary in records(file, "document", "summary")]


# Multi30k (Elliott et al. 2016): captions of pictures in English and German; its test set is test2016.
MULTI30K_SOURCE = "github.com/multi30k/dataset"
MULTI30K_FILES: dict[Split, str] = {"train": "train", "validation": "val", "test": "test_2016_flickr"}


def captions(data: Path, split: Split, source: str, target: str) -> list[TextPair]:
    """As they were written."""
    return _captions(data, "raw", f"{MULTI30K_FILES[split]}.{{}}", source, target)


def tokens(data: Path, split: Split, source: str, target: str) -> list[TextPair]:
    """Lower-cased, normalised and tokenised by Moses: words and punctuation with spaces between them."""
    return _captions(data, "tok", f"{MULTI30K_FILES[split]}.lc.norm.tok.{{}}", source, target)


def codes(data: Path) -> list[str]:
    """The joint BPE of 10,000 merges that Wu et al. 2021 used: its merges, in order."""
    return lines(set_folder(data, "multi30k", MULTI30K_SOURCE) / "bpe10k" / "code")


def _captions(data: Path, version: str, name: str, source: str, target: str) -> list[TextPair]:
    folder = set_folder(data, "multi30k", MULTI30K_SOURCE) / version
    both = side_by_side(folder / name.format("en"), folder / name.format("de"))
    sides = (ordered(english, german, source, target) for english, german in both)
    return [TextPair(text, (translation,)) for text, translation in sides]


# Running text, for language models: one string.
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


# SAMSum (Gliwa et al. 2019): chats with a summary of one or two sentences.
SAMSUM_SOURCE = "arxiv.org/abs/1911.12237 (ancillary files)"
SAMSUM_FILES: dict[Split, str] = {"train": "train", "validation": "val", "test": "test"}
HELD_OUT: tuple[Split, ...] = ("validation", "test")
SPEAKER = re.compile(r"^([A-Z][a-z]{2,}):", re.MULTILINE)
SAMSUM_KNOWN = 3  # chats that somebody must speak in to lend a name


def dialogues(data: Path, split: Split) -> list[TextPair]:
    """Chats with a line for everything said, "Tom: hi". Those of validation and test that are in train too, with
    another summary, are no part of train here."""
    folder = set_folder(data, "samsum", SAMSUM_SOURCE)
    pairs = _dialogues(folder, split)
    if split != "train":
        return pairs
    held_out = {pair.source for other in HELD_OUT for pair in _dialogues(folder, other)}
    return [pair for pair in pairs if pair.source not in held_out]


def renamed(pairs: list[TextPair], seed: int) -> list[TextPair]:
    """The same chats between other people: who speaks has another name, in the chat and in its summary.

    What a summary says about somebody is true whatever the name; only copying the name from the chat gives it away.
    """
    speaking = Counter(name for pair in pairs for name in set(SPEAKER.findall(pair.source)))
    names = sorted(name for name, count in speaking.items() if count >= SAMSUM_KNOWN)
    random = Random(seed)
    return [_renamed(pair, names, random) for pair in pairs]


def _renamed(pair: TextPair, names: list[str], random: Random) -> TextPair:
    speakers = list(dict.fromkeys(SPEAKER.findall(pair.source)))
    free = [name for name in random.sample(names, min(len(names), 4 * len(speakers))) if name not in pair.source]
    new = dict(zip(speakers, free, strict=False))  # where names run out the last keep theirs
    if not new:
        return pair
    old = re.compile(rf"\b({'|'.join(new)})\b")
    source, *targets = (old.sub(lambda found: new[found[0]], text) for text in (pair.source, *pair.targets))
    return TextPair(source, tuple(targets))


def _dialogues(folder: Path, split: Split) -> list[TextPair]:
    texts = records(folder / f"{SAMSUM_FILES[split]}.json", "dialogue", "summary")
    cleaned = ((_lines(dialogue), summary.strip()) for dialogue, summary in texts)
    return [TextPair(dialogue, (summary,)) for dialogue, summary in cleaned if dialogue and summary]


def _lines(dialogue: str) -> str:
    return "\n".join(line.strip() for line in dialogue.splitlines() if line.strip())


# Tatoeba (CC BY 2.0, tatoeba.org and manythings.org/anki): everyday sentences in English and German.
TATOEBA_SOURCE = "www.manythings.org/anki (deu-eng.zip)"
TATOEBA_HUNDREDTHS = {"validation": range(0, 1), "test": range(1, 3), "train": range(3, 100)}


def sentences(data: Path, split: Split, source: str, target: str) -> list[TextPair]:
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


TRANSLATIONS = {
    "multi30k": captions,
    "multi30k-tokens": tokens,
    "tatoeba": sentences,
    "debian-descriptions": descriptions,
}
SUMMARIES = {"samsum": dialogues, "debian-synopsis": synopses}
TEXTS = {"tiny-shakespeare": shakespeare, "wikitext2": wikitext}
