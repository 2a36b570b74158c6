"""Checks of the exercises on training: the loss of the next token, and the commonest answer as a
baseline.
"""

from math import isnan, log

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .calling import Solution, WrongAnswer, call, describe, passed
from .comparing import Case, Cases, exercise
from .material import normal


@exercise("next_token_loss(logits, ids)", "agrees with the loss of ts.models.GPT")
def next_token_loss() -> Cases:
    """Check next_token_loss(logits, ids): the mean of -ln p of each token but the first, by the
    logits before it.
    """
    logits = normal(6, 9, seed=2)
    ids = torch.tensor([3, 1, 4, 1, 5, 8])
    guesses = logits[:-1]
    right = cross_entropy(guesses, ids[1:])
    chances = guesses.softmax(-1).gather(1, ids[1:, None])
    yield Case(
        (logits, ids),
        right,
        {
            "each token is compared with the logits at its own place; those at place i guess "
            "token i + 1: logits[:-1] and ids[1:]": cross_entropy(logits, ids),
            "the logits are compared with the token before; those at place i guess token i + 1: "
            "logits[:-1] and ids[1:]": cross_entropy(logits[1:], ids[:-1]),
            "the last place is compared with the first token; it has no next token: leave it "
            "out": cross_entropy(logits, ids.roll(-1)),
            "the losses are summed; return their mean": right * len(guesses),
            "the sum is divided by n; there are n - 1 guesses": right * len(guesses) / len(ids),
            "this is one number for each place; return their mean": cross_entropy(
                guesses, ids[1:], reduction="none"
            ),
            "this is ln p, below 0; the loss is -ln p": -right,
            "this is in bits; use the natural logarithm": right / log(2),
            "softmax is applied twice: cross_entropy takes logits": cross_entropy(
                guesses.softmax(-1), ids[1:]
            ),
            "this is the mean probability; take -ln of each first": chances.mean(),
            "this is the accuracy, how often the likeliest token is right; the loss is -ln p of "
            "the right one": (guesses.argmax(-1) == ids[1:]).float().mean(),
            "this is the perplexity, exp of the loss; return the loss": right.exp(),
            "softmax runs over the places; it runs over the vocabulary, dim=-1": (
                -guesses.log_softmax(0).gather(1, ids[1:, None]).mean()
            ),
            "this is the last guess alone; return the mean of all": cross_entropy(
                guesses[-1:], ids[-1:]
            ),
            "this is -ln of the mean probability; take -ln of each first, then the mean": (
                -chances.mean().log()
            ),
            "the logits are not normalised: take log_softmax of them first": -guesses.gather(
                1, ids[1:, None]
            ).mean(),
        },
    )


def baseline(function: Solution) -> None:
    """Check baseline(answers): the share of the answer that is given most often."""
    cases: tuple[tuple[list[str], float], ...] = (
        # No usual mistake gives the same number as another one here.
        (["Oslo"] * 6 + ["Rome"] * 7 + ["Cairo"] * 3 + ["Paris"] * 3 + ["Lima"] * 4, 7 / 23),
        (["Lima", "Oslo", "Oslo", "Rome", "Oslo"], 0.6),
        (["Lima"], 1.0),
        (["Rome", "Oslo", "Lima", "Cairo", "Paris"], 0.2),
    )
    for answers, right in cases:
        found = call("baseline(answers)", function, answers)
        if isinstance(found, Tensor) and found.ndim == 0 and not found.is_complex():
            found = found.item()
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise WrongAnswer(
                f"baseline should return a number from 0 to 1, and returned {describe(found)}"
            )
        if isnan(found) or abs(found - right) > 1e-6:
            why = _about_share(answers, found)
            each = [f"{answers.count(word)} {word}" for word in dict.fromkeys(answers)]
            counts = ", ".join(each)
            raise WrongAnswer(
                f"baseline is {found:.4g} where answers are {counts}, and should be {right:.4g}: "
                f"{why}"
            )
    passed("baseline", "what a model must beat before it can be said to know anything")


def _about_share(answers: list[str], found: float) -> str:
    """Return what is wrong with a share."""
    total = len(answers)
    kinds = len(set(answers))
    counts = [answers.count(answer) for answer in answers]
    largest = max(counts)
    known = {
        largest: "this is a count; divide it by the number of answers",
        100 * largest / total: "this is in percent; return a share, from 0 to 1",
        1 / kinds: f"a blind guess hits 1 of {kinds} kinds; the commonest answer may hit more",
        largest / kinds: "divide by the number of answers, not by that of different ones",
        1
        - largest
        / total: "this is how often the commonest answer is wrong; return how often right",
        min(counts) / total: "this is the share of the rarest answer; take the largest count",
        counts[0] / total: "this is the share of the first answer; take that of the commonest",
        counts[-1] / total: "this is the share of the last answer; take that of the commonest",
        kinds / total: "this is how many different answers there are; count the commonest one",
        total / largest: "the fraction is upside down; divide the count by the number of answers",
        1
        / total: "this is the share of a single answer; count how often the commonest stands there",
        float(largest // total): "`//` leaves out the fraction; divide by /",
    }
    for share, sentence in known.items():
        if abs(found - share) < 1e-6:
            return sentence
    return "count each answer, take the largest count, and divide it by the number of answers"
