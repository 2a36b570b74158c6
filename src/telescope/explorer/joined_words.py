"""Join the tokens of a recording into words, by the characters that each adds to the text."""

from collections.abc import Callable, Iterable

from ..traces import INCOMPLETE, Span, Words

LONGEST_WORD = 6  # tokens, on average: beyond, the text is not made of words
Decode = Callable[[list[int]], str]  # token ids to text


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
