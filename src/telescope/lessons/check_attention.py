"""Checks of lessons 1 to 7: one attention, its weights, its scale, its geometry, its masks, and
what one head reads.
"""

from collections.abc import Sequence
from math import log, sqrt

import torch
from torch import Tensor

from ..attention import Attention, by_sum
from ..engines import attend
from ..traces import trace
from .material import (
    Case,
    Cases,
    Solution,
    WrongAnswer,
    as_tensor,
    call,
    causal_matrix,
    compare,
    exercise,
    given,
    journey,
    normal,
    passed,
)

# ------------------------------------------------------------------------------- 1  without weights


@exercise("scores", "every dot product agrees")
def scores() -> Cases:
    """Check scores(x): the dot product of every vector with every other."""
    for x in (journey(), normal(4, 5)):
        # Dot products of vectors of length 1 are cosines.
        units = torch.nn.functional.normalize(x, dim=-1)
        cosines = units @ units.mT
        yield Case(
            (x,),
            x @ x.mT,
            {
                "these are cosines; a dot product is not divided by the lengths of the "
                "vectors": cosines,
                "the products are not summed: a score is one number for each pair": x[:, None] * x,
                "these are products of features, (d, d); multiply x by its transpose, not its "
                "transpose by x": x.mT @ x,
            },
        )


@exercise("context", "agrees with ts.trace")
def weight_free() -> Cases:
    """Check context(x): softmax of the scores of x with itself, times x."""
    for x in (journey(), normal(5, 4)):
        # A trace has a batch and heads; both are 1 here.
        steps = trace(x[None, None], x[None, None], x[None, None], Attention(scale=1.0))
        raw = x @ x.mT
        # What usual mistakes give: the wrong axis, the wrong normaliser, a scale.
        over_queries = raw.softmax(0) @ x
        by_their_sum = raw / raw.sum(-1, keepdim=True) @ x
        scaled = (raw / sqrt(x.shape[-1])).softmax(-1) @ x
        yield Case(
            (x,),
            steps.context[0, 0],
            {
                "these are the weights; the context is the weights times x": steps.weights[0, 0],
                "softmax runs over the queries: each row of weights should sum to 1, so use "
                "dim=-1": over_queries,
                "the scores are divided by their sum; this exercise wants softmax": by_their_sum,
                "the scores are divided by √d already; that comes in lesson 4": scaled,
                "the scores are not normalised": raw @ x,
            },
        )


# -------------------------------------------------------------------------------- 2  softmax or sum


@exercise("softmax", "agrees with torch, also for scores of 1000")
def softmax() -> Cases:
    """Check softmax(scores), along the last axis, also where exp overflows."""
    plain = normal(3, 4)
    yield Case(
        (plain,),
        plain.softmax(-1),
        {
            "all numbers are divided by one sum; each row has its own, over dim=-1": plain.exp()
            / plain.exp().sum(),
            "the sum runs over the columns; use dim=-1 and keepdim=True": plain.softmax(0),
            "this is exp(scores); divide by its sum over the last axis": plain.exp(),
            "this is the logarithm of softmax": plain.log_softmax(-1),
        },
    )
    # exp overflows from 89 on in float32.
    large = torch.tensor([[1000.0, 1000.0], [1000.0, 990.0]])
    yield Case(
        (large,),
        large.softmax(-1),
        if_nan="exp(1000) is infinite, and inf / inf is NaN; subtract the largest score of each "
        "row first",
    )


def negative_weight(row: Sequence[float] | Tensor) -> None:
    """Check three scores whose division by their sum gives a weight below zero or above one."""
    given("three", row)
    numbers = torch.as_tensor(row, dtype=torch.float64)
    if numbers.shape != (3,):
        raise WrongAnswer(f"give three scores, not a tensor of shape {tuple(numbers.shape)}")
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
            f"the weights are {weights.tolist()}, all from 0 to 1; a score must have the other sign"
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


# ------------------------------------------------------------------------- 3  queries, keys, values


@exercise("attention", "agrees with ts.attend")
def attention_of() -> Cases:
    """Check attention(x, W_q, W_k, W_v): softmax(q k^T / √d_k) v."""
    # Sizes that are all different in one of the two: a mixed-up one is noticed.
    for n, d, d_k, d_v in ((6, 3, 2, 2), (5, 4, 3, 6)):
        x = normal(n, d)
        W_q = normal(d, d_k, seed=1)
        W_k = normal(d, d_k, seed=2)
        W_v = normal(d, d_v, seed=3)
        q = x @ W_q
        k = x @ W_k
        v = x @ W_v
        # The right answer, and the answers with each number that is taken for √d_k.
        right = attend(q[None, None], k[None, None], v[None, None])[0, 0]
        raw = q @ k.mT
        weights = (raw / sqrt(d_k)).softmax(-1)
        divided_by = {by: (raw / by).softmax(-1) @ v for by in (1, d_k, sqrt(n), sqrt(d))}
        yield Case(
            (x, W_q, W_k, W_v),
            right,
            {
                "the scores are not divided by √d_k": divided_by[1],
                "the scores are divided by d_k; divide by its square root": divided_by[d_k],
                "√ of the number of tokens is used; d_k is the width of a key": divided_by[sqrt(n)],
                "√ of the width of x is used; d_k is the width of a key": divided_by[sqrt(d)],
                "softmax runs over the queries; use dim=-1": (raw / sqrt(d_k)).softmax(0) @ v,
                "keys ask and queries answer: scores are q kᵀ": (
                    (raw.mT / sqrt(d_k)).softmax(-1) @ v
                ),
                "the weights multiply x; they should multiply the values": weights @ x,
                "these are the weights; the context is the weights times the values": weights,
            },
        )


def even_weights(W_k: Tensor) -> None:
    """Check a W_k with which every query of the journey gives every key the same weight."""
    given("W_k", W_k)
    W_k = as_tensor(W_k)
    x = journey()
    # The width of the keys is free: only the rows, the features of x, are given.
    if not isinstance(W_k, Tensor) or W_k.ndim != 2 or W_k.shape[0] != 3:
        raise WrongAnswer(
            f"W_k should be a matrix (3, d_k), and is {tuple(getattr(W_k, 'shape', ()))}"
        )
    # Any queries: if all keys are equal, they all get the same weight, whatever is asked.
    k = (x @ W_k)[None, None]
    weights = trace(normal(1, 1, 6, W_k.shape[1]), k, k).weights[0, 0]
    if not torch.allclose(weights, torch.full_like(weights, 1 / 6), atol=1e-4):
        # The place that is farthest from even, as query and key.
        i, j = divmod(int((weights - 1 / 6).abs().argmax()), 6)
        raise WrongAnswer(
            f"query {i} gives key {j} the weight {weights[i, j]:.3f}, not 1/6: are all keys the "
            "same vector?"
        )
    passed("W_k", "every weight is 1/6: keys that are equal cannot be told apart")


# -------------------------------------------------------------------------------------- 4  why √d_k


def score_variance(function: Solution) -> None:
    """Check variances(q, k): the variance of q·k and of q·k / √d_k, over all pairs."""
    # The variance of q·k is about d_k, that of q·k / √d_k about 1: two widths tell them apart.
    for d_k in (4, 64):
        q = normal(50, d_k)
        k = normal(40, d_k, seed=1)
        steps = trace(q[None, None], k[None, None], k[None, None])
        before, after = steps.score_variance
        found = call("variances", function, q, k)
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise WrongAnswer("variances should return two numbers: before scaling, and after")
        raw = q @ k.mT
        compare(
            "the variance before scaling",
            found[0],
            before,
            {
                "this is a standard deviation; its square is the variance": before**0.5,
                "this is the mean": raw.mean(),
            },
            tolerance=2e-2,  # with or without Bessel's correction
        )
        compare(
            "the variance after scaling",
            found[1],
            after,
            {
                "the scores are divided by d_k; divide by √d_k": before / d_k**2,
                "nothing was scaled": before,
                "the variance was divided by √d_k; divide the scores": before / sqrt(d_k),
            },
            tolerance=2e-2,
        )
    passed("variances", "both agree with ts.trace(...).score_variance")


@exercise("entropy", "agrees with ts.survey, also where a weight is 0")
def entropy() -> Cases:
    """Check entropy(weights): -Σ w ln w of each row, in nats, 0 where a weight is 0."""
    weights = normal(3, 5).softmax(-1)
    # xlogy counts 0 · ln 0 as 0.
    right = -torch.xlogy(weights, weights).sum(-1)
    yield Case(
        (weights,),
        right,
        {
            "the sign is missing: ln w is negative, so take -Σ w ln w": -right,
            "this is in bits; use the natural logarithm": right / log(2),
            "the sum runs over the rows; use dim=-1": -torch.xlogy(weights, weights).sum(0),
            "all rows are summed; return one number for each row": right.sum(),
        },
    )
    # A weight of 0, whose logarithm is infinite.
    certain = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    yield Case(
        (certain,),
        torch.tensor([0.0, log(2)]),
        if_nan="0 · ln 0 is NaN, and should count as 0; torch.xlogy(w, w) does that",
    )


# -------------------------------------------------------------------------------------- 5  geometry


@exercise("cosine", "agrees with torch")
def cosine() -> Cases:
    """Check cosine(a, b), of two vectors."""
    for seed in (0, 1):
        a = normal(4, seed=seed)
        # Another length than a's, so that a missing division is noticed.
        b = 3 * normal(4, seed=seed + 5)
        right = torch.nn.functional.cosine_similarity(a, b, dim=0)
        mistakes = {
            "this is the dot product; divide it by the lengths of both vectors": a @ b,
            "only one length is divided by; divide by the product of both": a @ b / a.norm(),
            "this is the distance": (a - b).norm(),
            "the lengths are squared; take their roots": a @ b / ((a @ a) * (b @ b)),
        }
        yield Case((a, b), right, mistakes)


def towards(x: Tensor) -> None:
    """Check a vector for "bank" that attention moves closer to money than to river."""
    given("bank", x)
    x = as_tensor(x)
    # Two vectors at right angles, of one length.
    money = torch.tensor([2.0, 0.0, 0.0])
    river = torch.tensor([0.0, 2.0, 0.0])
    if not isinstance(x, Tensor) or x.shape != (3,):
        raise WrongAnswer("bank should be a vector of three numbers")
    # The words themselves are queries, keys and values.
    tokens = torch.stack([money, river, x])[None, None]
    moved = trace(tokens, tokens, tokens).context[0, 0, 2]
    # How far bank is from either word afterwards.
    near, far = ((moved - word).norm().item() for word in (money, river))
    if not near < far:
        raise WrongAnswer(
            f"after attention, bank is {near:.3f} from money and {far:.3f} from river; give bank a "
            "larger dot product with money than with river"
        )
    passed("bank", f"after attention it is {near:.3f} from money and {far:.3f} from river")


# ----------------------------------------------------------------------------------------- 6  masks


def causal_mask(function: Solution) -> None:
    """Check causal_mask(queries, keys): True where a query may see a key; the last query sees the
    last key.
    """
    # A whole text, several new tokens after a cache, and one.
    for queries, keys in ((4, 4), (2, 5), (1, 3)):
        right = causal_matrix(queries, keys)
        # What usual mistakes give: a token that does not see itself, alignment to the first query.
        strict = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries - 1)
        top_left = torch.ones(queries, keys, dtype=torch.bool).tril()
        found = call("causal_mask", function, queries, keys)
        # 0 and 1 would pass the comparison, and fail in ~mask.
        if isinstance(found, Tensor) and found.dtype != torch.bool:
            raise WrongAnswer(
                f"causal_mask holds {found.dtype}; True and False say who may see, so use "
                "torch.bool"
            )
        compare(
            f"causal_mask({queries}, {keys})",
            found,
            right,
            {
                "True and False are exchanged: True means that a query may see a key": ~right,
                "a token should see itself too": strict,
                "the mask is aligned to the first query; with a cache, the last query is the last "
                "key": top_left,
            },
        )
    passed("causal_mask", "agrees with ts.causal, also with a cache")


@exercise("masked_softmax", "agrees with ts.attend, also for a query that sees nothing")
def masked_softmax() -> Cases:
    """Check masked_softmax(scores, mask): weights 0 where the mask is False, and zeros where a row
    sees nothing.
    """
    raw = normal(4, 4)
    mask = causal_matrix(4, 4)
    right = raw.masked_fill(~mask, -torch.inf).softmax(-1)
    # With the mask exchanged the last query sees nothing, which is NaN in place of zeros.
    exchanged = raw.masked_fill(mask, -torch.inf).softmax(-1).nan_to_num()
    yield Case(
        (raw, mask),
        right,
        {
            "the mask is exchanged: True means may see": exchanged,
            "the weights are set to 0 after softmax, so rows do not sum to 1; put -inf before "
            "it": raw.softmax(-1) * mask,
            "masked scores are 0, and exp(0) = 1 is a weight; use -inf": (raw * mask).softmax(-1),
            "the mask is not used": raw.softmax(-1),
        },
    )
    # Rows that see nothing: softmax of nothing but -inf is NaN.
    nothing = torch.zeros(4, 4, dtype=torch.bool)
    yield Case(
        (raw, nothing),
        torch.zeros(4, 4),
        if_nan="a query that sees nothing gives NaN (0 / 0); let its weights be 0",
        what="masked_softmax of a row that sees nothing",
    )


# ------------------------------------------------------------------------- 7  one head, one reading


def two_readings(function: Solution) -> None:
    """Check query_for(target): a query, of the features of the telescope sentence, that reads one
    word.
    """
    # One key for each feature of the sentence.
    features = torch.eye(6)
    for target, name in ((1, "subject"), (3, "object")):
        query = as_tensor(call("query_for", function, target))
        if not isinstance(query, Tensor) or query.shape != (6,):
            raise WrongAnswer(
                "query_for should return a vector of six numbers, one for each feature"
            )
        # Attention of one query with d_k = 6.
        weights = (features @ query.float() / sqrt(6)).softmax(-1)
        best = int(weights.argmax())
        if best != target:
            raise WrongAnswer(
                f"query_for({target}) reads feature {best} with weight {weights[best]:.2f}, not "
                f"the {name}"
            )
        # The largest weight may still be a small one.
        if weights[target] < 0.8:
            raise WrongAnswer(
                f"query_for({target}) gives the {name} {weights[target]:.2f}; make it clearer, "
                "above 0.8"
            )
    passed("query_for", "two queries, two readings")


def reads(function: Solution) -> None:
    """Check reads(weights, even): which of two words gets more than even, and more so than the
    other; else None.
    """
    # The second list: what each word would get if all tokens got the same.
    cases = [
        (([0.5, 0.1], [0.1, 0.1]), 0),
        (([0.1, 0.5], [0.1, 0.1]), 1),
        (([0.3, 0.4], [0.1, 0.3]), 0),  # 3 times even, against 1.3 times
        (([0.05, 0.1], [0.1, 0.2]), None),  # both below even
    ]
    for (weights, even), right in cases:
        found = call("reads", function, torch.tensor(weights), torch.tensor(even), optional=True)
        if found != right:
            # The usual mistake: the larger weight, whatever its even share is.
            larger = int(torch.tensor(weights).argmax())
            hint = ""
            if right is None:
                hint = "; neither word gets more than even weights would give it"
            elif found == larger:
                hint = "; compare each weight with its even share: a long word has several tokens"
            raise WrongAnswer(f"reads({weights}, {even}) is {found}, and should be {right}{hint}")
    passed("reads", "four cases agree")
