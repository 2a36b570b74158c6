"""What is learnt from: a text, and what it should become."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pair:
    """A source and all targets that are right for it: to learn from each of them, to be measured against all."""

    source: str
    targets: tuple[str, ...]
