"""A sentence of one's own: a model reads it, a translator writes too, and every step of every attention is kept."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

import torch
from tokenizers import Tokenizer

from ..decoding import Written
from ..models import GPT, Encoder, Model, Transformer
from ..tasks.explaining.sentence_views import SentenceAttention, sentence, source_words, words
from ..tasks.writing.rewrite import longest, rewrite, tokens
from ..trace.whole_words import Words
from ..watch.watch import watch
from .requests import Refusal
from .run import AttentionView, Run

LONGEST = 4096  # tokens of a text that is typed in; what is longer is for `telescope watch`


def name_of(model: str, text: str, target: str | None) -> str:
    """The same sentence is the same run, whenever it is asked for."""
    for what, given in (("text", text), ("model", model), ("target", target or "")):
        if (half := re.search("[\ud800-\udfff]", given)) is not None:
            said = f"the {what} has {half[0]!r} at {half.start()}, half of a character; no text has that"
            raise Refusal(400, "bad-json", said)
    return "s" + sha256("\0".join((model, text, target or "")).encode()).hexdigest()[:12]


def read(model: Model, model_name: str, text: str, target: str | None = None) -> Run:
    if model.tokenizer is None:
        raise _unreadable(f"{model_name} has no tokenizer, so it reads no text")
    try:
        with _as_it_is(model.tokenizer):
            looked, written = _looked(model, text, target)
    except ValueError as problem:
        raise _unreadable(str(problem)) from None
    name = name_of(model_name, text, target)
    return Run(name, name, "sentence", text, model_name, "steps", tuple(looked), text, written)


def _looked(model: Model, text: str, target: str | None) -> tuple[list[AttentionView], str | None]:
    assert model.tokenizer is not None
    ids = tokens(model, text)
    if not text.strip() or not ids:
        raise ValueError("there is no word in the text")
    most = min(LONGEST, longest(model)) if isinstance(model, Transformer) else min(LONGEST, _longest(model))
    if len(ids) > most:
        raise ValueError(f"the text has {len(ids):,} tokens, and {most:,} can be read at once")
    if isinstance(model, Transformer):
        wrote = _translated(model, text) if target is None else _given(model, target)
        if len(wrote.ids) > most:
            raise ValueError(f"the target has {len(wrote.ids):,} tokens, and {most:,} can be written at once")
        decode = model.tokenizer.decode
        return [one for looking in sentence(model, text, wrote) for one in _of(looking, decode)], wrote.text
    if target is not None:
        raise ValueError(f"a {type(model).__name__} writes nothing of a text, so that there is no target")
    if not isinstance(model, GPT | Encoder):
        raise ValueError(f"a {type(model).__name__} cannot be looked into by itself; a Transformer, GPT or Encoder can")
    with torch.no_grad(), watch(model, keep="steps") as recording:
        model(torch.tensor([ids], device=next(model.parameters()).device))
    said: Words = source_words(model, text) if isinstance(model, Encoder) else words(model, ids)
    return _of(SentenceAttention(said, said, tuple(recording.values())), model.tokenizer.decode), None


@contextmanager
def _as_it_is(tokenizer: Tokenizer) -> Iterator[None]:
    """A text without the padding and the cutting of a batch, which tokenizers of Hugging Face's may bring along."""
    padding, truncation = tokenizer.padding, tokenizer.truncation
    tokenizer.no_padding()
    tokenizer.no_truncation()
    try:
        yield
    finally:
        if padding is not None:
            tokenizer.enable_padding(**padding)
        if truncation is not None:
            tokenizer.enable_truncation(**truncation)


def _of(looking: SentenceAttention, decode: object) -> list[AttentionView]:
    return [
        AttentionView(layer.name, layer.call, decode, looking.rows, looking.columns)  # type: ignore[arg-type]
        for layer in looking.layers
    ]


def _translated(model: Transformer, text: str) -> Written:
    parts = rewrite(model, [text], lambda whole, fits: [whole] if fits(whole) else [])[0]
    if not parts:
        raise ValueError(f"a sentence of {len(tokens(model, text))} tokens is too long; {longest(model)} fit")
    return parts[0].found[0]


def _given(model: Transformer, target: str) -> Written:
    if not target.strip():
        raise ValueError("there is no word in the target")
    ids = tokens(model, target)
    ends = bool(ids) and ids[-1] in model.special.end
    return Written(ids if ends else [*ids, *model.special.end[:1]], target, "end")


def _longest(model: Model) -> int:
    return model.longest if isinstance(model, GPT) else longest(model)


def _unreadable(message: str) -> Refusal:
    return Refusal(422, "text", message)
