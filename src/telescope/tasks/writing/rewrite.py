"""Translate or summarise texts of any length with an encoder-decoder model, in batches."""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from ...decoding import Written, beam
from ...files import panics_as_errors
from ...models import LuongTranslator, Model, Transformer

BATCH = 32
LONGEST = 256  # most tokens of a part, for a model whose config has no max_positions

Fits = Callable[[str], bool]
Split = Callable[[str, Fits], list[str]]


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
    parts = [
        split(text, lambda part: len(encode_text(model, part)) <= max_source_tokens(model))
        for text in texts
    ]
    flat = [part for text_parts in parts for part in text_parts]
    ids = [encode_text(model, part) for part in flat]
    same_limit: dict[int, list[int]] = defaultdict(list)
    for i, source in enumerate(ids):
        same_limit[_max_new_tokens(model, len(source))].append(i)
    found: dict[int, list[Written]] = {}
    for limit, indices in same_limit.items():
        for start in range(0, len(indices), BATCH):
            batch = indices[start : start + BATCH]
            written = beam(
                model, [ids[i] for i in batch], beams=beams, n_best=n_best, max_new_tokens=limit
            )
            found |= zip(batch, [[_strip(text) for text in best] for best in written], strict=True)
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
    if model.tokenizer is None:
        raise ValueError(
            "the model has no tokenizer, so it reads no text; a tokenizer.json in its folder is one"
        )


def encode_text(model: Model, text: str) -> list[int]:
    """Return the token ids of a text; raise a ValueError where the tokenizer cannot encode it."""
    assert model.tokenizer is not None
    try:
        with panics_as_errors("it fails"):
            ids: list[int] = model.tokenizer.encode(text).ids
    except Exception as problem:  # the tokenizers library raises nothing narrower
        raise ValueError(
            f"the model's tokenizer does not know all characters of the text ({problem})"
        ) from None
    return ids


def max_source_tokens(model: Model) -> int:
    """Return how many tokens the model reads at once: the number of its positions.

    Sinusoidal positions can be computed beyond that number, but no such position occurred in
    training.
    """
    positions: int = model.config.to_dict().get("max_positions", LONGEST)
    return positions


def _max_new_tokens(model: Model, source: int) -> int:
    """Return twice the length of the source and a few more, in steps of 16 so that many parts share
    a batch.
    """
    return min(max_source_tokens(model), -(-(2 * source + 8) // 16) * 16)


def _strip(written: Written) -> Written:
    """Remove the space that a tokenizer puts before the first word."""
    return replace(written, text=(written.text or "").strip())


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
    if fits(text.strip()):
        return [text.strip()] if text.strip() else []
    parts: list[str] = []
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
    middle = len(sentence) // 2
    cuts = [
        match.end()
        for match in re.finditer(r"[,;:–—]\s", sentence)
        if abs(match.end() - middle) < middle // 2
    ]
    cuts = cuts or [match.end() for match in re.finditer(r"\s", sentence)] or [middle]
    cut = min(cuts, key=lambda position: abs(position - middle))
    return [
        piece for half in (sentence[:cut], sentence[cut:]) for piece in _halve(half.strip(), fits)
    ]
