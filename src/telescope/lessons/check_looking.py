"""Checks of the lesson on watching a model: previous-token heads and induction heads."""

import torch
from torch import Tensor

from .comparing import Case, Cases, exercise
from .material import causal_matrix, normal
from .slips import Slips


@exercise("previous_share(weights)", "agrees with recording.heads()")
def previous_share() -> Cases:
    """Check previous_share(weights): the mean weight that queries, from the second on, give to the
    token before.
    """
    # Three heads with random causal weights.
    weights = normal(3, 6, 6).masked_fill(~causal_matrix(6, 6), -torch.inf).softmax(-1)
    # One below the diagonal: the weight of each query on the token before it.
    before = weights.diagonal(-1, 1, 2)
    largest = weights[:, 1:].argmax(-1) == torch.arange(5)
    yield Case(
        (weights,),
        before.mean(-1),
        {
            "this is the weight on the token itself; the one before stands one below the "
            "diagonal": weights.diagonal(0, 1, 2).mean(-1),
            "this is the weight on the next token, one above the diagonal; the one before stands "
            "below": weights.diagonal(1, 1, 2).mean(-1),
            "this is the weight two tokens before; the one before stands one below the "
            "diagonal": weights.diagonal(-2, 1, 2).mean(-1),
            "the first query has no token before it; do not count it": before.sum(-1) / 6,
            "this is the sum over the queries; take their mean": before.sum(-1),
            "all heads are averaged; return one number for each head": before.mean(),
            "the heads are averaged, not the queries; return one number for each head": (
                before.mean(0)
            ),
            "this is one head, the first one; return one number for each head": before[0].mean(),
            "this is the weight of each query; take the mean for each head": before,
            "this is the weight on the first key; the token before stands one below the "
            "diagonal": weights[:, 1:, 0].mean(-1),
            "diagonal(-1) takes heads and queries for its axes; give the last two, diagonal(-1, "
            "1, 2)": weights.diagonal(-1).mean(-1),
            "this is the largest weight on the token before; take the mean": before.amax(-1),
            "this is the median; take the mean": before.median(-1).values,
            "this is the last query alone; take the mean over all": weights[:, -1, -2],
            "this is how often the token before has the largest weight; take the mean of the "
            "weight itself": largest.float().mean(-1),
            "these are the weights on all earlier tokens; take the one before, one below the "
            "diagonal": weights.tril(-1).sum(-1)[:, 1:].mean(-1),
            "this is the mean of all weights, 1/n; take those one below the diagonal": (
                weights.mean((1, 2))
            ),
        },
    )


@exercise("induction_share(weights, ids)", "agrees with recording.heads()")
def induction_share() -> Cases:
    """Check induction_share(weights, ids): to the tokens that followed earlier occurrences of the
    query's token.
    """
    # 7 and 3 come again: their followers, 3 and 5, are what an induction head looks at.
    ids = torch.tensor([7, 3, 5, 7, 3, 7, 9, 3])
    n = len(ids)
    weights = normal(2, n, n, seed=2).masked_fill(~causal_matrix(n, n), -torch.inf).softmax(-1)
    same = ids[:, None] == ids
    # earlier[i, j]: key j is an earlier occurrence of the token of query i.
    earlier = same.tril(-1)

    def shifted(marks: Tensor, by: int) -> Tensor:
        moved = marks.roll(by, 1)
        moved[:, 0 if by == 1 else -1] = False
        return moved

    # The last of the earlier occurrences alone.
    last = earlier & (earlier.flip(1).cumsum(1).flip(1) == 1)
    first = earlier & (earlier.cumsum(1) == 1)
    places = torch.eye(n)[ids % n]
    previous = torch.eye(n).roll(-1, 1)
    previous[0] = 0.0
    later = shifted(same, 1)
    marks = {
        "followers": shifted(earlier, 1),
        "same": earlier,
        "before": shifted(earlier, -1),
        "before, cut": earlier.roll(-1, 1) & (torch.arange(n) > 0),
        "queries": earlier.roll(1, 0) & (torch.arange(n) > 0),
        "all": later,
        "itself": shifted(same.tril(0), 1),
        "last": shifted(last, 1),
        "first": shifted(first, 1),
        "previous": previous,
        "places": places,
    }
    repeats = earlier.any(-1)
    rows = {
        "repeated": repeats,
        "every": torch.ones(n, dtype=torch.bool),
        "not": ~repeats,
        "axis": earlier.any(0),
        "of all": same.sum(-1) > 1,
        "first and repeated": repeats | (torch.arange(n) < 1),
    }

    def compute(
        mark: str = "followers", among: str = "repeated", end: str = "mean", keys: str = "sum"
    ) -> Tensor:
        marked = weights * marks[mark]
        counts = marks[mark].sum(-1).clamp(min=1)
        share = {
            "sum": marked.sum(-1),
            "mean": marked.mean(-1),
            "largest": marked.amax(-1),
            "each": marked.sum(-1) / counts,
        }[keys]
        chosen = share[:, rows[among]]
        return {
            "mean": chosen.mean(-1),
            "sum": chosen.sum(-1),
            "heads": chosen.mean(),
            "each": chosen,
            "last": share[:, -1],
            "over all": chosen.sum(-1) / n,
        }[end]

    yield Case(
        (weights, ids),
        compute(),
        Slips(
            compute,
            {
                "this is the weight on the earlier token itself; induction is the token after it": {
                    "mark": "same"
                },
                "this is the weight on the token before the earlier one; induction is the token "
                "after it": {"mark": "before"},
                "this is the weight on the token before the earlier one; induction is the one "
                "after it": {"mark": "before, cut"},
                "the matrix of earlier places is shifted along the queries, axis 0; shift it along "
                "the keys, axis 1": {"mark": "queries"},
                "later occurrences and the token itself count too; only earlier ones do: "
                "tril(-1)": {
                    "mark": "all",
                    "among": "of all",
                },
                "only the last occurrence counts; sum over every earlier one": {"mark": "last"},
                "only the first occurrence counts; sum over every earlier one": {"mark": "first"},
                "this is the weight on the previous token; look for the follower of an earlier "
                "occurrence": {"mark": "previous"},
                "the ids are used as places; compare ids, and look where they are equal": {
                    "mark": "places"
                },
                "average over the queries whose token occurred before, not over all; a token "
                "itself is no earlier one, tril(-1)": {"among": "every"},
                "average over the queries whose token occurred before, not over all of them": {
                    "end": "over all"
                },
                "these are the queries whose token does not repeat; the choice is exchanged": {
                    "among": "not"
                },
                "any(0) asks for each key; any(-1) says which queries' token occurred before": {
                    "among": "axis"
                },
                "this is the sum over the queries; take their mean": {"end": "sum"},
                "all heads are averaged; return one number for each head": {"end": "heads"},
                "this is the share of each query; take the mean for each head": {"end": "each"},
                "this is the last query alone; average over all whose token occurred before": {
                    "end": "last"
                },
                "the mean over the keys is taken; sum the weights over them": {"keys": "mean"},
                "only the largest weight counts; sum the weights on all followers": {
                    "keys": "largest"
                },
                "the weight is divided by the number of occurrences; sum the weights": {
                    "keys": "each"
                },
            },
        ),
    )
