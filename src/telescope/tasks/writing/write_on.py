"""Continue a text with a GPT: sampled, at any length, or by beam search."""

from collections.abc import Iterator
from typing import Any

from ...decoding import Token, Written, beam, stream
from ...models import GPT, Model
from .rewrite import encode_text


def stream_text(
    model: Model, prompt: str, *, max_new_tokens: int, seed: int = 0, **sampling: Any
) -> Iterator[Token]:
    """Yield the tokens that continue a prompt, as soon as each is computed; `sampling` goes to
    `decoding.stream`.

    Where the model's positions are used up, it goes on from the later half of its context.
    Arguments are checked when this function is called, not at the first token.
    """
    gpt = _check_gpt(model)
    context = encode_prompt(model, prompt)

    def next_stream() -> Iterator[Token]:
        limit = _tokens_that_fit(gpt, context, max_new_tokens)
        return stream(gpt, context, max_new_tokens=limit, seed=seed, **sampling)

    def continue_streams(tokens: Iterator[Token]) -> Iterator[Token]:
        nonlocal context, max_new_tokens, seed
        while True:
            for token in tokens:
                yield token
                context = [*context, token.id]
                max_new_tokens = max_new_tokens - 1
            if max_new_tokens <= 0 or context[-1] in gpt.special.end:
                return
            context = _shorten(gpt, context)
            seed = seed + 1  # with one seed, equal contexts would continue alike
            tokens = next_stream()

    context = _shorten(gpt, context)
    return continue_streams(next_stream())


def sample_text(model: Model, prompt: str, **options: Any) -> Written:
    """Return what `stream_text` yields, with the same options, as one text."""
    tokens = list(stream_text(model, prompt, **options))
    ended = bool(tokens) and tokens[-1].id in model.special.end
    text = "".join(token.text or "" for token in tokens)
    return Written([token.id for token in tokens], text, "end" if ended else "length")


def search_text(
    model: Model, prompt: str, *, max_new_tokens: int, beams: int, n_best: int
) -> list[Written]:
    """Return the `n_best` likeliest continuations by beam search, best first, at most as long as
    positions allow.
    """
    gpt = _check_gpt(model)
    context = _shorten(gpt, encode_prompt(model, prompt))
    limit = _tokens_that_fit(gpt, context, max_new_tokens)
    return beam(gpt, [context], beams=beams, n_best=n_best, max_new_tokens=limit)[0]


def encode_prompt(model: Model, prompt: str) -> list[int]:
    """Return the token ids of a prompt; for an empty prompt, the model's start token or a line
    break.
    """
    if model.tokenizer is None:
        raise ValueError(
            "the model has no tokenizer, so it reads no text; a tokenizer.json in its folder is one"
        )
    start = model.special.start
    ids = encode_text(model, prompt) or ([start] if start is not None else encode_text(model, "\n"))
    if not ids:
        raise ValueError(
            "the tokenizer makes no token of the prompt; there must be one to go on from"
        )
    return ids


def _shorten(model: GPT, context: list[int]) -> list[int]:
    """Return the context, or half as many of its last tokens as the model has positions where it is
    too long.
    """
    return context if len(context) <= model.longest else context[-max(1, model.longest // 2) :]


def _tokens_that_fit(model: GPT, context: list[int], max_new_tokens: int) -> int:
    """Return how many tokens can be written: the last one is not read again, so it needs no
    position.
    """
    return min(max_new_tokens, model.longest + 1 - len(context))


def _check_gpt(model: Model) -> GPT:
    if not isinstance(model, GPT):
        raise ValueError(f"a {type(model).__name__} does not continue a text; a GPT does")
    return model
