"""What translating and summarising have in common: they are learnt from pairs of texts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from ..decoding import beam, generate
from ..models import Model
from ..models import config as fits
from ..models.config import Config
from ..text.corpora import Pair
from ..text.tokenizer import encode, special
from ..training import Examples, Training, mean_loss, translation
from .recipe import Shape
from .task import Answer, Stage, Work

Ids = list[list[int]]


@dataclass(frozen=True)
class Decoding(Config):
    """[decoding]: how texts are written when a model is measured. While it learns it is greedy, which is quick."""

    beams: int = 1  # 1 is greedy
    length_penalty: float = 1.0
    longest: int = 128  # tokens of a text that is written
    rows: int = 128  # texts that are written at a time
    validated: int = 500  # texts that are written at each validation

    def check(self) -> None:
        fits.at_least_one(self, "beams", "longest", "rows", "validated")


@dataclass(frozen=True)
class Column:
    """Texts as ids: at most `longest` of each, or, of `whole` texts, none that is longer."""

    tokenizer: Tokenizer
    longest: int
    whole: bool

    def encode(self, texts: Sequence[str]) -> Ids:
        """A text that is cut still ends with the id of the end."""
        return [ids if self.whole else cut(ids, self.longest) for ids in encode(self.tokenizer, texts)]

    def takes(self, ids: Sequence[int]) -> bool:
        return len(ids) <= self.longest


def cut(ids: list[int], longest: int) -> list[int]:
    return ids if len(ids) <= longest else [*ids[: longest - 1], ids[-1]]


def examples(pairs: Sequence[Pair], source: Column, target: Column) -> Examples:
    """Every source with each of its targets. A decoder is first given the start, and then its target."""
    start = special(target.tokenizer).start
    assert start is not None
    flat = [(pair.source, text) for pair in pairs for text in pair.targets]
    sources = source.encode([one for one, _ in flat])
    targets = [[start, *ids] for ids in target.encode([other for _, other in flat])]
    both = [it for it in zip(sources, targets, strict=True) if source.takes(it[0]) and target.takes(it[1])]
    return Examples([ids for ids, _ in both], [ids for _, ids in both])


def work(
    shape: Shape,
    settings: Training,
    decoding: Decoding,
    learnt: Sequence[Pair],
    held_out: Sequence[Pair],
    source: Column,
    target: Column,
    better: str,
    figures: Callable[[list[Answer]], dict[str, float]],
) -> Work:
    """A new model, to be trained on what is `learnt` and validated on what is `held_out`, by its loss and by `figures`
    of what it writes."""
    tokenizer = target.tokenizer
    model = shape.build(tokenizer.get_vocab_size(), settings.seed)
    model.tokenizer, model.special = tokenizer, special(tokenizer)
    known = examples(held_out, source, target)
    some = held_out[:: -(-len(held_out) // decoding.validated)]  # of all of it, since a file may be sorted by length

    def validate(model: Model) -> dict[str, float]:
        loss = mean_loss(model, known, translation, settings)
        return {"loss": loss, **figures(answers(model, some, source, decoding, beams=1))}

    return Work(model, {"training": Stage(settings, examples(learnt, source, target), translation, validate, better)})


def answers(
    model: Model, pairs: Sequence[Pair], source: Column, decoding: Decoding, *, beams: int | None = None
) -> list[Answer]:
    """What the model makes of each source, beside what it should be."""
    texts = write(model, source.encode([pair.source for pair in pairs]), decoding, beams or decoding.beams)
    return [
        {"source": pair.source, "prediction": text, "references": list(pair.targets)}
        for pair, text in zip(pairs, texts, strict=True)
    ]


def write(model: Model, sources: Ids, decoding: Decoding, beams: int) -> list[str]:
    """In batches of about the same length, so that little of them is padding."""
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    texts = [""] * len(sources)
    for first in range(0, len(order), decoding.rows):
        some = order[first : first + decoding.rows]
        for i, text in zip(some, _write(model, [sources[i] for i in some], decoding, beams), strict=True):
            texts[i] = text or ""
    return texts


def _write(model: Model, sources: Ids, decoding: Decoding, beams: int) -> list[str | None]:
    if beams == 1:
        return [it.text for it in generate(model, sources, max_new_tokens=decoding.longest, temperature=0)]
    found = beam(model, sources, beams=beams, max_new_tokens=decoding.longest, length_penalty=decoding.length_penalty)
    return [best.text for best, *_ in found]


def predictions(answers: Sequence[Answer]) -> tuple[list[str], list[list[str]]]:
    return [it["prediction"] for it in answers], [it["references"] for it in answers]
