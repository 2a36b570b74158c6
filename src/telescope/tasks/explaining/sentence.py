"""Explain a sentence: translate it, record all three kinds of attention, and choose which rows and
heads to show.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...decoding import Written
from ...models import Model, Transformer
from ...traces import Words
from ...words import check_index, hint
from .sentence_views import (
    SentenceAttention,
    head_perspectives,
    translate_whole,
    watch_encoder,
    watch_translation,
)

# Ambiguous: the man or the astronomer may have the telescope.
NOTES = "The man saw the astronomer with a telescope"
READINGS = ("with", ("saw", "astronomer"))  # the query, and the two words it may belong to


class HeadReading(NamedTuple):
    """The weights of one head from the query to two words.

    reads    0 or 1 for the word that gets more than even attention would give it, and more so than
             the other word; None where neither does, and where the head attends by position
    habit    "previous", "itself", "next", "first" or "sink" where the head attends by position: no
             evidence for a word
    control  the same weights in the control sentence, and the weight on the word that was inserted;
             or none
    """

    head: str
    weights: tuple[float, ...]
    reads: int | None
    habit: str | None = None
    control: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class SentenceScene:
    """One kind of attention, and what is shown of it.

    row          the word whose weights are shown in every head
    layer, head  the head that is shown in every step
    """

    title: str
    caption: str
    attention: SentenceAttention
    row: int
    layer: int
    head: int

    @property
    def word(self) -> str:
        return self.attention.rows.names[self.row]

    def head_name(self, layer: int, head: int) -> str:
        return f"{self.attention.layers[layer].name} head {head}"


@dataclass(frozen=True, eq=False)
class ExplainedSentence:
    """A translated sentence and its three scenes: encoder, decoder and cross-attention.

    between  two words of the source, by number, whose weights are compared in every head of the
             encoder; or none
    control  the source with a word inserted before the query, which a head that attends to the word
             before would see
    """

    model: str
    parameters: int
    source: str
    written: Written
    scenes: tuple[SentenceScene, SentenceScene, SentenceScene]
    between: tuple[int, ...]
    control: "ControlSentence | None" = None

    @property
    def translation(self) -> str:
        return self.written.text or ""

    @property
    def even(self) -> tuple[float, ...]:
        """The weight that each word of `between` would get if all tokens of the source got the
        same.
        """
        return even_weights(self.scenes[0].attention.columns, self.between)

    @property
    def readings(self) -> list[HeadReading]:
        """The reading of every head of the encoder."""
        scene = self.scenes[0]
        found = list[HeadReading]()
        for one in head_perspectives(scene.attention.weights, scene.row):
            weights = [float(one.weights[word]) for word in self.between]
            reads = which_is_read(weights, self.even) if one.habit is None else None
            control = () if self.control is None else self.control.weights(one.layer, one.head)
            name = scene.head_name(one.layer, one.head)
            found.append(HeadReading(name, tuple(weights), reads, one.habit, control))
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return every step of every head, token by token, and the weights between words."""
        source = self.scenes[0].attention.columns.names
        return {
            "sentence": self.source,
            "translation": self.translation,
            "model": self.model,
            "attentions": [
                {
                    "name": layer.name,
                    "title": scene.title,
                    "row_words": list(scene.attention.rows.names),
                    "column_words": list(scene.attention.columns.names),
                    "word_weights": scene.attention.weights[number].double().tolist(),
                    "trace": layer.trace(
                        (scene.attention.rows.pieces, scene.attention.columns.pieces)
                    ).to_dict(),
                }
                for scene in self.scenes
                for number, layer in enumerate(scene.attention.layers)
            ],
            "readings": [
                {
                    "head": reading.head,
                    "from": self.scenes[0].word,
                    "weights": {
                        source[j]: w for j, w in zip(self.between, reading.weights, strict=True)
                    },
                    "reads": None if reading.reads is None else source[self.between[reading.reads]],
                    "habit": reading.habit,
                    "control": list(reading.control),
                }
                for reading in (self.readings if self.between else [])
            ],
            "control": None if self.control is None else self.control.source,
        }


def even_weights(words: Words, between: Sequence[int]) -> tuple[float, ...]:
    """Return the weight that each of some words would get if all tokens got the same."""
    return tuple(words.word_ids.count(word) / len(words.word_ids) for word in between)


def which_is_read(weights: Sequence[float], even: Sequence[float]) -> int | None:
    """Return which of some words gets more than its even weight, and more so than the others; None
    where none does.
    """
    # A word in many pieces gets more weight by chance: compare with even weights.
    ratios = [weight / one for weight, one in zip(weights, even, strict=True)]
    # Weights that are all even differ from it by rounding.
    return ratios.index(max(ratios)) if max(ratios) > 1.0 + 1e-6 else None


INSERTED = "yesterday"  # between the query and the word before it: it fits almost any sentence


@dataclass(frozen=True, eq=False)
class ControlSentence:
    """A sentence with one more word before the query, read by the encoder.

    A head that attends to the word before the query now attends to the inserted word; one that
    attends to a word for what it is stays there.
    """

    source: str
    attention: SentenceAttention
    row: int
    columns: tuple[int, ...]

    def weights(self, layer: int, head: int) -> tuple[float, ...]:
        """Return one head's weights from the query to the two words, and to the inserted word."""
        row = self.attention.weights[layer, head, self.row]
        return tuple(float(row[column]) for column in self.columns)


def control_text(source: str, words: Words, row: int) -> str:
    """Return the source with a word inserted before word `row`."""
    # Find where the word begins in the source, searching word by word from the left.
    start = end = 0
    for at in words.text_words:
        if at <= row:
            start = max(source.find(words.names[at], end), end)
            end = start + len(words.names[at])
    return f"{source[:start]}{INSERTED} {source[start:]}"


def make_control(
    model: Transformer, source: str, words: Words, row: int, between: Sequence[int]
) -> ControlSentence:
    """Read the source again with a word inserted before word `row`."""
    text = control_text(source, words, row)
    attention = watch_encoder(model, text)
    read = attention.columns
    # The query and all words after it are one place further on.
    moved = [at + (at >= row) for at in (*between, row)]
    return ControlSentence(text, attention, min(moved[-1], len(read.names) - 1), (*moved[:-1], row))


def explain_sentence(
    model: Model,
    source: str,
    *,
    name: str,
    query: str | None = None,
    between: Sequence[str] = (),
    layer: int | None = None,
    head: int | None = None,
) -> ExplainedSentence:
    """Translate a sentence, record all attentions, and choose what to show.

    name         the model's name, as it is shown
    query        the word whose row is shown, of the sentence or of its translation; the last word
                 unless given
    between      two words of the sentence, whose weights from `query` are compared in every head
    layer, head  the head that is shown in every step; unless given, in each scene the one with the
                 largest weight on a single word; they count from 0, and -1 is the last

    Raises ValueError for a model that is no Transformer, a sentence that is too long or has no
    words, and a word, layer or head that does not exist.
    """
    if not isinstance(model, Transformer):
        raise ValueError(
            f"{name} is a {type(model).__name__}; a sentence is explained on a Transformer"
        )
    # The sentence of the notes comes with its own query and its two words.
    if source.strip(" .").lower() == NOTES.lower() and query is None and not between:
        query, between = READINGS

    # Translate, then record all attentions in one pass over both texts.
    written = translate_whole(model, source)
    encoder, decoder, cross = watch_translation(model, source, written)
    _check_layer_and_head(layer, head, (encoder, decoder, cross))
    read = encoder.columns

    # Choose the words whose rows are shown.
    source_row, written_row = _find_rows(cross, query)
    pair = tuple(_find_word(word, read) for word in between)
    # The decoder's input begins with the start token.
    decoder_row = min(written_row + 1, len(decoder.rows.names) - 1)

    def scene(
        title: str, caption: str, attention: SentenceAttention, row: int, columns: Sequence[int]
    ) -> SentenceScene:
        return SentenceScene(
            title, caption, attention, row, *_choose_head(attention, row, columns, layer, head)
        )

    # Where two words are compared, a control tells whether position decides.
    control = make_control(model, source, read, source_row, pair) if pair else None

    return ExplainedSentence(
        name,
        sum(parameter.numel() for parameter in model.parameters()),
        source,
        written,
        (
            scene(
                "Encoder self-attention",
                "every word of the sentence attends to every word of the sentence",
                encoder,
                source_row,
                pair or [j for j in read.text_words if j != source_row],
            ),
            scene(
                "Decoder masked self-attention",
                "every written word attends to itself and to the words before it; later words are "
                "masked",
                decoder,
                decoder_row,
                [j for j in decoder.columns.text_words if j < decoder_row],
            ),
            scene(
                "Encoder-decoder attention",
                "to write a word, the decoder attends to the encoder's output; a row is the word "
                "being written",
                cross,
                written_row,
                read.text_words,
            ),
        ),
        pair,
        control,
    )


def _find_rows(cross: SentenceAttention, query: str | None) -> tuple[int, int]:
    """Return the source word of the query and the written word of it.

    Where the query is a word of one side only, the other word is the one with the largest weight
    between both. Without a query, the source word is the last one.
    """
    read = cross.columns
    wrote = cross.rows
    weights = cross.alignment
    source_row = read.find(query) if query is not None else _find_last_word(read)
    written_row = wrote.find(query) if query is not None else None
    if source_row is None and written_row is None:
        raise ValueError(f'no word is "{query}"; {hint(str(query), [*read.names, *wrote.names])}')
    # A word of one side only is followed to the other side by the alignment.
    if source_row is None:
        source_row = max(read.text_words, key=lambda j: float(weights[written_row, j]))
    if written_row is None:
        written_row = max(wrote.text_words or (0,), key=lambda i: float(weights[i, source_row]))
    return source_row, written_row


def _find_last_word(words: Words) -> int:
    """Return the number of the last word that has a letter or a digit."""
    candidates = [j for j in words.text_words if any(c.isalnum() for c in words.names[j])]
    if not candidates:
        raise ValueError("there is no word in the sentence")
    return candidates[-1]


def _find_word(word: str, words: Words) -> int:
    found = words.find(word)
    if found is None:
        raise ValueError(f'between: no word is "{word}"; {hint(word, words.names)}')
    return found


def _check_layer_and_head(
    layer: int | None, head: int | None, attentions: Sequence[SentenceAttention]
) -> None:
    # The most of any stack: an encoder may have more layers than a decoder.
    layers, heads = (
        max(attention.weights.shape[axis] for attention in attentions) for axis in (0, 1)
    )
    for name, number, count in (("layer", layer, layers), ("head", head, heads)):
        if number is not None:
            check_index(name, number, count)


def _choose_head(
    attention: SentenceAttention,
    row: int,
    columns: Sequence[int],
    layer: int | None,
    head: int | None,
) -> tuple[int, int]:
    """Return the layer and head with the largest weight from `row` to one of the columns.

    The choice is restricted to the given layer and head, as far as this attention has them: an
    encoder may have more layers than a decoder. Negative numbers count from the last layer and head
    of this attention.
    """
    weights = attention.weights[:, :, row]
    # Without columns of interest, the largest weight on any word counts.
    largest = weights[..., list(columns)].amax(-1) if columns else weights.amax(-1)
    layers = range(len(largest))
    heads = range(largest.shape[1])
    layer, head = (
        len(known) + number if number is not None and number < 0 else number
        for number, known in ((layer, layers), (head, heads))
    )
    # A layer or head that this attention lacks restricts nothing.
    choices = [
        (i, j)
        for i in layers
        for j in heads
        if (i == layer or layer not in layers) and (j == head or head not in heads)
    ]
    return max(choices, key=lambda choice: float(largest[choice]))
