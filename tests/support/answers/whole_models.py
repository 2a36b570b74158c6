# ruff: noqa: E501  a row of the table stays together
"""Wrong answers to the lessons that write a whole model: positions, norms, blocks, the Transformer, GPT, and the spans
that a model is trained to recall.
"""

import torch
from torch.nn import functional as F  # noqa: N812

from telescope.lessons import check

from .written import edits

POSITIONS = """
def positions(n, d):
    angle = torch.arange(n)[:, None] / 10_000 ** (torch.arange(0, d, 2) / d)
    return torch.stack([angle.sin(), angle.cos()], -1).reshape(n, d)
"""

LAYER_NORM = """
def layer_norm(x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
"""

PARTS = """
def attention(x, memory, w, heads, mask=None):
    split = lambda y: y.reshape(y.shape[0], heads, -1).transpose(0, 1)
    q, k, v = split(x @ w["W_q"]), split(memory @ w["W_k"]), split(memory @ w["W_v"])
    scores = q @ k.mT / k.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1).reshape(x.shape[0], -1) @ w["W_o"]

def layer_norm(x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()

def feed_forward(x, w):
    return (x @ w["W_1"]).relu() @ w["W_2"]
"""

ENCODER = (
    PARTS
    + """
def encoder_block(x, w, heads):
    x = layer_norm(x + attention(x, x, w["self"], heads))
    return layer_norm(x + feed_forward(x, w["feed_forward"]))
"""
)
FIRST = 'layer_norm(x + attention(x, x, w["self"], heads))'
SECOND = 'layer_norm(x + feed_forward(x, w["feed_forward"]))'
PRE_1 = 'x + attention(layer_norm(x), layer_norm(x), w["self"], heads)'
PRE_2 = 'x + feed_forward(layer_norm(x), w["feed_forward"])'

DECODER = (
    PARTS
    + """
def decoder_block(y, memory, w, heads):
    past = torch.ones(y.shape[0], y.shape[0], dtype=torch.bool).tril()
    y = layer_norm(y + attention(y, y, w["self"], heads, past))
    y = layer_norm(y + attention(y, memory, w["cross"], heads))
    return layer_norm(y + feed_forward(y, w["feed_forward"]))
"""
)
SELF = 'layer_norm(y + attention(y, y, w["self"], heads, past))'
CROSS = 'layer_norm(y + attention(y, memory, w["cross"], heads))'
FEED = 'layer_norm(y + feed_forward(y, w["feed_forward"]))'

TRANSFORMER = (
    DECODER
    + ENCODER[len(PARTS) :]
    + POSITIONS
    + """
def transformer(source, target, w, heads):
    def embed(ids):
        vectors = w["embedding"][ids]
        return vectors * vectors.shape[-1] ** 0.5 + positions(len(ids), vectors.shape[-1])

    memory = embed(source)
    for block in w["encoder"]:
        memory = encoder_block(memory, block, heads)
    y = embed(target)
    for block in w["decoder"]:
        y = decoder_block(y, memory, block, heads)
    return y @ w["embedding"].mT
"""
)
HEAD = 'return y @ w["embedding"].mT'
ADDED = " + positions(len(ids), vectors.shape[-1])"

GPT = (
    PARTS
    + """
def gpt(ids, w, heads):
    n = len(ids)
    past = torch.ones(n, n, dtype=torch.bool).tril()
    x = w["embedding"][ids] + w["positions"][:n]
    for block in w["blocks"]:
        normed = layer_norm(x)
        x = x + attention(normed, normed, block["self"], heads, past)
        hidden = F.gelu(layer_norm(x) @ block["feed_forward"]["W_1"])
        x = x + hidden @ block["feed_forward"]["W_2"]
    return layer_norm(x) @ w["embedding"].mT
"""
)
LEARNED = 'w["positions"][:n]'
OUT = 'layer_norm(x) @ w["embedding"].mT'

WRONG = {
    check.positions: [
        *edits(
            POSITIONS,
            ("sines and cosines exchanged", ("angle.sin(), angle.cos()", "angle.cos(), angle.sin()"), "exchanged"),
            (
                "halves",
                (
                    "torch.stack([angle.sin(), angle.cos()], -1).reshape(n, d)",
                    "torch.cat([angle.sin(), angle.cos()], -1)",
                ),
                "alternate",
            ),
            ("from 1", ("torch.arange(n)", "torch.arange(1, n + 1)"), "count from 0"),
            ("base 1000", ("10_000", "1_000"), "10,?000"),
            ("base 100000", ("10_000", "100_000"), "10,?000"),
            ("multiplied", (")[:, None] /", ")[:, None] *"), "divide|multipl"),
            ("sines alone", ("angle.cos()", "angle.sin()"), "cosine"),
            ("cosines alone", ("angle.sin()", "angle.cos()"), "sine"),
            ("i/d", ("arange(0, d, 2) / d", "arange(0, d // 2) / d"), "2i"),
            ("i of all features", ("arange(0, d, 2) / d", "arange(0, d // 2) / (d // 2 - 1)"), "- 1"),
            ("whole exponent", ("2) / d)", "2) // d)"), "//|whole"),
            ("degrees", ("angle.sin(), angle.cos()", "angle.deg2rad().sin(), angle.deg2rad().cos()"), "degree|radian"),
            ("transposed", (".reshape(n, d)", ".reshape(n, d).mT"), "transposed"),
            (
                "brackets",
                ("torch.arange(n)[:, None] / 10_000 ** (", "(torch.arange(n)[:, None] / 10_000) ** ("),
                "bracket|parenthes|only 10",
            ),
            ("angles", ("angle.sin(), angle.cos()", "angle, angle"), "sine"),
            ("four times", ("arange(0, d, 2) / d", "arange(0, d, 2) * 2 / d"), "twice|2i"),
            ("minus", ("angle.sin()", "-angle.sin()"), "sign"),
            ("of 8 features", ("reshape(n, d)", "reshape(6, 8)"), "another input|whatever|sizes|numbers"),
        ),
        (
            "an exponent for each feature",
            lambda n, d: torch.where(
                torch.arange(d) % 2 == 0,
                (torch.arange(n)[:, None] / 10_000 ** (torch.arange(d) / d)).sin(),
                (torch.arange(n)[:, None] / 10_000 ** (torch.arange(d) / d)).cos(),
            ),
            "same|pair|2i",
        ),
        ("zeros", lambda n, d: torch.zeros(n, d), "zero"),
        ("random", lambda n, d: torch.randn(n, d), "random|each call"),
        ("one-hot", lambda n, d: torch.eye(n, d), "sine|one-hot|0 and 1"),
        ("places", lambda n, d: torch.arange(n)[:, None].expand(n, d).float(), "sine"),
        (
            "halves from 1",
            lambda n, d: halves(torch.arange(1, n + 1), d),
            "alternate.*count from 0|count from 0.*alternate",
        ),
    ],
    check.layer_norm: [
        *edits(
            LAYER_NORM,
            ("over the tokens", ("(-1, ", "(0, "), "features of one token"),
            ("correction", ("correction=0, ", ""), "correction=0"),
            ("variance", (".sqrt()", ""), "not by the variance"),
            ("not centred", ("return centred", "return x"), "mean is not subtracted"),
            ("no 1e-5", (" + 1e-5", ""), "1e-5"),
            ("0.1", ("1e-5", "0.1"), "1e-5"),
            ("multiplied", ("centred / ", "centred * "), "divide|multipl"),
            ("centred alone", (" / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()", ""), "divide"),
            ("no keepdim in the mean", ("mean(-1, keepdim=True)", "mean(-1)"), "keepdim"),
            ("no keepdim in the variance", ("0, keepdim=True", "0"), "keepdim"),
            ("variance over the tokens", ("var(-1,", "var(0,"), "features of one token|variance"),
            ("mean of everything", ("x.mean(-1, keepdim=True)", "x.mean()"), "mean.*token|each token|everything"),
            (
                "variance, correction",
                [(".sqrt()", ""), ("correction=0, ", "")],
                "variance.*correction|correction.*variance",
            ),
            ("root twice", (".sqrt()", ".sqrt().sqrt()"), "root"),
            (
                "in place",
                (
                    "centred = x - x.mean(-1, keepdim=True)",
                    "variance = x.var(-1, correction=0, keepdim=True)\n    x -= x.mean(-1, keepdim=True)\n    centred = x",
                ),
                "in place",
            ),
        ),
        ("root mean square", lambda x: x / x.square().mean(-1, keepdim=True).sqrt(), "RMS|mean is not subtracted"),
        ("whole", lambda x: F.layer_norm(x, x.shape), "features of one token|whole|everything"),
        ("length", lambda x: F.normalize(x, dim=-1), "length"),
        ("centred length", lambda x: F.normalize(x - x.mean(-1, keepdim=True), dim=-1), "length|√|sum"),
        ("range", lambda x: (x - x.amin(-1, True)) / (x.amax(-1, True) - x.amin(-1, True)), "smallest|range|0 to 1"),
        ("mean deviation", lambda x: (x - x.mean(-1, True)) / (x - x.mean(-1, True)).abs().mean(-1, True), "absolute"),
        ("softmax", lambda x: x.softmax(-1), "softmax"),
    ],
    check.encoder_block: edits(
        ENCODER,
        ("pre-norm", [(FIRST, PRE_1), (SECOND, PRE_2)], "before the sublayers"),
        ("pre-norm and a last norm", [(FIRST, PRE_1), (SECOND, f"layer_norm({PRE_2})")], "before the sublayers"),
        ("no ReLU", (".relu()", ""), "ReLU of the feed-forward network is missing"),
        ("GELU", ('(x @ w["W_1"]).relu()', 'F.gelu(x @ w["W_1"])'), "GELU"),
        ("tanh", (".relu()", ".tanh()"), "tanh|ReLU"),
        ("no residual", [("layer_norm(x + ", "layer_norm(")], "residual"),
        ("no residual of attention", ("x + attention", "attention"), "residual.*attention|attention.*residual"),
        ("no residual of feed-forward", ("x + feed", "feed"), "residual.*feed|feed.*residual"),
        ("no last norm", (SECOND, SECOND[11:-1]), "last norm"),
        ("no first norm", (FIRST, FIRST[11:-1]), "first norm"),
        ("no norm", [(SECOND, SECOND[11:-1]), (FIRST, FIRST[11:-1])], "norm"),
        ("no scale", (" / k.shape[-1] ** 0.5", ""), "√d_k"),
        ("√d_model", ("k.shape[-1] ** 0.5", "x.shape[-1] ** 0.5"), "√d_model"),
        (
            "causal",
            ("    if mask", "    mask = torch.ones(len(x), len(x), dtype=torch.bool).tril()\n    if mask"),
            "mask|may see",
        ),
        ("no W_o", (' @ w["W_o"]', ""), "W_o"),
        ("one head", ("heads, -1).tr", "1, -1).tr"), "one head"),
        (
            "feed-forward of the input",
            [("    x = layer", "    y = layer"), ("(x + feed_forward(x,", "(y + feed_forward(x,")],
            "feed-forward.*(input|attention)",
        ),
        ("no attention", (f"    x = {FIRST}\n", ""), "attention.*(missing|not used)|not used"),
        ("no feed-forward", (SECOND, "x"), "feed-forward.*missing|not used|W_1"),
        ("order", [(FIRST, "FIRST"), (SECOND, FIRST), ("FIRST", SECOND)], "order|comes first|attention first"),
        (
            "norm over tokens",
            [("x.mean(-1, ", "x.mean(0, "), ("x.var(-1, ", "x.var(0, ")],
            "features of one token|over the tokens",
        ),
        (
            "pre-norm, GELU",
            [(FIRST, PRE_1), (SECOND, PRE_2), ('(x @ w["W_1"]).relu()', 'F.gelu(x @ w["W_1"])')],
            "before the sublayers.*GELU|GELU.*before the sublayers",
        ),
        ("no scale, no ReLU", [(" / k.shape[-1] ** 0.5", ""), (".relu()", "")], "√d_k.*ReLU|ReLU.*√d_k"),
        (
            "no scale, no residual",
            [(" / k.shape[-1] ** 0.5", ""), ("layer_norm(x + ", "layer_norm(")],
            "√d_k.*residual|residual.*√d_k",
        ),
        (
            "norm of the sublayer",
            [
                (
                    'layer_norm(x + attention(x, x, w["self"], heads))',
                    'x + layer_norm(attention(x, x, w["self"], heads))',
                ),
                (SECOND, 'x + layer_norm(feed_forward(x, w["feed_forward"]))'),
            ],
            "sum|norm",
        ),
        (
            "residual of the normed",
            [
                (FIRST, 'layer_norm(x) + attention(layer_norm(x), layer_norm(x), w["self"], heads)'),
                (SECOND, 'layer_norm(x) + feed_forward(layer_norm(x), w["feed_forward"])'),
            ],
            "norm",
        ),
        (
            "ReLU at the end",
            [(".relu()", ""), ('@ w["W_2"]', '@ w["W_2"]).relu()'), ("return (x @", "return ((x @")],
            "ReLU",
        ),
        ("attention twice", ("    return layer", f"    x = {FIRST}\n    return layer"), "twice"),
        ("feed-forward twice", ("    return layer", f"    x = {SECOND}\n    return layer"), "twice"),
        ("over the queries", ("softmax(-1)", "softmax(-2)"), "dim=-1"),
        ("only one norm", [(FIRST, FIRST[11:-1])], "first norm"),
        ("no correction", ("correction=0, ", ""), "correction|n - 1"),
        (
            "merge mixes",
            (".transpose(0, 1).reshape(x.shape[0], -1) @", ".reshape(x.shape[0], -1) @"),
            "reshape|mixed|merge",
        ),
        ("key name", ('w["self"]', 'w["attention"]'), "self"),
        ("weights at the top", ('w["self"]', "w"), "self"),
        ("not defined", ("x + feed_forward(", "x + ffn("), "not defined"),
        ("W_1 for W_2", ('@ w["W_2"]', '@ w["W_1"].mT'), "W_2"),
        ("the input", (SECOND, "layer_norm(x)"), "feed-forward.*missing|not used|W_1"),
        ("keys ask", ("q @ k.mT", "k @ q.mT"), "keys ask|exchanged"),
        ("mean over tokens", (SECOND, f"{SECOND}.mean(0)"), "mean|axis"),
    ),
    check.decoder_block: edits(
        DECODER,
        ("no mask", (", past)", ")"), "sees the future"),
        ("cross with itself", ("attention(y, memory, ", "attention(y, y, "), "come from the memory|reads y"),
        ("no cross", (f"    y = {CROSS}\n", ""), "cross-attention is missing|memory is not used|not used"),
        ("mask in both", ('w["cross"], heads)', 'w["cross"], heads, past)'), "cross|mask"),
        ("cross first", [(SELF, "SELF"), (CROSS, SELF), ("SELF", CROSS)], "order|first"),
        ("weights of self", ('w["cross"]', 'w["self"]'), "cross"),
        ("memory asks", ("attention(y, memory, ", "attention(memory, y, "), "quer|sizes"),
        (
            "pre-norm",
            [
                (SELF, 'y + attention(layer_norm(y), layer_norm(y), w["self"], heads, past)'),
                (CROSS, 'y + attention(layer_norm(y), memory, w["cross"], heads)'),
                (FEED, 'y + feed_forward(layer_norm(y), w["feed_forward"])'),
            ],
            "before the sublayers",
        ),
        ("GELU", ('(x @ w["W_1"]).relu()', 'F.gelu(x @ w["W_1"])'), "GELU"),
        ("no ReLU", (".relu()", ""), "ReLU"),
        ("no residual", [("layer_norm(y + ", "layer_norm(")], "residual"),
        ("no residual of self", ("y + attention(y, y", "attention(y, y"), "residual"),
        ("no residual of cross", ("y + attention(y, memory", "attention(y, memory"), "residual"),
        ("no residual of feed-forward", ("y + feed", "feed"), "residual"),
        ("no feed-forward", (FEED, "y"), "feed-forward.*missing|not used|W_1"),
        ("no self-attention", (f"    y = {SELF}\n", ""), "self-attention is missing|not used"),
        ("no norm after self", (SELF, SELF[11:-1]), "norm"),
        ("no norm after cross", (CROSS, CROSS[11:-1]), "norm"),
        ("no last norm", (FEED, FEED[11:-1]), "last norm"),
        ("strict", (".tril()", ".tril(-1)"), "itself|sees nothing"),
        ("mask exchanged", (".tril()", ".triu()"), "exchanged|future"),
        ("mask forbidden", ("~mask", "mask"), "exchanged|future|sees nothing"),
        ("no scale", (" / k.shape[-1] ** 0.5", ""), "√d_k"),
        ("√d_model", ("k.shape[-1] ** 0.5", "x.shape[-1] ** 0.5"), "√d_model"),
        (
            "no mask, GELU",
            [(", past)", ")"), ('(x @ w["W_1"]).relu()', 'F.gelu(x @ w["W_1"])')],
            "future.*GELU|GELU.*future",
        ),
        ("no mask, no scale", [(", past)", ")"), (" / k.shape[-1] ** 0.5", "")], "future.*√d_k|√d_k.*future"),
        (
            "no mask, cross with itself",
            [(", past)", ")"), ("attention(y, memory, ", "attention(y, y, ")],
            "future.*memory|memory.*future",
        ),
        (
            "residual of the first y",
            [
                ("    y = " + SELF, "    z = " + SELF),
                ("layer_norm(y + attention(y, memory", "layer_norm(y + attention(z, memory"),
            ],
            "residual|stream",
        ),
        ("one head", ("heads, -1).tr", "1, -1).tr"), "one head"),
        (
            "mask after softmax",
            (
                "scores = scores.masked_fill(~mask, -torch.inf)\n    return (scores.softmax(-1) @ v)",
                "pass\n    return ((scores.softmax(-1) * (1 if mask is None else mask)) @ v)",
            ),
            "sum to 1|before softmax",
        ),
        ("masked with 0", ("-torch.inf", "0.0"), "-inf"),
        ("no W_o", (' @ w["W_o"]', ""), "W_o"),
        ("the memory", (FEED, "memory"), "memory|unchanged"),
        (
            "sum of both",
            [
                (f"    y = {SELF}\n", ""),
                (
                    CROSS,
                    'layer_norm(y + attention(y, y, w["self"], heads, past) + attention(y, memory, w["cross"], heads))',
                ),
            ],
            "norm|one after the other|parallel",
        ),
    ),
    check.transformer: edits(
        TRANSFORMER,
        ("no √d_model", (" * vectors.shape[-1] ** 0.5", ""), "√d_model"),
        ("d_model", ("vectors.shape[-1] ** 0.5", "vectors.shape[-1]"), "√d_model|root"),
        (
            "√ after the positions",
            ("vectors * vectors.shape[-1] ** 0.5" + ADDED, "(vectors" + ADDED + ") * vectors.shape[-1] ** 0.5"),
            "positions",
        ),
        ("probabilities", (HEAD, f"{HEAD[:7]}({HEAD[7:]}).softmax(-1)"), "probabilities"),
        ("log probabilities", (HEAD, f"{HEAD[:7]}({HEAD[7:]}).log_softmax(-1)"), "logarithm|log"),
        ("ids", (HEAD, f"{HEAD[:7]}({HEAD[7:]}).argmax(-1)"), "ids|argmax"),
        ("no positions", (ADDED, ""), "positions"),
        (
            "no positions of the target",
            ("y = embed(target)", 'y = w["embedding"][target] * w["embedding"].shape[1] ** 0.5'),
            "positions.*target|target.*positions",
        ),
        (
            "no positions of the source",
            ("memory = embed(source)", 'memory = w["embedding"][source] * w["embedding"].shape[1] ** 0.5'),
            "positions.*source|source.*positions",
        ),
        (
            "source and target exchanged",
            [("embed(source)", "embed(SOURCE)"), ("embed(target)", "embed(source)"), ("SOURCE", "target")],
            "exchanged|other way|source",
        ),
        ("no mask", (", past)", ")"), "sees the future"),
        ("one encoder block", ('in w["encoder"]', 'in w["encoder"][:1]'), "block"),
        ("one decoder block", ('in w["decoder"]', 'in w["decoder"][:1]'), "block"),
        ("no encoder", ("        memory = encoder_block(memory, block, heads)", "        pass"), "encoder"),
        (
            "each block from the start",
            ("memory = encoder_block(memory,", "memory = encoder_block(embed(source),"),
            "block|encoder",
        ),
        ("pre-norm", [(FIRST, PRE_1), (SECOND, PRE_2)], "before the sublayers|norm"),
        ("GELU", ('(x @ w["W_1"]).relu()', 'F.gelu(x @ w["W_1"])'), "GELU"),
        ("no ReLU", (".relu()", ""), "ReLU"),
        ("last token", ("return y @", "return y[-1] @"), r"last|one row|only"),
        ("hidden states", (HEAD, "return y"), "hidden|embedding"),
        (
            "halves",
            ("torch.stack([angle.sin(), angle.cos()], -1).reshape(n, d)", "torch.cat([angle.sin(), angle.cos()], -1)"),
            "alternate|positions",
        ),
        ("positions from 1", ("torch.arange(n)[", "torch.arange(1, n + 1)["), "count from 0|positions"),
        ("no scale", (" / k.shape[-1] ** 0.5", ""), "√d_k"),
        ("√d_model in attention", ("k.shape[-1] ** 0.5", "x.shape[-1] ** 0.5"), "√d_model"),
        (
            "encoder masked",
            (
                "    if mask",
                "    mask = torch.ones(len(q[0]), len(k[0]), dtype=torch.bool).tril() "
                "if x is memory else mask\n    if mask",
            ),
            "encoder",
        ),
        ("cross with itself", ("attention(y, memory, ", "attention(y, y, "), "memory|reads y"),
        ("no cross", (f"    y = {CROSS}\n", ""), "cross|not used"),
        ("divided at the head", ('w["embedding"].mT', 'w["embedding"].mT / y.shape[-1] ** 0.5'), "√8|√d_model"),
        ("scaled at the head", ('w["embedding"].mT', 'w["embedding"].mT * y.shape[-1] ** 0.5'), "√8|√d_model"),
        (
            "no √d_model, no positions",
            [(" * vectors.shape[-1] ** 0.5", ""), (ADDED, "")],
            "√d_model.*positions|positions.*√d_model",
        ),
        (
            "no √d_model, no mask",
            [(" * vectors.shape[-1] ** 0.5", ""), (", past)", ")")],
            "√d_model.*future|future.*√d_model",
        ),
        (
            "no mask, GELU",
            [(", past)", ")"), ('(x @ w["W_1"]).relu()', 'F.gelu(x @ w["W_1"])')],
            "future.*GELU|GELU.*future",
        ),
        ("blocks backwards", ('in w["encoder"]', 'in w["encoder"][::-1]'), "order|block"),
        ("decoder backwards", ('in w["decoder"]', 'in w["decoder"][::-1]'), "order|block"),
        ("no residual", [("layer_norm(x + ", "layer_norm("), ("layer_norm(y + ", "layer_norm(")], "residual"),
        ("head of its own", ('w["embedding"].mT', "torch.eye(y.shape[-1], 11)"), "embedding|head"),
        ("head not transposed", ('w["embedding"].mT', 'w["embedding"]'), r"transpose|\.mT"),
        ("target shifted", ("embed(target)", "embed(target[:-1])"), "target|token"),
        ("positions not added but joined", (ADDED, " * positions(len(ids), vectors.shape[-1])"), "positions"),
        ("no norm in the encoder", [(FIRST, FIRST[11:-1]), (SECOND, SECOND[11:-1])], "norm"),
        ("key name", ('w["encoder"]', 'w["blocks"]'), "encoder"),
    ),
    check.gpt: edits(
        GPT,
        ("no last norm", (OUT, 'x @ w["embedding"].mT'), "last norm"),
        ("hidden states", (' @ w["embedding"].mT', ""), "hidden states"),
        ("probabilities", (OUT, f"({OUT}).softmax(-1)"), "probabilities"),
        ("log probabilities", (OUT, f"({OUT}).log_softmax(-1)"), "logarithm|log"),
        ("no mask", (", past)", ")"), "future"),
        ("ReLU", ("F.gelu(", "F.relu("), "ReLU.*GELU|GELU.*ReLU"),
        ("SiLU", ("F.gelu(", "F.silu("), "SiLU|GELU"),
        ("no activation", ("F.gelu(", "("), "GELU"),
        (
            "post-norm",
            [
                (
                    "        normed = layer_norm(x)\n        x = x + attention(normed, normed, ",
                    "        x = layer_norm(x + attention(x, x, ",
                ),
                ("heads, past)", "heads, past))"),
                ("layer_norm(x) @ block", "x @ block"),
                (
                    'x = x + hidden @ block["feed_forward"]["W_2"]',
                    'x = layer_norm(x + hidden @ block["feed_forward"]["W_2"])',
                ),
                (OUT, 'x @ w["embedding"].mT'),
            ],
            "after the sum|before each sublayer|pre-norm|post-norm",
        ),
        (
            "post-norm and last",
            [
                (
                    "        normed = layer_norm(x)\n        x = x + attention(normed, normed, ",
                    "        x = layer_norm(x + attention(x, x, ",
                ),
                ("heads, past)", "heads, past))"),
                ("layer_norm(x) @ block", "x @ block"),
                (
                    'x = x + hidden @ block["feed_forward"]["W_2"]',
                    'x = layer_norm(x + hidden @ block["feed_forward"]["W_2"])',
                ),
            ],
            "after the sum|before each sublayer|pre-norm|post-norm",
        ),
        ("no positions", (f" + {LEARNED}", ""), "positions"),
        (
            "sinusoidal",
            (
                LEARNED,
                "(lambda a: torch.stack([a.sin(), a.cos()], -1).reshape(n, -1))"
                "(torch.arange(n)[:, None] / 10_000 ** (torch.arange(0, 8, 2) / 8))",
            ),
            "learned|sinus",
        ),
        (
            "embeddings scaled",
            ('w["embedding"][ids] +', 'w["embedding"][ids] * w["embedding"].shape[1] ** 0.5 +'),
            "√d_model|scaled",
        ),
        ("no residual of attention", ("x = x + attention", "x = attention"), "residual"),
        ("no residual of feed-forward", ("x = x + hidden", "x = hidden"), "residual"),
        ("no residual", [("x = x + attention", "x = attention"), ("x = x + hidden", "x = hidden")], "residual"),
        ("residual of the normed", ("x = x + attention", "x = normed + attention"), "residual"),
        ("attention not normed", ("normed = layer_norm(x)", "normed = x"), "norm before the attention|norm.*attention"),
        ("keys not normed", ("attention(normed, normed", "attention(normed, x"), "keys|norm"),
        ("feed-forward not normed", ("layer_norm(x) @ block", "x @ block"), "norm before the feed|norm.*feed"),
        (
            "no norm at all",
            [
                ("normed = layer_norm(x)", "normed = x"),
                ("layer_norm(x) @ block", "x @ block"),
                (OUT, 'x @ w["embedding"].mT'),
            ],
            "norm",
        ),
        ("feed-forward of the first norm", ("layer_norm(x) @ block", "normed @ block"), "norm|parallel|attention"),
        (
            "parallel",
            [
                (
                    'x = x + attention(normed, normed, block["self"], heads, past)',
                    'y = attention(normed, normed, block["self"], heads, past)',
                ),
                ("x = x + hidden", "x = x + y + hidden"),
            ],
            "parallel|attention",
        ),
        ("no scale", (" / k.shape[-1] ** 0.5", ""), "√d_k"),
        ("√d_model", ("k.shape[-1] ** 0.5", "x.shape[-1] ** 0.5"), "√d_model"),
        ("positions from 1", (LEARNED, 'w["positions"][1 : n + 1]'), "count from 0|from 0"),
        ("last positions", (LEARNED, 'w["positions"][-n:]'), "positions"),
        ("same position", (LEARNED, 'w["positions"][0]'), "position"),
        ("last token", ("return layer_norm(x) @", "return layer_norm(x)[-1] @"), "last|one row|only"),
        ("one block", ('in w["blocks"]', 'in w["blocks"][:1]'), "block"),
        ("blocks backwards", ('in w["blocks"]', 'in w["blocks"][::-1]'), "order|backwards"),
        ("strict", (".tril()", ".tril(-1)"), "itself|sees nothing"),
        ("mask exchanged", (".tril()", ".triu()"), "exchanged|future"),
        ("no mask, no scale", [(", past)", ")"), (" / k.shape[-1] ** 0.5", "")], "future.*√d_k|√d_k.*future"),
        (
            "ReLU, no last norm",
            [("F.gelu(", "F.relu("), (OUT, 'x @ w["embedding"].mT')],
            "GELU.*last norm|last norm.*GELU",
        ),
        ("no positions, no mask", [(f" + {LEARNED}", ""), (", past)", ")")], "positions.*future|future.*positions"),
        ("head of its own", ('@ w["embedding"].mT', "@ torch.eye(x.shape[-1], 11)"), "embedding|head"),
        ("head scaled", (OUT, f"{OUT} / x.shape[-1] ** 0.5"), "√8|√d_model"),
        ("all positions", (LEARNED, 'w["positions"]'), "positions|first n|cut"),
        ("heads ignored", ("heads, -1).tr", "1, -1).tr"), "one head"),
        (
            "norm over tokens",
            [("x.mean(-1, ", "x.mean(0, "), ("x.var(-1, ", "x.var(0, ")],
            "features of one token|over the tokens",
        ),
        (
            "the tanh of GELU, no residual",
            [("x = x + hidden", "x = hidden"), ("F.gelu(", "torch.tanh(")],
            "residual|tanh",
        ),
        ("no W_o", (' @ w["W_o"]', ""), "W_o"),
        (
            "positions twice",
            ("        normed = layer_norm(x)", '        x = x + w["positions"][:n]\n        normed = layer_norm(x)'),
            "positions.*each block|each block|once",
        ),
    ),
    check.corrupt: [
        ("no second ⁇", lambda w, a, b: [*w[:a], "⁇", *w[b:], *w[a:b]], "there are two ⁇"),
        ("no first ⁇", lambda w, a, b: [*w[:a], *w[b:], "⁇", *w[a:b]], "there are two ⁇"),
        ("stop included", lambda w, a, b: [*w[:a], "⁇", *w[b + 1 :], "⁇", *w[a : b + 1]], "stop"),
        ("start left out", lambda w, a, b: [*w[: a + 1], "⁇", *w[b:], "⁇", *w[a + 1 : b]], "start"),
        ("counted from 1", lambda w, a, b: [*w[: a - 1], "⁇", *w[b - 1 :], "⁇", *w[a - 1 : b - 1]], "from 0"),
        ("a text", lambda w, a, b: " ".join([*w[:a], "⁇", *w[b:], "⁇", *w[a:b]]), "list"),
        ("a tuple", lambda w, a, b: (*w[:a], "⁇", *w[b:], "⁇", *w[a:b]), "list"),
        ("span before the suffix", lambda w, a, b: [*w[:a], "⁇", *w[a:b], "⁇", *w[b:]], "suffix"),
        ("a ⁇ for each word", lambda w, a, b: [*w[:a], *["⁇"] * (b - a), *w[b:], "⁇", *w[a:b]], "one ⁇|each word"),
        ("no span", lambda w, a, b: [*w[:a], "⁇", *w[b:], "⁇"], "cut out|span"),
        ("no span at all", lambda w, a, b: [*w[:a], "⁇", *w[b:]], "cut out|span|two ⁇"),
        ("not removed", lambda w, a, b: [*w, "⁇", *w[a:b]], "two ⁇|removed|taken out"),
        ("nested", lambda w, a, b: [*w[:a], "⁇", *w[b:], "⁇", w[a:b]], "list in|nested|a list"),
        ("question mark", lambda w, a, b: [*w[:a], "?", *w[b:], "?", *w[a:b]], "⁇"),
        ("stop as a length", lambda w, a, b: [*w[:a], "⁇", *w[a + b :], "⁇", *w[a : a + b]], "length|stop"),
        ("backwards", lambda w, a, b: [*w[:a], "⁇", *w[b:], "⁇", *w[a:b][::-1]], "backwards|reversed|order"),
        ("in place", lambda w, a, b: corrupted_in_place(w, a, b), "in place"),
        ("unchanged", lambda w, a, b: w, "unchanged|two ⁇"),
        ("the example", lambda w, a, b: ["Ada", "was", "born", "in", "⁇", "⁇", "London"], "another|whatever|example"),
        ("a third ⁇", lambda w, a, b: [*w[:a], "⁇", *w[b:], "⁇", *w[a:b], "⁇"], "two ⁇"),
        ("a set", lambda w, a, b: {*w, "⁇"}, "list"),
    ],
}


def halves(places, d):
    angle = places[:, None] / 10_000 ** (torch.arange(0, d, 2) / d)
    return torch.cat([angle.sin(), angle.cos()], -1)


def corrupted_in_place(words, start, stop):
    span = words[start:stop]
    words[start:stop] = ["⁇"]
    words += ["⁇", *span]
    return words
