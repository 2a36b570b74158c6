"""Group the pieces of a tokenizer into words: tokenizers cut words into pieces, and people read
words.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from unicodedata import category

from tokenizers import Encoding

# The characters of a text that a token covers: the first, and the one after the last.
Span = tuple[int, int]
INCOMPLETE = "\ufffd"  # the replacement character, which decoders return for a part of a character
JOINS = "'’-"  # within a word: man's, well-known
SPACE = "␣"  # what is shown of a token of nothing but a space


def token_label(
    token: int,
    decode: Callable[[list[int]], str],
    name_of: Callable[[int], str | None] | None = None,
) -> str:
    """Return a token as it is shown: its text, "␣" for a space alone, or the name of a special
    token, such as </s>.

    Never the sign that a tokenizer writes for a space or a byte, such as Ġ or ▁.
    """
    text = decode([token])
    if text:
        return text if text.strip(" ") else SPACE
    # A space that begins a text may be dropped; behind itself it is kept, and no special token.
    if decode([token, token]):
        return SPACE
    return (name_of(token) if name_of else None) or str(token)


@dataclass(frozen=True)
class Words:
    """The words of a tokenized text.

    names       each word, as it is shown
    word_ids    the number of each token's word. As segments of a survey's map, `word_ids` joins
                weights: the row of a word is the mean over its tokens, its column their sum
    pieces      each token, as it is shown: "·" stands before a token that continues a word
    text_words  the numbers of the words that stand in the text; the others are special tokens
    """

    names: tuple[str, ...]
    word_ids: tuple[int, ...]
    pieces: tuple[str, ...]
    text_words: tuple[int, ...]

    @classmethod
    def from_encoding(cls, text: str, encoding: Encoding) -> "Words":
        """Return the words of a text that any tokenizer encoded. A special token is a word by
        itself.
        """
        tokens = zip(encoding.offsets, encoding.tokens, encoding.special_tokens_mask, strict=True)
        return cls.from_spans(text, [name if special else span for span, name, special in tokens])

    @classmethod
    def from_spans(cls, text: str, spans: Sequence[Span | str]) -> "Words":
        """Return the words of tokens that cover these spans of a text; a special token is given by
        its name.

        A token that begins in the word in which the token before it ends belongs to the same word.
        A token that spans two words of the text so makes one word of them.
        """
        # Number the words of the text, then join tokens of one word.
        character_words = _number_words(text)
        word_ids = list[int]()
        number = -1
        previous = None
        for span in spans:
            first, last = (
                (None, None)
                if isinstance(span, str)
                else _first_and_last_word(text, character_words, span)
            )
            # A special token, or a token that begins in another word, begins a new one.
            number += first is None or first != previous
            previous = last
            word_ids.append(number)
        # The spans of each word.
        groups = [
            [span for span, word in zip(spans, word_ids, strict=True) if word == n]
            for n in range(number + 1)
        ]
        # The first token of a word has no dot in front.
        starts = [word not in word_ids[:i] for i, word in enumerate(word_ids)]
        return cls(
            names=tuple(_covered_text(text, group) for group in groups),
            word_ids=tuple(word_ids),
            pieces=tuple(
                f"{'' if start else '·'}{_covered_text(text, [span])}"
                for start, span in zip(starts, spans, strict=True)
            ),
            text_words=tuple(
                number for number, group in enumerate(groups) if not isinstance(group[0], str)
            ),
        )

    def positions(self, word: int) -> list[int]:
        """Return the positions of the tokens that make a word."""
        return [i for i, owner in enumerate(self.word_ids) if owner == word]

    def find(self, name: str) -> int | None:
        """Return the number of the last word with this name, in upper or lower case; None where no
        word has it.
        """
        # Of several words of one name, the last is meant.
        found = [number for number, other in enumerate(self.names) if other.lower() == name.lower()]
        return found[-1] if found else None


def _covered_text(text: str, spans: Sequence[Span | str]) -> str:
    """Return the text from the first span to the last, or the name of a special token; "␣" for
    nothing but space.
    """
    first = spans[0]
    last = spans[-1]
    # A special token covers no characters: its name is shown.
    if isinstance(first, str) or isinstance(last, str):
        return str(first)
    stop = last[1]
    # é may be two characters, of which a span covers only one.
    while stop < len(text) and _is_combining(text[stop]):
        stop += 1
    covered = text[first[0] : stop]
    # A token of nothing but space would be invisible.
    return " ".join(covered.split()) or SPACE * bool(covered)


def _first_and_last_word(text: str, character_words: Sequence[int], span: Span) -> tuple[int, int]:
    """Return the words in which a token begins and ends. Spaces do not count; a token of spaces is
    in the next word.
    """
    # Spaces at the ends of a token belong to no word.
    covered = [i for i in range(*span) if not text[i].isspace()] or [span[0]]
    first, last = (
        character_words[min(i, len(character_words) - 1)] for i in (covered[0], covered[-1])
    )
    return first, last


def _number_words(text: str) -> list[int]:
    """Return the word number of each character and of the text's end. A space belongs to the word
    after it, if any.
    """
    words = list[int]()
    number = 0
    previous = ""
    for i in range(len(text.rstrip())):
        # An accent continues the letter that it is written onto.
        kind = previous if previous and _is_combining(text[i]) else _character_kind(text, i)
        # A new word begins where the kind of character changes, but not after a space.
        number += previous not in ("", kind)
        words.append(number)
        previous = kind
    # What is behind the last word belongs to it.
    return words + [number] * (len(text) + 1 - len(words))


def _character_kind(text: str, i: int) -> str:
    """Return "" for a space, "mark" for punctuation and symbols, "word" for letters, digits and
    what joins them.
    """
    # A space has no kind of its own, and begins the word after it.
    if text[i].isspace():
        return ""
    if (
        # Between two letters or digits, an apostrophe or a hyphen is part of the word.
        text[i] in JOINS
        and 0 < i < len(text) - 1
        and _is_word_character(text[i - 1])
        and _is_word_character(text[i + 1])
    ):
        return "word"
    return "word" if _is_word_character(text[i]) else "mark"


def _is_word_character(character: str) -> bool:
    # Unicode's letters, marks and numbers.
    return category(character)[0] in "LMN"


def _is_combining(character: str) -> bool:
    """Return whether the character is written onto the one before it, as an accent or a vowel sign
    of Hindi is.
    """
    return category(character)[0] == "M"
