"""A text written on by a GPT: drawn, for as long as one likes, or searched for."""

from collections.abc import Iterator
from typing import Any

from ..decoding import Token, Written, beam, stream
from ..models import GPT, Model
from .rewrite import tokens


def write_on(model: Model, prompt: str, *, max_new_tokens: int, seed: int = 0, **how: Any) -> Iterator[Token]:
    """Token by token; `how` is that of `stream`. Where its positions end, it goes on from the later half of them."""
    gpt, before = _gpt(model), beginning(model, prompt)

    def stretch() -> Iterator[Token]:
        return stream(gpt, before, max_new_tokens=_room(gpt, before, max_new_tokens), seed=seed, **how)

    def write(tokens: Iterator[Token]) -> Iterator[Token]:
        nonlocal before, max_new_tokens, seed
        while True:
            for token in tokens:
                yield token
                before, max_new_tokens = [*before, token.id], max_new_tokens - 1
            if max_new_tokens <= 0 or before[-1] in gpt.special.end:
                return
            before, seed = _fitting(gpt, before), seed + 1  # with the same dice, what begins alike would go on alike
            tokens = stretch()

    before = _fitting(gpt, before)
    return write(stretch())  # what does not fit is said now, not at the first token


def draw(model: Model, prompt: str, **how: Any) -> Written:
    """The same, all at once."""
    written = list(write_on(model, prompt, **how))
    ended = bool(written) and written[-1].id in model.special.end
    text = "".join(token.text or "" for token in written)
    return Written([token.id for token in written], text, "end" if ended else "length")


def search(model: Model, prompt: str, *, max_new_tokens: int, beams: int, n_best: int) -> list[Written]:
    """The likeliest texts, the best first, as far as there are positions."""
    gpt = _gpt(model)
    before = _fitting(gpt, beginning(model, prompt))
    room = _room(gpt, before, max_new_tokens)
    return beam(gpt, [before], beams=beams, n_best=n_best, max_new_tokens=room)[0]


def beginning(model: Model, prompt: str) -> list[int]:
    """The prompt as tokens; of nothing, the token with which a text starts, or an empty line."""
    if model.tokenizer is None:
        raise ValueError("the model has no tokenizer, so it reads no text; a tokenizer.json in its folder is one")
    start = model.special.start
    ids = tokens(model, prompt) or ([start] if start is not None else tokens(model, "\n"))
    if not ids:
        raise ValueError("the tokenizer makes no token of the prompt; there must be one to go on from")
    return ids


def _fitting(model: GPT, before: list[int]) -> list[int]:
    return before if len(before) <= model.longest else before[-max(1, model.longest // 2) :]


def _room(model: GPT, before: list[int], max_new_tokens: int) -> int:
    """The last token is not read any more, so it needs no position."""
    return min(max_new_tokens, model.longest + 1 - len(before))


def _gpt(model: Model) -> GPT:
    if not isinstance(model, GPT):
        raise ValueError(f"a {type(model).__name__} does not write on; a GPT does")
    return model
