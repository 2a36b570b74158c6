"""Checks of the lessons on one attention: without weights, with queries, keys and values, and why
its scores are divided by √d_k.
"""

from math import log, sqrt
from typing import Any

import torch
from torch import Tensor

from ..attention import Attention
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
        q, k, v = ((x @ W)[None, None] for W in (W_q, W_k, W_v))
        right = attend(q, k, v)[0, 0]
        yield Case((x, W_q, W_k, W_v), right, _slips_of_attention(x, W_q, W_k, W_v))


def _slips_of_attention(x: Tensor, W_q: Tensor, W_k: Tensor, W_v: Tensor) -> Slips:
    """Return what usual mistakes in softmax(q k^T / √d_k) v give."""
    n, d = x.shape
    d_k = W_q.shape[1]
    d_v = W_v.shape[1]
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
            "2 ** 0.5, the root of the example, is written into it; take √d_k of the keys, "
            "whatever their width": {"divisor": sqrt(2)},
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
