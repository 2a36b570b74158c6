"""Join the tokens of a recording into words, by the characters that each adds to the text."""

import re
from collections.abc import Callable, Iterable, Sequence

from ..traces import INCOMPLETE, Span, Words

LONGEST_WORD = 6  # tokens, on average: beyond, the text is not made of words
Decode = Callable[[list[int]], str]  # token ids to text

# The signs that tokenizers write in front of a word for the space before it.
BYTE_SPACE = "Ġ"  # of byte-level BPE, whose alphabet is `BYTES`
PIECE_SPACE = "▁"  # of SentencePiece
SIGNED = 0.25  # the least share of names with such a sign
SPECIAL = re.compile(r"<[^<>\s]+>|\[[A-Z]+\]")  # </s>, <|endoftext|>, [CLS]


def _byte_alphabet() -> dict[str, int]:
    """Return the byte that each character of byte-level BPE stands for (Radford et al. 2019)."""
    # Bytes with a shape stand for themselves; the others are moved behind the first 256 characters.
    shaped = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [byte for byte in range(256) if byte not in shaped]
    alphabet = {chr(byte): byte for byte in shaped}
    return alphabet | {chr(256 + at): byte for at, byte in enumerate(moved)}


BYTES = _byte_alphabet()


def join_words(
    tokens: Iterable[int | None], decode: Decode, label: Callable[[int | None], str]
) -> Words | None:
    """Return the words of tokens; None where words are too long. `label` names a token without
    text.
    """
    text = ""
    read = list[int]()  # all tokens with text so far
    spans = list[Span | str]()  # the characters of each token, or its name
    for token in tokens:
        # Decoded twice: a space by itself may be dropped.
        if token is None or not decode([token, token]):
            spans.append(label(token))
            continue
        read.append(token)
        longer = decode(read)
        if longer.endswith(INCOMPLETE):  # the token that completes the character covers it
            spans.append((len(text), len(text)))
            continue
        spans.append((min(len(text), len(longer)), len(longer)))
        text = longer
    words = Words.from_spans(decode(read) if read else "", spans)
    return words if LONGEST_WORD * len(words.names) >= len(spans) else None


def join_names(names: Sequence[str]) -> Words | None:
    """Return the words of names that a tokenizer wrote, such as ĠTele and skop; None where no name
    has such a sign.
    """
    if not _has_signs(names):
        return None
    text = ""
    spans = list[Span | str]()
    for name, added in zip(names, plain(names), strict=True):
        # A special token is a word by itself.
        if SPECIAL.fullmatch(name):
            spans.append(name)
            continue
        spans.append((len(text), len(text) + len(added)))
        text += added
    return Words.from_spans(text, spans)


def plain(names: Sequence[str]) -> tuple[str, ...]:
    """Return names as texts: where a tokenizer wrote signs for spaces and bytes, what these stand
    for.
    """
    if not _has_signs(names):
        return tuple(names)
    # Byte-level names have no character outside of their alphabet, special tokens aside.
    ours = [name for name in names if not SPECIAL.fullmatch(name)]
    if all(character in BYTES for name in ours for character in name):
        return tuple(
            name
            if SPECIAL.fullmatch(name)
            else bytes(BYTES[character] for character in name).decode("utf-8", "replace")
            for name in names
        )
    return tuple(name.replace(PIECE_SPACE, " ") for name in names)


def _has_signs(names: Sequence[str]) -> bool:
    """Return whether names are those of a tokenizer: many of them begin with its sign for a space.

    One or two do not tell: Ġ is a letter of Maltese.
    """
    signed = sum(name.startswith((BYTE_SPACE, PIECE_SPACE)) for name in names)
    return signed >= SIGNED * len(names) > 0
