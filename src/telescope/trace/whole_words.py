"""Pieces joined to words: a tokenizer cuts words into pieces, and people read words."""

from collections.abc import Sequence
from dataclasses import dataclass
from unicodedata import category

from tokenizers import Encoding

Span = tuple[int, int]  # where in a text a token stands: from, and up to
JOINS = "'’-"  # within a word: man's, well-known


@dataclass(frozen=True)
class Words:
    """The words that tokens stand for: `of` has the number of each token's word, `pieces` what each token is of it.

    As segments of a survey's map, `of` joins weights: a word's row is the mean over its pieces, its column their sum.
    `real` are the numbers of those that stand in the text; the others are special tokens.
    """

    names: tuple[str, ...]
    of: tuple[int, ...]
    pieces: tuple[str, ...]
    real: tuple[int, ...]

    @classmethod
    def of_text(cls, text: str, encoding: Encoding) -> "Words":
        """Of a text as a tokenizer, of whatever kind, encoded it. A token that it added is a word by itself."""
        tokens = zip(encoding.offsets, encoding.tokens, encoding.special_tokens_mask, strict=True)
        return cls.of_spans(text, [name if added else span for span, name, added in tokens])

    @classmethod
    def of_spans(cls, text: str, spans: Sequence[Span | str]) -> "Words":
        """Of tokens that stand at these places of a text. One that stands nowhere in it is given by its name.

        A token that begins in the word in which the one before it ends is of the same word: so what spans two words
        of the text makes one of them.
        """
        words, of = _words(text), list[int]()
        number, before = -1, None
        for span in spans:
            first, last = (None, None) if isinstance(span, str) else _ends(text, words, span)
            number += first is None or first != before
            before = last
            of.append(number)
        groups = [[span for span, owner in zip(spans, of, strict=True) if owner == n] for n in range(number + 1)]
        begins = [owner not in of[:i] for i, owner in enumerate(of)]
        return cls(
            names=tuple(_said(text, group) for group in groups),
            of=tuple(of),
            pieces=tuple(
                f"{'' if begun else '·'}{_said(text, [span])}" for begun, span in zip(begins, spans, strict=True)
            ),
            real=tuple(number for number, group in enumerate(groups) if not isinstance(group[0], str)),
        )

    def tokens(self, word: int) -> list[int]:
        """Which tokens make a word."""
        return [i for i, owner in enumerate(self.of) if owner == word]

    def find(self, word: str) -> int | None:
        """The number of this word, in whatever case; of the last one, where there are several."""
        found = [number for number, name in enumerate(self.names) if name.lower() == word.lower()]
        return found[-1] if found else None


def _said(text: str, spans: Sequence[Span | str]) -> str:
    first, last = spans[0], spans[-1]
    if isinstance(first, str) or isinstance(last, str):
        return str(first)
    stop = last[1]
    while stop < len(text) and _is_sign(text[stop]):  # é may be two characters, and its token say one
        stop += 1
    said = text[first[0] : stop]
    return " ".join(said.split()) or "␣" * bool(said)


def _ends(text: str, words: Sequence[int], span: Span) -> tuple[int, int]:
    """The words in which a token begins and ends, spaces left out; of nothing but space, the one it leads to."""
    at = [i for i in range(*span) if not text[i].isspace()] or [span[0]]
    first, last = (words[min(i, len(words) - 1)] for i in (at[0], at[-1]))
    return first, last


def _words(text: str) -> list[int]:
    """The number of each character's word, and of the end. A space has that of the word behind it, if there is one."""
    words, number, before = list[int](), 0, ""
    for i in range(len(text.rstrip())):
        kind = before if before and _is_sign(text[i]) else _kind(text, i)
        number += before not in ("", kind)
        words.append(number)
        before = kind
    return words + [number] * (len(text) + 1 - len(words))


def _kind(text: str, i: int) -> str:
    """Nothing for a space, "mark" for punctuation and symbols, "word" for all that words are made of."""
    if text[i].isspace():
        return ""
    if text[i] in JOINS and 0 < i < len(text) - 1 and _of_word(text[i - 1]) and _of_word(text[i + 1]):
        return "word"
    return "word" if _of_word(text[i]) else "mark"


def _of_word(character: str) -> bool:
    return category(character)[0] in "LMN"


def _is_sign(character: str) -> bool:
    """Written onto the character before it: an accent, a vowel of Hindi."""
    return category(character)[0] == "M"
