"""The corpora: one reader for each, registered at the end under the name that a recipe uses.

A reader takes the folder of all data and a split, and for a translation the source and target
languages. Nothing is downloaded: if a corpus is missing, the error says where to get it.
"""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

from ..layers import check_choice
from .data_files import (
    Split,
    corpus_folder,
    hashed,
    read_columns,
    read_lines,
    read_parallel,
    read_records,
    read_text,
)


@dataclass(frozen=True)
class TextPair:
    """A source and all its correct targets: each serves for training, all together as references of
    an evaluation.
    """

    source: str
    targets: tuple[str, ...]


def order_sides(english: str, german: str, source: str, target: str) -> tuple[str, str]:
    """Return the texts of the source and the target language, each "en" or "de"."""
    texts = {"en": english, "de": german}
    check_choice("source", source, texts)
    check_choice("target", target, texts)
    if source == target:
        raise ValueError(f'source and target are both "{source}"; a translation has two languages')
    return texts[source], texts[target]


def group_targets(sides: list[tuple[str, str]]) -> list[TextPair]:
    """Return one pair for each distinct source, with all its distinct targets, in order of
    appearance.
    """
    targets: dict[str, dict[str, None]] = {}
    for source, target in sides:
        targets.setdefault(source, {})[target] = None
    return [TextPair(source, tuple(several)) for source, several in targets.items()]


# The recall task of Stanford's CS224N, assignment 5: a line about each of 2,937 people, and the
# birthplaces of some.
BIRTHS_FOLDER = "cs224n_a5"
BIRTHS_SOURCE = "the assignment's student repositories (a5: wiki.txt, birth_*.tsv)"
BIRTHS_FILES: dict[Split, str] = {"train": "birth_places_train.tsv", "validation": "birth_dev.tsv"}


def read_people(data: Path) -> list[str]:
    """Return the lines about people, one for each person."""
    return read_lines(corpus_folder(data, BIRTHS_FOLDER, BIRTHS_SOURCE) / "wiki.txt")


def read_births(data: Path, split: Split) -> list[TextPair]:
    """Return questions with birthplaces: "Where was Khatchig Mouradian born?" and "Lebanon".

    Questions of the test split have no targets: their answers were never published.
    """
    folder = corpus_folder(data, BIRTHS_FOLDER, BIRTHS_SOURCE)
    if split == "test":
        return [TextPair(question, ()) for question in read_lines(folder / "birth_test_inputs.tsv")]
    rows = read_columns(folder / BIRTHS_FILES[split], 2)
    return [TextPair(question, (place,)) for question, place in rows]


# Debian: the descriptions of its packages in English and German (ddtp.debian.org), and their
# one-line synopses.
DESCRIPTIONS_SOURCE = "ddtp.debian.org (Translation-de of a Debian mirror, beside its Packages)"
SYNOPSES_SOURCE = "the Packages file of a Debian mirror"
# Each has two parts only: the held-out part serves as validation and as test.
DEBIAN_FILES: dict[Split, str] = {"train": "train", "validation": "valid", "test": "valid"}


def read_debian_descriptions(data: Path, split: Split, source: str, target: str) -> list[TextPair]:
    """Return synopses and paragraphs of package descriptions with their translations."""
    folder = corpus_folder(data, "debian_ddtp_en_de", DESCRIPTIONS_SOURCE)
    rows = read_columns(folder / f"{DEBIAN_FILES[split]}.tsv", 4)
    return group_targets(
        [order_sides(english, german, source, target) for _, _, english, german in rows]
    )


def read_debian_synopses(data: Path, split: Split) -> list[TextPair]:
    """Return package descriptions with their one-line synopses."""
    folder = corpus_folder(data, "debian_synopsis", SYNOPSES_SOURCE)
    rows = read_records(folder / f"{DEBIAN_FILES[split]}.jsonl", "document", "summary")
    return [TextPair(document, (summary,)) for document, summary in rows]


# Multi30k (Elliott et al. 2016): captions of pictures in English and German; its test set is
# test2016.
MULTI30K_SOURCE = "github.com/multi30k/dataset"
MULTI30K_FILES: dict[Split, str] = {
    "train": "train",
    "validation": "val",
    "test": "test_2016_flickr",
}


def read_multi30k(data: Path, split: Split, source: str, target: str) -> list[TextPair]:
    """Return captions as they were written."""
    return _read_captions(data, f"raw/{MULTI30K_FILES[split]}", source, target)


def read_multi30k_tokens(data: Path, split: Split, source: str, target: str) -> list[TextPair]:
    """Return captions lower-cased, normalised and tokenised by Moses: words and punctuation
    separated by spaces.
    """
    return _read_captions(data, f"tok/{MULTI30K_FILES[split]}.lc.norm.tok", source, target)


def read_multi30k_merges(data: Path) -> list[str]:
    """Return the lines of the subword-nmt file with the 10,000 joint BPE merges of Wu et al.
    2021.
    """
    return read_lines(corpus_folder(data, "multi30k", MULTI30K_SOURCE) / "bpe10k" / "code")


def _read_captions(data: Path, name: str, source: str, target: str) -> list[TextPair]:
    """Return the pairs of two parallel files, whose names end with the language."""
    folder = corpus_folder(data, "multi30k", MULTI30K_SOURCE)
    both = read_parallel(folder / f"{name}.en", folder / f"{name}.de")
    sides = (order_sides(english, german, source, target) for english, german in both)
    return [TextPair(text, (translation,)) for text, translation in sides]


# Running text, for language models: one string.
SHAKESPEARE_SOURCE = "github.com/karpathy/char-rnn (data/tinyshakespeare)"
WIKITEXT_SOURCE = "github.com/pytorch/examples (word_language_model/data/wikitext-2)"
SHAKESPEARE_TRAIN = 0.9  # share of the characters, as in nanoGPT
WIKITEXT_FILES: dict[Split, str] = {
    "train": "train.articles_permuted.txt",
    "validation": "valid.txt",
    "test": "test.txt",
}


def read_shakespeare(data: Path, split: Split) -> str:
    """Return Tiny Shakespeare: the first 90 % for training, the last 10 % as validation and as
    test.
    """
    text = read_text(corpus_folder(data, "tiny_shakespeare", SHAKESPEARE_SOURCE) / "input.txt")
    cut = int(SHAKESPEARE_TRAIN * len(text))
    return text[:cut] if split == "train" else text[cut:]


def read_wikitext(data: Path, split: Split) -> str:
    """Return WikiText-2 (Merity et al. 2016): words separated by spaces, rare words as <unk>."""
    return read_text(corpus_folder(data, "wikitext2", WIKITEXT_SOURCE) / WIKITEXT_FILES[split])


# SAMSum (Gliwa et al. 2019): chats with a summary of one or two sentences.
SAMSUM_SOURCE = "arxiv.org/abs/1911.12237 (ancillary files)"
SAMSUM_FILES: dict[Split, str] = {"train": "train", "validation": "val", "test": "test"}
HELD_OUT: tuple[Split, ...] = ("validation", "test")
SPEAKER = re.compile(r"^([A-Z][a-z]{2,}):", re.MULTILINE)
MIN_CHATS = 3  # chats in which a name must speak to be used as a new name for others


def read_samsum(data: Path, split: Split) -> list[TextPair]:
    """Return chats with their summaries; each message of a chat is a line, "Tom: hi".

    Chats of train that are in validation or test too, with another summary, are left out of train.
    """
    folder = corpus_folder(data, "samsum", SAMSUM_SOURCE)
    pairs = _read_chats(folder, split)
    if split != "train":
        return pairs
    held_out = {pair.source for other in HELD_OUT for pair in _read_chats(folder, other)}
    return [pair for pair in pairs if pair.source not in held_out]


def rename_speakers(pairs: list[TextPair], seed: int) -> list[TextPair]:
    """Return the chats with other names for their speakers, replaced in the chat and in its
    summary.

    Summaries stay true under any names. A model can then predict a name only by copying it from the
    chat.
    """
    chats = Counter(name for pair in pairs for name in set(SPEAKER.findall(pair.source)))
    names = sorted(name for name, count in chats.items() if count >= MIN_CHATS)
    random = Random(seed)
    return [_rename_pair(pair, names, random) for pair in pairs]


def _rename_pair(pair: TextPair, names: list[str], random: Random) -> TextPair:
    speakers = list(dict.fromkeys(SPEAKER.findall(pair.source)))
    # Some of the names drawn may occur in the chat already: draw more than are needed.
    drawn = random.sample(names, min(len(names), 4 * len(speakers)))
    unused = [name for name in drawn if name not in pair.source]
    # With too few unused names the last speakers keep theirs.
    new_names = dict(zip(speakers, unused, strict=False))
    if not new_names:
        return pair
    # All names in one pass: a new name may be the old one of another speaker.
    old = re.compile(rf"\b({'|'.join(new_names)})\b")
    source, *targets = (
        old.sub(lambda match: new_names[match[0]], text) for text in (pair.source, *pair.targets)
    )
    return TextPair(source, tuple(targets))


def _read_chats(folder: Path, split: Split) -> list[TextPair]:
    pairs = []
    texts = read_records(folder / f"{SAMSUM_FILES[split]}.json", "dialogue", "summary")
    for dialogue, summary in texts:
        lines = [line.strip() for line in dialogue.splitlines() if line.strip()]
        if lines and summary.strip():
            pairs.append(TextPair("\n".join(lines), (summary.strip(),)))
    return pairs


# Tatoeba (CC BY 2.0, tatoeba.org and manythings.org/anki): everyday sentences in English and
# German.
TATOEBA_SOURCE = "www.manythings.org/anki (deu-eng.zip)"
# Of the hashes of all sentences, which of 100 parts belong to each split.
TATOEBA_HUNDREDTHS: dict[Split, range] = {
    "validation": range(0, 1),
    "test": range(1, 3),
    "train": range(3, 100),
}


def read_tatoeba(data: Path, split: Split, source: str, target: str) -> list[TextPair]:
    """Return sentences with their translations. All translations of a sentence are in one pair."""
    pairs = read_columns(corpus_folder(data, "tatoeba_de_en", TATOEBA_SOURCE) / "deu.txt", 2)
    in_split = (pair for pair in pairs if tatoeba_split(pair[0]) == split)
    return group_targets(
        [order_sides(english, german, source, target) for english, german in in_split]
    )


def tatoeba_split(english: str) -> Split:
    """Return the split of an English sentence, by a hash of its words.

    Case and punctuation do not count: "Run!" and "Run." are in the same split, with all their
    translations.
    """
    words = re.sub(r"\W+", " ", english.casefold()).strip()
    part = hashed(words) % 100
    return next(split for split, parts in TATOEBA_HUNDREDTHS.items() if part in parts)


TRANSLATIONS = {
    "multi30k": read_multi30k,
    "multi30k-tokens": read_multi30k_tokens,
    "tatoeba": read_tatoeba,
    "debian-descriptions": read_debian_descriptions,
}
SUMMARIES = {"samsum": read_samsum, "debian-synopsis": read_debian_synopses}
TEXTS = {"tiny-shakespeare": read_shakespeare, "wikitext2": read_wikitext}
