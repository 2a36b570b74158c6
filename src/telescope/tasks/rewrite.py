"""One text made of another by an encoder-decoder: a translation, a summary. Many texts at once, of any length."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from ..decoding import Written, beam
from ..models import LuongTranslator, Model, Transformer
from .parts import Fits

BATCH = 32
LONGEST = 256  # tokens of a part, where a model has no positions to say it

Cut = Callable[[str, Fits], list[str]]


@dataclass(frozen=True)
class Part:
    """What was read at once, and the texts that were made of it, the best first."""

    source: str
    found: list[Written]

    @property
    def text(self) -> str:
        return self.found[0].text or ""


def rewrite(model: Model, texts: Sequence[str], cut: Cut, *, beams: int = 5, n_best: int = 1) -> list[list[Part]]:
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
    rewritten = (Part(part, found[i]) for i, part in enumerate(flat))
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
