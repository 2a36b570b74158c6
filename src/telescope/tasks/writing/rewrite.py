"""One text made of another by an encoder-decoder: a translation, a summary. Many texts at once, of any length."""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from ...decoding import Written, beam
from ...models import LuongTranslator, Model, Transformer

BATCH = 32
LONGEST = 256  # tokens of a part, where a model has no positions to say it

Fits = Callable[[str], bool]
Cut = Callable[[str, Fits], list[str]]


@dataclass(frozen=True)
class RewrittenPart:
    """What was read at once, and the texts that were made of it, the best first."""

    source: str
    found: list[Written]

    @property
    def text(self) -> str:
        return self.found[0].text or ""


def rewrite(
    model: Model, texts: Sequence[str], cut: Cut, *, beams: int = 5, n_best: int = 1
) -> list[list[RewrittenPart]]:
    """The parts into which each text was `cut`, rewritten. What becomes of a part depends on nothing but itself."""
    must_rewrite(model)
    parts = [cut(text, lambda part: len(tokens(model, part)) <= longest(model)) for text in texts]
    flat = [part for some in parts for part in some]
    ids = [tokens(model, part) for part in flat]
    alike: dict[int, list[int]] = defaultdict(list)
    for i, source in enumerate(ids):
        alike[_room(model, len(source))].append(i)
    found: dict[int, list[Written]] = {}
    for room, numbers in alike.items():
        for start in range(0, len(numbers), BATCH):
            batch = numbers[start : start + BATCH]
            written = beam(model, [ids[i] for i in batch], beams=beams, n_best=n_best, max_new_tokens=room)
            found |= zip(batch, [[_stripped(one) for one in best] for best in written], strict=True)
    rewritten = (RewrittenPart(part, found[i]) for i, part in enumerate(flat))
    return [list(islice(rewritten, len(some))) for some in parts]


def tokens(model: Model, text: str) -> list[int]:
    assert model.tokenizer is not None
    try:
        ids: list[int] = model.tokenizer.encode(text).ids
    except Exception as problem:  # the tokenizers library raises nothing narrower
        raise ValueError(f"the model's tokenizer does not know all characters of the text ({problem})") from None
    return ids


def longest(model: Model) -> int:
    """How many tokens it reads at once: as many as it has positions. (Sinusoidal ones go on, but were not learned.)"""
    positions: int = model.config.to_dict().get("max_positions", LONGEST)
    return positions


def must_rewrite(model: Model) -> None:
    if not isinstance(model, Transformer | LuongTranslator):
        raise ValueError(
            f"a {type(model).__name__} does not make one text of another; a Transformer or a LuongTranslator does"
        )
    if model.tokenizer is None:
        raise ValueError("the model has no tokenizer, so it reads no text; a tokenizer.json in its folder is one")


def _stripped(written: Written) -> Written:
    """Without the space that a tokenizer puts before a first word."""
    return replace(written, text=(written.text or "").strip())


def _room(model: Model, source: int) -> int:
    """Twice as many tokens as the source has, and some; in steps, so that many parts have the same."""
    return min(longest(model), -(-(2 * source + 8) // 16) * 16)


END = re.compile(r"[.!?…。！？]+[\"'”’»)\]]*(?=\s)|[。！？]")
# After which a full stop ends no sentence: titles, abbreviations, initials, and numbers of days.
GOES_ON = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|vs|cf|Nr|Hr|Fr|bzw|ca|evtl|e\.g|i\.e|z|d|[A-HJ-Z]|\d\d?)\.$")


def sentences(text: str) -> list[str]:
    """The sentences of a text, without the space between them."""
    found, start = [], 0
    for end in END.finditer(text):
        if GOES_ON.search(text[start : end.end()]) or text[end.end() :].lstrip()[:1].islower():
            continue
        found.append(text[start : end.end()].strip())
        start = end.end()
    return [sentence for sentence in (*found, text[start:].strip()) if sentence]


def apart(text: str, fits: Fits) -> list[str]:
    """Each sentence by itself, in pieces where it does not fit."""
    return [piece for sentence in sentences(text) for piece in _pieces(sentence, fits)]


def together(text: str, fits: Fits) -> list[str]:
    """The whole text where it fits, otherwise as many sentences together as do."""
    if fits(text.strip()):
        return [text.strip()] if text.strip() else []
    parts: list[str] = []
    for piece in apart(text, fits):
        if parts and fits(f"{parts[-1]} {piece}"):
            parts[-1] += f" {piece}"
        else:
            parts.append(piece)
    return parts


def _pieces(sentence: str, fits: Fits) -> list[str]:
    """Halves, and halves of halves: cut behind a comma or the like if one is near the middle, else between words."""
    if fits(sentence) or len(sentence) < 2:
        return [sentence]
    middle = len(sentence) // 2
    cuts = [at.end() for at in re.finditer(r"[,;:–—]\s", sentence) if abs(at.end() - middle) < middle // 2]
    cuts = cuts or [at.end() for at in re.finditer(r"\s", sentence)] or [middle]
    cut = min(cuts, key=lambda at: abs(at - middle))
    return [piece for half in (sentence[:cut], sentence[cut:]) for piece in _pieces(half.strip(), fits)]
