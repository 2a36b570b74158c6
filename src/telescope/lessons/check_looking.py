"""Checks of lessons 15 to 19 and 21: fast kernels, surveys, watching, changing, sources of answers,
atlases.
"""

from math import sqrt

import torch
from torch import Tensor

from ..engines import attend
from ..interception import watch
from ..layers import MultiHeadAttention
from ..models import GPT, GPTConfig
from ..surveys import survey
from .material import (
    Case,
    Cases,
    Solution,
    WrongAnswer,
    call,
    causal_matrix,
    compare,
    exercise,
    matrices,
    normal,
    passed,
)

# --------------------------------------------------------------------------------- 14  fast kernels


def attend_in_blocks(function: Solution) -> None:
    """Check attend_in_blocks(q, k, v, block): softmax over keys that are seen block by block."""
    # Ten keys in blocks of three: the last block is smaller.
    q = normal(4, 8)
    k = normal(10, 8, seed=1)
    v = normal(10, 3, seed=2)
    k[7] *= 6  # the largest score comes late: what was summed before has to be rescaled
    right = attend(q[None, None], k[None, None], v[None, None])[0, 0]
    raw = q @ k.mT / sqrt(8)
    # What one gets without rescaling: a softmax for each block of three keys.
    each = torch.stack([raw[:, i : i + 3].softmax(-1) @ v[i : i + 3] for i in range(0, 10, 3)])
    compare(
        "attend_in_blocks",
        call("attend_in_blocks", function, q, k, v, 3),
        right,
        {
            "each block has a softmax of its own, and they are averaged; keep one sum over all "
            "blocks": each.mean(0),
            "each block has a softmax of its own, and they are added; keep one sum over all "
            "blocks": each.sum(0),
            "the scores are not divided by √d_k": (q @ k.mT).softmax(-1) @ v,
        },
    )
    # Scores so large that exp overflows, unless the largest one is subtracted.
    big = call("attend_in_blocks", function, 60 * q, 60 * k, v, 4)
    if isinstance(big, Tensor) and not bool(big.isfinite().all()):
        raise WrongAnswer(
            "attend_in_blocks: large scores overflow; subtract the largest score so far before exp"
        )
    passed(
        "attend_in_blocks", "agrees with ts.attend, and never held more than one block of scores"
    )


@exercise("bytes_of_weights", "32,768 tokens, 12 heads, 28 layers: 672 GiB")
def bytes_of_weights() -> Cases:
    """Check bytes_of_weights(n, heads, layers): the matrices of a model, 2 bytes a weight."""
    for n, heads, layers in ((32_768, 12, 28), (100, 2, 3)):
        right = float(2 * n * n * heads * layers)
        mistakes = {
            "a weight in half precision has 2 bytes": right / 2,
            "there is a number for each pair of tokens: n²": float(2 * n * heads * layers),
            "each layer has its own matrices": right / layers,
        }
        yield Case(
            (n, heads, layers),
            right,
            mistakes,
        )


# ------------------------------------------------------------------- 15  looking without the matrix


@exercise("received", "agrees with ts.survey")
def received() -> Cases:
    """Check received(q, k, lse, block): what each key gets from all queries, from a few queries at
    a time.
    """
    q = normal(9, 4)
    k = normal(7, 4, seed=1)
    # top=0: only the sums are compared.
    seen = survey(q[None, None], k[None, None], top=0)
    assert seen.lse is not None
    raw = q @ k.mT / 2  # √d_k = 2
    yield Case(
        (q, k, seen.lse[0, 0], 2),
        seen.received[0, 0],
        {
            "these are sums over the keys, which are all 1; sum over the queries": torch.ones(9),
            "lse is not subtracted: exp(score - lse) is the weight": raw.exp().sum(0),
            "the scores are not divided by √d_k": (q @ k.mT - seen.lse[0, 0][:, None]).exp().sum(0),
            "this is the mean over the queries; received is the sum": seen.received[0, 0] / 9,
        },
    )


@exercise("entropy_from_lse", "H = lse - E[s]: one number for each query, no logarithm of a weight")
def entropy_from_lse() -> Cases:
    """Check entropy_from_lse(scores, lse): lse - Σ w s of each row."""
    raw = normal(5, 6)
    lse = raw.logsumexp(-1)
    weights = raw.softmax(-1)
    right = -torch.xlogy(weights, weights).sum(-1)
    yield Case(
        (raw, lse),
        right,
        {
            "the sign is exchanged: H = lse - Σ w s": -right,
            "the mean score has even weights here; weigh each score with exp(s - lse)": (
                lse - raw.mean(-1)
            ),
        },
    )


# ------------------------------------------------------------------------ 16  watching a real model


@exercise("previous_share", "agrees with recording.heads()")
def previous_share() -> Cases:
    """Check previous_share(weights): the mean weight that queries, from the second on, give to the
    token before.
    """
    # Three heads with random causal weights.
    weights = normal(3, 6, 6).masked_fill(~causal_matrix(6, 6), -torch.inf).softmax(-1)
    # One below the diagonal: the weight of each query on the token before it.
    before = weights.diagonal(-1, 1, 2)
    right = before.mean(-1)
    yield Case(
        (weights,),
        right,
        {
            "this is the weight on the token itself; the one before stands one below the "
            "diagonal": weights.diagonal(0, 1, 2).mean(-1),
            "the first query has no token before it; do not count it": before.sum(-1) / 6,
            "all heads are averaged; return one number for each head": right.mean(),
        },
    )


@exercise("induction_share", "agrees with recording.heads()")
def induction_share() -> Cases:
    """Check induction_share(weights, ids): to the tokens that followed earlier occurrences of the
    query's token.
    """
    # 7 and 3 come again: their followers, 3 and 5, are what an induction head looks at.
    ids = [7, 3, 5, 7, 3, 9, 7]
    weights = normal(2, 7, 7).masked_fill(~causal_matrix(7, 7), -torch.inf).softmax(-1)
    n = len(ids)
    # after[i, j]: key j follows an earlier occurrence of the token of query i.
    after = torch.tensor(
        [[0 < j <= i and ids[j - 1] == ids[i] and j - 1 < i for j in range(n)] for i in range(n)]
    )
    # same[i, j]: key j is such an earlier occurrence itself.
    same = torch.tensor([[j < i and ids[j] == ids[i] for j in range(n)] for i in range(n)])
    # Only queries whose token occurred before count.
    repeated = same.any(-1)
    followers = (weights * after).sum(-1)
    right = followers[:, repeated].mean(-1)
    yield Case(
        (weights, torch.tensor(ids)),
        right,
        {
            "this is the weight on the earlier token itself; induction is the token after it": (
                (weights * same).sum(-1)[:, repeated].mean(-1)
            ),
            "average over the queries whose token occurred before, not over all": (
                followers.mean(-1)
            ),
        },
    )


# ---------------------------------------------------------------------------------- 17  changing it


@exercise("muted", "agrees with ts.mute")
def muted() -> Cases:
    """Check muted(x, W_q, W_k, W_v, W_o, heads, off): multi-head attention with the context of one
    head set to 0.
    """
    torch.manual_seed(3)
    layer = MultiHeadAttention(8, 4, bias=False)
    x = normal(1, 5, 8)
    w = matrices(layer)
    # Four heads of two features: (1, head, token, feature).
    q, k, v = (
        (x[0] @ w[name]).reshape(5, 4, 2).transpose(0, 1)[None] for name in ("W_q", "W_k", "W_v")
    )
    context = attend(q, k, v)[0]
    # The first head and one in the middle: off by one is noticed.
    for off in (0, 2):
        # Right: the context of the head is 0, before W_o mixes the heads.
        kept = context.clone()
        kept[off] = 0.0
        after = context.transpose(0, 1).reshape(5, 8) @ w["W_o"]
        # Wrong: as many columns of the output are 0.
        sliced = after.clone()
        sliced[:, 2 * off : 2 * off + 2] = 0.0
        yield Case(
            (x[0], w["W_q"], w["W_k"], w["W_v"], w["W_o"], 4, off),
            kept.transpose(0, 1).reshape(5, 8) @ w["W_o"],
            {
                "a slice of the output is 0; W_o has mixed the heads by then, so put the 0 before "
                "it": sliced,
                "no head is muted": after,
                "the context is not multiplied by W_o": kept.transpose(0, 1).reshape(5, 8),
            },
        )


@exercise("hidden", "agrees with attention over the other keys: no weight was formed again")
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
    # The share of the weight that the group had.
    a = (lse_g - lse).exp()[:, None]
    # The right answer attends to the keys outside of the group.
    others = [0, 1, 5, 6, 7, 8]
    yield Case(
        (o, lse, o_g, lse_g),
        raw[:, others].softmax(-1) @ v[others],
        {
            "the weights that are left must sum to 1 again: divide by 1 - a": o - a * o_g,
            "the group's context counts with its share of the weight: a · o_g": (o - o_g) / (1 - a),
            "divide by 1 - a, the share of the other keys, not by a": (o - a * o_g) / a,
        },
    )


# ------------------------------------------------------------------- 18  where an answer comes from


@exercise("carried", "a key that is looked at and carries nothing counts for nothing")
def carried() -> Cases:
    """Check carried(weights, values, W_o): the share of what each key carries to some rows, of one
    layer.
    """
    weights = normal(3, 4, 6).softmax(-1)
    values = normal(3, 6, 2, seed=1)
    W_o = normal(3, 2, 5, seed=2)
    values[:, 0] *= 0.01  # a key that is looked at and carries nothing
    # What each key of each head would add to the residual stream, as a length.
    norms = (values @ W_o).norm(dim=-1)
    right = (weights * norms[:, None]).sum((0, 1))
    # Two usual mistakes: the length of v itself, and one length for all heads together.
    without_W_o = (weights * values.norm(dim=-1)[:, None]).sum((0, 1))
    vectors = (weights.mT.sum(-1)[..., None] * (values @ W_o)).sum(0).norm(dim=-1)
    yield Case(
        (weights, values, W_o),
        right / right.sum(),
        {
            "these are not shares yet: divide by their sum": right,
            "these are plain weights; each counts with the length of W_o v of its key": (
                weights.sum((0, 1)) / 12
            ),
            "the length of v is used; a head adds W_o v to the residual stream": (
                without_W_o / without_W_o.sum()
            ),
            "the vectors of all heads are added before their length is taken": (
                vectors / vectors.sum()
            ),
        },
    )


@exercise("rollout", "agrees with recording.sources(how='rollout')")
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
    plain = layers[2] @ layers[1] @ layers[0]
    yield Case(
        (layers,),
        right,
        {
            "the residual connection is missing: half of each token stays where it is": plain[-1],
            "the layers are taken from the first to the last; the last one comes first": (
                joined[0] @ joined[1] @ joined[2]
            )[-1],
            "this is the mean of the layers; multiply them": torch.stack(layers).mean(0)[-1],
            "this is the matrix of all tokens; return the row of the last one": whole,
            "this is what the first token gives; return the row of the last token": whole[:, 0],
        },
    )


@exercise("rank_correlation", "1 where the order is the same, whatever the numbers are")
def rank_correlation() -> Cases:
    """Check rank_correlation(a, b): Spearman's, for numbers that are all different."""
    a = normal(7)
    # exp changes the numbers and not their order: only ranks give the right answer.
    b = normal(7, seed=1).exp()
    numbers = torch.stack([a, b])
    order = numbers.argsort(-1)
    # The rank of each number is its place in the order.
    ranks = order.argsort(-1).float()
    yield Case(
        (a, b),
        torch.corrcoef(ranks)[0, 1],
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
        },
    )
    # One order, different numbers.
    yield Case((a, a.exp()), torch.tensor(1.0))


# -------------------------------------------------------------------------- 20  heads over a corpus


@exercise(
    "corpus_mean",
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
            "this is the mean of the sums; divide by the number of queries": 10.0 / 3,
        },
    )


@exercise("changed", "below 3, a change may be chance")
def changed() -> Cases:
    """Check changed(before, after): the change of a mean, in units of its standard error."""
    fewer = 0.4 + 0.1 * normal(9)
    more = 0.7 + 0.2 * normal(16, seed=1)
    for before, after in ((fewer, more), (more, fewer)):  # a rise, and a fall
        spreads = [numbers.var(correction=0) for numbers in (before, after)]
        variances = [spreads[0] / len(before), spreads[1] / len(after)]  # of the means
        change = after.mean() - before.mean()
        # Variances of independent means add up.
        error = (variances[0] + variances[1]).sqrt()
        yield Case(
            (before, after),
            change / error,
            {
                "this is the change; divide it by its standard error": change,
                "divided by the spread of the texts; the error of a mean is smaller by √(number "
                "of texts)": change / (spreads[0] + spreads[1]).sqrt(),
                "the two errors are added; add their squares, and take the root": (
                    change / (variances[0].sqrt() + variances[1].sqrt())
                ),
                "the sign is exchanged: after - before": -change / error,
            },
            tolerance=0.08,  # with or without Bessel's correction
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
        found = call("clipped", function, W_q, W_k, largest, tau)
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise WrongAnswer("clipped should return two matrices: W_q and W_k")
        # Scores have a factor of each matrix: both take the root.
        factor = min(1.0, tau / largest) ** 0.5
        if tau > largest and not torch.allclose(found[0], W_q):
            raise WrongAnswer("clipped: a head below the limit is left as it is")
        for name, own, plain in zip(("W_q", "W_k"), found, (W_q, W_k), strict=True):
            compare(
                name,
                own,
                factor * plain,
                {
                    "both matrices are multiplied by tau / logit, so that scores shrink by its "
                    "square; take the root": (factor**2 * plain),
                    "the matrix is unchanged": plain,
                },
            )
    passed("clipped", "agrees with ts.qk_clip: the largest logit is tau")
