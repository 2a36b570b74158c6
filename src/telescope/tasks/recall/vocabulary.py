"""The task's characters: 0 fills up a row, 1 stands where something was taken out, and then those of the text."""

from collections.abc import Sequence

from tokenizers import Tokenizer

from ...models import Special
from ...text import tokenizer as text

FILL, GAP = 0, 1
MARKS = FILLED, TAKEN = "□", "⁇"
SPECIAL = Special(end=(GAP,), pad=FILL)  # an answer ends at the next ⁇


def vocabulary(lines: Sequence[str]) -> Tokenizer:
    """One id for each character, and for the line's end between them, in the order of their numbers in Unicode."""
    return text.characters("\n".join(lines), special=MARKS)


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    known = tokenizer.get_vocab()
    for said in texts:
        strange = sorted(set(said) - known.keys())
        if strange:
            raise ValueError(f'"{said}" has {strange[0]!r}, which is none of the {len(known)} characters known here')
    return text.encode(tokenizer, texts)
