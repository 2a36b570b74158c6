"""Checks of lessons 1 to 6: one attention, its weights, its scale, its geometry and its masks."""

from collections.abc import Sequence
from math import log, sqrt

import torch
from torch import Tensor

from ..attention import Attention, by_sum
from ..engines import attend
from ..traces import trace
from .answers import Solution, WrongAnswer, as_tensor, call, compare, given, passed
from .material import causal_matrix, journey, normal

# ------------------------------------------------------------------------------- 1  without weights


def scores(function: Solution) -> None:
    """Check scores(x): the dot product of every vector with every other."""
    for x in (journey(), normal(4, 5)):
        found = call("scores", function, x)
        units = torch.nn.functional.normalize(x, dim=-1)
        compare(
            "scores",
            found,
            x @ x.mT,
            {
                "these are cosines; a dot product is not divided by the lengths of the vectors": units
                @ units.mT,
                "the products are not summed: a score is one number for each pair": x[:, None]
                * x[None],
                "these are products of features, (d, d); multiply x by its transpose, not its "
                "transpose by x": x.mT @ x,
            },
        )
    passed("scores", "every dot product agrees")


def weight_free(function: Solution) -> None:
    """Check context(x): softmax of the scores of x with itself, times x."""
    for x in (journey(), normal(5, 4)):
        steps = trace(x[None, None], x[None, None], x[None, None], Attention(scale=1.0))
        raw = x @ x.mT
        compare(
            "context",
            call("context", function, x),
            steps.context[0, 0],
            {
                "these are the weights; the context is the weights times x": steps.weights[0, 0],
                "softmax runs over the queries: each row of weights should sum to 1, so use dim=-1": raw.softmax(
                    0
                )
                @ x,
                "the scores are divided by their sum; this exercise wants softmax": raw
                / raw.sum(-1, keepdim=True)
                @ x,
                "the scores are divided by √d already; that comes in lesson 4": (
                    raw / sqrt(x.shape[-1])
                ).softmax(-1)
                @ x,
                "the scores are not normalised": raw @ x,
            },
        )
    passed("context", "agrees with ts.trace")


# -------------------------------------------------------------------------------- 2  softmax or sum


def softmax(function: Solution) -> None:
    """Check softmax(scores), along the last axis, also where exp overflows."""
    plain = normal(3, 4)
    compare(
        "softmax",
        call("softmax", function, plain),
        plain.softmax(-1),
        {
            "all numbers are divided by one sum; each row has its own, over dim=-1": plain.exp()
            / plain.exp().sum(),
            "the sum runs over the columns; use dim=-1 and keepdim=True": plain.softmax(0),
            "this is exp(scores); divide by its sum over the last axis": plain.exp(),
            "this is the logarithm of softmax": plain.log_softmax(-1),
        },
    )
    large = torch.tensor([[1000.0, 1000.0], [1000.0, 990.0]])
    found = call("softmax", function, large)
    if isinstance(found, Tensor) and bool(found.isnan().any()):
        raise WrongAnswer(
            "softmax: exp(1000) is infinite, and inf / inf is NaN; subtract the largest score of "
            "each row first"
        )
    compare("softmax", found, large.softmax(-1))
    passed("softmax", "agrees with torch, also for scores of 1000")


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
    weights = numbers / numbers.sum()
    if bool((weights >= 0).all()):
        raise WrongAnswer(
            f"the weights are {weights.tolist()}, all from 0 to 1; a score must have the other sign"
        )
    x = numbers[None, None, None]
    compare(
        "by_sum",
        weights,
        trace(x.mT * 0 + 1, x.mT, x.mT, Attention(scale=1.0, normalize=by_sum)).weights[0, 0, 0],
    )
    passed(
        "scores",
        f"by sum the weights are {[round(w, 3) for w in weights.tolist()]}; no mean of values has "
        "these",
    )


# ------------------------------------------------------------------------- 3  queries, keys, values


def attention_of(function: Solution) -> None:
    """Check attention(x, W_q, W_k, W_v): softmax(q k^T / √d_k) v."""
    for n, d, d_k, d_v in ((6, 3, 2, 2), (5, 4, 3, 6)):
        x = normal(n, d)
        W_q = normal(d, d_k, seed=1)
        W_k = normal(d, d_k, seed=2)
        W_v = normal(d, d_v, seed=3)
        q = x @ W_q
        k = x @ W_k
        v = x @ W_v
        right = attend(q[None, None], k[None, None], v[None, None])[0, 0]
        raw = q @ k.mT
        compare(
            "attention",
            call("attention", function, x, W_q, W_k, W_v),
            right,
            {
                "the scores are not divided by √d_k": raw.softmax(-1) @ v,
                "the scores are divided by d_k; divide by its square root": (raw / d_k).softmax(-1)
                @ v,
                "√ of the number of tokens is used; d_k is the width of a key": (
                    raw / sqrt(n)
                ).softmax(-1)
                @ v,
                "√ of the width of x is used; d_k is the width of a key": (raw / sqrt(d)).softmax(
                    -1
                )
                @ v,
                "softmax runs over the queries; use dim=-1": (raw / sqrt(d_k)).softmax(0) @ v,
                "keys ask and queries answer: scores are q kᵀ": (raw.mT / sqrt(d_k)).softmax(-1)
                @ v,
                "the weights multiply x; they should multiply the values": (
                    raw / sqrt(d_k)
                ).softmax(-1)
                @ x,
                "these are the weights; the context is the weights times the values": (
                    raw / sqrt(d_k)
                ).softmax(-1),
            },
        )
    passed("attention", "agrees with ts.attend")


def even_weights(W_k: Tensor) -> None:
    """Check a W_k with which every query of the journey gives every key the same weight."""
    given("W_k", W_k)
    W_k = as_tensor(W_k)
    x = journey()
    if not isinstance(W_k, Tensor) or W_k.ndim != 2 or W_k.shape[0] != 3:
        raise WrongAnswer(
            f"W_k should be a matrix (3, d_k), and is {tuple(getattr(W_k, 'shape', ()))}"
        )
    k = (x @ W_k)[None, None]
    weights = trace(normal(1, 1, 6, W_k.shape[1]), k, k).weights[0, 0]
    if not torch.allclose(weights, torch.full_like(weights, 1 / 6), atol=1e-4):
        i, j = divmod(int((weights - 1 / 6).abs().argmax()), 6)
        raise WrongAnswer(
            f"query {i} gives key {j} the weight {weights[i, j]:.3f}, not 1/6: are all keys the "
            "same vector?"
        )
    passed("W_k", "every weight is 1/6: keys that are equal cannot be told apart")


# -------------------------------------------------------------------------------------- 4  why √d_k


def score_variance(function: Solution) -> None:
    """Check variances(q, k): the variance of q·k and of q·k / √d_k, over all pairs."""
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
            tolerance=2e-2,
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


def entropy(function: Solution) -> None:
    """Check entropy(weights): -Σ w ln w of each row, in nats, 0 where a weight is 0."""
    weights = normal(3, 5).softmax(-1)
    right = -torch.xlogy(weights, weights).sum(-1)
    compare(
        "entropy",
        call("entropy", function, weights),
        right,
        {
            "the sign is missing: ln w is negative, so take -Σ w ln w": -right,
            "this is in bits; use the natural logarithm": right / log(2),
            "the sum runs over the rows; use dim=-1": -torch.xlogy(weights, weights).sum(0),
            "all rows are summed; return one number for each row": right.sum(),
        },
    )
    certain = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    found = call("entropy", function, certain)
    if isinstance(found, Tensor) and bool(found.isnan().any()):
        raise WrongAnswer(
            "entropy: 0 · ln 0 is NaN, and should count as 0; torch.xlogy(w, w) does that"
        )
    compare("entropy", found, torch.tensor([0.0, log(2)]))
    passed("entropy", "agrees with ts.survey, also where a weight is 0")


# -------------------------------------------------------------------------------------- 5  geometry


def cosine(function: Solution) -> None:
    """Check cosine(a, b), of two vectors."""
    for seed in (0, 1):
        a = normal(4, seed=seed)
        b = 3 * normal(4, seed=seed + 5)
        right = torch.nn.functional.cosine_similarity(a, b, dim=0)
        mistakes = {
            "this is the dot product; divide it by the lengths of both vectors": a @ b,
            "only one length is divided by; divide by the product of both": a @ b / a.norm(),
            "this is the distance": (a - b).norm(),
            "the lengths are squared; take their roots": a @ b / ((a @ a) * (b @ b)),
        }
        compare("cosine", call("cosine", function, a, b), right, mistakes)
    passed("cosine", "agrees with torch")


def towards(x: Tensor) -> None:
    """Check a vector for "bank" that attention moves closer to money than to river."""
    given("bank", x)
    x = as_tensor(x)
    money = torch.tensor([2.0, 0.0, 0.0])
    river = torch.tensor([0.0, 2.0, 0.0])
    if not isinstance(x, Tensor) or x.shape != (3,):
        raise WrongAnswer("bank should be a vector of three numbers")
    tokens = torch.stack([money, river, x])[None, None]
    moved = trace(tokens, tokens, tokens).context[0, 0, 2]
    near, far = ((moved - word).norm().item() for word in (money, river))
    if not near < far:
        raise WrongAnswer(
            f"after attention, bank is {near:.3f} from money and {far:.3f} from river; give bank a "
            "larger dot product "
            "with money than with river"
        )
    passed("bank", f"after attention it is {near:.3f} from money and {far:.3f} from river")


# ----------------------------------------------------------------------------------------- 6  masks


def causal_mask(function: Solution) -> None:
    """Check causal_mask(queries, keys): True where a query may see a key; the last query sees the
    last key.
    """
    for queries, keys in ((4, 4), (2, 5), (1, 3)):
        right = causal_matrix(queries, keys)
        strict = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries - 1)
        top_left = torch.ones(queries, keys, dtype=torch.bool).tril()
        found = call("causal_mask", function, queries, keys)
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


def masked_softmax(function: Solution) -> None:
    """Check masked_softmax(scores, mask): weights 0 where the mask is False, and zeros where a row
    sees nothing.
    """
    raw = normal(4, 4)
    mask = causal_matrix(4, 4)
    right = raw.masked_fill(~mask, -torch.inf).softmax(-1)
    compare(
        "masked_softmax",
        call("masked_softmax", function, raw, mask),
        right,
        {
            "the mask is exchanged: True means may see": raw.masked_fill(mask, -torch.inf)
            .softmax(-1)
            .nan_to_num(),
            "the weights are set to 0 after softmax, so rows do not sum to 1; put -inf before it": raw.softmax(
                -1
            )
            * mask,
            "masked scores are 0, and exp(0) = 1 is a weight; use -inf": (raw * mask).softmax(-1),
            "the mask is not used": raw.softmax(-1),
        },
    )
    nothing = torch.zeros(4, 4, dtype=torch.bool)
    found = call("masked_softmax", function, raw, nothing)
    if isinstance(found, Tensor) and bool(found.isnan().any()):
        raise WrongAnswer(
            "masked_softmax: a query that sees nothing gives NaN (0 / 0); let its weights be 0"
        )
    compare("masked_softmax of a row that sees nothing", found, torch.zeros(4, 4))
    passed("masked_softmax", "agrees with ts.attend, also for a query that sees nothing")
