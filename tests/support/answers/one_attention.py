"""Wrong answers to the first seven lessons: one attention, its weights, its scale, its geometry, its masks."""

from math import sqrt

import torch
from torch.nn import functional as F  # noqa: N812

from telescope.lessons import check, journey

from .written import edits

JOURNEY = journey()


def filled(x, keep):
    """Fill a matrix of scores in two loops, where keep(i, j)."""
    scores = torch.zeros(len(x), len(x))
    for i in range(len(x)):
        for j in range(len(x)):
            if keep(i, j):
                scores[i, j] = x[i] @ x[j]
    return scores


def only_below(n):
    return torch.ones(n, n, dtype=torch.bool).tril()


SOFTMAX = """
def softmax(scores):
    largest = scores.max(-1, keepdim=True).values
    powers = (scores - largest).exp()
    return powers / powers.sum(-1, keepdim=True)
"""

TEMPERATURE = """
def with_temperature(scores, temperature):
    return (scores / temperature).softmax(-1)
"""

ATTENTION = """
def attention(x, W_q, W_k, W_v):
    q, k, v = x @ W_q, x @ W_k, x @ W_v
    scores = q @ k.mT / k.shape[-1] ** 0.5
    weights = scores.softmax(-1)
    return weights @ v
"""

VARIANCES = """
def variances(q, k):
    scores = q @ k.mT
    scaled = scores / k.shape[-1] ** 0.5
    return scores.var(correction=0).item(), scaled.var(correction=0).item()
"""

MASKED = """
def masked_softmax(scores, mask):
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return weights.masked_fill(~mask, 0.0)
"""

WRONG = {
    check.scores: [
        ("cosines", lambda x: F.normalize(x, dim=-1) @ F.normalize(x, dim=-1).T, "cosine"),
        ("features with features", lambda x: x.T @ x, "products of features"),
        ("products, no sum", lambda x: x[:, None] * x, "not summed"),
        ("divided by √d", lambda x: x @ x.T / sqrt(x.shape[1]), "√"),
        ("distances", lambda x: torch.cdist(x, x), "distance"),
        ("softmax already", lambda x: (x @ x.T).softmax(-1), "softmax"),
        ("journey alone", lambda x: x @ x[1], r"only|alone|one row"),
        ("a list", lambda x: (x @ x.T).tolist(), "list"),
        ("numpy", lambda x: (x @ x.T).numpy(), "numpy"),
        ("no transpose", lambda x: x @ x, "transpose"),
        ("the example's numbers", lambda x: JOURNEY @ JOURNEY.T, "example|another input|whatever"),
        ("mean for sum", lambda x: (x[:, None] * x).mean(-1), "mean"),
        ("half of the loop", lambda x: filled(x, lambda i, j: j >= i), "below the diagonal"),
        ("not with itself", lambda x: filled(x, lambda i, j: j != i), "diagonal"),
        ("without the last", lambda x: filled(x, lambda i, j: max(i, j) < len(x) - 1), "last"),
        ("lengths", lambda x: x.norm(dim=-1)[:, None] * x.norm(dim=-1), "length"),
        ("squared", lambda x: (x @ x.T) ** 2, "square"),
        ("whole numbers", lambda x: (x @ x.T).int(), "whole numbers"),
        ("rounded", lambda x: (x @ x.T).round(decimals=2), "round"),
        ("element by element", lambda x: x * x, "each pair|not summed"),
        ("covariance", lambda x: (x - x.mean(0)) @ (x - x.mean(0)).T, "mean"),
        ("printed", lambda x: print(end=""), "return"),
        ("with a batch", lambda x: (x @ x.T)[None], "axis"),
        ("negative", lambda x: -x @ x.T, "sign"),
    ],
    check.weight_free: [
        ("no softmax", lambda x: x @ x.T @ x, "not normalised|softmax is missing"),
        ("over the queries", lambda x: (x @ x.T).softmax(0) @ x, "over the queries"),
        ("weights", lambda x: (x @ x.T).softmax(-1), "these are the weights"),
        ("scores", lambda x: x @ x.T, "these are the scores"),
        ("by sum", lambda x: x @ x.T / (x @ x.T).sum(-1, keepdim=True) @ x, "wants softmax"),
        ("scaled", lambda x: (x @ x.T / sqrt(x.shape[-1])).softmax(-1) @ x, "√d"),
        ("journey alone", lambda x: (x @ x[1]).softmax(0) @ x, r"only|alone|one row"),
        ("transposed weights", lambda x: (x @ x.T).softmax(-1).T @ x, "transposed|over the queries"),
        ("mean of all", lambda x: x.mean(0).expand_as(x), "even|same weight"),
        ("weights of rows", lambda x: (x @ x.T).softmax(-1).sum(-1, keepdim=True) * x, "unchanged|itself"),
        ("added to x", lambda x: x + (x @ x.T).softmax(-1) @ x, "added|residual"),
        ("log", lambda x: (x @ x.T).log_softmax(-1) @ x, "logarithm"),
        ("softmax of everything", lambda x: (x @ x.T).flatten().softmax(0).view(len(x), -1) @ x, "each row"),
        ("exp alone", lambda x: (x @ x.T).exp() @ x, "divide|sum to 1"),
        ("largest alone", lambda x: x[(x @ x.T).argmax(-1)], "largest"),
        ("cosines", lambda x: (F.normalize(x, dim=-1) @ F.normalize(x, dim=-1).T).softmax(-1) @ x, "cosine"),
        ("softmax twice", lambda x: (x @ x.T).softmax(-1).softmax(-1) @ x, "twice"),
        (
            "not itself",
            lambda x: (x @ x.T).masked_fill(torch.eye(len(x)).bool(), -torch.inf).softmax(-1) @ x,
            "itself",
        ),
        ("causal", lambda x: (x @ x.T).masked_fill(~only_below(len(x)), -torch.inf).softmax(-1) @ x, "mask"),
        ("example", lambda x: (JOURNEY @ JOURNEY.T).softmax(-1) @ JOURNEY, "example|another input|whatever"),
        ("over the queries, scaled", lambda x: (x @ x.T / sqrt(x.shape[-1])).softmax(0) @ x, "√d.*quer|quer.*√d"),
    ],
    check.softmax: [
        *edits(
            SOFTMAX,
            ("overflow", ("scores - largest", "scores"), r"infinite"),
            ("max of everything", ("scores.max(-1, keepdim=True).values", "scores.max()"), "each row"),
            ("sum of everything", ("powers.sum(-1, keepdim=True)", "powers.sum()"), "each row has its own"),
            ("no keepdim in the sum", ("powers.sum(-1, keepdim=True)", "powers.sum(-1)"), "keepdim"),
            ("no keepdim in the max", ("scores.max(-1, keepdim=True)", "scores.max(-1)"), "keepdim"),
            ("no values", (".values", ""), r"\.values"),
            ("max over the columns", ("scores.max(-1", "scores.max(0"), "each row|dim=-1"),
            ("sum over the columns", ("powers.sum(-1", "powers.sum(0"), "dim=-1"),
            ("all over the columns", ("(-1, ", "(0, "), "dim=-1"),
            ("sum of the first exp", ("powers.sum(-1,", "scores.exp().sum(-1,"), "sum.*largest|largest.*sum"),
            ("mean subtracted", (".max(-1, keepdim=True).values", ".mean(-1, keepdim=True)"), "largest"),
            ("smallest subtracted", (".max(", ".min("), "largest"),
            ("not divided", (" / powers.sum(-1, keepdim=True)", ""), "divide"),
            ("mean for sum", ("powers.sum", "powers.mean"), "mean"),
            ("base 2", ("(scores - largest).exp()", "2 ** (scores - largest)"), "base|power of 2|powers of 2"),
            ("in place", ("(scores - largest).exp()", "scores.sub_(largest).exp_()"), "in place"),
            ("a little more", ("keepdim=True)\n", "keepdim=True) + 0.01\n"), "sum to"),
        ),
        ("nan_to_num", lambda s: (s.exp() / s.exp().sum(-1, keepdim=True)).nan_to_num(), "largest"),
        ("clamped", lambda s: s.clamp(max=80).softmax(-1), "clamp|cut"),
        ("log", lambda s: s.log_softmax(-1), "logarithm"),
        ("by sum", lambda s: s / s.sum(-1, keepdim=True), "exp"),
        ("absolute by sum", lambda s: s.abs() / s.abs().sum(-1, keepdim=True), "exp"),
        ("sigmoid", lambda s: s.sigmoid(), "sigmoid"),
        ("relu", lambda s: s.relu() / s.relu().sum(-1, keepdim=True), "exp"),
        ("largest alone", lambda s: F.one_hot(s.argmax(-1), s.shape[-1]).float(), "largest"),
        ("first row", lambda s: s[0].softmax(-1), r"only|alone|one row"),
    ],
    check.with_temperature: [
        *edits(
            TEMPERATURE,
            ("multiplied", ("/ temperature", "* temperature"), "multipl"),
            (
                "after softmax",
                ("(scores / temperature).softmax(-1)", "scores.softmax(-1) / temperature"),
                "after softmax",
            ),
            ("not used", (" / temperature", ""), "not used|temperature does nothing"),
            ("subtracted", ("/ temperature", "- temperature"), "not used|subtract"),
            (
                "of the weights",
                ("(scores / temperature)", "(scores.softmax(-1) / temperature)"),
                "twice|of the weights",
            ),
            ("squared", ("/ temperature", "/ temperature**2"), "square"),
            ("rooted", ("/ temperature", "/ temperature**0.5"), "root"),
            ("over the columns", ("-1", "0"), "dim=-1"),
            ("no softmax", (".softmax(-1)", ""), "softmax is missing|not normalised|no softmax"),
            ("log", ("softmax", "log_softmax"), "logarithm"),
            ("whole", ("/ temp", "// temp"), "//|whole"),
            ("1 + T", ("/ temperature", "/ (1 + temperature)"), r"1 \+|added"),
        ),
        (
            "renormalised",
            lambda s, t: (s.softmax(-1) / t) / (s.softmax(-1) / t).sum(-1, keepdim=True),
            "weights|not used",
        ),
        ("overflow", lambda s, t: (s / t).exp() / (s / t).exp().sum(-1, keepdim=True), "largest"),
        ("largest alone", lambda s, t: F.one_hot(s.argmax(-1), s.shape[-1]).float(), "largest"),
        ("exp of both", lambda s, t: s.exp() / t / s.exp().sum(-1, keepdim=True), "after softmax"),
        ("arguments exchanged", lambda t, s: (s / t).softmax(-1), "exchanged|order"),
    ],
    check.negative_weight: [
        ("all positive", [1.0, 2.0, 3.0], "all from 0 to 1"),
        ("sum 0", [1.0, -1.0, 0.0], "sum of these scores is 0"),
        ("two", [1.0, -2.0], "three"),
        ("all negative", [-1.0, -2.0, -3.0], "sign"),
        ("all zero", [0.0, 0.0, 0.0], "sum of these scores is 0"),
        ("weights", [0.2, 0.3, 0.5], "all from 0 to 1"),
        ("a matrix", [[2.0, 1.0, -1.0]], "three"),
        ("one", -1.0, "three"),
        ("a word", "negative", "numbers"),
        ("words", [1.0, "a", 2.0], "numbers"),
        ("nan", [1.0, float("nan"), 2.0], "NaN"),
        ("infinite", [float("inf"), 1.0, -1.0], "infinite"),
        ("a function", lambda scores: scores, "function"),
    ],
    check.attention_of: [
        *edits(
            ATTENTION,
            ("no scale", (" / k.shape[-1] ** 0.5", ""), "not divided by √d_k"),
            ("by d_k", (" ** 0.5", ""), "square root"),
            ("root of d_v", ("k.shape[-1]", "v.shape[-1]"), "d_v|values"),
            ("root of n", ("k.shape[-1]", "k.shape[0]"), "number of tokens"),
            ("root of d", ("k.shape[-1]", "x.shape[-1]"), "width of x"),
            ("multiplied", ("/ k.shape", "* k.shape"), "multipl"),
            ("both scaled", ("k.mT /", "k.mT / k.shape[-1] ** 0.5 /"), "divided by d_k"),
            ("brackets", ("** 0.5", "** 1 / 2"), r"\*\* 1 / 2|bracket|parenthes"),
            ("the example's root", ("k.shape[-1]", "2"), "example|another input|whatever|written into"),
            (
                "after softmax",
                [(" / k.shape[-1] ** 0.5", ""), ("softmax(-1)", "softmax(-1) / k.shape[-1] ** 0.5")],
                "after softmax|before softmax",
            ),
            ("over the queries", ("softmax(-1)", "softmax(0)"), "dim=-1"),
            ("keys ask", ("q @ k.mT", "k @ q.mT"), "keys ask"),
            ("weigh x", ("weights @ v", "weights @ x"), "weights multiply x"),
            ("weigh the keys", ("weights @ v", "weights @ k"), "keys.*values|values.*keys"),
            ("weigh the queries", ("weights @ v", "weights @ q"), "queries.*values|values.*queries"),
            ("W_k for v", ("x @ W_v", "x @ W_k"), "W_v|values"),
            ("W_k for q", ("x @ W_q", "x @ W_k"), "W_q"),
            ("W_q for k", ("x @ W_k", "x @ W_q"), "W_k"),
            ("x for q", ("q, k, v = x @ W_q", "q, k, v = x[:, :W_q.shape[1]]"), "W_q"),
            ("weights", ("weights @ v", "weights"), "these are the weights"),
            ("scores", ("weights @ v", "scores"), "these are the scores"),
            ("values", ("weights @ v", "v"), "these are the values"),
            ("transposed weights", ("weights @ v", "weights.mT @ v"), "transposed"),
            ("no softmax", (".softmax(-1)", ""), "softmax is missing|not normalised"),
            ("softmax twice", ("softmax(-1)", "softmax(-1).softmax(-1)"), "twice"),
            ("wrong order", ("weights @ v", "v @ weights"), "order|sizes"),
            ("no transpose", ("k.mT", "k"), r"transpose|\.mT"),
            ("W_q.T", ("x @ W_q", "x @ W_q.T"), "transpose"),
            ("element by element", ("weights @ v", "weights * v"), "@|element"),
            (
                "causal",
                ("scores.softmax", "scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf).softmax"),
                "mask",
            ),
            ("mean", ("weights @ v", "v.mean(0).expand_as(v)"), "even|same weight"),
            (
                "no scale, over queries",
                [(" / k.shape[-1] ** 0.5", ""), ("softmax(-1)", "softmax(0)")],
                "√d_k.*dim=-1|dim=-1.*√d_k",
            ),
            (
                "no scale, weigh x",
                [(" / k.shape[-1] ** 0.5", ""), ("weights @ v", "weights @ x")],
                "√d_k.*multiply x|multiply x.*√d_k",
            ),
            ("by d_k, keys ask", [(" ** 0.5", ""), ("q @ k.mT", "k @ q.mT")], "root.*keys ask|keys ask.*root"),
        ),
    ],
    check.even_weights: [
        ("counted", torch.arange(6.0).reshape(3, 2), "same vector"),
        ("ones", torch.ones(3, 2), "ones|equal numbers"),
        ("large negative", torch.full((3, 2), -1e9), "same vector|equal numbers"),
        ("identity", torch.eye(3), "same vector|identity"),
        ("identity cut", torch.eye(3)[:, :2], "same vector|identity"),
        ("transposed", torch.zeros(2, 3), r"transposed|\(3, "),
        ("a vector", torch.zeros(3), "matrix"),
        ("infinite", torch.full((3, 2), torch.inf), "infinite"),
        ("nan", torch.full((3, 2), torch.nan), "NaN"),
        ("one row", torch.tensor([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]), "same vector"),
        ("nothing", None, "None|nothing"),
        ("uneven lists", [[1.0], [1.0, 2.0], [0.0]], "matrix|same length"),
        ("a function", lambda x: x, "function"),
    ],
    check.score_variance: [
        *edits(
            VARIANCES,
            (
                "swapped",
                (
                    "return scores.var(correction=0).item(), scaled.var(correction=0).item()",
                    "return scaled.var().item(), scores.var().item()",
                ),
                "exchanged|first.*before|before.*first",
            ),
            ("diagonal", ("q @ k.mT", "(q[:40] * k).sum(-1)"), "pairs"),
            ("deviation", (".var(", ".std("), "standard deviation"),
            ("no scale", ("/ k.shape[-1] ** 0.5", "/ 1"), "nothing was scaled"),
            ("by d_k", (" ** 0.5", ""), "√d_k"),
            (
                "variance by the root",
                [("scaled.var(correction=0).item()", "scores.var().item() / k.shape[-1] ** 0.5")],
                "divide the scores",
            ),
            ("one number", ("scores.var(correction=0).item(), ", ""), "two numbers"),
            ("of each row", ("var(correction=0).item()", "var(-1)"), "one number|all"),
            ("of the inputs", ("q @ k.mT", "torch.cat([q, k])"), "of q and k|inputs|themselves"),
            ("multiplied", ("/ k.shape", "* k.shape"), "multipl"),
            ("mean", ("var(correction=0)", "mean()"), "mean"),
            ("softmax", ("q @ k.mT", "(q @ k.mT).softmax(-1)"), "softmax"),
            ("root of n", ("k.shape[-1]", "k.shape[0]"), "number of|d_k"),
            ("matrices", (".var(correction=0).item()", ""), "variance|one number"),
            ("sum of squares", ("var(correction=0)", "square().sum()"), "sum|mean"),
        ),
    ],
    check.entropy: [
        ("sign", lambda w: torch.xlogy(w, w).sum(-1), "sign is missing"),
        ("0 · ln 0", lambda w: -(w * w.log()).sum(-1), "0 · ln 0"),
        ("bits", lambda w: -(w * w.log2()).sum(-1), "bits"),
        ("log10", lambda w: -torch.xlogy(w, w).sum(-1) / 10**0 / torch.tensor(10.0).log(), "natural logarithm|base"),
        ("columns", lambda w: -torch.xlogy(w, w).sum(0), "dim=-1"),
        ("all rows", lambda w: -torch.xlogy(w, w).sum(), "one number for each row"),
        ("mean of rows", lambda w: -torch.xlogy(w, w).sum(-1).mean(), "one number for each row"),
        ("exp", lambda w: (-torch.xlogy(w, w).sum(-1)).exp(), "exp"),
        ("mean for sum", lambda w: -torch.xlogy(w, w).mean(-1), "mean"),
        ("not weighed", lambda w: -w.log().sum(-1), "weigh|w ln w|multipl"),
        ("not summed", lambda w: -torch.xlogy(w, w), "not summed|sum"),
        ("something added", lambda w: -(w * (w + 0.01).log()).sum(-1), "added|0.01"),
        ("of softmax", lambda w: -(w.softmax(-1) * w.log_softmax(-1)).sum(-1), "softmax"),
        ("keepdim", lambda w: -torch.xlogy(w, w).sum(-1, keepdim=True), "keepdim|axis"),
        ("largest", lambda w: -w.max(-1).values.log(), "largest"),
        ("share of ln n", lambda w: -torch.xlogy(w, w).sum(-1) / torch.tensor(float(w.shape[-1])).log(), "ln n"),
        ("squares", lambda w: 1 - w.square().sum(-1), "square|Gini"),
        ("bits without sign", lambda w: (w * w.log2()).sum(-1), "bits.*sign|sign.*bits"),
    ],
    check.cosine: [
        ("dot", lambda a, b: a @ b, "divide it by the lengths"),
        ("one length", lambda a, b: a @ b / a.norm(), "only one length"),
        ("the other length", lambda a, b: a @ b / b.norm(), "only one length"),
        ("distance", lambda a, b: (a - b).norm(), "distance"),
        ("squared", lambda a, b: a @ b / (a @ a) / (b @ b), "take their roots"),
        ("sum of lengths", lambda a, b: a @ b / (a.norm() + b.norm()), "sum|product"),
        ("1 -", lambda a, b: 1 - a @ b / a.norm() / b.norm(), "1 -"),
        ("angle", lambda a, b: (a @ b / a.norm() / b.norm()).acos(), "angle"),
        ("absolute", lambda a, b: (a @ b / a.norm() / b.norm()).abs(), "sign|absolute"),
        ("not summed", lambda a, b: a * b / a.norm() / b.norm(), "not summed|sum"),
        ("root of all", lambda a, b: a @ b / (a.norm() * b.norm()).sqrt(), "root"),
        ("correlation", lambda a, b: torch.corrcoef(torch.stack([a, b]))[0, 1], "mean"),
        ("absolute lengths", lambda a, b: a @ b / (a.norm(p=1) * b.norm(p=1)), "absolute|squares"),
        ("one axis", lambda a, b: F.cosine_similarity(a[None], b[None]), "axis"),
        ("dim", lambda a, b: F.cosine_similarity(a, b), "dim"),
        ("squared lengths by mean", lambda a, b: a @ b / (a.square().mean() * b.square().mean()).sqrt(), "mean"),
        ("brackets", lambda a, b: a @ b / a.norm() * b.norm(), "bracket|parenthes|both lengths"),
        ("lengths swapped", lambda a, b: (a.norm() * b.norm()) / (a @ b), "upside down|divided by"),
    ],
    check.towards: [
        ("river", [0.0, 1.0, 0.0], "larger dot product with money"),
        ("both", [1.0, 1.0, 0.0], "same|equal"),
        ("nothing", [0.0, 0.0, 0.0], "same|equal"),
        ("elsewhere", [0.0, 0.0, 5.0], "same|equal"),
        ("away from money", [-1.0, 0.0, 0.0], "negative"),
        ("away from both", [-2.0, -1.0, 0.0], "negative|larger dot product with money"),
        ("two numbers", [1.0, 0.0], "three numbers"),
        ("two vectors", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], "three numbers"),
        ("a word", "money", "three numbers"),
        ("nan", [float("nan"), 0.0, 0.0], "NaN"),
        ("infinite", [float("inf"), 0.0, 0.0], "infinite"),
        ("a function", lambda: [1.0, 0.0, 0.0], "function"),
    ],
    check.causal_mask: [
        ("inverted", lambda q, k: ~torch.ones(q, k, dtype=torch.bool).tril(k - q), "exchanged"),
        ("strict", lambda q, k: torch.ones(q, k, dtype=torch.bool).tril(k - q - 1), "see itself too"),
        ("top left", lambda q, k: torch.ones(q, k, dtype=torch.bool).tril(), "first query"),
        ("floats", lambda q, k: torch.ones(q, k).tril(k - q), "torch.bool"),
        ("integers", lambda q, k: torch.ones(q, k).tril(k - q).long(), "torch.bool"),
        ("-inf", lambda q, k: torch.full((q, k), -torch.inf).triu(k - q + 1), "torch.bool"),
        ("lists", lambda q, k: [[j <= i + k - q for j in range(k)] for i in range(q)], "list"),
        ("numpy", lambda q, k: torch.ones(q, k, dtype=torch.bool).tril(k - q).numpy(), "numpy"),
        ("triu", lambda q, k: torch.ones(q, k, dtype=torch.bool).triu(k - q), "future"),
        ("all", lambda q, k: torch.ones(q, k, dtype=torch.bool), "future"),
        ("none", lambda q, k: torch.zeros(q, k, dtype=torch.bool), "nothing|nobody|no query"),
        ("one too many", lambda q, k: torch.ones(q, k, dtype=torch.bool).tril(k - q + 1), "future|too far"),
        ("sign", lambda q, k: torch.ones(q, k, dtype=torch.bool).tril(q - k), "sign|keys - queries|last query"),
        ("transposed", lambda q, k: torch.ones(q, k, dtype=torch.bool).tril(k - q).T, "transposed"),
        ("square of keys", lambda q, k: torch.ones(k, k, dtype=torch.bool).tril(), "last .* rows|row for each query"),
        ("square of queries", lambda q, k: torch.ones(q, q, dtype=torch.bool).tril(), "column for each key|columns"),
        ("itself alone", lambda q, k: torch.eye(q, k, dtype=torch.bool), "itself alone|only itself|earlier"),
        ("batch", lambda q, k: torch.ones(1, q, k, dtype=torch.bool).tril(k - q), "axis"),
        ("inverted, strict", lambda q, k: torch.ones(q, k, dtype=torch.bool).triu(k - q), "future"),
        ("top left, inverted", lambda q, k: torch.ones(q, k, dtype=torch.bool).triu(1), "exchanged|future"),
        ("one query only", lambda q, k: torch.ones(k, dtype=torch.bool), "matrix|row for each query|axis"),
        ("of four", lambda q, k: torch.ones(4, 4, dtype=torch.bool).tril(), "example|another input|whatever|written"),
    ],
    check.masked_softmax: [
        *edits(
            MASKED,
            ("nan", ("weights.masked_fill(~mask, 0.0)", "weights"), "sees nothing"),
            ("exchanged", ("scores.masked_fill(~mask", "scores.masked_fill(mask"), "exchanged"),
            ("-1e9", [("-torch.inf", "-1e9"), ("weights.masked_fill(~mask, 0.0)", "weights")], "1e9|finite|even"),
            (
                "finfo",
                [("-torch.inf", "torch.finfo(torch.float32).min"), (".masked_fill(~mask, 0.0)", "")],
                "1e9|finite|even",
            ),
            ("zero", ("-torch.inf", "0.0"), "-inf"),
            ("zero before", [(".masked_fill(~mask, 0.0)", ""), ("-torch.inf", "0.0")], "use -inf"),
            ("after softmax", (".masked_fill(~mask, -torch.inf).softmax", ".softmax"), "rows do not sum to 1"),
            ("columns", ("softmax(-1)", "softmax(0)"), "dim=-1"),
            ("log", ("softmax(-1)", "log_softmax(-1)"), "logarithm"),
            ("no softmax", (".softmax(-1)", ""), "softmax is missing|no softmax|not normalised"),
            ("in place", ("scores.masked_fill(", "scores.masked_fill_("), "in place"),
            ("plus inf", ("-torch.inf", "torch.inf"), r"\+inf|sign|-inf"),
            (
                "own mask",
                ("weights =", "mask = torch.ones_like(scores).tril().bool()\n    weights ="),
                "mask .* given|mask is not used",
            ),
            ("not on floats", ("~mask", "~mask.float()"), "bool"),
        ),
        ("not used", lambda s, m: s.softmax(-1), "mask is not used"),
        ("times -inf", lambda s, m: (s + (~m).float() * -torch.inf).softmax(-1), "0 . -inf|0 times"),
        ("added", lambda s, m: (s + m).softmax(-1), "added"),
        ("times the mask", lambda s, m: (s * m).softmax(-1), "use -inf"),
        ("chosen", lambda s, m: s[m].softmax(-1), "flat|one axis|shape of the scores"),
        ("0 / 0", lambda s, m: (s.exp() * m) / (s.exp() * m).sum(-1, keepdim=True), "sees nothing"),
        ("sum of everything", lambda s, m: (s.exp() * m) / (s.exp() * m).sum().clamp(min=1e-9), "each row"),
        ("sum of all keys", lambda s, m: (s.exp() * m) / s.exp().sum(-1, keepdim=True), "sum to 1"),
    ],
    check.two_readings: [
        ("always 2", lambda target: torch.eye(6)[2] * 20, "reads feature 2"),
        ("weak", lambda target: torch.eye(6)[target], "clearer"),
        ("a number", lambda target: target, "vector of six"),
        ("counted from 1", lambda target: torch.eye(6)[target - 1] * 20, "from 0|one too|next to"),
        ("one further", lambda target: torch.eye(6)[(target + 1) % 6] * 20, "from 0|one too|next to"),
        ("nothing", lambda target: torch.zeros(6), "even|nothing"),
        ("negative", lambda target: -20 * torch.eye(6)[target], "negative|sign"),
        ("all alike", lambda target: torch.full((6,), 20.0), "even|same"),
        ("softmax", lambda target: torch.eye(6)[target].softmax(-1), "clearer"),
        ("a matrix", lambda target: 20 * torch.eye(6), "vector of six"),
        ("seven", lambda target: 20 * torch.eye(7)[target], "vector of six"),
        ("subject alone", lambda target: 20.0 * torch.eye(6)[1], "target"),
        ("nan", lambda target: torch.full((6,), torch.nan), "NaN"),
        ("infinite", lambda target: torch.eye(6)[target] * torch.inf, "NaN|infinite"),
        ("a word", lambda target: "subject", "vector of six"),
    ],
    check.reads: [
        ("largest", lambda w, even: int(w.argmax()), "even share"),
        ("no None", lambda w, even: int((w / even).argmax()), "neither word gets more than even"),
        ("difference", lambda w, even: int((w - even).argmax()) if (w > even).any() else None, "difference|ratio"),
        ("-1", lambda w, even: int((w / even).argmax()) if (w > even).any() else -1, "None"),
        ("False", lambda w, even: int((w / even).argmax()) if (w > even).any() else False, "None"),
        ("always None", lambda w, even: None, "returned nothing|None|return"),
        ("always 0", lambda w, even: 0, "always|whatever"),
        ("upside down", lambda w, even: int((even / w).argmax()) if (w > even).any() else None, "upside down|divide"),
        ("first above", lambda w, even: next((i for i in (0, 1) if w[i] > even[i]), None), "first"),
        ("last above", lambda w, even: next((i for i in (1, 0) if w[i] > even[i]), None), "last|both"),
        ("a word", lambda w, even: "man" if w[0] > w[1] else "astronomer", "0, 1 or None"),
        ("the ratio", lambda w, even: float((w / even).max()), "0, 1 or None|number of the word"),
        ("above 2", lambda w, even: int((w / even).argmax()) if (w / even).max() > 4 else None, "more than|above 1"),
        ("counted from 1", lambda w, even: 1 + int((w / even).argmax()) if (w > even).any() else None, "from 0"),
        ("largest above", lambda w, even: int(w.argmax()) if (w > even).any() else None, "even share"),
        ("even alone", lambda w, even: int(even.argmin()), "weights|neither"),
        ("0.5", lambda w, even: int(w.argmax()) if w.max() >= 0.5 else None, "even share"),
    ],
}
