"""Checks of what stands around a model while it learns: the loss that it lowers, and the answer that
needs no model.
"""

from math import log

import torch
from torch.nn.functional import cross_entropy

from .calling import Solution, WrongAnswer, call, passed
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
        (["Rome", "Oslo", "Rome", "Lima"], 0.5),
        (["Oslo", "Oslo", "Lima", "Rome", "Oslo", "Lima"], 0.5),
        (["Lima"], 1.0),
        (["Rome", "Oslo", "Lima", "Cairo", "Paris"], 0.2),
    )
    for answers, right in cases:
        found = call("baseline(answers)", function, list(answers))
        if not isinstance(found, int | float):
            raise WrongAnswer(
                f"baseline should return a number, and returned a {type(found).__name__}"
            )
        if abs(found - right) > 1e-6:
            raise WrongAnswer(
                f"baseline({answers}) is {found:.4g}, {_reason(answers, found, right)}"
            )
    passed("baseline", "what a model must beat before it can be said to know anything")


def _reason(answers: list[str], found: float, right: float) -> str:
    """Say what is wrong with a share, and what it should be."""
    kinds = len(set(answers))
    if abs(found - right * len(answers)) < 1e-6:
        return f"and should be {right:.4g}: divide the count by the number of answers"
    if abs(found - 100 * right) < 1e-6:
        return f"and should be {right:.4g}: a share, not percent"
    if abs(found - 1 / kinds) < 1e-6:
        return f"and should be {right:.4g}: a blind guess hits 1 of {kinds}, the commonest more"
    if answers.count(answers[0]) / len(answers) == found:
        return f"and should be {right:.4g}: this is the share of the first, not of the commonest"
    return f"and should be {right:.4g}: count each answer, and take the largest count"
