"""Checks of the lesson on softmax: its overflow, its temperature, and the sum in its place."""

from collections.abc import Sequence
from math import log, sqrt
from typing import Any

import torch
from torch import Tensor

from ..attention import Attention, by_sum
from ..traces import trace
from .calling import WrongAnswer, numbers_of, passed
from .comparing import Case, Cases, compare, exercise
from .material import normal
from .slips import Slips, softmaxed


def softmax_by_hand(
    scores: Tensor, how: str = "softmax", axis: int = -1, base: float = 1.0
) -> Tensor:
    """Return softmax along the last axis, with usual mistakes."""
    # Softmax with base b is softmax of scores · ln b.
    scores = scores * base
    plain = scores.softmax(axis)
    match how:
        case "mean":
            return plain * scores.shape[axis]
        case "sigmoid":
            return scores.sigmoid()
        case "relu":
            return scores.relu() / scores.relu().sum(axis, keepdim=True)
        case "absolute":
            return scores.abs() / scores.abs().sum(axis, keepdim=True)
        case "columns":
            powers = (scores - scores.amax(0)).exp()
            return powers / powers.sum(-1, keepdim=True)
        case "two sums":
            powers = (scores - scores.amax(axis, keepdim=True)).exp()
            return powers / scores.exp().sum(axis, keepdim=True)
        case "other sum":
            return (scores - scores.amax(-1, keepdim=True)).exp() / (
                (scores - scores.amax(-1, keepdim=True)).exp().sum(0, keepdim=True)
            )
        case "powers":
            return (scores - scores.amax(axis, keepdim=True)).exp()
        case "one sum":
            powers = (scores - scores.amax(axis, keepdim=True)).exp()
            return powers / powers.sum()
        case "clamped":
            return scores.clamp(max=80).softmax(axis)
        case _:
            return softmaxed(scores, how, axis)


SOFTMAX_SLIPS: dict[str, dict[str, Any]] = {
    "all numbers are divided by one sum; each row has its own, over dim=-1": {"how": "everything"},
    "all numbers are divided by one sum; each row has its own sum, over dim=-1": {"how": "one sum"},
    "the sum runs over the columns; use dim=-1 and keepdim=True": {"axis": 0},
    "the sum runs over the columns, and the largest over dim=-1; use dim=-1 for both": {
        "how": "other sum"
    },
    "the largest of each column is subtracted; subtract that of each row, with dim=-1": {
        "how": "columns"
    },
    "this is exp(scores); divide by its sum over the last axis": {"how": "exp"},
    "the powers are not divided; divide by their sum over the last axis": {"how": "powers"},
    "the powers are divided by their mean; divide by their sum": {"how": "mean"},
    "this is the logarithm of softmax": {"how": "log"},
    "softmax is taken twice": {"how": "twice"},
    "the scores are divided by their sum; exp comes first": {"how": "sum"},
    "the sizes of the scores are divided by their sum; exp comes first, and makes numbers "
    "positive": {"how": "absolute"},
    "ReLU makes numbers positive here; exp does, and keeps the order of those below 0": {
        "how": "relu"
    },
    "this is the sigmoid of each score; softmax divides by the sum of a row": {"how": "sigmoid"},
    "only the largest score of a row counts; softmax gives every score a weight": {
        "how": "largest"
    },
    "the base of the powers is 2; softmax has the base e, as exp": {"base": log(2)},
    "the largest score is subtracted above, and not in the sum below; divide by the sum of the "
    "same powers": {"how": "two sums"},
}
OVERFLOW = (
    "exp(1000) is infinite, and inf / inf is NaN; subtract the largest score of each row first"
)


@exercise("softmax(scores)", "agrees with torch, also for scores of 1000")
def softmax() -> Cases:
    """Check softmax(scores), along the last axis, also where exp overflows."""
    plain = normal(3, 4)
    mistakes = Slips(
        lambda **changes: softmax_by_hand(plain, **changes), SOFTMAX_SLIPS, pairs=False
    )
    yield Case((plain,), plain.softmax(-1), mistakes, weights=True)
    # exp overflows from 89 on in float32.
    large = torch.tensor([[1000.0, 1000.0], [1000.0, 990.0]])
    yield Case(
        (large,),
        large.softmax(-1),
        {
            "large scores are cut off (clamp), so that 1000 and 990 become equal; subtract the "
            "largest of each row": large.clamp(max=80).softmax(-1),
            "NaN is replaced, and the weights of large scores are lost; subtract the largest "
            "score of each row before exp": torch.zeros(2, 2),
        },
        if_nan=OVERFLOW,
        weights=True,
    )
    # One largest score for all rows underflows in a row that is far below it.
    apart = torch.tensor([[1000.0, 999.0], [-1000.0, -1001.0]])
    yield Case(
        (apart,),
        apart.softmax(-1),
        if_nan="a row far below the largest score of all gives 0 / 0; subtract the largest of "
        "each row, with dim=-1 and keepdim=True",
        weights=True,
    )
    # The distance to the mean, or to the smallest, may be large too.
    wide = torch.tensor([[1000.0, 0.0, -1000.0]])
    yield Case(
        (wide,),
        wide.softmax(-1),
        if_nan="exp still overflows: subtract the largest score of each row, not its mean or "
        "its smallest",
        weights=True,
    )


@exercise(
    "with_temperature(scores, temperature)",
    "near 0 the largest score takes all, at a high temperature all are even",
)
def with_temperature() -> Cases:
    """Check with_temperature(scores, temperature): softmax of scores / temperature, also near 0."""
    raw = normal(3, 4)
    for temperature in (0.5, 3.0):

        def compute(
            by: float = temperature,
            how: str = "softmax",
            axis: int = -1,
            end: str = "weights",
            raw: Tensor = raw,
            temperature: float = temperature,
        ) -> Tensor:
            scaled = raw / by
            if end == "weights":
                return softmax_by_hand(scaled, how, axis)
            plain = raw.softmax(-1)
            ends = {
                "after": plain / temperature,
                "of the weights": (plain / temperature).softmax(-1),
                "scores": scaled,
                "whole": (raw // temperature).softmax(-1),
                "exchanged": (temperature / raw).softmax(-1),
                "subtracted": (raw - temperature).softmax(-1),
            }
            return ends[end]

        yield Case(
            (raw, temperature),
            (raw / temperature).softmax(-1),
            Slips(
                compute,
                {
                    "the temperature is multiplied; divide the scores by it, so that a high "
                    "temperature makes the weights even": {"by": 1 / temperature},
                    "the temperature divides the weights, after softmax, and rows no longer sum to "
                    "1; divide the scores, before softmax": {"end": "after"},
                    "the temperature is not used, or cancels: subtracting it, or dividing the "
                    "weights by it and normalising them again, changes nothing; divide the "
                    "scores": {"by": 1.0},
                    "the temperature divides the weights, and softmax is taken twice; divide the "
                    "scores": {"end": "of the weights"},
                    "the scores are divided by the square of the temperature": {
                        "by": temperature**2
                    },
                    "the scores are divided by the root of the temperature": {
                        "by": sqrt(temperature)
                    },
                    "the scores are divided by 1 + temperature; nothing is added": {
                        "by": 1 + temperature
                    },
                    "the scores are divided by //, which gives whole numbers; use /": {
                        "end": "whole"
                    },
                    "temperature and scores are exchanged: the scores are divided by the "
                    "temperature": {"end": "exchanged"},
                    "these are the divided scores; the softmax is missing": {"end": "scores"},
                    **{
                        sentence: changes
                        for sentence, changes in SOFTMAX_SLIPS.items()
                        if "base" not in changes
                    },
                },
            ),
            weights=True,
        )
    # Near 0 the divided scores are large.
    sharp = torch.tensor([[2.0, 1.0, -1.0], [0.0, 3.0, 2.9]])
    yield Case(
        (sharp, 1e-3),
        (sharp / 1e-3).softmax(-1),
        if_nan="near temperature 0 the divided scores overflow exp; subtract the largest of each "
        "row first",
        weights=True,
    )


def negative_weight(row: Sequence[float] | Tensor) -> None:
    """Check three scores whose division by their sum gives a weight below zero or above one."""
    numbers = numbers_of("three", row, "three scores").double()
    if numbers.shape != (3,):
        raise WrongAnswer(
            f"give three scores, as [a, b, c]; these have the shape {tuple(numbers.shape)}"
        )
    if numbers.sum() == 0:
        raise WrongAnswer(
            "the sum of these scores is 0, so that division gives no numbers at all: another "
            "reason for softmax"
        )
    # What the reader should find: a weight outside of 0 to 1.
    weights = numbers / numbers.sum()
    # Weights sum to 1: if none is negative, none is above one.
    if bool((weights >= 0).all()):
        raise WrongAnswer(
            f"the weights are {[round(w, 3) for w in weights.tolist()]}, all from 0 to 1; a score "
            "must have another sign than the sum"
        )
    # Keys of one number, and queries of 1: the scores are the numbers themselves.
    keys = numbers[None, None, None].mT
    steps = trace(torch.ones_like(keys), keys, keys, Attention(scale=1.0, normalize=by_sum))
    compare("by_sum", weights, steps.weights[0, 0, 0])
    passed(
        "scores",
        f"by sum the weights are {[round(w, 3) for w in weights.tolist()]}; no mean of values has "
        "these",
    )
