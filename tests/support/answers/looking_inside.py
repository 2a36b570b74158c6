"""Wrong answers to the lessons on fast kernels, surveys, watching, changing, sources, reasons and corpora."""

from math import sqrt

import torch
from torch.nn import functional as F  # noqa: N812

from telescope.lessons import check

from .written import edits

BLOCKS = """
def attend_in_blocks(q, k, v, block):
    largest = torch.full((q.shape[0], 1), -torch.inf)
    total = torch.zeros(q.shape[0], 1)
    summed = torch.zeros(q.shape[0], v.shape[1])
    for i in range(0, k.shape[0], block):
        scores = q @ k[i : i + block].mT / k.shape[1] ** 0.5
        new = torch.maximum(largest, scores.amax(-1, keepdim=True))
        powers, shrink = (scores - new).exp(), (largest - new).exp()
        total = total * shrink + powers.sum(-1, keepdim=True)
        summed = summed * shrink + powers @ v[i : i + block]
        largest = new
    return summed / total
"""

RECEIVED = """
def received(q, k, lse, block):
    total = torch.zeros(k.shape[0])
    for i in range(0, q.shape[0], block):
        scores = q[i : i + block] @ k.mT / k.shape[1] ** 0.5
        total += (scores - lse[i : i + block, None]).exp().sum(0)
    return total
"""

ENTROPY = """
def entropy_from_lse(scores, lse):
    weights = (scores - lse[:, None]).exp()
    return lse - (weights * scores).sum(-1)
"""

INDUCTION = """
def induction_share(weights, ids):
    earlier = (ids[:, None] == ids[None, :]).tril(-1)
    after = earlier.roll(1, 1)
    after[:, 0] = False
    repeated = earlier.any(-1)
    return (weights * after).sum(-1)[:, repeated].mean(-1)
"""

HIDDEN = """
def hidden(o, lse, o_g, lse_g):
    a = (lse_g - lse).exp()[:, None]
    return (o - a * o_g) / (1 - a)
"""

CARRIED = """
def carried(weights, values, W_o):
    norms = (values @ W_o).norm(dim=-1)
    total = (weights * norms[:, None]).sum((0, 1))
    return total / total.sum()
"""

ROLLOUT = """
def rollout(layers):
    relevance = torch.zeros(len(layers[0]))
    relevance[-1] = 1.0
    for weights in reversed(layers):
        relevance = relevance / 2 + weights.mT @ relevance / 2
    return relevance
"""

RANKS = """
def rank_correlation(a, b):
    one, other = (numbers.argsort().argsort().float() for numbers in (a, b))
    one, other = one - one.mean(), other - other.mean()
    return (one * other).sum() / (one.norm() * other.norm())
"""

SPLIT = """
def split_score(query_parts, key_parts, W_q, W_k, scale):
    return (query_parts @ W_q) @ (key_parts @ W_k).mT * scale
"""

HELD = """
def held_norm(x, parts, gain):
    sigma = (x.var(correction=0) + 1e-5).sqrt()
    return (parts - parts.mean(-1, keepdim=True)) / sigma * gain
"""

ATTRIBUTED = """
def attributed(weights, values, W_o, factor, row):
    written = weights[:, None] * (values @ W_o)
    return (written - written.mean(-1, keepdim=True)) * factor @ row
"""

CHANGED = """
def changed(before, after):
    error = (before.var() / len(before) + after.var() / len(after)).sqrt()
    return (after.mean() - before.mean()) / error
"""

CLIPPED = """
def clipped(W_q, W_k, logit, tau):
    factor = min(1.0, tau / logit) ** 0.5
    return factor * W_q, factor * W_k
"""

WRONG = {
    check.attend_in_blocks: [
        *edits(
            BLOCKS,
            ("no scale", (" / k.shape[1] ** 0.5", ""), "not divided by √d_k"),
            ("by d", ("k.shape[1] ** 0.5", "k.shape[1]"), "root"),
            ("root of the block", ("k.shape[1] **", "block **"), "block"),
            ("sum not rescaled", ("total * shrink", "total"), "running sum of the weights|total"),
            ("context not rescaled", ("summed * shrink", "summed"), "running sum of the values|context|summed"),
            ("nothing rescaled", [("total * shrink", "total"), ("summed * shrink", "summed")], "rescale"),
            ("rescaled the other way", ("(largest - new)", "(new - largest)"), "other way|exchanged|sign"),
            ("largest never kept", ("        largest = new\n", ""), "largest"),
            (
                "largest of the block",
                ("torch.maximum(largest, scores.amax(-1, keepdim=True))", "scores.amax(-1, keepdim=True)"),
                "block|largest so far",
            ),
            ("largest from 0", ("-torch.inf", "0.0"), "-inf|start"),
            ("last block alone", [("total * shrink + ", ""), ("summed * shrink + ", "")], "last block"),
            ("first block alone", ("        largest = new\n", "        largest = new\n        break\n"), "first block"),
            (
                "half a block dropped",
                ("range(0, k.shape[0], block)", "range(0, k.shape[0] // block * block, block)"),
                "last block|left over|remain",
            ),
            ("not divided", (" / total", ""), "divide"),
            (
                "divided in each block",
                ("        largest = new\n", "        summed = summed / total\n        largest = new\n"),
                "each block|once",
            ),
            (
                "overflow",
                [("(scores - new)", "(scores)"), ("total * shrink", "total"), ("summed * shrink", "summed")],
                "overflow",
            ),
            ("overlapping blocks", ("k.shape[0], block", "k.shape[0], block - 1"), "twice|overlap|step"),
            ("one key too few", ("i + block", "i + block - 1"), "left out|one key|last key"),
            ("no keepdim", ("powers.sum(-1, keepdim=True)", "powers.sum(-1)"), "keepdim"),
            ("sum of everything", ("powers.sum(-1, keepdim=True)", "powers.sum()"), "each row|each query"),
            ("max of everything", ("scores.amax(-1, keepdim=True)", "scores.amax()"), "each (row|query)|own largest"),
            (
                "no scale, sum not rescaled",
                [(" / k.shape[1] ** 0.5", ""), ("total * shrink", "total")],
                "√d_k.*(sum|total)|(sum|total).*√d_k",
            ),
            ("values of the first block", ("@ v[i : i + block]", "@ v[:block]"), "values|sizes"),
            ("returns the sum", ("summed / total", "total"), "sum|shape"),
        ),
        (
            "all at once",
            lambda q, k, v, block: (q @ k.mT / sqrt(8)).softmax(-1) @ v,
            "more than one block|whole matrix|all keys",
        ),
        (
            "torch's",
            lambda q, k, v, block: F.scaled_dot_product_attention(q[None], k[None], v[None])[0],
            "own attention",
        ),
        (
            "mean of blocks",
            lambda q, k, v, b: torch.stack(
                [(q @ k[i : i + b].mT / sqrt(8)).softmax(-1) @ v[i : i + b] for i in range(0, len(k), b)]
            ).mean(0),
            "averaged",
        ),
        (
            "sum of blocks",
            lambda q, k, v, b: sum(
                (q @ k[i : i + b].mT / sqrt(8)).softmax(-1) @ v[i : i + b] for i in range(0, len(k), b)
            ),
            "added",
        ),
    ],
    check.bytes_of_weights: [
        ("one byte", lambda n, heads, layers: n * n * heads * layers, "2 bytes"),
        ("four bytes", lambda n, heads, layers: 4 * n * n * heads * layers, "2 bytes|4 bytes"),
        ("n", lambda n, heads, layers: 2 * n * heads * layers, "n²"),
        ("one layer", lambda n, heads, layers: 2 * n * n * heads, "layer"),
        ("one head", lambda n, heads, layers: 2 * n * n * layers, "head"),
        ("half of it", lambda n, heads, layers: n * (n + 1) * heads * layers, "triangle|half"),
        ("strict half", lambda n, heads, layers: n * (n - 1) * heads * layers, "triangle|half"),
        ("bits", lambda n, heads, layers: 16 * n * n * heads * layers, "bits"),
        ("GiB", lambda n, heads, layers: 2 * n * n * heads * layers / 2**30, "GiB|bytes"),
        ("GB", lambda n, heads, layers: 2 * n * n * heads * layers / 1e9, "GB|bytes"),
        ("added", lambda n, heads, layers: 2 * (n * n + heads + layers), "product|multiply"),
        ("the example", lambda n, heads, layers: 721_554_505_728, "example|another|whatever"),
        ("one head, one layer", lambda n, heads, layers: 2 * n * n, "head.*layer|layer.*head"),
        ("one byte, one layer", lambda n, heads, layers: n * n * heads, "2 bytes.*layer|layer.*2 bytes"),
        ("power", lambda n, heads, layers: 2 * n**heads * layers, "n²|heads"),
    ],
    check.received: edits(
        RECEIVED,
        ("over the keys", (".sum(0)", ".sum(-1)"), "over the keys|over the queries|sizes"),
        (
            "over the keys, at once",
            ("    for", "    return (q @ k.mT / k.shape[1] ** 0.5).softmax(-1).sum(-1)\n    for"),
            "over the queries",
        ),
        ("no lse", (" - lse[i : i + block, None]", ""), "lse is not subtracted"),
        ("no scale", (" / k.shape[1] ** 0.5", ""), "not divided by √d_k"),
        ("by d", ("k.shape[1] ** 0.5", "k.shape[1]"), "root"),
        ("mean", ("return total", "return total / len(q)"), "received is the sum"),
        ("mean of blocks", ("sum(0)", "mean(0)"), "mean|block"),
        ("last block", ("total +=", "total ="), "last block"),
        ("first block", ("    return", "        break\n    return"), "first block"),
        (
            "rest dropped",
            ("range(0, q.shape[0], block)", "range(0, q.shape[0] // block * block, block)"),
            "last block|left over|remain",
        ),
        ("lse of all", ("lse[i : i + block, None]", "lse[:, None]"), r"lse\[|lse.*block"),
        ("lse as a row", ("lse[i : i + block, None]", "lse[i : i + block]"), r"None|lse.*column"),
        ("no exp", (".exp()", ""), "exp"),
        ("added", ("scores - lse", "scores + lse"), "subtract|sign"),
        ("largest", (".sum(0)", ".amax(0)"), "largest|sum"),
        (
            "over the queries",
            ("(scores - lse[i : i + block, None]).exp()", "scores.softmax(0)"),
            "over the queries|over the keys",
        ),
        (
            "all at once",
            ("    for", "    return (q @ k.mT / k.shape[1] ** 0.5 - lse[:, None]).exp().sum(0)\n    for"),
            "more than one block|whole matrix|all queries",
        ),
        ("divided by lse", ("scores - lse", "scores / lse"), "lse is divided|subtract"),
        (
            "exp, then divided",
            ("(scores - lse[i : i + block, None]).exp()", "(scores.exp() / lse[i : i + block, None])"),
            "exp\\(lse\\)|subtract",
        ),
        ("keys in blocks", ("q[i : i + block] @ k.mT", "q @ k[i : i + block].mT"), "keys|sizes|queries"),
        (
            "no scale, mean",
            [(" / k.shape[1] ** 0.5", ""), ("return total", "return total / len(q)")],
            "√d_k.*mean|mean.*√d_k",
        ),
        ("keys and queries exchanged", [("torch.zeros(k.shape[0])", "torch.zeros(q.shape[0])")], "key|sizes"),
    ),
    check.entropy_from_lse: edits(
        ENTROPY,
        ("sign", ("lse - (weights * scores)", "-lse + (weights * scores)"), "sign is exchanged"),
        ("even", ("(weights * scores).sum(-1)", "scores.mean(-1)"), "even weights"),
        (
            "no lse in the weights",
            ("(scores - lse[:, None]).exp()", "scores.exp()"),
            "exp\\(s - lse\\)|not normalised|lse",
        ),
        ("lse alone", (" - (weights * scores).sum(-1)", ""), "lse alone|lse, unchanged"),
        ("no lse", ("lse - (", "-("), "lse"),
        ("added", ("lse - (weights", "lse + (weights"), "subtract|sign"),
        (
            "bits",
            ("return lse - (weights * scores).sum(-1)", "return (lse - (weights * scores).sum(-1)) / log(2)"),
            "bits",
        ),
        ("over the queries", ("sum(-1)", "sum(0)"), "dim=-1|sizes|over the queries"),
        ("all", ("scores).sum(-1)", "scores).sum()"), "each row|all rows|dim=-1"),
        ("a row of lse", ("lse[:, None]", "lse"), r"None"),
        ("not summed", ("lse - (weights * scores).sum(-1)", "lse[:, None] - weights * scores"), "sum"),
        ("mean for sum", ("scores).sum(-1)", "scores).mean(-1)"), "mean"),
        ("largest", ("lse - (weights * scores).sum(-1)", "lse - scores.amax(-1)"), "largest"),
        ("no weights", ("(weights * scores)", "scores"), "weigh|sum of the scores"),
        ("the sum of weights", ("(weights * scores)", "weights"), "weights alone|sum to 1|scores"),
        ("softmax again", ("(scores - lse[:, None]).exp()", "(scores - lse[:, None]).exp().softmax(-1)"), "twice"),
        (
            "keepdim",
            ("lse - (weights * scores).sum(-1)", "lse[:, None] - (weights * scores).sum(-1, keepdim=True)"),
            "keepdim|axis",
        ),
    ),
    check.previous_share: [
        ("itself", lambda w: w.diagonal(0, 1, 2).mean(-1), "one below the diagonal"),
        ("by n", lambda w: w.diagonal(-1, 1, 2).sum(-1) / w.shape[-1], "do not count it"),
        ("all heads", lambda w: w.diagonal(-1, 1, 2).mean(), "one number for each head"),
        ("next", lambda w: w.diagonal(1, 1, 2).mean(-1), "above|next|after"),
        ("two before", lambda w: w.diagonal(-2, 1, 2).mean(-1), "two|one below"),
        ("sum", lambda w: w.diagonal(-1, 1, 2).sum(-1), "sum|mean"),
        ("first key", lambda w: w[:, 1:, 0].mean(-1), "first key"),
        ("axes", lambda w: w.diagonal(-1).mean(-1), r"axes|diagonal\(-1, 1, 2\)|heads"),
        ("list", lambda w: [float(m) for m in w.diagonal(-1, 1, 2).mean(-1)], "list"),
        ("each token", lambda w: w.diagonal(-1, 1, 2), "mean|each query"),
        ("largest", lambda w: w.diagonal(-1, 1, 2).amax(-1), "largest"),
        ("median", lambda w: w.diagonal(-1, 1, 2).median(-1).values, "median"),
        ("last query", lambda w: w[:, -1, -2], "last query"),
        (
            "how often largest",
            lambda w: (w[:, 1:].argmax(-1) == torch.arange(w.shape[1] - 1)).float().mean(-1),
            "how often|largest|weight itself",
        ),
        ("of the heads", lambda w: w.mean(0).diagonal(-1), "one number for each head|heads"),
        ("first head", lambda w: w[0].diagonal(-1).mean(), "one head|first head|one number for each head"),
        ("all before", lambda w: w.tril(-1).sum(-1)[:, 1:].mean(-1), "all earlier|earlier tokens|one below"),
        ("mean of everything", lambda w: w.mean((1, 2)), "all weights|every weight|diagonal"),
        ("transposed", lambda w: w.mT.diagonal(-1, 1, 2).mean(-1), "above|next|transposed"),
    ],
    check.induction_share: edits(
        INDUCTION,
        ("same token", ("weights * after", "weights * earlier"), "the token after it"),
        ("over all", ("[:, repeated].mean", ".mean"), "not over all"),
        ("sum", ("[:, repeated].mean(-1)", "[:, repeated].sum(-1)"), "sum|mean"),
        ("all heads", ("[:, repeated].mean(-1)", "[:, repeated].mean()"), "each head"),
        ("token before", ("roll(1, 1)", "roll(-1, 1)"), "before"),
        ("of the queries", ("roll(1, 1)", "roll(1, 0)"), "axis|quer"),
        ("later ones too", (".tril(-1)", ""), "earlier|itself|later"),
        ("itself too", (".tril(-1)", ".tril(0)"), "itself|earlier"),
        ("mean of keys", (".sum(-1)[:, repeated]", ".mean(-1)[:, repeated]"), "mean over the keys|sum the weights|sum"),
        (
            "per occurrence",
            (
                "(weights * after).sum(-1)[:, repeated]",
                "((weights * after).sum(-1) / after.sum(-1).clamp(min=1))[:, repeated]",
            ),
            "occurrences|sum the weights",
        ),
        (
            "last occurrence",
            ("    repeated", "    after = after & ~after.roll(-1, 1).flip(1).cumsum(1).flip(1).bool()\n    repeated"),
            "last|every earlier|all earlier",
        ),
        ("last query", ("[:, repeated].mean(-1)", "[:, -1]"), "last query"),
        ("each query", ("[:, repeated].mean(-1)", "[:, repeated]"), "mean|each query"),
        (
            "queries that do not repeat",
            ("repeated = earlier.any(-1)", "repeated = ~earlier.any(-1)"),
            "repeat|exchanged|occurred",
        ),
        (
            "previous token",
            ("weights * after", "weights * torch.eye(len(ids)).roll(-1, 1).tril(-1)"),
            "previous|token before",
        ),
        ("largest", (".sum(-1)[:", ".amax(-1)[:"), "largest|sum the weights"),
        ("token ids as places", ("weights * after", "weights * torch.eye(len(ids))[ids % len(ids)]"), "places|ids"),
        ("axes of repeated", ("earlier.any(-1)", "earlier.any(0)"), "any|axis|quer"),
        (
            "a list",
            (
                "return (weights * after).sum(-1)[:, repeated].mean(-1)",
                "return (weights * after).sum(-1)[:, repeated].mean(-1).tolist()",
            ),
            "list",
        ),
        (
            "by the number of all repeated weights",
            ("[:, repeated].mean(-1)", "[:, repeated].sum(-1) / len(ids)"),
            "not over all",
        ),
    ),
    check.hidden: edits(
        HIDDEN,
        ("not renormalised", (" / (1 - a)", ""), "divide by 1 - a"),
        ("no share", ("a * o_g", "o_g"), "a · o_g"),
        ("by a", ("/ (1 - a)", "/ a"), "not by a"),
        ("a row", ("[:, None]", ""), "None"),
        ("exchanged", ("lse_g - lse", "lse - lse_g"), "exchanged|other way|sign"),
        ("no exp", (".exp()", ""), "exp"),
        ("quotient", ("(lse_g - lse).exp()", "(lse_g / lse)"), "exp|difference"),
        ("exp of both", ("(lse_g - lse).exp()", "(lse_g.exp() - lse.exp())"), "exp\\(lse_g - lse\\)|quotient|divided"),
        ("added", ("o - a", "o + a"), "subtract|sign"),
        ("1 + a", ("1 - a", "1 + a"), "1 - a"),
        ("the group", ("(o - a * o_g) / (1 - a)", "o_g"), "group|unchanged"),
        ("everything", ("(o - a * o_g) / (1 - a)", "o"), "nothing is hidden|unchanged"),
        ("only renormalised", ("(o - a * o_g)", "o"), "subtract|not taken out|o_g"),
        ("the share", ("(o - a * o_g) / (1 - a)", "a"), "share"),
        ("brackets", ("(o - a * o_g) / (1 - a)", "o - a * o_g / (1 - a)"), "bracket|parenthes|all of it|o too|whole"),
        ("brackets, end", ("/ (1 - a)", "/ 1 - a"), "bracket|parenthes"),
        ("difference", ("(o - a * o_g) / (1 - a)", "o - o_g"), "a · o_g|share"),
        ("mixed", ("(o - a * o_g) / (1 - a)", "(1 - a) * o + a * o_g"), "mean|mixed|subtract"),
    ),
    check.carried: edits(
        CARRIED,
        ("no shares", ("total / total.sum()", "total"), "divide by their sum"),
        ("weights", ("norms = (values @ W_o).norm(dim=-1)", "norms = torch.ones(values.shape[:2])"), "plain weights"),
        ("length of v", ("(values @ W_o).norm", "values.norm"), "length of v"),
        (
            "vectors added",
            (
                "    total",
                "    total = (weights.mT.sum(-1)[..., None] * (values @ W_o)).sum(0).norm(dim=-1)\n"
                "    return total / total.sum()\n    total",
            ),
            "added before",
        ),
        ("squared", (".norm(dim=-1)", ".square().sum(-1)"), "square|root"),
        ("mean", ("total / total.sum()", "total / len(weights)"), "divide by their sum|shares"),
        ("each head", ("(weights * norms[:, None]).sum((0, 1))", "(weights * norms[:, None]).sum(1)"), "head"),
        ("each row", ("(weights * norms[:, None]).sum((0, 1))", "(weights * norms[:, None]).sum(0)"), "row|quer"),
        ("no weights", ("weights * norms[:, None]", "norms[:, None] * torch.ones_like(weights)"), "weights"),
        ("absolute", ("norm(dim=-1)", "norm(p=1, dim=-1)"), "absolute|p=1|L1"),
        ("softmax", ("total / total.sum()", "total.softmax(-1)"), "softmax|divide by their sum"),
        ("by the largest", ("total.sum()", "total.max()"), "largest|sum"),
        (
            "last row",
            ("(weights * norms[:, None]).sum((0, 1))", "(weights[:, -1] * norms).sum(0)"),
            "last row|one row|all rows",
        ),
        ("no None", ("norms[:, None]", "norms"), "None|heads"),
        ("sum of features", (".norm(dim=-1)", ".sum(-1)"), "length|norm"),
        ("over the keys", ("sum((0, 1))", "sum((0, 2))"), "keys|queries|rows"),
        (
            "shares of each head",
            ("    total =", "    norms = norms / norms.sum(-1, keepdim=True)\n    total ="),
            "each head|heads",
        ),
        ("first head", ("(weights * norms[:, None]).sum((0, 1))", "(weights * norms[:, None])[0].sum(0)"), "head"),
        (
            "largest of heads",
            ("(weights * norms[:, None]).sum((0, 1))", "(weights * norms[:, None]).sum(1).amax(0)"),
            "largest|heads",
        ),
        (
            "length of v, no shares",
            [("(values @ W_o).norm", "values.norm"), ("total / total.sum()", "total")],
            "length of v.*sum|sum.*length of v",
        ),
    ),
    check.rollout: edits(
        ROLLOUT,
        (
            "no residual",
            ("relevance / 2 + weights.mT @ relevance / 2", "weights.mT @ relevance"),
            "residual connection is missing",
        ),
        ("order", ("reversed(layers)", "layers"), "the last one comes first"),
        ("not transposed", ("weights.mT", "weights"), "transpose"),
        ("first token", ("relevance[-1]", "relevance[0]"), "last token"),
        ("all tokens", ("relevance[-1] = 1.0", "relevance += 1.0"), "last token"),
        (
            "not halved",
            ("relevance / 2 + weights.mT @ relevance / 2", "relevance + weights.mT @ relevance"),
            "half|halved",
        ),
        ("half of attention", ("relevance / 2 +", "relevance +"), "half|halved"),
        (
            "a tenth",
            ("relevance / 2 + weights.mT @ relevance / 2", "relevance * 0.9 + weights.mT @ relevance * 0.1"),
            "half",
        ),
        ("mean", ("    return relevance", "    return torch.stack(layers).mean(0)[-1]"), "multiply them"),
        ("last layer", ("    return relevance", "    return layers[-1][-1]"), "last layer|multiply"),
        ("first layer", ("    return relevance", "    return layers[0][-1]"), "first layer|multiply"),
        ("sum", ("    return relevance", "    return torch.stack(layers).sum(0)[-1]"), "multiply|sum"),
        ("last layer left out", ("reversed(layers)", "reversed(layers[:-1])"), "last layer|left out"),
        ("first layer left out", ("reversed(layers)", "reversed(layers[1:])"), "first layer|left out"),
        ("largest path", ("weights.mT @ relevance", "(weights.mT * relevance).amax(-1)"), "largest|sum"),
        (
            "matrix",
            (
                "    relevance = torch.zeros(len(layers[0]))\n    relevance[-1] = 1.0",
                "    relevance = torch.eye(len(layers[0]))",
            ),
            "last token|row",
        ),
        ("element by element", ("weights.mT @ relevance", "weights[-1] * relevance"), "element|@|product of matrices"),
        (
            "no residual, order",
            [("relevance / 2 + weights.mT @ relevance / 2", "weights.mT @ relevance"), ("reversed(layers)", "layers")],
            "residual.*(order|first)|first.*residual",
        ),
        ("shares", ("return relevance", "return relevance.softmax(-1)"), "softmax"),
        ("as a list", ("return relevance", "return relevance.tolist()"), "list"),
        ("residual twice", ("relevance / 2 +", "relevance * 1.5 +"), "half"),
    ),
    check.rank_correlation: [
        *edits(
            RANKS,
            ("numbers", (".argsort().argsort().float()", ""), "replace each by its rank"),
            ("order", (".argsort().argsort()", ".argsort()"), "argsort of argsort"),
            ("no mean", ("    one, other = one - one.mean(), other - other.mean()\n", ""), "mean"),
            ("covariance", ("(one * other).sum() / (one.norm() * other.norm())", "(one * other).mean()"), "covariance"),
            ("sum", (" / (one.norm() * other.norm())", ""), "divide|covariance"),
            (
                "ranks of one",
                ("(numbers.argsort().argsort().float() for numbers in (a, b))", "(a.argsort().argsort().float(), b)"),
                "both|b too|only",
            ),
            ("whole numbers", (".float()", ""), r"float|whole"),
            (
                "descending",
                (
                    "(numbers.argsort().argsort().float() for numbers in (a, b))",
                    "(a.argsort().argsort().float(), b.argsort(descending=True).argsort().float())",
                ),
                "sign|descending|order",
            ),
            (
                "R²",
                (
                    "    return (one * other).sum() / (one.norm() * other.norm())",
                    "    return ((one * other).sum() / (one.norm() * other.norm())) ** 2",
                ),
                "square",
            ),
            ("absolute", ("return (one * other).sum()", "return (one * other).sum().abs()"), "sign|absolute"),
            ("one norm", (" * other.norm())", ")"), "both|one"),
            ("variance", ("(one.norm() * other.norm())", "(one @ one * (other @ other))"), "root|square"),
            ("sorted", ("numbers.argsort().argsort().float()", "numbers.sort().values"), "sort"),
        ),
        (
            "distance",
            lambda a, b: (a.argsort().argsort() - b.argsort().argsort()).square().sum().float(),
            "1 - 6|difference",
        ),
        (
            "6 d",
            lambda a, b: (
                1 - (a.argsort().argsort() - b.argsort().argsort()).square().sum() / (len(a) * (len(a) ** 2 - 1))
            ),
            "6",
        ),
        (
            "Kendall",
            lambda a, b: ((a[:, None] - a).sign() * (b[:, None] - b).sign()).sum() / (len(a) * (len(a) - 1)),
            "Kendall|pairs",
        ),
        ("agreement", lambda a, b: (a.argsort() == b.argsort()).float().mean(), "share|how many|places"),
        (
            "matrix",
            lambda a, b: torch.corrcoef(torch.stack([a.argsort().argsort(), b.argsort().argsort()]).float()),
            "matrix|one number",
        ),
        ("cosine", lambda a, b: F.cosine_similarity(a, b, dim=0), "cosine|rank"),
    ],
    check.split_score: edits(
        SPLIT,
        ("no scale", (" * scale", ""), "not multiplied by the scale"),
        ("scale twice", ("W_q)", "W_q * scale)"), "scale stands twice"),
        ("√d_k", (" * scale", " / W_q.shape[1] ** 0.5"), "scale that is given"),
        ("divided", (" * scale", " / scale"), "divided by the scale"),
        ("root of scale", (" * scale", " * scale**0.5"), "root"),
        (
            "the score",
            (
                "return (query_parts @ W_q) @ (key_parts @ W_k).mT * scale",
                "return (query_parts.sum(0) @ W_q) @ (key_parts.sum(0) @ W_k) * scale",
            ),
            "sum of the table",
        ),
        ("not projected", (" @ W_q) @ (key_parts @ W_k)", ") @ (key_parts)"), "not projected"),
        ("exchanged", ("@ W_q) @ (key_parts @ W_k)", "@ W_k) @ (key_parts @ W_q)"), "W_q and W_k are exchanged"),
        (
            "transposed",
            ("(query_parts @ W_q) @ (key_parts @ W_k).mT", "(key_parts @ W_k) @ (query_parts @ W_q).mT"),
            "transposed",
        ),
        (
            "softmax",
            (
                "return (query_parts @ W_q) @ (key_parts @ W_k).mT * scale",
                "return ((query_parts @ W_q) @ (key_parts @ W_k).mT * scale).softmax(-1)",
            ),
            "softmax",
        ),
        ("only W_q", ("key_parts @ W_k", "key_parts @ W_q"), "W_k"),
        ("only W_k", ("query_parts @ W_q", "query_parts @ W_k"), "W_q"),
        ("keys of all", ("key_parts @ W_k).mT", "key_parts.sum(0) @ W_k)"), "key's authors"),
        ("queries of all", ("query_parts @ W_q", "query_parts.sum(0) @ W_q"), "query's authors"),
        (
            "shares",
            (
                "return (query_parts @ W_q) @ (key_parts @ W_k).mT * scale",
                "table = (query_parts @ W_q) @ (key_parts @ W_k).mT * scale\n    return table / table.sum()",
            ),
            "share|sum",
        ),
        (
            "absolute",
            (
                "return (query_parts @ W_q) @ (key_parts @ W_k).mT * scale",
                "return ((query_parts @ W_q) @ (key_parts @ W_k).mT * scale).abs()",
            ),
            "sign|absolute",
        ),
        ("no transpose", (".mT", ""), r"transpose|\.mT"),
        ("W.T", ("query_parts @ W_q", "query_parts @ W_q.T"), "transpose|sizes"),
        ("means", ("query_parts @ W_q", "(query_parts - query_parts.mean(0)) @ W_q"), "mean"),
        (
            "no scale, exchanged",
            [(" * scale", ""), ("@ W_q) @ (key_parts @ W_k)", "@ W_k) @ (key_parts @ W_q)")],
            "scale.*exchanged|exchanged.*scale",
        ),
    ),
    check.held_norm: edits(
        HELD,
        (
            "each by itself",
            ("(x.var(correction=0) + 1e-5)", "(parts.var(-1, correction=0, keepdim=True) + 1e-5)"),
            "normalised by itself|of its own",
        ),
        ("mean forgotten", ("(parts - parts.mean(-1, keepdim=True))", "parts"), "mean is forgotten"),
        ("no gain", (" * gain", ""), "gain is forgotten"),
        ("neither", [("(parts - parts.mean(-1, keepdim=True))", "parts"), (" * gain", "")], "mean.*gain|gain.*mean"),
        ("mean of x", ("parts.mean(-1, keepdim=True)", "x.mean()"), "each loses its own"),
        ("mean of x shared", ("parts.mean(-1, keepdim=True)", "x.mean() / len(parts)"), "each part loses its own"),
        ("mean over the authors", ("parts.mean(-1, keepdim=True)", "parts.mean(0)"), "features of each part"),
        ("variance", (".sqrt()", ""), "σ is its root"),
        ("correction", ("correction=0", ""), "correction=0"),
        ("RMS", ("(x.var(correction=0) + 1e-5)", "(x.square().mean() + 1e-5)"), "RMSNorm"),
        ("the sum", ("return (parts - parts.mean(-1, keepdim=True))", "return (x - x.mean())"), "row for each part"),
        ("no sigma", (" / sigma", ""), "σ|divide"),
        ("multiplied", ("/ sigma", "* sigma"), "divide|multipl"),
        ("gain divided", ("* gain", "/ gain"), "gain"),
        ("no keepdim", ("mean(-1, keepdim=True)", "mean(-1)"), "keepdim"),
        ("sigma of all parts", ("x.var(", "parts.var("), "σ of x|σ"),
        ("variance, no gain", [(".sqrt()", ""), (" * gain", "")], "root.*gain|gain.*root|variance.*gain"),
        ("1 + gain", ("* gain", "* (1 + gain)"), "gain"),
        ("deviation of sums", ("(x.var(correction=0) + 1e-5).sqrt()", "(x - x.mean()).norm()"), "length|√|σ"),
        ("bias", ("* gain", "* gain + gain"), "gain|added"),
    ),
    check.attributed: edits(
        ATTRIBUTED,
        ("no weights", ("weights[:, None] * (values @ W_o)", "values @ W_o"), "weights are missing"),
        ("mean left in", ("(written - written.mean(-1, keepdim=True))", "written"), "mean is left in"),
        ("mean over the keys", ("written.mean(-1, keepdim=True)", "written.mean(0)"), "over the features"),
        ("no factor", (" * factor", ""), "factor is missing"),
        ("no norm", [("(written - written.mean(-1, keepdim=True))", "written"), (" * factor", "")], "norm is missing"),
        (
            "the head",
            (
                "(written - written.mean(-1, keepdim=True)) * factor @ row",
                "((written - written.mean(-1, keepdim=True)) * factor @ row).sum()",
            ),
            "number for each key",
        ),
        ("not summed", ("* factor @ row", "* factor * row"), "not summed"),
        (
            "length",
            (
                "(written - written.mean(-1, keepdim=True)) * factor @ row",
                "((written - written.mean(-1, keepdim=True)) * factor).norm(dim=-1)",
            ),
            "length",
        ),
        (
            "shares",
            (
                "return (written - written.mean(-1, keepdim=True)) * factor @ row",
                "r = (written - written.mean(-1, keepdim=True)) * factor @ row\n    return r / r.sum()",
            ),
            "shares",
        ),
        ("factor before", ("return (written", "written = written * factor\n    return (written"), "twice|factor"),
        (
            "factor inside",
            [
                (
                    "(written - written.mean(-1, keepdim=True)) * factor",
                    "(written * factor - (written * factor).mean(-1, keepdim=True))",
                )
            ],
            "mean.*before|factor.*after|order",
        ),
        ("divided by factor", ("* factor", "/ factor"), "factor"),
        ("mean of everything", ("written.mean(-1, keepdim=True)", "written.mean()"), "mean|features"),
        (
            "no row",
            (
                "(written - written.mean(-1, keepdim=True)) * factor @ row",
                "((written - written.mean(-1, keepdim=True)) * factor).sum(-1)",
            ),
            "row",
        ),
        ("no None", ("weights[:, None]", "weights"), "None|sizes"),
        ("no W_o", ("(values @ W_o)", "values"), "W_o|sizes"),
        ("no keepdim", ("mean(-1, keepdim=True)", "mean(-1)"), "keepdim"),
        (
            "largest key",
            (
                "return (written",
                "weights = weights.softmax(-1)\n    written = weights[:, None] * (values @ W_o)\n    return (written",
            ),
            "softmax",
        ),
        (
            "no weights, no factor",
            [("weights[:, None] * (values @ W_o)", "values @ W_o"), (" * factor", "")],
            "weights.*factor|factor.*weights",
        ),
        (
            "absolute",
            (
                "return (written - written.mean(-1, keepdim=True)) * factor @ row",
                "return ((written - written.mean(-1, keepdim=True)) * factor @ row).abs()",
            ),
            "sign|absolute",
        ),
    ),
    check.corpus_mean: [
        ("mean of means, with 0 / 0", lambda s, c: (s / c).mean(), "0 / 0"),
        ("mean of means", lambda s, c: (s / c)[c > 0].mean(), "long text has more"),
        ("nanmean", lambda s, c: (s / c).nanmean(), "long text has more"),
        ("0 for an empty text", lambda s, c: (s / c).nan_to_num().mean(), "means|0 / 0|empty"),
        ("mean of sums", lambda s, c: s.mean(), "number of queries"),
        ("sum", lambda s, c: s.sum(), "divide"),
        ("upside down", lambda s, c: c.sum() / s.sum(), "upside down"),
        ("median", lambda s, c: (s / c)[c > 0].median(), "median"),
        ("at least one", lambda s, c: (s / c.clamp(min=1)).mean(), "means|empty|long text"),
        ("counts of one more", lambda s, c: s.sum() / (c.sum() + 1), "1|added"),
        ("clamped counts", lambda s, c: s.sum() / c.clamp(min=1).sum(), "counts|clamp|without a query"),
        ("each text", lambda s, c: s / c.clamp(min=1), "one number|each text"),
        ("largest", lambda s, c: (s / c)[c > 0].max(), "largest"),
        ("weighted again", lambda s, c: (s * c).sum() / c.sum(), "already|sums"),
        ("mean of counts", lambda s, c: s.sum() / c.mean(), "mean"),
        ("sum of means", lambda s, c: (s / c).nan_to_num().sum(), "means|long text|sum"),
        ("whole", lambda s, c: s.sum() // c.sum(), "//|whole"),
        ("sums per text", lambda s, c: s.sum() / len(c), "number of queries"),
    ],
    check.changed: edits(
        CHANGED,
        ("change", (" / error", ""), "divide it by its standard error"),
        (
            "spread",
            ("before.var() / len(before) + after.var() / len(after)", "before.var() + after.var()"),
            "spread of the texts",
        ),
        (
            "errors added",
            (
                "(before.var() / len(before) + after.var() / len(after)).sqrt()",
                "before.std() / len(before) ** 0.5 + after.std() / len(after) ** 0.5",
            ),
            "add their squares",
        ),
        ("sign", ("after.mean() - before.mean()", "before.mean() - after.mean()"), "after - before"),
        ("absolute", ("(after.mean() - before.mean())", "(after.mean() - before.mean()).abs()"), "after - before|sign"),
        ("no root", (".sqrt()", ""), "root"),
        (
            "by n",
            (
                "(before.var() / len(before) + after.var() / len(after)).sqrt()",
                "before.std() / len(before) + after.std() / len(after)",
            ),
            "√n|root|squares",
        ),
        (
            "before alone",
            ("before.var() / len(before) + after.var() / len(after)", "before.var() / len(before)"),
            "after|both|only",
        ),
        (
            "after alone",
            ("before.var() / len(before) + after.var() / len(after)", "after.var() / len(after)"),
            "before|both|only",
        ),
        (
            "pooled n",
            (
                "before.var() / len(before) + after.var() / len(after)",
                "(before.var() + after.var()) / (len(before) + len(after))",
            ),
            "own number|each|pooled|together",
        ),
        (
            "exchanged n",
            (
                "before.var() / len(before) + after.var() / len(after)",
                "before.var() / len(after) + after.var() / len(before)",
            ),
            "exchanged|own",
        ),
        ("ratio", ("(after.mean() - before.mean()) / error", "after.mean() / before.mean()"), "ratio|quotient"),
        (
            "percent",
            ("(after.mean() - before.mean()) / error", "(after.mean() - before.mean()) / before.mean()"),
            "share of|relative|standard error",
        ),
        ("multiplied", ("/ error", "* error"), "divide|multipl"),
        ("medians", ("after.mean() - before.mean()", "after.median() - before.median()"), "median"),
        (
            "squares of deviations",
            (
                "before.var() / len(before) + after.var() / len(after)",
                "before.var() ** 2 / len(before) + after.var() ** 2 / len(after)",
            ),
            "square",
        ),
        ("of pairs", ("return", "return torch.sub(after, before).mean() #"), "sizes|pairs|texts"),
        (
            "deviations under the root",
            (
                "before.var() / len(before) + after.var() / len(after)",
                "before.std() / len(before) + after.std() / len(after)",
            ),
            "variance|squares|square",
        ),
    ),
    check.clipped: [
        *edits(
            CLIPPED,
            ("no root", (") ** 0.5", ")"), "take the root"),
            ("no min", ("min(1.0, tau / logit)", "(tau / logit)"), "below the limit"),
            ("upside down", ("tau / logit", "logit / tau"), "upside down|tau / logit"),
            ("upside down, no min", ("min(1.0, tau / logit)", "(logit / tau)"), "upside down|tau / logit"),
            ("W_q alone", ("factor * W_q, factor * W_k", "factor * W_q, W_k"), "W_k is unchanged|both"),
            ("all in W_q", ("factor * W_q, factor * W_k", "factor**2 * W_q, W_k"), "both"),
            ("unchanged", ("factor * W_q, factor * W_k", "W_q, W_k"), "unchanged"),
            ("exchanged", ("factor * W_q, factor * W_k", "factor * W_k, factor * W_q"), "exchanged|order"),
            ("fourth root", ("0.5", "0.25"), "root"),
            ("squared", ("0.5", "2"), "root"),
            ("W_q returned", ("factor * W_q, factor * W_k", "factor * W_q"), "two matrices"),
            ("a dict", ("factor * W_q, factor * W_k", "dict(W_q=factor * W_q, W_k=factor * W_k)"), "two matrices"),
            (
                "in place",
                ("return factor * W_q, factor * W_k", "return W_q.mul_(factor), W_k.mul_(factor)"),
                "in place",
            ),
            ("max", ("min(", "max("), "min|below|unchanged"),
            ("difference", ("tau / logit", "tau - logit"), "subtract|difference|tau / logit|NaN|complex"),
            ("three", ("factor * W_q, factor * W_k", "factor * W_q, factor * W_k, factor"), "two matrices"),
        ),
        ("clamped", lambda q, k, logit, tau: (q.clamp(max=tau), k.clamp(max=tau)), "clamp|unchanged|factor"),
        ("clamped small", lambda q, k, logit, tau: (q.clamp(-0.5, 0.5), k.clamp(-0.5, 0.5)), "clamp|cut|factor"),
        ("one tensor", lambda q, k, logit, tau: torch.cat([q, k]), "two matrices"),
        ("the product", lambda q, k, logit, tau: (q @ k.mT * min(1.0, tau / logit),) * 2, "W_q|shape"),
        ("always", lambda q, k, logit, tau: (q * 0.5, k * 0.5), "whatever|below the limit|tau"),
    ],
}
