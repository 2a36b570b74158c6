"""Run a model on a sentence, or translate it, keeping every step of every attention."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

import torch
from tokenizers import Tokenizer

from ..decoding import Written
from ..decoding.writers import start_token
from ..interception.watch import watch
from ..models import GPT, Encoder, Model, Transformer
from ..tasks.explaining.sentence_views import (
    SentenceAttention,
    source_words,
    translate_whole,
    watch_translation,
    written_words,
)
from ..tasks.writing.rewrite import encode_text, max_source_tokens
from ..traces.whole_words import Words
from .output import Output, StackInputs
from .requests import Refusal
from .run import AttentionView, Decode, Run

LONGEST_SENTENCE = 4096  # tokens of a typed text; `telescope watch` takes longer ones
LAST_LATIN = 0x24F  # the code of the last Latin letter


def run_name(model: str, text: str, target: str | None) -> str:
    """Return the name of a sentence's run: a hash, so that the same sentence is the same run."""
    for what, given in (("text", text), ("model", model), ("target", target or "")):
        if (half := re.search("[\ud800-\udfff]", given)) is not None:
            message = (
                f"the {what} has {half[0]!r} at {half.start()}, half of a character (a lone "
                "surrogate)"
            )
            raise Refusal(400, "bad-json", message)
    return "s" + sha256("\0".join((model, text, target or "")).encode()).hexdigest()[:12]


def read(model: Model, model_name: str, text: str, target: str | None = None) -> Run:
    """Run a model on a text and return the run; a translator writes `target`, or without it its own
    translation.
    """
    if model.tokenizer is None:
        raise _unreadable(f"{model_name} has no tokenizer, so it cannot read text")
    try:
        with _no_padding_or_truncation(model.tokenizer):
            views, written, output = _attention_views(model, text, target)
    except ValueError as problem:
        raise _unreadable(str(problem)) from None
    name = run_name(model_name, text, target)
    return Run(
        name,
        name,
        "sentence",
        text,
        model_name,
        "steps",
        tuple(views),
        text,
        written,
        notice=_notice(model, text),
        output=output,
    )


Seen = tuple[list[AttentionView], str | None, Output | None]


def _attention_views(model: Model, text: str, target: str | None) -> Seen:
    """Return a view of each attention, the text that was written, and the output; ValueError for
    what cannot be run.
    """
    assert model.tokenizer is not None
    ids = encode_text(model, text)
    if not text.strip() or not ids:
        raise ValueError("the text has no words")
    own_limit = model.longest if isinstance(model, GPT) else max_source_tokens(model)
    most = min(LONGEST_SENTENCE, own_limit)
    if len(ids) > most:
        raise ValueError(f"the text has {len(ids):,} tokens; at most {most:,} can be read at once")
    if isinstance(model, Transformer):
        wrote = translate_whole(model, text) if target is None else _forced(model, target)
        if len(wrote.ids) > most:
            raise ValueError(
                f"the target has {len(wrote.ids):,} tokens; at most {most:,} can be written at once"
            )
        decode = model.tokenizer.decode
        stacks = watch_translation(model, text, wrote)
        read = [start_token(model), *wrote.ids[:-1]]
        sides = (StackInputs.of_text(model, ids), StackInputs.of_text(model, read, "target"), None)
        read_by = zip(stacks, sides, strict=True)
        views = [
            view for stack, inputs in read_by for view in _views_of(stack, model, decode, inputs)
        ]
        return views, wrote.text, Output.of_translation(model, ids, wrote.ids, stacks.cross.rows)
    if target is not None:
        raise ValueError(f"a {type(model).__name__} does not write, so it takes no target")
    if not isinstance(model, GPT | Encoder):
        raise ValueError(
            f"a {type(model).__name__} cannot be explored by itself; a Transformer, GPT or Encoder "
            "can"
        )
    with torch.no_grad(), watch(model, keep="steps", also="norms") as recording:
        model(torch.tensor([ids], device=next(model.parameters()).device))
    read_words: Words = (
        source_words(model, text) if isinstance(model, Encoder) else written_words(model, ids)
    )
    seen = SentenceAttention(read_words, read_words, tuple(recording.values()))
    views = _views_of(seen, model, model.tokenizer.decode, StackInputs.of_text(model, ids))
    return views, None, Output.of_gpt(model, ids) if isinstance(model, GPT) else None


@contextmanager
def _no_padding_or_truncation(tokenizer: Tokenizer) -> Iterator[None]:
    """Switch off the padding and truncation that a tokenizer of Hugging Face may have set, and
    restore them after.
    """
    padding = tokenizer.padding
    truncation = tokenizer.truncation
    tokenizer.no_padding()
    tokenizer.no_truncation()
    try:
        yield
    finally:
        if padding is not None:
            tokenizer.enable_padding(**padding)
        if truncation is not None:
            tokenizer.enable_truncation(**truncation)


def _views_of(
    stack: SentenceAttention, model: Model, decode: Decode, inputs: StackInputs | None
) -> list[AttentionView]:
    """Return a view of each layer of a stack; `inputs` are what its first block reads."""
    modules = dict(model.named_modules())
    return [
        AttentionView(
            layer.name,
            layer.call,
            decode,
            stack.rows,
            stack.columns,
            block=modules.get(layer.name.rpartition(".")[0]),
            inputs=inputs,
        )
        for layer in stack.layers
    ]


def _forced(model: Transformer, target: str) -> Written:
    """Return a given target as if the model had written it, with an end token."""
    if not target.strip():
        raise ValueError("the target has no words")
    ids = encode_text(model, target)
    ends = bool(ids) and ids[-1] in model.special.end
    return Written(ids if ends else [*ids, *model.special.end[:1]], target, "end")


def _notice(model: Model, text: str) -> str | None:
    """Return a warning for a text in a script that the model has hardly read: it falls apart into
    single characters.
    """
    letters = sum(character.isalpha() for character in text)
    foreign = sum(character.isalpha() and ord(character) > LAST_LATIN for character in text)
    pieces = len(encode_text(model, text))
    if foreign * 2 <= letters or pieces * 5 < letters * 4:
        return None
    return (
        f"This model has hardly read this script: {letters} letters became {pieces} pieces. What "
        "it writes about them, "
        "and where it looks, means little."
    )


def _unreadable(message: str) -> Refusal:
    return Refusal(422, "text", message)
