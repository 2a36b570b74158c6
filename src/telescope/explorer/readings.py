"""Which of some words each head attends to from one word, as `telescope explain` tells it: more
than even weights would give, and more so than the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..tasks import control_text, even_weights, most_different, which_is_read
from ..traces import Words
from .answers import Answer, Vector, bad_parameter, not_kept, unknown
from .run import RunRequest
from .weights import ComparedHeads, HeadHabit

MOST_WORDS = 8  # words that are compared


@dataclass(frozen=True)
class HeadReading(HeadHabit):
    """What one head attends to from one word.

    habit    "previous", "itself", "next", "first" or "sink" of a head that attends by position
    share    of all weight that goes there, over the text
    weights  on each of the compared words
    reads    the compared word that gets more than its even weight, and more so than the others, by
             its place; null where none does, and where the head attends by position
    """

    weights: Vector
    reads: int | None


@dataclass(frozen=True)
class ReadingsAnswer(Answer):
    """Some words, as every head of the attentions of l's kind attends to them from one word.

    word     the word, and i the query of its last token; between: the words that are compared
    even     the weight that each would get if all tokens got the same
    pair     the two heads that differ most in these words, of those without a habit
    left     how many heads attend by position, and were left out to choose the pair
    control  the text with a word inserted before the word; null where the run has no text
    """

    l: int
    word: str
    i: int
    between: Sequence[str]
    even: Sequence[float]
    heads: Sequence[HeadReading]
    pair: Sequence[int] | None
    left: int
    control: str | None


def readings(request: RunRequest) -> ReadingsAnswer:
    """Answer which of some words each head attends to from one word."""
    layer = request.index("l", len(request.run.views), "attention", 0)
    view = request.run.views[layer]
    b = request.index("b", view.batch, "sequence", 0)
    view.require("alignment")
    rows, columns = (view.words(axis) for axis in "qk")
    if rows is None or columns is None:
        raise not_kept("the words of this run are not known, so that none can be compared")

    # Words are asked for by name: a link holds for any model that reads them.
    def place(words: Words, name: str) -> int:
        found = words.find(name)
        if found is None:
            raise unknown(f'there is no word "{name[:40]}" in this text')
        return int(found)

    row = place(rows, request.parameters.get("word", ""))
    names = [name for name in request.parameters.get("between", "").split(",") if name]
    if not 2 <= len(names) <= MOST_WORDS:
        raise bad_parameter(f"between= takes 2 to {MOST_WORDS} words, such as saw,astronomer")
    chosen = [place(columns, name) for name in names]

    # A word in many pieces gets more weight by chance.
    even = even_weights(columns, chosen)
    compared = ComparedHeads(request.run, view.kind, b, row)
    heads = compared.on_word(row)
    pair = most_different(heads, chosen)
    found = []
    for at, one in zip(compared.places, heads, strict=True):
        weights = one.weights[chosen]
        reads = which_is_read(weights.tolist(), even) if one.habit is None else None
        found.append(HeadReading(*at, one.habit, one.share, weights, reads))
    by_position = sum(one.habit is not None for one in heads)
    left = by_position if len(heads) - by_position > 1 else 0
    source = request.run.text
    control = None if source is None or view.kind == "cross" else control_text(source, rows, row)
    return ReadingsAnswer(
        l=layer,
        word=rows.names[row],
        i=rows.positions(row)[-1],
        between=[columns.names[at] for at in chosen],
        even=list(even),
        heads=found,
        pair=pair,
        left=left,
        control=control,
    )
