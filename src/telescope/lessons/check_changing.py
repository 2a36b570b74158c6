"""Checks of the lessons on changing a model, on the sources of an answer, and on heads over a
corpus.
"""

from math import sqrt
from typing import Any

import torch
from torch import Tensor

from ..interception import watch
from ..layers import MultiHeadAttention
from ..models import GPT, GPTConfig
from . import by_hand
from .calling import Solution, WrongAnswer, call, passed
from .comparing import Case, Cases, compare, exercise
from .material import matrices, normal
from .slips import Slips

# -------------------------------------------------------------------------------------- changing it


def _muted(x: Tensor, w: dict[str, Tensor], heads: int, off: int, **switches: Any) -> Tensor:
    """Return multi-head attention without one head, with usual mistakes."""
    how = switches.get("mute", "context")
    at = {"context": off, "one less": off - 1, "one more": (off + 1) % heads}.get(how, off)

    def change(context: Tensor) -> Tensor:
        kept = context.clone()
        match how:
            case "mean":
                kept[off] = context[off].mean(0)
            case "others":
                kept = torch.zeros_like(context)
                kept[off] = context[off]
            case "token":
                kept[:, off] = 0.0
            case "feature":
                kept[..., off % context.shape[-1]] = 0.0
            case "even":
                v = by_hand.split(x @ w["W_v"], heads)
                kept[off] = v[off].mean(0)
            case "rescaled":
                kept[off] = 0.0
                kept = kept * heads / (heads - 1)
            case "nothing" | "output" | "columns" | "input":
                pass
            case _:
                kept[at] = 0.0
        return kept

    own = dict(w)
    width = x.shape[1] // heads
    part = slice(off * width, (off + 1) * width)
    if how == "columns":
        own["W_o"] = w["W_o"].clone()
        own["W_o"][:, part] = 0.0
    if how == "input":
        x = x.clone()
        x[:, part] = 0.0
    inner = {key: value for key, value in switches.items() if key != "mute"}
    result = by_hand.attention(x, x, own, heads, change=change, **inner)
    if how == "output":
        result = result.clone()
        result[:, part] = 0.0
    return result


MUTED_SLIPS: dict[str, dict[str, Any]] = {
    "no head is muted": {"mute": "nothing"},
    "a slice of the output is 0; W_o has mixed the heads by then, so put the 0 before it": {
        "mute": "output"
    },
    "columns of W_o are 0, which is a slice of the output; W_o has mixed the heads by then: a head "
    "has rows of W_o": {"mute": "columns"},
    "another head is muted, the one before: heads count from 0": {"mute": "one less"},
    "another head is muted, the next one: heads count from 0": {"mute": "one more"},
    "the head keeps the mean of its context; set it to 0": {"mute": "mean"},
    "scores, queries or keys of the head are 0, so that its weights are even, and it still "
    "contributes; set its context to 0": {"mute": "even"},
    "this is the head alone: the others are muted": {"mute": "others"},
    "the other heads are rescaled; they stay as they are": {"mute": "rescaled"},
    "a token is muted in all heads; heads are the first axis of the context": {"mute": "token"},
    "a feature is muted in all heads; heads are the first axis of the context": {"mute": "feature"},
    "a slice of the input x is 0; all heads read all of x, so set the head's context to 0": {
        "mute": "input"
    },
}


@exercise("muted(x, W_q, W_k, W_v, W_o, heads, off)", "agrees with ts.mute")
def muted() -> Cases:
    """Check muted(x, W_q, W_k, W_v, W_o, heads, off): multi-head attention with the context of one
    head set to 0.
    """
    torch.manual_seed(3)
    layer = MultiHeadAttention(8, 4, bias=False)
    x = normal(5, 8)
    w = matrices(layer)
    # The first head and one in the middle: off by one is noticed.
    for off in (0, 2):
        compute = lambda off=off, **switches: _muted(x, w, 4, off, **switches)  # noqa: E731
        yield Case(
            (x, w["W_q"], w["W_k"], w["W_v"], w["W_o"], 4, off),
            compute(),
            Slips(compute, {**MUTED_SLIPS, **by_hand.ATTENTION_SLIPS, **by_hand.PROJECTION_SLIPS}),
            if_nan="scores of -inf in a whole row give NaN; set the context of the head to 0 "
            "instead",
            raises={
                r"\(5x6 and 8x8\)|shape '\[5, 8\]'": "the head is removed, and W_o no longer fits "
                "the sizes: set its context to 0, and keep its place",
                r"index . is out of bounds for dimension 0 with size 1": "this is one head of the "
                "whole width; split queries, keys and values first",
            },
        )


@exercise(
    "hidden(o, lse, o_g, lse_g)",
    "agrees with attention over the other keys: no weight was formed again",
)
def hidden() -> Cases:
    """Check hidden(o, lse, o_g, lse_g): the context without a group of keys."""
    q = normal(4, 8)
    k = normal(9, 8, seed=1)
    v = normal(9, 3, seed=2)
    raw = q @ k.mT / sqrt(8)
    group = slice(2, 5)
    # Context and logsumexp over all keys, and over the group alone.
    o = raw.softmax(-1) @ v
    o_g = raw[:, group].softmax(-1) @ v[group]
    lse = raw.logsumexp(-1)
    lse_g = raw[:, group].logsumexp(-1)
    shares = {
        "right": (lse_g - lse).exp(),
        "exchanged": (lse - lse_g).exp(),
        "no exp": lse_g - lse,
        "quotient": lse_g / lse,
        "exps": lse_g.exp() - lse.exp(),
    }

    def compute(share: str = "right", taken: str = "a · o_g", by: str = "1 - a") -> Tensor:
        a = shares[share][:, None]
        left = {
            "a · o_g": o - a * o_g,
            "o_g": o - o_g,
            "added": o + a * o_g,
            "nothing": o,
            "mixed": (1 - a) * o + a * o_g,
        }[taken]
        divided = {
            "1 - a": left / (1 - a),
            "nothing": left,
            "a": left / a,
            "1 + a": left / (1 + a),
            "the group alone": o - a * o_g / (1 - a),
            "1": left - a,
        }
        return divided[by]

    # The right answer attends to the keys outside of the group.
    others = [0, 1, 5, 6, 7, 8]
    yield Case(
        (o, lse, o_g, lse_g),
        raw[:, others].softmax(-1) @ v[others],
        Slips(
            compute,
            {
                "this is o: nothing is hidden": {"taken": "nothing", "by": "nothing"},
                "this mixes o and o_g in a mean; subtract a · o_g, and divide by 1 - a": {
                    "taken": "mixed",
                    "by": "nothing",
                },
                "the weights that are left must sum to 1 again: divide by 1 - a": {"by": "nothing"},
                "the group's context counts with its share of the weight: a · o_g": {
                    "taken": "o_g"
                },
                "divide by 1 - a, the share of the other keys, not by a": {"by": "a"},
                "divide by 1 - a, the share of the other keys, not by 1 + a": {"by": "1 + a"},
                "only a · o_g is divided by 1 - a; put parentheses around o - a * o_g, the whole "
                "of it": {"by": "the group alone"},
                "/ 1 - a divides by 1 and subtracts a; put parentheses around 1 - a": {"by": "1"},
                "the share is exchanged: a = exp(lse_g - lse), below 1": {"share": "exchanged"},
                "exp is missing: a = exp(lse_g - lse)": {"share": "no exp"},
                "lse is a logarithm: the share is exp of the difference, a = exp(lse_g - lse)": {
                    "share": "quotient"
                },
                "the share is a quotient of sums, exp(lse_g - lse), not the difference of exps": {
                    "share": "exps"
                },
                "a · o_g is added; subtract it": {"taken": "added"},
                "the group is not taken out: subtract a · o_g before the division": {
                    "taken": "nothing"
                },
            },
            {
                "this is o_g, the context of the group; return that of the other keys": o_g,
                "this is a, the share of the group; return the context of the other keys": (
                    shares["right"][:, None]
                ),
            },
        ),
        raises={
            r"\((3|4)\) must match.*\((3|4)\)": "o has an axis for the features, and lse has not: "
            "[:, None] makes a column of the share"
        },
    )


# ----------------------------------------------------------------------- where an answer comes from


@exercise(
    "carried(weights, values, W_o)",
    "a key that is looked at and carries nothing counts for nothing",
)
def carried() -> Cases:
    """Check carried(weights, values, W_o): the share of what each key carries to some rows, of one
    layer.
    """
    weights = normal(3, 4, 6).softmax(-1)
    values = normal(3, 6, 2, seed=1)
    W_o = normal(3, 2, 5, seed=2)
    values[:, 0] *= 0.01  # a key that is looked at and carries nothing
    written = values @ W_o

    def compute(
        length: str = "W_o v", weigh: str = "weights", over: str = "both", end: str = "shares"
    ) -> Tensor:
        # What each key of each head would add to the residual stream, as a length.
        norms = {
            "W_o v": written.norm(dim=-1),
            "v": values.norm(dim=-1),
            "squared": written.square().sum(-1),
            "absolute": written.abs().sum(-1),
            "sum": written.sum(-1),
            "none": torch.ones(3, 6),
        }[length]
        if weigh == "head shares":
            norms = norms / norms.sum(-1, keepdim=True)
        each = norms[:, None] * (torch.ones_like(weights) if weigh == "none" else weights)
        total = {
            "both": each.sum((0, 1)),
            "heads": each.sum(1),
            "rows": each.sum(0),
            "last row": each[:, -1].sum(0),
            "keys": each.sum((0, 2)),
            "first head": each[0].sum(0),
            "largest head": each.sum(1).amax(0),
        }[over]
        ends = {
            "shares": total / total.sum(),
            "total": total,
            "mean": total / 12,
            "mean of heads": total / 3,
            "softmax": total.softmax(-1),
            "largest": total / total.max(),
        }
        return ends[end]

    vectors = (weights.mT.sum(-1)[..., None] * written).sum(0).norm(dim=-1)
    yield Case(
        (weights, values, W_o),
        compute(),
        Slips(
            compute,
            {
                "these are not shares yet: divide by their sum": {"end": "total"},
                "this is a mean, and not shares yet: divide by their sum": {"end": "mean"},
                "this is a mean over the heads, and not shares yet: divide by their sum": {
                    "end": "mean of heads"
                },
                "softmax makes no shares of amounts; divide by their sum": {"end": "softmax"},
                "this is divided by the largest; divide by the sum": {"end": "largest"},
                "these are plain weights; each counts with the length of W_o v of its key": {
                    "length": "none"
                },
                "the length of v is used; a head adds W_o v to the residual stream": {
                    "length": "v"
                },
                "the lengths are squared; take their roots": {"length": "squared"},
                "sums of absolute values are used (L1, p=1); the length is the root of the sum of "
                "squares": {"length": "absolute"},
                "the features of W_o v are summed; take its length, .norm(dim=-1)": {
                    "length": "sum"
                },
                "the weights are missing: each length counts with its weight": {"weigh": "none"},
                "each head is divided by its own sum first; divide once, over all heads": {
                    "weigh": "head shares"
                },
                "only the last row counts; sum over all rows": {"over": "last row"},
                "only the first head counts; sum over all heads": {"over": "first head"},
                "only the largest head counts for each key; sum over all heads": {
                    "over": "largest head"
                },
                "this has a row for each head; sum over the heads too": {"over": "heads"},
                "this has a row for each query; sum over the rows too": {"over": "rows"},
                "this is summed over the keys; sum over heads and rows, and keep the keys": {
                    "over": "keys"
                },
            },
            {
                "the vectors of all heads are added before their length is taken": (
                    vectors / vectors.sum()
                )
            },
        ),
        raises={
            r"\(4\) must match.*\(3\) at": "weights have an axis for the rows, and the norms have "
            "not: norms[:, None] stands between heads and keys"
        },
    )


def _rollout(layers: list[Tensor], **switches: Any) -> Tensor:
    """Return rollout from the last token, with usual mistakes."""
    get = switches.get
    kept, passed_on = get("halves", (0.5, 0.5))
    order = {
        "last first": layers[::-1],
        "first first": layers,
        "without the last": layers[:-1][::-1],
        "without the first": layers[1:][::-1],
        "last alone": layers[-1:],
        "first alone": layers[:1],
    }[get("order", "last first")]
    n = len(layers[0])
    relevance = {
        "last": torch.eye(n)[-1],
        "first": torch.eye(n)[0],
        "all": torch.ones(n),
        "even": torch.full((n,), 1 / n),
        "matrix": torch.eye(n),
    }[get("start", "last")]
    for weights in order:
        through = {
            "transposed": lambda w=weights: w.mT @ relevance,
            "plain": lambda w=weights: w @ relevance,
            "largest": lambda w=weights: (w.mT * relevance).amax(-1),
        }[get("product", "transposed")]()
        relevance = kept * relevance + passed_on * through
    return relevance


ROLLOUT_SLIPS: dict[str, dict[str, Any]] = {
    "the residual connection is missing: half of each token stays where it is": {
        "halves": (0.0, 1.0)
    },
    "neither part is halved: r / 2 + Aᵀ r / 2": {"halves": (1.0, 1.0)},
    "what stays is not halved, only what is passed on: r / 2 + Aᵀ r / 2": {"halves": (1.0, 0.5)},
    "what is passed on is not halved, only what stays: r / 2 + Aᵀ r / 2": {"halves": (0.5, 1.0)},
    "more than half of r stays: r / 2 + Aᵀ r / 2": {"halves": (1.5, 0.5)},
    "a token keeps 0.9 of itself; half stays, and half is passed on": {"halves": (0.9, 0.1)},
    "the layers are taken from the first to the last; the last one comes first": {
        "order": "first first"
    },
    "the last layer is left out": {"order": "without the last"},
    "the first layer is left out": {"order": "without the first"},
    "only the last layer is used; multiply them all": {"order": "last alone"},
    "only the first layer is used; multiply them all": {"order": "first alone"},
    "the weights are not transposed, or multiply r element by element; relevance goes from queries to "
    "keys, Aᵀ @ r": {"product": "plain"},
    "only the largest path counts; sum over all, with @": {"product": "largest"},
    "this begins with the first token; begin with the last token": {"start": "first"},
    "this begins with all tokens; begin with the last token alone": {"start": "all"},
    "this begins with all tokens evenly; begin with the last token alone": {"start": "even"},
}


@exercise("rollout(layers)", "agrees with recording.sources(how='rollout')")
def rollout() -> Cases:
    """Check rollout(layers): what the last token comes from, through all layers and residual
    connections.
    """
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocabulary=9, max_positions=8, d_model=8, blocks=3, heads=2)).eval()
    with torch.no_grad():
        # Larger weights than a new model has, so that attention is far from even.
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.6)
        with watch(model, keep="queries-keys") as recording:
            model(torch.tensor([[3, 1, 4, 1, 5, 7]]))
    # The weights of each layer, averaged over its heads.
    layers = [watched.survey().rows(slice(None))[0].mean(0) for watched in recording.values()]
    right = recording.sources(range(6, 7), "rollout").scores
    assert right is not None
    # Half of each token comes through the residual connection.
    joined = [matrix / 2 + torch.eye(6) / 2 for matrix in layers]
    whole = joined[2] @ joined[1] @ joined[0]
    every = torch.stack(layers)
    yield Case(
        (layers,),
        right,
        Slips(
            lambda **switches: _rollout(layers, **switches),
            ROLLOUT_SLIPS,
            {
                "this is the mean of the layers; multiply them": every.mean(0)[-1],
                "this is the sum of the layers; multiply them": every.sum(0)[-1],
                "this is the last layer alone; multiply them all": layers[-1][-1],
                "this is the first layer alone; multiply them all": layers[0][-1],
                "this is the matrix of all tokens; return the row of the last one": whole,
                "this is the transposed matrix of all tokens; return the row of the last token": (
                    whole.mT
                ),
                "this is what the first token gives; return the row of the last token": (
                    whole[:, 0]
                ),
                "softmax is taken at the end; what halves leave sums to 1 already": (
                    whole[-1].softmax(-1)
                ),
            },
        ),
    )


@exercise("rank_correlation(a, b)", "1 where the order is the same, whatever the numbers are")
def rank_correlation() -> Cases:
    """Check rank_correlation(a, b): Spearman's, for numbers that are all different."""
    # exp changes the numbers and not their order: only ranks give the right answer.
    first = normal(7)
    other = normal(7, seed=1).exp()
    for a, b in ((first, other), (first, -other)):
        numbers = torch.stack([a, b])
        order = numbers.argsort(-1)
        # The rank of each number is its place in the order.
        ranks = order.argsort(-1).float()
        right = torch.corrcoef(ranks)[0, 1]
        centred = ranks - ranks.mean(-1, keepdim=True)
        products = centred[0] @ centred[1]
        squares = (ranks[0] - ranks[1]).square().sum()
        pairs = (a[:, None] - a).sign() * (b[:, None] - b).sign()
        cosine = torch.nn.functional.cosine_similarity
        yield Case(
            (a, b),
            right,
            {
                "this is the correlation of the numbers; replace each by its rank first": (
                    torch.corrcoef(numbers)[0, 1]
                ),
                "argsort gives the order, not the ranks: ranks are argsort of argsort": (
                    torch.corrcoef(order.float())[0, 1]
                ),
                "this is the covariance of the ranks; divide by both standard deviations": (
                    torch.cov(ranks)[0, 1]
                ),
                "this is the covariance of the ranks, divided by n; divide by both standard "
                "deviations": products / 7,
                "the products of the ranks are not divided; divide by both norms": products,
                "only one of the two norms divides; divide by both": products / centred[0].norm(),
                "the variances divide; divide by their roots, the norms": (
                    products / (centred[0].square().sum() * centred[1].square().sum())
                ),
                "the mean of the ranks is not subtracted first": cosine(ranks[0], ranks[1], dim=0),
                "only a is replaced by ranks; b too": torch.corrcoef(torch.stack([ranks[0], b]))[
                    0, 1
                ],
                "only b is replaced by ranks; a too": torch.corrcoef(torch.stack([a, ranks[1]]))[
                    0, 1
                ],
                "this is R², the square of the correlation": right**2,
                "the sign is lost: this is the absolute value": right.abs(),
                "one of the two is ranked in descending order, which changes the sign": -right,
                "both are sorted, which loses what belongs together; ranks keep their places": (
                    torch.corrcoef(numbers.sort(-1).values)[0, 1]
                ),
                "this is Kendall's tau, of pairs; Spearman's is the correlation of the ranks": (
                    pairs.sum() / 42
                ),
                "this is the sum of squared differences of ranks, d²; the correlation is 1 - 6 Σ d² "
                "/ (n (n² - 1))": squares,
                "the 6 is missing: 1 - 6 Σ d² / (n (n² - 1))": 1 - squares / (7 * 48),
                "this is the share of places where both orders agree; correlate the ranks": (
                    (order[0] == order[1]).float().mean()
                ),
                "this is how many ranks are equal, as a share; correlate the ranks": (
                    (ranks[0] == ranks[1]).float().mean()
                ),
                "this is the matrix of corrcoef; return one number, [0, 1]": torch.corrcoef(ranks),
                "this is the cosine of the numbers; replace each by its rank, and subtract the "
                "mean": cosine(a, b, dim=0),
            },
            raises={
                "floating point": "ranks are whole numbers, and mean or norm needs .float() first",
            },
        )
    # One order, different numbers.
    yield Case((first, first.exp()), torch.tensor(1.0))


# ------------------------------------------------------------------------------- heads over a corpus


@exercise(
    "corpus_mean(sums, counts)",
    "sums and counts are added, and divided once: so the order of the texts cannot matter",
)
def corpus_mean() -> Cases:
    """Check corpus_mean(sums, counts): the mean over all queries of a corpus, from the sums of its
    texts.
    """
    # A short text with much, a long one with little, and one without a query that counts.
    sums = torch.tensor([9.0, 1.0, 0.0])
    counts = torch.tensor([10.0, 40.0, 0.0])
    yield Case(
        (sums, counts),
        torch.tensor(0.2),  # (9 + 1) / (10 + 40)
        {
            "a text without a query that counts gives 0 / 0; add first, then divide": torch.nan,
            "this is the mean of the texts' means; a long text has more queries than a short "
            "one": 0.925 / 2,
            "this is the mean of the texts' means, with 0 for an empty text; a long text has more "
            "queries than a short one": 0.925 / 3,
            "this is the sum of the texts' means; a long text has more queries than a short one": (
                0.925
            ),
            "this is the mean of the sums; divide by the number of queries": 10.0 / 3,
            "this is the sum over all queries; divide by their number": 10.0,
            "the quotient is upside down: divide the sums by the counts": 5.0,
            "this is the median of the texts' means; add first, then divide": 0.025,
            "this is the mean of the largest text alone; add first, then divide": 0.9,
            "the number of queries is one too large: 1 is added, or the counts are clamped to 1; a "
            "text without a query adds 0": 10 / 51,
            "the sums are multiplied by the counts; they are sums over the queries already": 2.6,
            "the sum is divided by the mean of the counts; divide by their sum": 0.6,
            "// gives whole numbers; use /": 0.0,
            "these are the means of each text; return one number, over all texts": (
                sums / counts.clamp(min=1)
            ),
            "these are the means of each text, with 0 / 0; return one number, over all texts": (
                sums / counts
            ),
        },
    )


@exercise("changed(before, after)", "below 3, a change may be chance")
def changed() -> Cases:
    """Check changed(before, after): the change of a mean, in units of its standard error."""
    fewer = 0.4 + 0.1 * normal(9)
    more = 0.7 + 0.3 * normal(36, seed=1)
    for before, after in ((fewer, more), (more, fewer)):  # a rise, and a fall
        n, m = len(before), len(after)

        def compute(
            error: str = "right",
            centre: str = "mean",
            sign: float = 1.0,
            end: str = "divided",
            correction: int = 1,
            before: Tensor = before,
            after: Tensor = after,
            n: int = n,
            m: int = m,
        ) -> Tensor:
            one, other = (part.var(correction=correction) for part in (before, after))
            errors = {
                "right": (one / n + other / m).sqrt(),
                "spread": (one + other).sqrt(),
                "added": (one / n).sqrt() + (other / m).sqrt(),
                "no root": one / n + other / m,
                "by n": one.sqrt() / n + other.sqrt() / m,
                "before": (one / n).sqrt(),
                "after": (other / m).sqrt(),
                "together": ((one + other) / (n + m)).sqrt(),
                "pooled": (
                    ((n - 1) * one + (m - 1) * other) / (n + m - 2) * (1 / n + 1 / m)
                ).sqrt(),
                "exchanged": (one / m + other / n).sqrt(),
                "squares": (one**2 / n + other**2 / m).sqrt(),
                "deviations": (one.sqrt() / n + other.sqrt() / m).sqrt(),
            }
            means = before.mean(), after.mean()
            if centre == "median":
                means = before.median(), after.median()
            change = sign * (means[1] - means[0])
            change = change.abs() if sign == 0 else change
            ends = {
                "divided": change / errors[error],
                "change": change,
                "ratio": means[1] / means[0],
                "relative": change / means[0],
                "multiplied": change * errors[error],
                "absolute": (change / errors[error]).abs(),
            }
            return ends[end]

        switches: dict[str, dict[str, Any]] = {
            "this is the change; divide it by its standard error": {"end": "change"},
            "this is the ratio of the means; take their difference, in standard errors": {
                "end": "ratio"
            },
            "this is the relative change, a share of the first mean; divide by the standard "
            "error": {"end": "relative"},
            "the change is multiplied by its error; divide": {"end": "multiplied"},
            "the sign is lost: it is after - before": {"end": "absolute"},
            "the sign is exchanged: after - before": {"sign": -1.0},
            "medians are compared; take the means": {"centre": "median"},
            "divided by the spread of the texts; the error of a mean is smaller by √(number of "
            "texts)": {"error": "spread"},
            "the two errors are added; add their squares, and take the root": {"error": "added"},
            "the root is missing: this is divided by the square of the standard error": {
                "error": "no root"
            },
            "σ / n is used; the error of a mean is σ / √n, and errors add as squares, under a "
            "root": {"error": "by n"},
            "only the error of before is used; after has one too": {"error": "before"},
            "only the error of after is used; before has one too": {"error": "after"},
            "both variances are divided by n + m together; each has its own number of texts": {
                "error": "together"
            },
            "the numbers of texts are exchanged; each variance is divided by its own": {
                "error": "exchanged"
            },
            "the variances are squared again; they are squares of σ already": {"error": "squares"},
            "standard deviations stand under the root; take their squares, the variances": {
                "error": "deviations"
            },
        }
        # With and without Bessel's correction: both are right, and so are both in a mistake.
        for correction in (1, 0):
            switches |= {
                f"{sentence} ": {**changes, "correction": correction}
                for sentence, changes in list(switches.items())[:17]
                if correction == 0
            }
        yield Case(
            (before, after),
            compute(),
            Slips(compute, switches),
            tolerance=0.08,  # with or without Bessel's correction
            raises={
                r"\(9\) must match|\(36\) must match": "9 and 36 texts are no pairs, and their "
                "sizes do not fit: compare the means"
            },
        )


def clipped(function: Solution) -> None:
    """Check clipped(W_q, W_k, logit, tau): the matrices of one head whose largest logit becomes
    tau.
    """
    x = normal(6, 4)
    W_q = normal(4, 3, seed=1)
    W_k = normal(4, 3, seed=2)
    largest = float((x @ W_q @ (x @ W_k).mT / sqrt(3)).max())
    # A limit below the largest logit, and one above, which changes nothing.
    for tau in (largest / 4, 2 * largest):
        found = call("clipped(W_q, W_k, logit, tau)", function, W_q, W_k, largest, tau)
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise WrongAnswer("clipped should return two matrices: W_q and W_k")
        # Scores have a factor of each matrix: both take the root.
        factor = min(1.0, tau / largest) ** 0.5
        rights = [factor * W for W in (W_q, W_k)]
        if tau > largest and not _are(found, [W_q, W_k]):
            raise WrongAnswer("clipped: a head below the limit is left as it is, whatever tau is")
        for sentence, wrong in _wrong_clips(W_q, W_k, largest, tau).items():
            if tau < largest and _are(found, wrong):
                raise WrongAnswer(f"clipped: {sentence}")
        for name, own, plain in zip(("W_q", "W_k"), found, (W_q, W_k), strict=True):
            if isinstance(own, Tensor) and _is_cut(own, plain):
                raise WrongAnswer(
                    f"clipped: numbers of {name} are cut off (clamp), each by itself; multiply the "
                    "matrix by one factor"
                )
        for name, own, right, plain in zip(("W_q", "W_k"), found, rights, (W_q, W_k), strict=True):
            compare(
                name,
                own,
                right,
                {"the matrix is unchanged": plain},
            )
    passed("clipped", "agrees with ts.qk_clip: the largest logit is tau")


def _is_cut(found: Tensor, plain: Tensor) -> bool:
    """Return whether a matrix is `plain` with its largest numbers cut off."""
    if found.shape != plain.shape or not found.is_floating_point() or torch.equal(found, plain):
        return False
    low, high = float(found.min()), float(found.max())
    return torch.allclose(found, plain.clamp(low, high))


def _are(found: Any, pair: list[Tensor]) -> bool:
    return all(
        isinstance(own, Tensor)
        and own.dtype == right.dtype
        and own.shape == right.shape
        and torch.allclose(own, right, atol=1e-4)
        for own, right in zip(found, pair, strict=True)
    )


def _wrong_clips(W_q: Tensor, W_k: Tensor, logit: float, tau: float) -> dict[str, list[Tensor]]:
    """Return the pairs of matrices that usual mistakes give, for a logit above tau."""
    ratio = tau / logit
    root = ratio**0.5

    def both(factor: float) -> list[Tensor]:
        return [factor * W_q, factor * W_k]

    return {
        "both matrices are multiplied by tau / logit, so that scores shrink by its square; take "
        "the root": both(ratio),
        "the fourth root is taken; take the square root of tau / logit": both(ratio**0.25),
        "the factor is squared; take the square root of tau / logit": both(ratio**2),
        "the quotient is upside down: the factor is the root of tau / logit": both(1 / root),
        "the quotient is upside down, and without its root; the factor is the root of tau / "
        "logit": both(1 / ratio),
        "W_q and W_k are exchanged: return them in the order W_q, W_k": [root * W_k, root * W_q],
        "W_k is unchanged; both matrices have the same factor": [root * W_q, W_k],
        "W_q is unchanged; both matrices have the same factor": [W_q, root * W_k],
        "all of tau / logit is in W_q; both matrices have the same factor, its root": [
            ratio * W_q,
            W_k,
        ],
        "all of tau / logit is in W_k; both matrices have the same factor, its root": [
            W_q,
            ratio * W_k,
        ],
        "both matrices are unchanged; a logit above tau has to become tau: min(1, tau / logit)": [
            W_q,
            W_k,
        ],
    }
