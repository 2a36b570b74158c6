"""SAMSum (Gliwa et al. 2019): chats, and what was said in them in a sentence or two."""

import re
from collections import Counter
from pathlib import Path
from random import Random

from .files import Split, records, set_folder
from .pair import Pair

SAMSUM_SOURCE = "arxiv.org/abs/1911.12237 (ancillary files)"
SAMSUM_FILES: dict[Split, str] = {"train": "train", "validation": "val", "test": "test"}
HELD_OUT: tuple[Split, ...] = ("validation", "test")
SPEAKER = re.compile(r"^([A-Z][a-z]{2,}):", re.MULTILINE)
SAMSUM_KNOWN = 3  # chats that somebody must speak in to lend a name


def dialogues(data: Path, split: Split) -> list[Pair]:
    """Chats with a line for everything said, "Tom: hi". Those of validation and test that are in train too, with
    another summary, are no part of train here."""
    folder = set_folder(data, "samsum", SAMSUM_SOURCE)
    pairs = _dialogues(folder, split)
    if split != "train":
        return pairs
    held_out = {pair.source for other in HELD_OUT for pair in _dialogues(folder, other)}
    return [pair for pair in pairs if pair.source not in held_out]


def renamed(pairs: list[Pair], seed: int) -> list[Pair]:
    """The same chats between other people: who speaks has another name, in the chat and in its summary.

    What a summary says about somebody is true whatever the name; only copying the name from the chat gives it away.
    """
    speaking = Counter(name for pair in pairs for name in set(SPEAKER.findall(pair.source)))
    names = sorted(name for name, count in speaking.items() if count >= SAMSUM_KNOWN)
    random = Random(seed)
    return [_renamed(pair, names, random) for pair in pairs]


def _renamed(pair: Pair, names: list[str], random: Random) -> Pair:
    speakers = list(dict.fromkeys(SPEAKER.findall(pair.source)))
    free = [name for name in random.sample(names, min(len(names), 4 * len(speakers))) if name not in pair.source]
    new = dict(zip(speakers, free, strict=False))  # where names run out the last keep theirs
    if not new:
        return pair
    old = re.compile(rf"\b({'|'.join(new)})\b")
    source, *targets = (old.sub(lambda found: new[found[0]], text) for text in (pair.source, *pair.targets))
    return Pair(source, tuple(targets))


def _dialogues(folder: Path, split: Split) -> list[Pair]:
    texts = records(folder / f"{SAMSUM_FILES[split]}.json", "dialogue", "summary")
    cleaned = ((_lines(dialogue), summary.strip()) for dialogue, summary in texts)
    return [Pair(dialogue, (summary,)) for dialogue, summary in cleaned if dialogue and summary]


def _lines(dialogue: str) -> str:
    return "\n".join(line.strip() for line in dialogue.splitlines() if line.strip())
