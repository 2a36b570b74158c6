# ruff: noqa: E741  a row of the table stays together, and l is the exercise's own name

import torch

from telescope.lessons import check

from .written import edits

MULTI_HEAD = """
def split_heads(x, heads):
    return x.reshape(x.shape[0], heads, -1).transpose(0, 1)

def merge_heads(y):
    return y.transpose(0, 1).reshape(y.shape[1], -1)

def multi_head(x, W_q, W_k, W_v, W_o, heads):
    q, k, v = (split_heads(x @ W, heads) for W in (W_q, W_k, W_v))
    scores = q @ k.mT / k.shape[-1] ** 0.5
    weights = scores.softmax(-1)
    return merge_heads(weights @ v) @ W_o
"""

LUONG = """
def luong(states, memory):
    return (states @ memory.mT).softmax(-1) @ memory
"""

GENERAL = """
def general(states, memory, W):
    return (states @ W @ memory.mT).softmax(-1) @ memory
"""

CROSS = """
def split_heads(x, heads):
    return x.reshape(x.shape[0], heads, -1).transpose(0, 1)

def cross_attention(y, memory, W_q, W_k, W_v, W_o, heads):
    q, k, v = split_heads(y @ W_q, heads), split_heads(memory @ W_k, heads), split_heads(memory @ W_v, heads)
    scores = q @ k.mT / k.shape[-1] ** 0.5
    context = scores.softmax(-1) @ v
    return context.transpose(0, 1).reshape(y.shape[0], -1) @ W_o
"""

SYNTHESIZER = """
def synthesizer(x, A, b1, B, b2, V):
    n = x.shape[0]
    logits = ((x @ A + b1).relu() @ B + b2)[:, :n]
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    weights = logits.masked_fill(future, -torch.inf).softmax(-1)
    return weights @ (x @ V)
"""

MUTED = """
def muted(x, W_q, W_k, W_v, W_o, heads, off):
    split = lambda y: y.reshape(y.shape[0], heads, -1).transpose(0, 1)
    q, k, v = split(x @ W_q), split(x @ W_k), split(x @ W_v)
    scores = q @ k.mT / k.shape[-1] ** 0.5
    context = scores.softmax(-1) @ v
    context[off] = 0.0
    return context.transpose(0, 1).reshape(x.shape[0], -1) @ W_o
"""
ZERO = "    context[off] = 0.0\n"

WRONG = {
    check.split_heads: [
        ("one reshape", lambda x, heads: x.reshape(heads, x.shape[0], -1), "rows are mixed"),
        ("no transpose", lambda x, heads: x.reshape(x.shape[0], heads, -1), "exchange the first two axes"),
        ("width before heads", lambda x, heads: x.reshape(len(x), -1, heads).permute(2, 0, 1), "neighbouring"),
        ("chunks", lambda x, heads: x.chunk(heads, -1), "tuple"),
        ("list of chunks", lambda x, heads: list(x.chunk(heads, -1)), "list"),
        ("chunks below each other", lambda x, heads: torch.cat(x.chunk(heads, -1)), "stack|axis"),
        ("features before words", lambda x, heads: x.T.reshape(heads, -1, len(x)), "transposed"),
        ("first head", lambda x, heads: x[:, : x.shape[1] // heads], "one head|head 0"),
        ("whole width", lambda x, heads: x.expand(heads, *x.shape), "whole width"),
        ("backwards", lambda x, heads: x.reshape(len(x), heads, -1).transpose(0, 1).flip(0), "reversed|order"),
        ("of the example", lambda x, heads: x.reshape(5, 3, 2).transpose(0, 1), "another input|whatever|sizes"),
        (
            "two features each",
            lambda x, heads: x.reshape(len(x), -1, 2).transpose(0, 1),
            "another input|whatever|heads",
        ),
        ("batch", lambda x, heads: x.reshape(len(x), heads, -1).transpose(0, 1)[None], "axis"),
        ("chunks of words", lambda x, heads: x.reshape(-1, heads, 5).permute(1, 2, 0), "mixed|order|places"),
        ("not split", lambda x, heads: x, "unchanged"),
    ],
    check.merge_heads: [
        ("one reshape", lambda y: y.reshape(y.shape[1], -1), "before you reshape"),
        ("last axes", lambda y: y.transpose(1, 2).reshape(y.shape[1], -1), "before you reshape|first two axes|mixed"),
        ("below each other", lambda y: torch.cat(list(y)), "below|features|axis"),
        ("sum", lambda y: y.sum(0), "sum"),
        ("mean", lambda y: y.mean(0), "mean"),
        ("interleaved", lambda y: y.permute(1, 2, 0).reshape(y.shape[1], -1), "neighbouring|interleaved|head by head"),
        ("view", lambda y: y.transpose(0, 1).view(y.shape[1], -1), "reshape"),
        ("flat", lambda y: y.flatten(), "flat|one axis|reshape"),
        ("no reshape", lambda y: y.transpose(0, 1), "reshape|axis too many|join"),
        ("first head", lambda y: y[0], r"one head|only|head 0"),
        ("transposed", lambda y: y.transpose(0, 1).reshape(y.shape[1], -1).T, "transposed"),
        ("backwards", lambda y: torch.cat(list(y.flip(0)), -1), "reversed|order"),
        ("of the example", lambda y: y.transpose(0, 1).reshape(5, 6), "another input|whatever|sizes"),
        ("not merged", lambda y: y, "unchanged"),
    ],
    check.multi_head: edits(
        MULTI_HEAD,
        ("no W_o", (" @ W_o\n", "\n"), "W_o is not used"),
        ("√d_model", ("k.shape[-1] **", "x.shape[-1] **"), "√d_model"),
        ("one head", [("x @ W, heads", "x @ W, 1")], "one head"),
        ("no scale", (" / k.shape[-1] ** 0.5", ""), "not divided by √d_k"),
        ("by d_k", ("k.shape[-1] ** 0.5", "k.shape[-1]"), "square root"),
        ("root of heads", ("k.shape[-1]", "heads"), "heads"),
        ("W.T", ("x @ W,", "x @ W.T,"), "transposed"),
        ("W_o.T", ("@ W_o\n", "@ W_o.T\n"), "W_o is transposed"),
        ("over the queries", ("softmax(-1)", "softmax(-2)"), "dim=-1"),
        ("over the heads", ("softmax(-1)", "softmax(0)"), "heads"),
        ("merge mixes", ("y.transpose(0, 1).reshape", "y.reshape"), "before you reshape"),
        (
            "split mixes",
            ("x.reshape(x.shape[0], heads, -1).transpose(0, 1)", "x.reshape(heads, x.shape[0], -1)"),
            "mix",
        ),
        (
            "split interleaves",
            ("x.reshape(x.shape[0], heads, -1).transpose(0, 1)", "x.reshape(x.shape[0], -1, heads).permute(2, 0, 1)"),
            "neighbouring",
        ),
        (
            "mean of heads",
            ("merge_heads(weights @ v) @ W_o", "(weights @ v).mean(0).repeat(1, heads) @ W_o"),
            "mean|average",
        ),
        (
            "last head",
            ("merge_heads(weights @ v)", "merge_heads((weights @ v) * torch.eye(heads)[-1][:, None, None])"),
            "last head|one head|head 1",
        ),
        (
            "causal",
            ("scores.softmax", "scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf).softmax"),
            "mask",
        ),
        ("keys ask", ("q @ k.mT", "k @ q.mT"), "keys ask"),
        ("weigh the keys", ("weights @ v", "weights @ k"), "keys"),
        ("no softmax", (".softmax(-1)", ""), "softmax is missing|not normalised"),
        ("added to x", ("    return merge", "    return x + merge"), "residual|added"),
        ("weights", ("return merge_heads(weights @ v) @ W_o", "return weights"), "these are the weights"),
        ("W_q for all", ("(W_q, W_k, W_v)", "(W_q, W_q, W_q)"), "W_k"),
        ("no scale, no W_o", [(" / k.shape[-1] ** 0.5", ""), (" @ W_o\n", "\n")], "√d_k.*W_o|W_o.*√d_k"),
        (
            "no scale, over the queries",
            [(" / k.shape[-1] ** 0.5", ""), ("softmax(-1)", "softmax(-2)")],
            "√d_k.*dim=-1|dim=-1.*√d_k",
        ),
        (
            "√d_model, merge mixes",
            [("k.shape[-1] **", "x.shape[-1] **"), ("y.transpose(0, 1).reshape", "y.reshape")],
            "√d_model.*reshape|reshape.*√d_model",
        ),
        ("no merge", ("merge_heads(weights @ v)", "(weights @ v)"), "merge|sizes"),
        ("W_o before", ("x @ W, heads", "x @ W_o @ W, heads"), "W_o"),
    ),
    check.parameters: [
        ("no W_o", lambda d, m, l, T: d * (2 * m + l) * T, "W_o is missing"),
        ("one head", lambda d, m, l, T: d * (2 * m + l) + l * d, "there are T"),
        ("projections of one head", lambda d, m, l, T: d * (2 * m + l) + T * l * d, "there are T"),
        ("W_o of one head", lambda d, m, l, T: d * (2 * m + l) * T + l * d, "T·l rows"),
        ("W_q or W_k", lambda d, m, l, T: d * (m + l) * T + T * l * d, "both"),
        ("biases", lambda d, m, l, T: (d + 1) * (2 * m + l) * T + (T * l + 1) * d, "bias"),
        ("a product", lambda d, m, l, T: d * m * m * l * T * T * l * d, "add|sum"),
        ("W_o is d · d", lambda d, m, l, T: d * (2 * m + l) * T + d * d, "W_o"),
        ("4 d²", lambda d, m, l, T: 4 * d * d, "4"),
        ("values as wide as keys", lambda d, m, l, T: 3 * d * m * T + T * l * d, "W_v|values"),
        ("the example", lambda d, m, l, T: 1_048_576, "example|another|whatever"),
        ("no T at all", lambda d, m, l, T: d * (2 * m + l) + d * d, "T|W_o"),
        ("W_o twice", lambda d, m, l, T: d * (2 * m + l) * T + 2 * T * l * d, "W_o"),
        ("brackets", lambda d, m, l, T: d * 2 * m + l * T + T * l * d, "bracket|parenthes|d·"),
    ],
    check.luong: edits(
        LUONG,
        ("scaled", ("memory.mT)", "memory.mT / memory.shape[-1] ** 0.5)"), "no √d_k"),
        ("over the states", ("softmax(-1)", "softmax(0)"), "over the states"),
        ("with themselves", ("memory.mT).softmax(-1) @ memory", "states.mT).softmax(-1) @ states"), "themselves"),
        ("weights", (".softmax(-1) @ memory", ".softmax(-1)"), "these are the weights"),
        ("scores", (".softmax(-1) @ memory", ""), "these are the scores"),
        ("weigh the states", ("(-1) @ memory", "(-1) @ states"), "memory"),
        (
            "memory asks",
            ("(states @ memory.mT).softmax(-1) @ memory", "(memory @ states.mT).softmax(-1) @ states"),
            "memory asks|other way",
        ),
        ("no softmax", (".softmax(-1)", ""), "softmax is missing|not normalised"),
        (
            "concatenated",
            (
                "(states @ memory.mT).softmax(-1) @ memory",
                "torch.cat([(states @ memory.mT).softmax(-1) @ memory, states], -1)",
            ),
            "states|joined",
        ),
        ("mean", ("(states @ memory.mT).softmax(-1) @ memory", "memory.mean(0).expand_as(states)"), "even|same weight"),
        (
            "largest",
            ("(states @ memory.mT).softmax(-1) @ memory", "memory[(states @ memory.mT).argmax(-1)]"),
            "largest",
        ),
        ("last state", ("states @", "states[-1] @"), "one row|alone|only"),
        ("added", ("return (", "return states + ("), "added|residual"),
        ("cosines", ("states @ memory.mT", "F.normalize(states, dim=-1) @ F.normalize(memory, dim=-1).mT"), "cosine"),
        ("transposed", ("states @ memory.mT", "states.mT @ memory"), "transpose"),
        ("no transpose", (".mT", ""), r"transpose|\.mT"),
        ("log", ("softmax", "log_softmax"), "logarithm"),
        ("softmax twice", ("softmax(-1)", "softmax(-1).softmax(-1)"), "twice"),
        (
            "scaled, over the states",
            [("memory.mT)", "memory.mT / memory.shape[-1] ** 0.5)"), ("x(-1)", "x(0)")],
            "√d_k.*states|states.*√d_k",
        ),
    ),
    check.general_score: edits(
        GENERAL,
        ("weights", (".softmax(-1) @ memory", ".softmax(-1)"), "these are the weights"),
        ("scores", (".softmax(-1) @ memory", ""), "these are the scores"),
        ("W.T", ("@ W @", "@ W.T @"), r"transpose"),
        ("no W", ("@ W @", "@"), r"\bW\b"),
        ("scaled", ("memory.mT)", "memory.mT / memory.shape[-1] ** 0.5)"), "√"),
        ("scaled by d", ("memory.mT)", "memory.mT / states.shape[-1] ** 0.5)"), "√"),
        ("over the states", ("softmax(-1)", "softmax(0)"), "dim=-1"),
        ("no softmax", (".softmax(-1)", ""), "softmax is missing|not normalised"),
        ("values through W", ("@ memory\n", "@ (memory @ W.mT)\n"), "memory itself|values"),
        ("tanh", ("(states @ W @ memory.mT)", "(states @ W @ memory.mT).tanh()"), "tanh"),
        ("exp", ("softmax(-1)", "exp()"), "divide|sum to 1"),
        (
            "mean",
            ("(states @ W @ memory.mT).softmax(-1) @ memory", "memory.mean(0).expand(len(states), -1)"),
            "even|same weight",
        ),
        ("weigh the states", ("(-1) @ memory", "(-1) @ states"), "memory"),
        ("no transpose", ("memory.mT", "memory"), r"transpose|\.mT"),
        ("softmax twice", ("softmax(-1)", "softmax(-1).softmax(-1)"), "twice"),
        ("absolute W", ("@ W @", "@ W.abs() @"), "sign|absolute"),
        ("W squared", ("@ W @", "@ W @ W.mT @ W @"), r"\bW\b"),
    ),
    check.cross_attention: edits(
        CROSS,
        ("all of y", ("memory @", "y @"), "come from the memory"),
        (
            "other way, reshaped",
            [
                ("y @ W_q", "Y @ W_q"),
                ("memory @", "y @"),
                ("Y @", "memory @"),
                ("(y.shape[0], -1)", "(len(memory), -1)"),
            ],
            "the other way",
        ),
        ("values of y", ("memory @ W_v", "y @ W_v"), "values"),
        ("keys of y", ("memory @ W_k", "y @ W_k"), "keys"),
        ("memory alone", [("y @ W_q", "memory @ W_q"), ("y.shape[0]", "len(memory)")], "queries"),
        ("no scale", (" / k.shape[-1] ** 0.5", ""), "not divided by √d_k"),
        ("√d_model", ("k.shape[-1]", "y.shape[-1]"), "√d_model"),
        ("no W_o", (" @ W_o\n", "\n"), "W_o is not used"),
        ("one head", ("heads, -1).tr", "1, -1).tr"), "one head"),
        ("over the queries", ("softmax(-1)", "softmax(-2)"), "dim=-1"),
        (
            "causal",
            ("scores.softmax", "scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf).softmax"),
            "mask",
        ),
        ("both as memory", ("    q, k", "    memory = torch.cat([memory, y])\n    q, k"), "memory alone|only|y too"),
        ("added", ("return context", "return y + context"), "residual|added"),
        ("merge mixes", ("context.transpose(0, 1).reshape", "context.reshape"), "before you reshape"),
        ("no W_v", ("memory @ W_v", "memory"), "W_v"),
        ("no W_q", ("y @ W_q", "y"), "W_q"),
        ("no W_k", ("memory @ W_k", "memory"), "W_k"),
        ("W_k for v", ("memory @ W_v", "memory @ W_k"), "W_v"),
        ("no softmax", (".softmax(-1)", ""), "softmax is missing|not normalised"),
        ("W_o.T", ("@ W_o\n", "@ W_o.T\n"), "W_o is transposed"),
        ("all of y, no scale", [("memory @", "y @"), (" / k.shape[-1] ** 0.5", "")], "memory.*√d_k|√d_k.*memory"),
        ("no scale, no W_o", [(" @ W_o\n", "\n"), (" / k.shape[-1] ** 0.5", "")], "W_o.*√d_k|√d_k.*W_o"),
        ("shape of memory", ("reshape(y.shape[0], -1)", "reshape(memory.shape[0], -1)"), "reshape|numbers"),
    ),
    check.synthesizer: edits(
        SYNTHESIZER,
        ("no slice", ("[:, :n]", ""), "n columns|cut|first n"),
        ("no mask", (".masked_fill(future, -torch.inf)", ""), "mask is missing"),
        ("no ReLU", (".relu()", ""), "ReLU is missing"),
        ("no b2", (" + b2", ""), "b2"),
        ("no b1", (" + b1", ""), "b1"),
        ("scaled", ("logits.masked", "(logits / x.shape[-1] ** 0.5).masked"), "no √d_k"),
        (
            "whole table",
            (
                "[:, :n]\n    future = torch.ones(n, n, dtype=torch.bool).triu(1)\n"
                "    weights = logits.masked_fill(future, -torch.inf).softmax(-1)",
                "\n    weights = logits.softmax(-1)[:, :n]",
            ),
            "whole table",
        ),
        ("no V", ("(x @ V)", "x"), r"\bV\b"),
        ("ReLU at the end", [(".relu()", ""), ("+ b2)", "+ b2).relu()")], "ReLU"),
        ("both ReLU", ("+ b2)", "+ b2).relu()"), "ReLU"),
        ("gelu", ("(x @ A + b1).relu()", "F.gelu(x @ A + b1)"), "GELU"),
        ("tanh", (".relu()", ".tanh()"), "tanh"),
        ("last columns", ("[:, :n]", "[:, -n:]"), "first n"),
        ("strict", ("triu(1)", "triu(0)"), "itself"),
        ("past hidden", ("triu(1)", "tril(-1)"), "exchanged|past"),
        (
            "after softmax",
            ("logits.masked_fill(future, -torch.inf).softmax(-1)", "logits.softmax(-1).masked_fill(future, 0)"),
            "sum to 1|before softmax",
        ),
        ("zeros", ("-torch.inf", "0.0"), "-inf"),
        ("weights", ("weights @ (x @ V)", "weights"), "these are the weights"),
        ("B.T", ("@ B +", "@ B.T +"), r"transpose|\bB\b"),
        ("over the queries", ("softmax(-1)", "softmax(0)"), "dim=-1"),
        (
            "no softmax",
            (".masked_fill(future, -torch.inf).softmax(-1)", ".masked_fill(future, 0)"),
            "softmax is missing|not normalised|no softmax",
        ),
        ("V.T", ("x @ V", "x @ V.T"), "V is transposed|V.*transpose"),
        ("A.T", ("x @ A", "x @ A.T"), "A is transposed|A.*transpose"),
        ("no ReLU, no mask", [(".relu()", ""), (".masked_fill(future, -torch.inf)", "")], "ReLU.*mask|mask.*ReLU"),
        ("bias before", ("x @ A + b1", "(x + b1) @ A"), "b1"),
    ),
    check.synthesizer_parameters: [
        ("no biases", lambda d, block: 2 * d * d + d * block, "b1 and b2 are missing"),
        ("no V", lambda d, block: d * d + d + d * block + block, "V is missing"),
        ("bias of V", lambda d, block: 2 * (d * d + d) + d * block + block, "V has no bias|bias of V"),
        ("A and B alone", lambda d, block: d * d + d * block, "V"),
        ("no b2", lambda d, block: 2 * d * d + d + d * block, "b2 is missing"),
        ("no b1", lambda d, block: 2 * d * d + d * block + block, "b1 is missing"),
        ("no A", lambda d, block: d * d + d + d * block + block - d * d + d * d - d, "b1|A"),
        ("V is d · block", lambda d, block: d * d + d + 2 * d * block + block, r"\bV\b"),
        ("B is block²", lambda d, block: 2 * d * d + d + block * block + block, r"\bB\b"),
        ("b2 has d", lambda d, block: 2 * d * d + 2 * d + d * block, "b2"),
        ("W_o too", lambda d, block: 3 * d * d + d + d * block + block, "W_o|matrix too many|d · d"),
        ("like attention", lambda d, block: 4 * d * d, "B"),
        ("the example", lambda d, block: 164_224, "example|another|whatever"),
    ],
    check.muted: edits(
        MUTED,
        ("not muted", (ZERO, ""), "no head is muted"),
        (
            "output sliced",
            (
                ZERO + "    return context.transpose(0, 1).reshape(x.shape[0], -1) @ W_o",
                "    y = context.transpose(0, 1).reshape(x.shape[0], -1) @ W_o\n    d = v.shape[-1]\n"
                "    y[:, off * d : (off + 1) * d] = 0.0\n    return y",
            ),
            "W_o has mixed",
        ),
        ("no W_o", (" @ W_o\n", "\n"), "W_o"),
        ("mean", ("= 0.0", "= context[off].mean(0)"), "mean"),
        ("counted from 1", ("context[off]", "context[off - 1]"), "from 0|another head|other head"),
        ("next head", ("context[off]", "context[(off + 1) % heads]"), "from 0|another head|other head"),
        ("scores zero", (ZERO, ""), "no head is muted"),
        ("even weights", [("    context =", "    scores[off] = 0.0\n    context ="), (ZERO, "")], "even"),
        ("query zero", [("    scores =", "    q[off] = 0.0\n    scores ="), (ZERO, "")], "even"),
        ("key zero", [("    scores =", "    k[off] = 0.0\n    scores ="), (ZERO, "")], "even"),
        ("the only one", (ZERO, "    context[[i for i in range(heads) if i != off]] = 0.0\n"), "only|others"),
        ("rescaled", ("return context", "return heads / (heads - 1) * context"), "others|heads / |rescal"),
        ("no scale", (" / k.shape[-1] ** 0.5", ""), "√d_k"),
        ("scores -inf", [("    context =", "    scores[off] = -torch.inf\n    context ="), (ZERO, "")], "NaN"),
        ("a word", ("context[off]", "context[:, off]"), "token|axis"),
        ("a feature", ("context[off]", "context[..., off % context.shape[-1]]"), "feature"),
        (
            "W_o columns",
            (
                ZERO + "    return context.transpose(0, 1).reshape(x.shape[0], -1) @ W_o",
                "    W_o = W_o.clone()\n    d = v.shape[-1]\n    W_o[:, off * d : (off + 1) * d] = 0.0\n"
                "    return context.transpose(0, 1).reshape(x.shape[0], -1) @ W_o",
            ),
            "W_o has mixed|rows of W_o",
        ),
        ("W_o in place", (ZERO, "    W_o[off * v.shape[-1] : (off + 1) * v.shape[-1]] = 0.0\n"), "in place"),
        (
            "input sliced",
            [("    split", "    x = x.clone()\n    x[:, off * 2 : off * 2 + 2] = 0.0\n    split"), (ZERO, "")],
            "input|x",
        ),
        ("removed", (ZERO, "    context = torch.cat([context[:off], context[off + 1 :]])\n"), "sizes|removed"),
        ("merge mixes", ("context.transpose(0, 1).reshape", "context.reshape"), "before you reshape"),
        ("not muted, no scale", [(ZERO, ""), (" / k.shape[-1] ** 0.5", "")], "√d_k.*muted|muted.*√d_k"),
        ("one head", ("heads, -1).tr", "1, -1).tr"), "one head|index"),
    ),
}
