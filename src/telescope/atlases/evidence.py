"""The texts that an atlas refers to: those in which a habit is strongest, and those that were
skipped.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from .sums import AtlasSums
from .texts import Text

EXCERPT = 48  # tokens of a text that are kept
NAMED = 100  # skipped texts that are named; the others are counted
Place = tuple[int, int]  # the number of a text, and the first token of a sequence within it


class EvidenceTexts:
    """Where the texts come from that are evidence at the moment, and how they begin. Others are
    forgotten.
    """

    def __init__(self) -> None:
        self.found: dict[Place, dict[str, Any]] = {}

    def update(
        self,
        needed: set[Place],
        sources: Mapping[int, Text],
        ids: Mapping[Place, list[int]],
        tokenizer: Any,
    ) -> None:
        """Keep the texts of a shard that are needed, and forget those that are no more."""
        self.found = {place: text for place, text in self.found.items() if place in needed}
        for place in needed & ids.keys():
            text = sources[place[0]]
            tokens = ids[place]
            excerpt = (
                tokenizer.decode(tokens[:EXCERPT])
                if hasattr(tokenizer, "decode")
                else text.text[:200]
            )
            about = {
                "source": text.source,
                "line": text.line,
                "tokens": len(tokens),
                "excerpt": excerpt,
            }
            self.found[place] = about

    def to_json(self) -> list[list[Any]]:
        """Return [text, first token, where it is from] of each."""
        return [[*place, about] for place, about in sorted(self.found.items())]


def places_of(sums: AtlasSums) -> set[Place]:
    """Return the places of all texts that are evidence."""
    found = torch.unique(sums.evidence_text.reshape(-1, 2), dim=0).tolist()
    return {(text, first) for text, first in found if text >= 0}


class Skipped:
    """The texts that could not be read: how many, and the first of them by name."""

    def __init__(self) -> None:
        self.named: dict[int, str] = {}
        self.count = 0
        self._counted: set[int] = set()

    def forget(self) -> None:
        """Forget which texts were counted, once nothing more can be found out about them."""
        self._counted = set()

    def add(self, text: Text, reason: str) -> None:
        """Count a text that could not be read, once however many of its sequences break; name the
        first texts.
        """
        if text.number in self._counted:
            return
        self._counted.add(text.number)
        self.count += 1
        self.named[text.number] = f"{text.where}: {reason}"
        if len(self.named) > NAMED:
            del self.named[max(self.named)]

    def to_json(self) -> dict[str, Any]:
        """Return the number of skipped texts, and the sentences about the first of them."""
        return {
            "count": self.count,
            "texts": [[number, why] for number, why in sorted(self.named.items())],
        }


def merge_skipped(parts: Iterable[Mapping[str, Any]]) -> tuple[int, dict[int, str]]:
    """Return how many texts were skipped in all parts of a corpus, and why the first of them
    were.
    """
    parts = [*parts]
    named = {number: why for part in parts for number, why in part["texts"]}
    return sum(part["count"] for part in parts), {
        number: named[number] for number in sorted(named)[:NAMED]
    }
