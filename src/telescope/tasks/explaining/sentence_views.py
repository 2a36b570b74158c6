"""Record what a model attends to while it reads and writes one text: weights between words, layer
by layer; and find the heads that look at one word from different sides.

A head that always attends to the word before, to itself or to one fixed token says nothing about a
sentence's meaning, wherever that happens to be. What is measured are perspectives, not a decision
of the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ...decoding import IncrementalDecoder, Written, start_token
from ...files import panics_as_errors
from ...interception import watch
from ...measures import CLEAR, OFFSETS
from ...models import GPT, Model, Transformer
from ...recording import Recording, Watched, select_layers
from ...traces import Span, Trace, Words
from ..writing import (
    check_rewrites,
    do_not_split,
    encode_prompt,
    encode_text,
    max_source_tokens,
    rewrite,
)

# Where a head may attend by position; "next" exists between the words of an encoder alone, so that
# it names no kind of head.
POSITIONS = {**OFFSETS, "next": 1}


@dataclass(frozen=True, eq=False)
class SentenceAttention:
    """The attentions of one kind, such as encoder self-attention, in every layer, for one text.

    rows     words of the queries; in a decoder's cross-attention, the words written by these
             queries
    columns  words of the keys
    layers   what was recorded of each layer; recording: of all layers and kinds, where it is kept
    """

    rows: Words
    columns: Words
    layers: tuple[Watched, ...]
    recording: Recording | None = None

    @cached_property
    def weights(self) -> Float[Tensor, "layer head row column"]:
        """The weights between words: of the tokens of a word, rows are averaged and columns are
        summed.
        """
        segments = (list(self.rows.word_ids), list(self.columns.word_ids))
        return torch.stack([layer.survey(top=0).map(segments=segments)[0] for layer in self.layers])

    @cached_property
    def sharpest(self) -> int:
        """The layer whose heads, averaged, put the most weight on single words: the best one to
        read an alignment.
        """
        # Special tokens are left out, unless there is nothing else.
        rows = list(self.rows.text_words) or list(range(len(self.rows.names)))
        return int(self.weights.mean(1)[:, rows].amax(-1).mean(-1).argmax())

    @property
    def alignment(self) -> Float[Tensor, "row column"]:
        """The weights of the sharpest layer, averaged over its heads."""
        return self.weights[self.sharpest].mean(0)

    def trace(self, layer: int, head: int) -> Trace:
        """Return every step of one head, token by token."""
        return self.layers[layer].trace((self.rows.pieces, self.columns.pieces)).head(head)


class TranslatorAttention(NamedTuple):
    """The three kinds of attention of an encoder-decoder: in the source, in what is written, and
    from there back.
    """

    encoder: SentenceAttention
    decoder: SentenceAttention
    cross: SentenceAttention


def translate_whole(model: Transformer, text: str) -> Written:
    """Translate a text as one sentence; raise a ValueError where it is too long for the model to
    read at once.
    """
    parts = rewrite(model, [text], do_not_split)[0]
    if not parts:
        raise ValueError(
            f"the sentence has {len(encode_text(model, text))} tokens; at most "
            f"{max_source_tokens(model)} fit"
        )
    return parts[0].found[0]


def watch_translation(model: Transformer, source: str, written: Written) -> TranslatorAttention:
    """Record every step of all attentions, in one forward pass over the source and a translation
    found before.
    """
    # The decoder reads the start token, and all but the last token that was written.
    decoder_input = [start_token(model), *written.ids[:-1]]
    with watch(model, keep="steps", also="norms") as recording:
        _run(model, encode_text(model, source), decoder_input)
    read = source_words(model, source)
    given = written_words(model, decoder_input)
    return TranslatorAttention(
        SentenceAttention(read, read, _select(recording, "encoder.*.self")),
        SentenceAttention(given, given, _select(recording, "decoder.*.self")),
        # A row is the word that its queries write, one token after the one they read.
        SentenceAttention(
            written_words(model, written.ids),
            read,
            _select(recording, "decoder.*.cross"),
            recording,
        ),
    )


def watch_encoder(model: Transformer, source: str) -> SentenceAttention:
    """Record the self-attention of the encoder while it reads a source."""
    with torch.no_grad(), watch(model, layers="encoder.*", keep="queries-keys") as recording:
        model.encode(
            torch.tensor([encode_text(model, source)], device=next(model.parameters()).device)
        )
    read = source_words(model, source)
    return SentenceAttention(read, read, _select(recording, "encoder.*.self"))


def watch_alignment(model: Model, source: str, written: Written) -> SentenceAttention:
    """Record what each written word attended to: the source in a translator, in a GPT all words
    before it.
    """
    if isinstance(model, GPT):
        return _watch_continuation(model, encode_prompt(model, source), written.ids)
    check_rewrites(model)
    # Only the attentions to the source are needed.
    with watch(model, layers="*cross", keep="queries-keys") as recording:
        _run(model, encode_text(model, source), [start_token(model), *written.ids[:-1]])
    rows = written_words(model, written.ids)
    columns = source_words(model, source)
    return SentenceAttention(rows, columns, _select(recording, "*"))


def _watch_continuation(
    model: GPT, prompt: Sequence[int], written: Sequence[int]
) -> SentenceAttention:
    """Record the written tokens of a GPT, with as much of the prompt as the model has positions
    for.

    All but the last token of the prompt are in the cache: they are keys, and not queries of the
    recording.
    """
    # Keep what fits: the last written token is never read, and needs no position.
    written = written[-model.longest :]
    prompt = prompt[-(model.longest + 1 - len(written)) :]
    cache = model.cache(1, len(prompt) + len(written) - 1)
    # Fill the cache before the recording begins.
    if len(prompt) > 1:
        _run(model, prompt[:-1], cache=cache)
    with watch(model, keep="queries-keys") as recording:
        _run(model, [prompt[-1], *written[:-1]], cache=cache)
    rows = written_words(model, written)
    columns = written_words(model, [*prompt, *written[:-1]])
    return SentenceAttention(rows, columns, _select(recording, "*"))


def source_words(model: Model, source: str) -> Words:
    """Return the words of a text that the model reads."""
    assert model.tokenizer is not None
    with panics_as_errors("the tokenizer fails"):
        encoding = model.tokenizer.encode(source)
    return Words.from_encoding(source, encoding)


def written_words(model: Model, ids: Sequence[int]) -> Words:
    """Return the words of token ids that a model writes: a token covers the characters that it adds
    to the text.
    """
    assert model.tokenizer is not None
    special = {model.special.start, model.special.pad, *model.special.end}
    decoder = IncrementalDecoder(model.tokenizer, ())
    text = ""
    spans = list[Span | str]()
    for token in ids:
        # A special token is shown by its name, and covers no characters.
        if token in special:
            spans.append(model.tokenizer.id_to_token(token) or str(token))
            continue
        start = len(text)
        text = text + decoder.add(token)
        spans.append((start, len(text)))
    return Words.from_spans(text + decoder.flush(), spans)


@torch.no_grad()
def _run(model: Model, *ids: Sequence[int], **options: Any) -> None:
    """Run the model on sequences of ids, each as a batch of one."""
    model(*(torch.tensor([row], device=next(model.parameters()).device) for row in ids), **options)


def _select(recording: Recording, pattern: str) -> tuple[Watched, ...]:
    return tuple(recording[name] for name in select_layers(recording.names, pattern))


# ---------------------------------------------------------------------------- perspectives of heads


class HeadPerspective(NamedTuple):
    """What one head attends to from one word.

    habit    "previous", "itself", "next", "first" or "sink" where the head attends by position,
             else None
    share    the share of all weight that goes there; of a head without a habit, of its strongest
             one
    weights  from the word to every word
    """

    layer: int
    head: int
    habit: str | None
    share: float
    weights: Float[Tensor, " column"]


def positional_shares(
    weights: Float[Tensor, "row column"], across: bool = False
) -> dict[str, float]:
    """Return the share of a head's weight that goes to each kind of position, the mean over the
    rows.
    """
    rows, columns = weights.shape
    # The first word, and of all others the one that gets the most weight.
    shares = {
        "first": float(weights[:, 0].mean()),
        "sink": float(weights.mean(0)[1:].max()) if columns > 1 else 0.0,
    }
    # Between two texts there are no distances.
    if across or rows != columns:
        return shares
    for name, offset in POSITIONS.items():
        line = weights.diagonal(offset)
        shares[name] = float(line.mean()) if len(line) else 0.0
    return shares


def head_perspectives(
    weights: Float[Tensor, "layer head row column"], row: int, across: bool = False
) -> list[HeadPerspective]:
    """Return the perspective of every head on one row of the weights between words."""
    found = []
    for layer, heads in enumerate(weights):
        for head, one in enumerate(heads):
            shares = positional_shares(one, across)
            habit = max(shares, key=lambda name: shares[name])
            # Of one or two words, every head seems to attend by position.
            by_position = shares[habit] >= CLEAR and one.shape[0] > 2
            found.append(
                HeadPerspective(
                    layer, head, habit if by_position else None, shares[habit], one[row]
                )
            )
    return found


def most_different(
    heads: Sequence[HeadPerspective], columns: Sequence[int]
) -> tuple[int, int] | None:
    """Return the two heads that differ most in their weights on these columns; None if there are
    fewer than two.

    Heads that attend by position are left out as long as two others remain. The difference is half
    of the sum of absolute differences, the total variation distance.
    """
    able = [i for i, head in enumerate(heads) if head.habit is None]
    able = able if len(able) > 1 else list(range(len(heads)))
    if len(able) < 2:
        return None
    weights = torch.stack([heads[i].weights for i in able])[:, list(columns)].double()
    # Each pair once; the first one if several differ alike.
    distances = torch.cdist(weights, weights, p=1).triu(1)
    first, second = divmod(int(distances.argmax()), len(able))
    # Where all heads are equal, the argmax is the first head with itself: take the first two.
    return (able[first], able[second]) if first != second else (able[0], able[1])


def most_telling(heads: Sequence[HeadPerspective], row: int, columns: Sequence[int]) -> int:
    """Return the head that attends most from the row to one word that is neither the row itself nor
    next to it.

    Heads that attend by position are left out as long as another remains.
    """
    able = [i for i, head in enumerate(heads) if head.habit is None] or list(range(len(heads)))
    # Where all words are neighbours, any of them will do.
    far = [column for column in columns if abs(column - row) > 1] or list(columns) or [0]
    return max(able, key=lambda i: float(heads[i].weights[far].max()))
