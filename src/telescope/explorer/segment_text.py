"""Cut a text into segments for the Sources screen: words, sentences, paragraphs or equal parts;
name its tokens.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence

from .run import AttentionView

BY = ("words", "sentences", "paragraphs", "parts", "pieces")
PARTS = 64  # how many equal parts
MANY = 400  # segments: a text with more words opens by sentences
CLOSING = re.compile(r"[.,;:!?…)\]}»”’%']+", re.ASCII)
SENTENCE_END = re.compile(r"[.!?…][\"'»”’)\]]*$")
SAMPLE = 256  # tokens that are decoded together, to see whether a token's own text has its spaces


def display_texts(view: AttentionView, axis: str, b: int, indices: range) -> list[str]:
    """Return the texts of tokens with the spaces between them, so that joined they are readable."""
    plain = view.tokens(axis, b, indices)
    raw = _decoded(view, axis, b, indices)
    if raw is not None:
        return [text or name for text, name in zip(raw, plain, strict=True)]
    found = []
    for number, text in enumerate(plain):
        continues = text.startswith("·") and len(text) > 1
        close = CLOSING.fullmatch(text) is not None
        found.append(text[1:] if continues else text if number == 0 or close else f" {text}")
    return found


def _decoded(view: AttentionView, axis: str, b: int, indices: range) -> list[str] | None:
    """Return the text of each token by itself, if the tokenizer keeps spaces in it; None
    otherwise.
    """
    ids = view.ids(axis)
    decode = view.decode
    if ids is None or decode is None or (axis == "q" and view.kind == "cross"):
        return None
    tokens: list[int] = ids[b, indices.start : indices.stop].tolist()
    if len(tokens) < len(indices):
        return None
    known = {token: decode([token]) for token in {*tokens}}
    texts = [known[token] for token in tokens]
    return texts if "".join(texts[:SAMPLE]) == decode(tokens[:SAMPLE]) else None


class Cuttable:
    """The tokens of a text as the page shows them, and where its words, sentences and paragraphs
    begin.
    """

    def __init__(self, view: AttentionView, axis: str, b: int, columns: range) -> None:
        self.texts = display_texts(view, axis, b, columns)
        self._starts = {
            "words": _word_starts(view, axis, self.texts, columns),
            "sentences": _breaks(self.texts, "sentences"),
            "paragraphs": _breaks(self.texts, "paragraphs"),
        }

    def starts(self, by: str, count: int) -> list[int]:
        """Return the tokens at which the segments of the first `count` tokens begin, the first at
        0.
        """
        if by == "pieces" or not count:
            return list(range(count))
        if by == "parts":
            return [*dict.fromkeys(part * count // PARTS for part in range(PARTS))]
        return self._starts[by][: bisect_left(self._starts[by], count)]

    def counts(self, count: int) -> dict[str, int]:
        """Return how many segments of each kind the first `count` tokens have."""
        return {by: len(self.starts(by, count)) for by in BY}


def _word_starts(view: AttentionView, axis: str, texts: Sequence[str], columns: range) -> list[int]:
    words = view.words(axis)
    count = len(texts)
    if words is not None:
        ids = words.word_ids[columns.start : columns.stop]
        return [at for at in range(count) if at == 0 or ids[at] != ids[at - 1]]
    return [
        at
        for at in range(count)
        if at == 0 or texts[at][:1].isspace() or texts[at - 1][-1:].isspace()
    ]


def _breaks(texts: Sequence[str], by: str) -> list[int]:
    """Return where sentences or paragraphs begin: after a full stop and a space, after a line break
    or after two.
    """
    starts = [0]
    ended = False
    for at in range(1, len(texts)):
        before = texts[at - 1]
        here = texts[at]
        lines = before.endswith("\n") if by == "sentences" else _blank_line(texts, at)
        ended = SENTENCE_END.search(before.strip()) is not None or (ended and not before.strip())
        spaced = here[:1].isspace() or before[-1:].isspace()
        if here.strip() and (lines or (by == "sentences" and ended and spaced)):
            starts.append(at)
    return starts


def _blank_line(texts: Sequence[str], at: int) -> bool:
    """Return whether two line breaks stand before a token."""
    breaks = 0
    place = at - 1
    while place >= 0 and breaks < 2:
        text = texts[place]
        breaks += (text[len(text.rstrip()) :]).count("\n")
        if text.strip():
            break
        place -= 1
    return breaks >= 2


def suggested(counts: dict[str, int]) -> str:
    """Return how a text should be cut at first: into words where they are few, else sentences, else
    equal parts.
    """
    if counts["words"] <= MANY:
        return "words"
    return "sentences" if 8 <= counts["sentences"] <= counts["words"] // 3 else "parts"
