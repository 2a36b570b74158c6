"""A long text in parts that a model can read at once: sentences, and of a sentence that is too long, pieces."""

import re
from collections.abc import Callable

Fits = Callable[[str], bool]

END = re.compile(r"[.!?…。！？]+[\"'”’»)\]]*(?=\s)|[。！？]")
# After which a full stop ends no sentence: titles, abbreviations, initials, and numbers of days.
GOES_ON = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|vs|cf|Nr|Hr|Fr|bzw|ca|evtl|e\.g|i\.e|z|d|[A-HJ-Z]|\d\d?)\.$")


def sentences(text: str) -> list[str]:
    """The sentences of a text, without the space between them."""
    found, start = [], 0
    for end in END.finditer(text):
        if GOES_ON.search(text[start : end.end()]) or text[end.end() :].lstrip()[:1].islower():
            continue
        found.append(text[start : end.end()].strip())
        start = end.end()
    return [sentence for sentence in (*found, text[start:].strip()) if sentence]


def apart(text: str, fits: Fits) -> list[str]:
    """Each sentence by itself, in pieces where it does not fit."""
    return [piece for sentence in sentences(text) for piece in _pieces(sentence, fits)]


def together(text: str, fits: Fits) -> list[str]:
    """The whole text where it fits, otherwise as many sentences together as do."""
    if fits(text.strip()):
        return [text.strip()] if text.strip() else []
    parts: list[str] = []
    for piece in apart(text, fits):
        if parts and fits(f"{parts[-1]} {piece}"):
            parts[-1] += f" {piece}"
        else:
            parts.append(piece)
    return parts


def _pieces(sentence: str, fits: Fits) -> list[str]:
    """Halves, and halves of halves: cut behind a comma or the like if one is near the middle, else between words."""
    if fits(sentence) or len(sentence) < 2:
        return [sentence]
    middle = len(sentence) // 2
    cuts = [at.end() for at in re.finditer(r"[,;:–—]\s", sentence) if abs(at.end() - middle) < middle // 2]
    cuts = cuts or [at.end() for at in re.finditer(r"\s", sentence)] or [middle]
    cut = min(cuts, key=lambda at: abs(at - middle))
    return [piece for half in (sentence[:cut], sentence[cut:]) for piece in _pieces(half.strip(), fits)]
