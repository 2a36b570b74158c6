"""Which side of a translation is the source."""

from ...layers.check import one_of
from .pair import Pair


def ordered(english: str, german: str, source: str, target: str) -> tuple[str, str]:
    """The two sides, source first."""
    texts = {"en": english, "de": german}
    one_of("source", source, texts)
    one_of("target", target, texts)
    if source == target:
        raise ValueError(f'source and target are both "{source}"; a translation has two languages')
    return texts[source], texts[target]


def grouped(sides: list[tuple[str, str]]) -> list[Pair]:
    """Every source once, with all its targets."""
    targets: dict[str, dict[str, None]] = {}
    for source, target in sides:
        targets.setdefault(source, {})[target] = None
    return [Pair(source, tuple(several)) for source, several in targets.items()]
