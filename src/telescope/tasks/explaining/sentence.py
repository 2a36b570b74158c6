"""A sentence of one's own, translated: all three attentions of the translator, with the numbers it computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...decoding import Written
from ...models import Model, Transformer
from ...trace.whole_words import Words
from ...words import hint
from ..writing.rewrite import longest, rewrite, tokens
from .sentence_views import SentenceAttention, sentence

NOTES = "The man saw the astronomer with a telescope"  # who had it? One head has one perspective.
READINGS = ("telescope", ("man", "astronomer"))


class HeadReading(NamedTuple):
    """One head's look from a word at two others. `reads` is the one that it gives more than an even look would."""

    head: str
    weights: tuple[float, ...]
    reads: int | None


@dataclass(frozen=True, eq=False)
class SentenceScene:
    """One kind of attention, the word whose row is shown in every head, and the head that is shown in every step."""

    title: str
    says: str
    looking: SentenceAttention
    row: int
    layer: int
    head: int

    @property
    def word(self) -> str:
        return self.looking.rows.names[self.row]

    def name(self, layer: int, head: int) -> str:
        return f"{self.looking.layers[layer].name} head {head}"


@dataclass(frozen=True, eq=False)
class Explained:
    """`between` are two words of the source, of which every head may read the one or the other."""

    model: str
    parameters: int
    source: str
    written: Written
    scenes: tuple[SentenceScene, SentenceScene, SentenceScene]
    between: tuple[int, ...]

    @property
    def translation(self) -> str:
        return self.written.text or ""

    @property
    def even(self) -> tuple[float, ...]:
        """What an even look at all pieces of the source would give each of the two words."""
        words = self.scenes[0].looking.columns
        return tuple(words.of.count(word) / len(words.of) for word in self.between)

    @property
    def readings(self) -> list[HeadReading]:
        """Of every head of the encoder."""
        scene, found = self.scenes[0], list[HeadReading]()
        for layer, heads in enumerate(scene.looking.weights[:, :, scene.row, list(self.between)].tolist()):
            for head, weights in enumerate(heads):
                times = [weight / even for weight, even in zip(weights, self.even, strict=True)]
                reads = times.index(max(times)) if max(times) > 1.0 else None
                found.append(HeadReading(scene.name(layer, head), tuple(weights), reads))
        return found

    def to_dict(self) -> dict[str, Any]:
        """Every step of every head, piece by piece, and the weights between words."""
        source = self.scenes[0].looking.columns.names
        return {
            "sentence": self.source,
            "translation": self.translation,
            "model": self.model,
            "attentions": [
                {
                    "name": layer.name,
                    "title": scene.title,
                    "row_words": list(scene.looking.rows.names),
                    "column_words": list(scene.looking.columns.names),
                    "word_weights": scene.looking.weights[number].double().tolist(),
                    "trace": layer.trace((scene.looking.rows.pieces, scene.looking.columns.pieces)).to_dict(),
                }
                for scene in self.scenes
                for number, layer in enumerate(scene.looking.layers)
            ],
            "readings": [
                {
                    "head": reading.head,
                    "from": self.scenes[0].word,
                    "weights": {source[j]: w for j, w in zip(self.between, reading.weights, strict=True)},
                    "reads": None if reading.reads is None else source[self.between[reading.reads]],
                }
                for reading in (self.readings if self.between else [])
            ],
        }


def explained(
    model: Model,
    source: str,
    *,
    name: str,
    query: str | None = None,
    between: Sequence[str] = (),
    layer: int | None = None,
    head: int | None = None,
) -> Explained:
    """Translate it and look.

    query        the word whose row is shown, of the sentence or of its translation; the last one unless given
    between      two words of the sentence: which head reads the one from `query`, and which the other
    layer, head  which one is shown in every step; unless given, in each scene the one that looks at one word most
    """
    if not isinstance(model, Transformer):
        raise ValueError(f"{name} is a {type(model).__name__}; a sentence is explained on a Transformer")
    if source.strip(" .").lower() == NOTES.lower() and query is None and not between:
        query, between = READINGS
    written = _translated(model, source)
    encoder, decoder, cross = sentence(model, source, written)
    _must_be_there(layer, head, (encoder, decoder, cross))
    read = encoder.columns
    asking, answered = _rows(cross, query)
    pair = tuple(_find(word, read) for word in between)
    back = min(answered + 1, len(decoder.rows.names) - 1)  # the decoder's own words begin with the start

    def scene(title: str, says: str, looking: SentenceAttention, row: int, columns: Sequence[int]) -> SentenceScene:
        return SentenceScene(title, says, looking, row, *_head(looking, row, columns, layer, head))

    return Explained(
        name,
        sum(parameter.numel() for parameter in model.parameters()),
        source,
        written,
        (
            scene(
                "Encoder self-attention",
                "every word of the sentence looks at every word of it",
                encoder,
                asking,
                pair or [j for j in read.real if j != asking],
            ),
            scene(
                "Decoder masked self-attention",
                "every word written looks at itself and at those before it; those behind it are not there yet",
                decoder,
                back,
                [j for j in decoder.columns.real if j < back],
            ),
            scene(
                "Encoder-decoder attention",
                "to write a word, the decoder looks at what the encoder made of the sentence; a row is that word",
                cross,
                answered,
                read.real,
            ),
        ),
        pair,
    )


def _translated(model: Transformer, source: str) -> Written:
    """As one sentence, whole."""
    parts = rewrite(model, [source], lambda text, fits: [text] if fits(text) else [])[0]
    if not parts:
        raise ValueError(
            f"a sentence of {len(tokens(model, source))} tokens is too long to be explained; {longest(model)} fit"
        )
    return parts[0].found[0]


def _rows(cross: SentenceAttention, query: str | None) -> tuple[int, int]:
    """The word of the source that is asked for, and the one that was written of it: where they look at each other most.

    Without a query, the last word of the source.
    """
    read, wrote = cross.columns, cross.rows
    weights = cross.alignment
    asking = read.find(query) if query is not None else _last(read)
    answered = wrote.find(query) if query is not None else None
    if asking is None and answered is None:
        raise ValueError(f'no word is "{query}"; {hint(str(query), [*read.names, *wrote.names])}')
    if asking is None:
        asking = max(read.real, key=lambda j: float(weights[answered, j]))
    if answered is None:
        answered = max(wrote.real or (0,), key=lambda i: float(weights[i, asking]))
    return asking, answered


def _last(words: Words) -> int:
    said = [j for j in words.real if any(c.isalnum() for c in words.names[j])]
    if not said:
        raise ValueError("there is no word in the sentence")
    return said[-1]


def _find(word: str, words: Words) -> int:
    found = words.find(word)
    if found is None:
        raise ValueError(f'between: no word is "{word}"; {hint(word, words.names)}')
    return found


def _must_be_there(layer: int | None, head: int | None, all_of_it: Sequence[SentenceAttention]) -> None:
    layers, heads = (max(looking.weights.shape[axis] for looking in all_of_it) for axis in (0, 1))
    for name, number, count in (("layer", layer, layers), ("head", head, heads)):
        if number is not None and not 0 <= number < count:
            raise ValueError(f"there is no {name} {number}; there are {count}, counted from 0")


def _head(
    looking: SentenceAttention, row: int, columns: Sequence[int], layer: int | None, head: int | None
) -> tuple[int, int]:
    """The head that gives one of these columns most, of the layer and the head that are asked for, if they are here.

    An encoder may have more layers than a decoder.
    """
    given = looking.weights[:, :, row, list(columns)].amax(-1) if columns else looking.weights[:, :, row].amax(-1)
    layers, heads = range(len(given)), range(given.shape[1])
    choices = [
        (i, j)
        for i in layers
        for j in heads
        if (i == layer or layer not in layers) and (j == head or head not in heads)
    ]
    return max(choices, key=lambda at: float(given[at]))
