"""What usual mistakes would give: an exercise's computation with a switch for each step that
students get wrong, run with one switch after another, and with two at once.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

Mistakes = Mapping[str, Any] | Callable[[], Iterator[tuple[str, Any]]]


PAIR = "two mistakes: "


class Slips:
    """The results of usual mistakes, each with the sentence that says what to change.

    compute   the right computation; a keyword changes one of its steps
    switches  keywords of `compute` for each mistake, by its sentence
    others    results of mistakes that are no switch, by their sentence
    pairs     whether to combine two mistakes that use different keywords; or the keywords and
              values of those to combine
    """

    def __init__(
        self,
        compute: Callable[..., Any],
        switches: Mapping[str, Mapping[str, Any]],
        others: Mapping[str, Any] | None = None,
        *,
        pairs: bool | Collection[tuple[str, Any]] = True,
    ):
        self.compute = compute
        self.switches = switches
        self.others = others or {}
        self.pairs = pairs

    def __call__(self) -> Iterator[tuple[str, Any]]:
        """Yield sentences and results: single mistakes first, since they are more likely."""
        yield from self.others.items()
        for sentence, changes in self.switches.items():
            yield from self._with(sentence, changes)
        often = [
            (sentence, changes)
            for sentence, changes in self.switches.items()
            if self.pairs is True or any(item in (self.pairs or ()) for item in changes.items())
        ]
        for (one, first), (other, second) in combinations(often, 2):
            # Two ways to get the same step wrong exclude each other.
            if first.keys().isdisjoint(second):
                yield from self._with(f"{PAIR}{one}; and {other}", {**first, **second})

    def _with(self, sentence: str, changes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        with torch.no_grad():
            try:
                yield sentence, self.compute(**changes)
            # Two changes may need sizes that do not fit; then nobody made both.
            except (RuntimeError, IndexError):
                return


def each(mistakes: Mistakes) -> Iterator[tuple[str, Any]]:
    """Yield the sentences of mistakes and their results."""
    yield from mistakes() if callable(mistakes) else mistakes.items()


def softmaxed(scores: Tensor, how: str = "softmax", axis: int = -1) -> Tensor:
    """Return weights of scores, by softmax or by what is taken for it."""
    match how:
        case "softmax":
            return scores.softmax(axis)
        case "nothing":
            return scores
        case "log":
            return scores.log_softmax(axis)
        case "exp":
            return scores.exp()
        case "twice":
            return scores.softmax(axis).softmax(axis)
        case "everything":
            return scores.exp() / scores.exp().sum((-2, -1), keepdim=True)
        case "sum":
            return scores / scores.sum(axis, keepdim=True)
        case "largest":
            return (scores == scores.amax(axis, keepdim=True)).to(scores.dtype)
        case "even":
            return torch.ones_like(scores) / scores.shape[axis]
        case _:
            raise ValueError(f"{how!r} is not known")


def weights_slips(key: str = "how", axis: str = "axis", rows: str = "queries") -> dict[str, Any]:
    """Return the slips of weights that are made from scores.

    key   keyword of the computation for `softmaxed`'s `how`
    axis  keyword for its axis
    rows  what has a row of weights each
    """
    return {
        f"softmax runs over the {rows}: each row of weights should sum to 1, so use dim=-1": {
            axis: -2
        },
        "the softmax is missing: the scores are not normalised": {key: "nothing"},
        "softmax is taken twice": {key: "twice"},
        "these are logarithms of the weights: log_softmax instead of softmax": {key: "log"},
        "exp is not normalised: divide each row by its sum, so that it sums to 1": {key: "exp"},
        "exp is divided by one sum of all numbers; each row has its own sum": {key: "everything"},
        "the scores are divided by their sum; this exercise wants softmax": {key: "sum"},
        "only the largest score counts; softmax gives every key a weight": {key: "largest"},
        "every key gets the same weight; the weights come from the scores": {key: "even"},
    }
