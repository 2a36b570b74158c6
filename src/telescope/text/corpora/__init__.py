"""The sets of data, one small reader for each, by the name that a recipe says.

A reader takes the folder of all data and a split, and a translation also its two languages. Nothing is downloaded: of a
set that is missing one sentence says where to get it.
"""

from .debian import descriptions, synopses
from .files import Split, data_folder
from .multi30k import captions, tokens
from .pair import Pair
from .plain import shakespeare, wikitext
from .samsum import dialogues
from .tatoeba import sentences

TRANSLATIONS = {
    "multi30k": captions,
    "multi30k-tokens": tokens,
    "tatoeba": sentences,
    "debian-descriptions": descriptions,
}
SUMMARIES = {"samsum": dialogues, "debian-synopsis": synopses}
TEXTS = {"tiny-shakespeare": shakespeare, "wikitext2": wikitext}

__all__ = ["SUMMARIES", "TEXTS", "TRANSLATIONS", "Pair", "Split", "data_folder"]
