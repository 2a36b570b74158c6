"""Write texts of any length with a model: translations and summaries with an encoder-decoder, in
batches (`rewrite`), continuations with a GPT (`stream_text`, `sample_text`, `search_text`).
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from ..decoding import Token, Written, beam, stream
from ..files import panics_as_errors
from ..models import GPT, LuongTranslator, Model, Transformer

BATCH = 32  # parts that are written at once
LONGEST = 256  # most tokens of a part, for a model whose config has no max_positions

Fits = Callable[[str], bool]  # whether the model can read a part at once
Split = Callable[[str, Fits], list[str]]  # cuts a text into parts that fit


@dataclass(frozen=True)
class RewrittenPart:
    """A part of a text that the model read at once, and the texts that the model wrote of it, the
    best first.
    """

    source: str
    found: list[Written]

    @property
    def text(self) -> str:
        return self.found[0].text or ""


def rewrite(
    model: Model, texts: Sequence[str], split: Split, *, beams: int = 5, n_best: int = 1
) -> list[list[RewrittenPart]]:
    """Return the parts of each text, each with the `n_best` texts that beam search wrote of it.

    `split` cuts a text into parts that fit the model. The result for a part depends on that part
    alone, not on the other parts of its batch.
    """
    check_rewrites(model)
    longest = max_source_tokens(model)

    def fits(part: str) -> bool:
        return len(encode_text(model, part)) <= longest

    # Cut all texts first: parts of different texts share batches.
    parts = [split(text, fits) for text in texts]
    flat = [part for text_parts in parts for part in text_parts]
    ids = [encode_text(model, part) for part in flat]

    # Parts of one batch are written with one limit: twice the length of the source and a few more,
    # in steps of 16 so that many parts share a batch.
    same_limit: dict[int, list[int]] = defaultdict(list)
    for i, source in enumerate(ids):
        limit = -(-(2 * len(source) + 8) // 16) * 16
        same_limit[min(longest, limit)].append(i)
    found: dict[int, list[Written]] = {}
    for limit, indices in same_limit.items():
        for start in range(0, len(indices), BATCH):
            batch = indices[start : start + BATCH]
            written = beam(
                model, [ids[i] for i in batch], beams=beams, n_best=n_best, max_new_tokens=limit
            )
            # A tokenizer puts a space before the first word.
            for i, best in zip(batch, written, strict=True):
                found[i] = [replace(one, text=(one.text or "").strip()) for one in best]

    # Back to the parts of each text.
    rewritten = (RewrittenPart(part, found[i]) for i, part in enumerate(flat))
    return [list(islice(rewritten, len(text_parts))) for text_parts in parts]


def check_rewrites(model: Model) -> None:
    """Raise a ValueError for a model that cannot write one text from another, or that has no
    tokenizer.
    """
    if not isinstance(model, Transformer | LuongTranslator):
        raise ValueError(
            f"a {type(model).__name__} does not make one text of another; a Transformer or a "
            "LuongTranslator does"
        )
    _check_tokenizer(model)


def _check_tokenizer(model: Model) -> None:
    if model.tokenizer is None:
        raise ValueError(
            "the model has no tokenizer, so it reads no text; a tokenizer.json in its folder is one"
        )


def encode_text(model: Model, text: str) -> list[int]:
    """Return the token ids of a text; raise a ValueError where the tokenizer cannot encode it."""
    assert model.tokenizer is not None
    try:
        with panics_as_errors("it fails"):
            return list(model.tokenizer.encode(text).ids)
    except Exception as problem:  # the tokenizers library raises nothing narrower
        raise ValueError(
            f"the model's tokenizer does not know all characters of the text ({problem})"
        ) from None


def max_source_tokens(model: Model) -> int:
    """Return how many tokens the model reads at once: the number of its positions.

    Sinusoidal positions can be computed beyond that number, but no such position occurred in
    training.
    """
    return int(model.config.to_dict().get("max_positions", LONGEST))


# ---------------------------------------------------------------------------------- parts of a text

# Signs that end a sentence, and what closes after them, before a space; 。！？ need none.
END = re.compile(r"[.!?…。！？]+[\"'”’»)\]]*(?=\s)|[。！？]")
# A full stop after these ends no sentence: titles, abbreviations, initials, and numbers of days.
GOES_ON = re.compile(
    r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|vs|cf|Nr|Hr|Fr|bzw|ca|evtl|e\.g|i\.e|z|d|[A-HJ-Z]|\d\d?)\.$"
)


def find_sentences(text: str) -> list[str]:
    """Return the sentences of a text, without the space between them."""
    found = []
    start = 0
    for end in END.finditer(text):
        # A small letter after the full stop tells that the sentence goes on.
        if GOES_ON.search(text[start : end.end()]) or text[end.end() :].lstrip()[:1].islower():
            continue
        found.append(text[start : end.end()].strip())
        start = end.end()
    return [sentence for sentence in (*found, text[start:].strip()) if sentence]


def split_by_sentence(text: str, fits: Fits) -> list[str]:
    """Return each sentence as one part; a sentence that does not fit, in pieces."""
    return [piece for sentence in find_sentences(text) for piece in _halve(sentence, fits)]


def split_by_length(text: str, fits: Fits) -> list[str]:
    """Return the whole text where it fits, otherwise parts of as many sentences as fit together."""
    whole = text.strip()
    if fits(whole):
        return [whole] if whole else []
    parts: list[str] = []
    # Add to the last part as long as both fit together.
    for piece in split_by_sentence(text, fits):
        if parts and fits(f"{parts[-1]} {piece}"):
            parts[-1] += f" {piece}"
        else:
            parts.append(piece)
    return parts


def do_not_split(text: str, fits: Fits) -> list[str]:
    """Return the whole text as one part, or no part where it does not fit."""
    return [text] if fits(text) else []


def _halve(sentence: str, fits: Fits) -> list[str]:
    """Cut a sentence in halves until each piece fits: after a comma or the like near the middle,
    else between words.
    """
    if fits(sentence) or len(sentence) < 2:
        return [sentence]
    # A pause in the middle half, else a space, else between two letters.
    middle = len(sentence) // 2
    pauses = [match.end() for match in re.finditer(r"[,;:–—]\s", sentence)]
    cuts = [pause for pause in pauses if abs(pause - middle) < middle // 2]
    cuts = cuts or [match.end() for match in re.finditer(r"\s", sentence)] or [middle]
    cut = min(cuts, key=lambda position: abs(position - middle))
    return [*_halve(sentence[:cut].strip(), fits), *_halve(sentence[cut:].strip(), fits)]


# -------------------------------------------------------------------------------- continuing a text


def stream_text(
    model: Model, prompt: str, *, max_new_tokens: int, seed: int = 0, **sampling: Any
) -> Iterator[Token]:
    """Yield the tokens that continue a prompt, as soon as each is computed; `sampling` goes to
    `decoding.stream`.

    Where the model's positions are used up, it goes on from the later half of its context.
    Arguments are checked when this function is called, not at the first token.
    """
    gpt = _check_gpt(model)
    context = _shorten(gpt, encode_prompt(model, prompt))

    def next_stream() -> Iterator[Token]:
        limit = _tokens_that_fit(gpt, context, max_new_tokens)
        return stream(gpt, context, max_new_tokens=limit, seed=seed, **sampling)

    def continue_streams(tokens: Iterator[Token]) -> Iterator[Token]:
        nonlocal context, max_new_tokens, seed
        while True:
            for token in tokens:
                yield token
                # The next stream goes on from what was written.
                context = [*context, token.id]
                max_new_tokens -= 1
            if max_new_tokens <= 0 or context[-1] in gpt.special.end:
                return
            # The positions are used up: go on from the later half.
            context = _shorten(gpt, context)
            seed += 1  # with one seed, equal contexts would continue alike
            tokens = next_stream()

    # The first stream is made here, not in the generator, so that its arguments are checked now.
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
    _check_tokenizer(model)
    start = model.special.start
    # A GPT predicts from at least one token.
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
    # The other half of the positions is for what will be written.
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
