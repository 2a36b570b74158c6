"""Who looked at whom while a model read and wrote: the attentions of one kind, layer by layer, in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ...decoding import Written
from ...decoding.line import IncrementalDecoder
from ...decoding.writers import must_start
from ...models import GPT, Model, Transformer
from ...recording.names import chosen
from ...recording.recording import Recording, Watched
from ...trace.trace import Trace
from ...trace.whole_words import Span, Words
from ...watch.watch import watch
from ..writing.rewrite import must_rewrite, tokens
from ..writing.write_on import beginning


@dataclass(frozen=True, eq=False)
class SentenceAttention:
    """Attentions of one kind. Rows are the words that look, or are written by looking; columns what is looked at."""

    rows: Words
    columns: Words
    layers: tuple[Watched, ...]

    @cached_property
    def weights(self) -> Float[Tensor, "layer head row column"]:
        """What each word gives to each, in every head: measured for pieces, joined to words."""
        segments = (list(self.rows.of), list(self.columns.of))
        return torch.stack([layer.survey(top=0).map(segments=segments)[0] for layer in self.layers])

    @cached_property
    def sharpest(self) -> int:
        """The layer whose heads, taken together, look most at single words: there an alignment is read best."""
        real = list(self.rows.real) or list(range(len(self.rows.names)))
        return int(self.weights.mean(1)[:, real].amax(-1).mean(-1).argmax())

    @property
    def alignment(self) -> Float[Tensor, "row column"]:
        """The mean of the heads of the sharpest layer."""
        return self.weights[self.sharpest].mean(0)

    def trace(self, layer: int, head: int) -> Trace:
        """Every step of one head, piece by piece."""
        return self.layers[layer].trace((self.rows.pieces, self.columns.pieces)).head(head)


class Sentence(NamedTuple):
    """All that a Transformer looks at: in the source, in what it has written so far, and from there at the source."""

    encoder: SentenceAttention
    decoder: SentenceAttention
    cross: SentenceAttention


def sentence(model: Transformer, source: str, written: Written) -> Sentence:
    """Read and written once more, in one pass over the text that was found."""
    before = [must_start(model), *written.ids[:-1]]
    with watch(model, keep="steps") as recording:
        _run(model, tokens(model, source), before)
    read, so_far = source_words(model, source), words(model, before)
    return Sentence(
        SentenceAttention(read, read, _those(recording, "encoder.*.self")),
        SentenceAttention(so_far, so_far, _those(recording, "decoder.*.self")),
        SentenceAttention(words(model, written.ids), read, _those(recording, "decoder.*.cross")),
    )


def alignment(model: Model, source: str, written: Written) -> SentenceAttention:
    """What each word that was written looked at: of a translator the source, of a GPT all that stood before it."""
    if isinstance(model, GPT):
        return _written_on(model, beginning(model, source), written.ids)
    must_rewrite(model)
    with watch(model, layers="*cross", keep="queries-keys") as recording:
        _run(model, tokens(model, source), [must_start(model), *written.ids[:-1]])
    return SentenceAttention(words(model, written.ids), source_words(model, source), _those(recording, "*"))


def _written_on(model: GPT, before: Sequence[int], written: Sequence[int]) -> SentenceAttention:
    """As far back as its positions go. What was there before is in the cache: it is looked at, and does not look."""
    written = written[-model.longest :]
    before = before[-(model.longest + 1 - len(written)) :]
    cache = model.cache(1, len(before) + len(written) - 1)
    if len(before) > 1:
        _run(model, before[:-1], cache=cache)
    with watch(model, keep="queries-keys") as recording:
        _run(model, [before[-1], *written[:-1]], cache=cache)
    return SentenceAttention(words(model, written), words(model, [*before, *written[:-1]]), _those(recording, "*"))


def source_words(model: Model, source: str) -> Words:
    assert model.tokenizer is not None
    return Words.of_text(source, model.tokenizer.encode(source))


def words(model: Model, ids: Sequence[int]) -> Words:
    """Of tokens as a model writes them: a token stands where its text is added to what stands there already."""
    assert model.tokenizer is not None
    special = {model.special.start, model.special.pad, *model.special.end}
    reader, text, spans = IncrementalDecoder(model.tokenizer, ()), "", list[Span | str]()
    for token in ids:
        if token in special:
            spans.append(model.tokenizer.id_to_token(token) or str(token))
            continue
        start, text = len(text), text + reader.add(token)
        spans.append((start, len(text)))
    return Words.of_spans(text + reader.rest(), spans)


@torch.no_grad()
def _run(model: Model, *ids: Sequence[int], **how: Any) -> None:
    model(*(torch.tensor([row], device=next(model.parameters()).device) for row in ids), **how)


def _those(recording: Recording, pattern: str) -> tuple[Watched, ...]:
    return tuple(recording[name] for name in chosen(recording.names, pattern))
