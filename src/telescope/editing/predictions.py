"""Next-token distributions: compare two of them, and read the likeliest tokens."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class LikelyToken(NamedTuple):
    """A token that may come next, and its probability."""

    token: int
    probability: float


def divergence(
    before: Float[Tensor, "*place vocabulary"], after: Float[Tensor, "*place vocabulary"]
) -> Float[Tensor, "*place"]:
    """Return KL(before ‖ after) of the next token's distributions at each place, in nats.

    Both are log-probabilities. Rounding may leave a number below 0 where the two are equal.
    """
    return (before.exp() * (before - after)).sum(-1)


def likeliest(logs: Float[Tensor, " vocabulary"], count: int) -> list[LikelyToken]:
    """Return the likeliest tokens of one distribution of log-probabilities, the likeliest first."""
    found = logs.topk(count)
    pairs = zip(found.indices.tolist(), found.values.exp().tolist(), strict=True)
    return [LikelyToken(token, probability) for token, probability in pairs]


def log_probability(logs: Float[Tensor, "token vocabulary"], tokens: Sequence[int]) -> float:
    """Return the log-probability of tokens that follow each other, such as those of a word.

    Row k of `logs` has the log-probabilities of the whole vocabulary at the place of the k-th
    token.
    """
    chosen = torch.tensor(list(tokens), device=logs.device)
    return float(logs.gather(-1, chosen[:, None]).sum())
