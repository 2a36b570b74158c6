"""Debian: the descriptions of its packages, in English and German (ddtp.debian.org), and their one-line synopses."""

from pathlib import Path

from .files import Split, columns, records, set_folder
from .languages import grouped, ordered
from .pair import Pair

DEBIAN_DESCRIPTIONS_SOURCE = "ddtp.debian.org (Translation-de of a Debian mirror, beside its Packages)"
DEBIAN_SYNOPSES_SOURCE = "the Packages file of a Debian mirror"
# There are two parts of each: what is held out serves as validation and as test.
DEBIAN_FILES: dict[Split, str] = {"train": "train", "validation": "valid", "test": "valid"}


def descriptions(data: Path, split: Split, source: str, target: str) -> list[Pair]:
    """Synopses and paragraphs with their translations."""
    rows = columns(set_folder(data, "debian_ddtp_en_de", DEBIAN_DESCRIPTIONS_SOURCE) / f"{DEBIAN_FILES[split]}.tsv", 4)
    return grouped([ordered(english, german, source, target) for _, _, english, german in rows])


def synopses(data: Path, split: Split) -> list[Pair]:
    """A description, and the line that says the same in a few words."""
    file = set_folder(data, "debian_synopsis", DEBIAN_SYNOPSES_SOURCE) / f"{DEBIAN_FILES[split]}.jsonl"
    return [Pair(document, (summary,)) for document, summary in records(file, "document", "summary")]
