"""Checks of the first lessons: one attention, its weights and their temperature, its scale."""

from collections.abc import Sequence
from math import log, sqrt
from typing import Any

import torch
from torch import Tensor

from ..attention import Attention, by_sum
from ..engines import attend
from ..traces import trace
from .calling import Solution, WrongAnswer, call, numbers_of, passed
from .comparing import Case, Cases, compare, exercise
from .material import causal_matrix, journey, normal
from .slips import Slips, softmaxed, weights_slips

# --------------------------------------------------------------------------------- without weights


@exercise("scores(x)", "every dot product agrees")
def scores() -> Cases:
    """Check scores(x): the dot product of every vector with every other."""
    for x in (journey(), normal(4, 5)):
        raw = x @ x.mT
        # Dot products of vectors of length 1 are cosines.
        units = torch.nn.functional.normalize(x, dim=-1)
        lengths = x.norm(dim=-1)
        centred = x - x.mean(0)
        yield Case(
            (x,),
            raw,
            {
                "these are cosines; a dot product is not divided by the lengths of the "
                "vectors": units @ units.mT,
                "the products are not summed: a score is one number for each pair": x[:, None] * x,
                "x is multiplied element by element; a score is a sum of products, one number for "
                "each pair": x * x,
                "these are products of features, (d, d); multiply x by its transpose, not its "
                "transpose by x": x.mT @ x,
                "these are distances; a score is a dot product": torch.cdist(x, x),
                "these are lengths, multiplied; a dot product also knows the angle": (
                    lengths[:, None] * lengths
                ),
                "the mean is subtracted first; scores are products of the vectors as they are": (
                    centred @ centred.mT
                ),
                "softmax is taken already; scores are plain dot products": raw.softmax(-1),
            },
            factors={
                "√d, the root of the width; scores are not divided by it here": sqrt(x.shape[1])
            },
        )


def attention_slips(x: Tensor) -> tuple[Tensor, Slips]:
    """Return the context of weight-free attention, and what usual mistakes make of it."""
    units = torch.nn.functional.normalize(x, dim=-1)
    itself = torch.eye(len(x), dtype=torch.bool)

    def compute(
        how: str = "softmax",
        axis: int = -1,
        scale: float = 1.0,
        by: Tensor = x,
        mask: Tensor | None = None,
        turn: bool = False,
        end: str = "context",
    ) -> Tensor:
        raw = by @ by.mT / scale
        if mask is not None:
            raw = raw.masked_fill(~mask, -torch.inf)
        weights = softmaxed(raw, how, axis)
        weights = weights.mT if turn else weights
        ends = {"context": weights @ x, "weights": weights, "scores": raw, "added": x + weights @ x}
        return ends[end]

    return compute(), Slips(
        compute,
        {
            "these are the weights; the context is the weights times x": {"end": "weights"},
            "these are the scores; softmax makes weights of them, which multiply x": {
                "end": "scores"
            },
            **weights_slips(),
            "the scores are divided by √d already; that comes in a later lesson (lesson 4)": {
                "scale": sqrt(x.shape[-1])
            },
            "the weights are transposed before they multiply x": {"turn": True},
            "x is added to the context; such a residual comes in a later lesson": {"end": "added"},
            "the scores are cosines; here they are plain dot products": {"by": units},
            "a word does not attend to itself here; nothing hides it": {"mask": ~itself},
            "a causal mask hides later words; here every word sees all": {
                "mask": causal_matrix(len(x), len(x))
            },
        },
    )


@exercise("context(x)", "agrees with ts.trace")
def weight_free() -> Cases:
    """Check context(x): softmax of the scores of x with itself, times x."""
    for x in (journey(), normal(5, 4)):
        # A trace has a batch and heads; both are 1 here.
        steps = trace(x[None, None], x[None, None], x[None, None], Attention(scale=1.0))
        yield Case((x,), steps.context[0, 0], attention_slips(x)[1])


# ---------------------------------------------------------------------------------- softmax or sum


def _softmax(scores: Tensor, how: str = "softmax", axis: int = -1, base: float = 1.0) -> Tensor:
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
    mistakes = Slips(lambda **changes: _softmax(plain, **changes), SOFTMAX_SLIPS, pairs=False)
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
                return _softmax(scaled, how, axis)
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
                    "weights by it and normalising them again, changes nothing; divide the scores": {
                        "by": 1.0
                    },
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
            f"give three scores, as [a, b, c], not a tensor of shape {tuple(numbers.shape)}"
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


# --------------------------------------------------------------------------- queries, keys, values


@exercise("attention(x, W_q, W_k, W_v)", "agrees with ts.attend")
def attention_of() -> Cases:
    """Check attention(x, W_q, W_k, W_v): softmax(q k^T / √d_k) v."""
    # Sizes that are all different in one of the two: a mixed-up one is noticed.
    for n, d, d_k, d_v in ((6, 3, 2, 2), (5, 4, 3, 6)):
        x = normal(n, d)
        W_q = normal(d, d_k, seed=1)
        W_k = normal(d, d_k, seed=2)
        W_v = normal(d, d_v, seed=3)
        right = attend(*((x @ W)[None, None] for W in (W_q, W_k, W_v)))[0, 0]
        yield Case((x, W_q, W_k, W_v), right, _slips_of_attention(x, W_q, W_k, W_v))


def _slips_of_attention(x: Tensor, W_q: Tensor, W_k: Tensor, W_v: Tensor) -> Slips:
    """Return what usual mistakes in softmax(q k^T / √d_k) v give."""
    n, d = x.shape
    d_k, d_v = W_q.shape[1], W_v.shape[1]
    causal = causal_matrix(n, n)

    def compute(
        divisor: float = sqrt(d_k),
        after: float = 1.0,
        how: str = "softmax",
        axis: int = -1,
        keys_ask: bool = False,
        queries: Tensor = x @ W_q,
        keys: Tensor = x @ W_k,
        values: Tensor = x @ W_v,
        mask: Tensor | None = None,
        turn: bool = False,
        end: str = "context",
    ) -> Tensor:
        raw = (keys @ queries.mT if keys_ask else queries @ keys.mT) / divisor
        if mask is not None:
            raw = raw.masked_fill(~mask, -torch.inf)
        weights = softmaxed(raw, how, axis) / after
        weights = weights.mT if turn else weights
        return {"context": weights @ values, "weights": weights, "scores": raw}[end]

    return Slips(
        compute,
        {
            "the scores are not divided by √d_k": {"divisor": 1.0},
            "the scores are divided by d_k; divide by its square root": {"divisor": d_k},
            "the scores are multiplied by √d_k; divide by it": {"divisor": 1 / sqrt(d_k)},
            "√ of the number of tokens is used; d_k is the width of a key": {"divisor": sqrt(n)},
            "√ of the width of x is used; d_k is the width of a key": {"divisor": sqrt(d)},
            "√d_v, of the width of the values, is used; d_k is the width of a key": {
                "divisor": sqrt(d_v)
            },
            "scores / d_k ** 1 / 2 divides by d_k and then by 2, since ** comes first; write "
            "** 0.5, or parentheses around 1 / 2": {"divisor": 2.0 * d_k},
            "2 ** 0.5, the root of the example, is written into it; take √d_k of the keys, whatever "
            "their width": {"divisor": sqrt(2)},
            "the weights are divided by √d_k, after softmax; divide the scores, before it": {
                "divisor": 1.0,
                "after": sqrt(d_k),
            },
            **weights_slips(),
            "keys ask and queries answer: scores are q kᵀ": {"keys_ask": True},
            "the weights multiply x; they should multiply the values": {"values": x},
            "the weights multiply the keys; they should multiply the values, x W_v": {
                "values": x @ W_k
            },
            "the weights multiply the queries; they should multiply the values, x W_v": {
                "values": x @ W_q
            },
            "queries are made with W_k; they are x W_q": {"queries": x @ W_k},
            "keys are made with W_q; they are x W_k": {"keys": x @ W_q},
            "queries are x itself; they are x W_q": {"queries": x[:, :d_k]},
            "keys are x itself; they are x W_k": {"keys": x[:, :d_k]},
            "the weights are transposed before they multiply the values": {"turn": True},
            "these are the weights; the context is the weights times the values": {
                "end": "weights"
            },
            "these are the scores; softmax makes weights of them, which multiply the values": {
                "end": "scores"
            },
            "a causal mask hides later words; here every query sees all keys": {"mask": causal},
        },
        {"these are the values; the weights multiply them": x @ W_v},
    )


def even_weights(W_k: Tensor) -> None:
    """Check a W_k with which every query of the journey gives every key the same weight."""
    W_k = numbers_of("W_k", W_k, "a matrix (3, d_k)")
    x = journey()
    # The width of the keys is free: only the rows, the features of x, are given.
    if W_k.ndim != 2 or W_k.shape[0] != 3:
        turned = W_k.ndim == 2 and W_k.shape[1] == 3
        hint = ": it looks transposed" if turned else ""
        raise WrongAnswer(
            f"W_k should be a matrix (3, d_k), and has shape {tuple(W_k.shape)}{hint}"
        )
    # Any queries: if all keys are equal, they all get the same weight, whatever is asked.
    k = (x @ W_k)[None, None]
    weights = trace(normal(1, 1, 6, W_k.shape[1]), k, k).weights[0, 0]
    if not torch.allclose(weights, torch.full_like(weights, 1 / 6), atol=1e-4):
        # The place that is farthest from even, as query and key.
        i, j = divmod(int((weights - 1 / 6).abs().argmax()), 6)
        hint = "are all keys the same vector?"
        if bool((W_k == W_k.flatten()[0]).all()):
            hint = (
                "equal numbers in W_k, such as ones, make each key the sum of its word's features, "
                "and these sums differ"
            )
        elif W_k.shape[1] <= 3 and torch.equal(W_k, torch.eye(3)[:, : W_k.shape[1]]):
            hint = "an identity leaves the keys as the words are, and these differ"
        raise WrongAnswer(
            f"query {i} gives key {j} the weight {weights[i, j]:.3f}, not 1/6: {hint}"
        )
    passed("W_k", "every weight is 1/6: keys that are equal cannot be told apart")


# ---------------------------------------------------------------------------------------- why √d_k


def score_variance(function: Solution) -> None:
    """Check variances(q, k): the variance of q·k and of q·k / √d_k, over all pairs."""
    # The variance of q·k is about d_k, that of q·k / √d_k about 1: two widths tell them apart.
    for d_k in (4, 64):
        q = normal(50, d_k)
        k = normal(40, d_k, seed=1)
        steps = trace(q[None, None], k[None, None], k[None, None])
        before, after = steps.score_variance
        found = call("variances(q, k)", function, q, k)
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise WrongAnswer("variances should return two numbers: before scaling, and after")
        _must_be_variances(found)
        raw = q @ k.mT
        pairs = (q[:40] * k).sum(-1)
        weights = raw.softmax(-1)
        own = torch.cat([q, k])
        if _close(found[0], after) and _close(found[1], before):
            raise WrongAnswer(
                "the two variances are exchanged: first the one before scaling, then after"
            )
        compare(
            "the variance before scaling",
            found[0],
            before,
            {
                "the standard deviation is given; the variance is its square": sqrt(before),
                "only pairs (0, 0), (1, 1), ... of the diagonal are counted; take all pairs of a "
                "query and a key": pairs.var(correction=0),
                "only pairs of the diagonal, (0, 0), (1, 1), ..., are counted; take all pairs of a "
                "query and a key": pairs.var(),
                "this is the variance of q and k themselves; take that of their dot products": (
                    own.var(correction=0)
                ),
                "this is the mean of the scores; take their variance": raw.mean(),
                "softmax is taken; measure the scores": weights.var(correction=0),
                "this is a sum of squares; the variance is the mean of squares": raw.square().sum(),
                "this is the variance of q times that of k": q.var() * k.var(),
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
                "the scores are multiplied by √d_k; divide by it": before * d_k,
                "√ of the number of keys is used; d_k is the width of a key": before / 40,
                "√ of the number of queries is used; d_k is the width of a key": before / 50,
                "the standard deviation is given; the variance is its square": sqrt(after),
            },
            tolerance=2e-2,
        )
    passed("variances", "both agree with ts.trace(...).score_variance")


def _must_be_variances(found: Any) -> None:
    for name, number in zip(("before", "after"), found, strict=True):
        if isinstance(number, Tensor) and number.numel() > 1:
            raise WrongAnswer(
                f"variances returns {tuple(number.shape)} numbers for the variance {name} scaling; "
                "it is one number, over all scores: var() without an axis"
            )


def _close(found: Any, right: float) -> bool:
    numbers = isinstance(found, int | float | Tensor)
    return numbers and abs(float(found) - right) < 2e-2 * abs(right)


@exercise("entropy(weights)", "agrees with ts.survey, also where a weight is 0")
def entropy() -> Cases:
    """Check entropy(weights): -Σ w ln w of each row, in nats, 0 where a weight is 0."""
    weights = normal(3, 5).softmax(-1)

    def compute(
        sign: float = -1.0,
        base: float = 1.0,
        end: str = "rows",
        of: Tensor = weights,
    ) -> Tensor:
        # xlogy counts 0 · ln 0 as 0.
        terms = sign * torch.xlogy(of, of) / base
        ends = {
            "rows": terms.sum(-1),
            "columns": terms.sum(0),
            "all": terms.sum(),
            "mean of rows": terms.sum(-1).mean(),
            "mean": terms.mean(-1),
            "terms": terms,
            "exp": terms.sum(-1).exp(),
            "logs": (sign * of.log() / base).sum(-1),
        }
        return ends[end]

    yield Case(
        (weights,),
        compute(),
        Slips(
            compute,
            {
                "the sign is missing: ln w is negative, so take -Σ w ln w": {"sign": 1.0},
                "this is in bits; use the natural logarithm": {"base": log(2)},
                "this has the base 10; use the natural logarithm": {"base": log(10)},
                "this is divided by ln n, a share of the largest entropy; return nats": {
                    "base": log(5)
                },
                "the sum runs over the rows; use dim=-1": {"end": "columns"},
                "all rows are summed; return one number for each row": {"end": "all"},
                "the rows are averaged; return one number for each row": {"end": "mean of rows"},
                "this is the mean over a row; take the sum": {"end": "mean"},
                "the terms -w ln w are not summed": {"end": "terms"},
                "this is exp(entropy), the number of keys that are read": {"end": "exp"},
                "the logarithms are not multiplied by w: -Σ w ln w": {"end": "logs"},
                "softmax is taken again; these are weights already": {"of": weights.softmax(-1)},
            },
            {
                "1 - Σ w² is Gini's index, with squares; take -Σ w ln w": (
                    1 - weights.square().sum(-1)
                ),
                "this is -ln of the largest weight; sum -w ln w over all": (
                    -weights.amax(-1).log()
                ),
                **{
                    f"{small:g} is added to the weights, which changes the result; 0 · ln 0 alone "
                    "needs care, see torch.xlogy": -(weights * (weights + small).log()).sum(-1)
                    for small in (0.1, 0.01, 1e-3)
                },
            },
        ),
    )
    # A weight of 0, whose logarithm is infinite.
    certain = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    yield Case(
        (certain,),
        torch.tensor([0.0, log(2)]),
        if_nan="0 · ln 0 is NaN, and should count as 0; torch.xlogy(w, w) does that",
    )
