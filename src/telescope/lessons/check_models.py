"""Checks of lessons 8 to 13: heads, two sequences, the Synthesizer, the Transformer, GPT,
recall.
"""

from math import sqrt

import torch
from torch import Tensor, nn

from ..attention import Attention, causal, sinusoidal
from ..engines import attend
from ..layers import (
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    LuongAttention,
    MultiHeadAttention,
    SynthesizerAttention,
)
from ..models import GPT, GPTConfig, Transformer, TransformerConfig
from .material import (
    Case,
    Cases,
    Solution,
    WrongAnswer,
    call,
    causal_matrix,
    exercise,
    matrices,
    normal,
    passed,
)

# ------------------------------------------------------------------------------------ 8  many heads


@exercise("split_heads", "agrees")
def split_heads() -> Cases:
    """Check split_heads(x, heads): (n, heads · d) to (heads, n, d)."""
    x = normal(5, 6)
    yield Case(
        (x, 3),
        x.reshape(5, 3, 2).transpose(0, 1),
        {
            "rows are mixed: view as (n, heads, d) first, then exchange the first two "
            "axes": x.reshape(3, 5, 2),
            "the heads stand in the middle; exchange the first two axes": x.reshape(5, 3, 2),
            "neighbouring features went to different heads: view as (n, heads, d), not (n, d, "
            "heads)": x.reshape(5, 2, 3).permute(2, 0, 1),
        },
    )


@exercise("merge_heads", "is the inverse of split_heads")
def merge_heads() -> Cases:
    """Check merge_heads(y): (heads, n, d) back to (n, heads · d)."""
    y = normal(3, 5, 2)
    yield Case(
        (y,),
        y.transpose(0, 1).reshape(5, 6),
        {"rows are mixed: exchange the first two axes before you reshape": y.reshape(5, 6)},
    )


@exercise("multi_head", "agrees with ts.layers.MultiHeadAttention")
def multi_head() -> Cases:
    """Check multi_head(x, W_q, W_k, W_v, W_o, heads)."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(8, 2, bias=False)
    x = normal(1, 5, 8)
    w = matrices(layer)
    q, k, v = (x[0] @ w[name] for name in ("W_q", "W_k", "W_v"))
    heads = [tensor.reshape(5, 2, 4).transpose(0, 1)[None] for tensor in (q, k, v)]
    # The same by hand, so that each step can be left out or done wrongly.
    context = attend(heads[0], heads[1], heads[2])[0].transpose(0, 1).reshape(5, 8)
    scaled = attend(heads[0], heads[1], heads[2], Attention(scale=1 / sqrt(8)))[0]
    wide = scaled.transpose(0, 1).reshape(5, 8) @ w["W_o"]  # √d_model in place of √d_k
    one = attend(q[None, None], k[None, None], v[None, None])[0, 0] @ w["W_o"]
    with torch.no_grad():
        right = layer(x)[0]
    yield Case(
        (x[0], w["W_q"], w["W_k"], w["W_v"], w["W_o"], 2),
        right,
        {
            "W_o is not used": context,
            "scores are divided by √d_model; each head has d_k = d_model / heads": wide,
            "this is one head of the whole width; split queries, keys and values": one,
        },
    )


@exercise("parameters", "d·(2m + l)·T + T·l·d")
def parameters() -> Cases:
    """Check parameters(d, m, l, T): d·(2m + l)·T + T·l·d."""
    for d, m, width, heads in ((512, 64, 64, 8), (10, 3, 5, 2)):
        one_head = d * (2 * m + width)  # W_q, W_k and W_v
        W_o = heads * width * d  # one matrix for all heads
        mistakes = {
            "W_o is missing: T·l·d more": one_head * heads,
            "this is one head; there are T": one_head + width * d,
            "W_o maps all heads together: T·l rows, not l": one_head * heads + width * d,
            "W_q and W_k are both d x m": d * (m + width) * heads + W_o,
        }
        as_floats = {sentence: float(count) for sentence, count in mistakes.items()}
        yield Case((d, m, width, heads), float(one_head * heads + W_o), as_floats)


# ---------------------------------------------------------------------- 9  Luong, and two sequences


@exercise("luong", 'agrees with ts.layers.LuongAttention("dot")')
def luong() -> Cases:
    """Check luong(states, memory): c_i = Σ_j softmax(s_i · h_j) h_j."""
    states = normal(1, 3, 4)
    memory = normal(1, 5, 4, seed=1)
    right = LuongAttention("dot", d_query=4)(states, memory)[0]
    raw = states[0] @ memory[0].mT
    yield Case(
        (states[0], memory[0]),
        right,
        {
            "Luong's dot score has no √d_k": (raw / 2).softmax(-1) @ memory[0],
            "softmax runs over the states; each state spreads its weight over the memory, "
            "dim=-1": raw.softmax(0) @ memory[0],
            "the states attend to themselves; keys and values are the memory": (
                (states[0] @ states[0].mT).softmax(-1) @ states[0]
            ),
        },
    )


@exercise("general", 'agrees with ts.layers.LuongAttention("general")')
def general_score() -> Cases:
    """Check general(states, memory, W): s W h^T, with a matrix between two widths."""
    torch.manual_seed(0)
    layer = LuongAttention("general", d_query=4, d_memory=6)
    states = normal(1, 3, 4)
    memory = normal(1, 5, 6, seed=1)  # wider than the states
    W = layer.W.detach()
    with torch.no_grad():
        right = layer(states, memory)[0]
    yield Case(
        (states[0], memory[0], W),
        right,
        {
            "these are the weights; multiply them by the memory": (
                states[0] @ W @ memory[0].mT
            ).softmax(-1)
        },
    )


@exercise("cross_attention", "agrees with ts.layers.MultiHeadAttention(...)(y, memory)")
def cross_attention() -> Cases:
    """Check cross_attention(y, memory, W_q, W_k, W_v, W_o, heads)."""
    torch.manual_seed(1)
    layer = MultiHeadAttention(8, 2, bias=False)
    y = normal(1, 3, 8)
    memory = normal(1, 5, 8, seed=1)
    w = matrices(layer)
    with torch.no_grad():
        right = layer(y, memory)[0]
        within = layer(y)[0]  # self-attention
        swapped = layer(memory, y)[0]  # the memory asks
    yield Case(
        (y[0], memory[0], w["W_q"], w["W_k"], w["W_v"], w["W_o"], 2),
        right,
        {
            "keys and values are made of y; they come from the memory": within,
            "queries come from y, keys and values from the memory; here it is the other way "
            "round": swapped,
        },
    )


# ------------------------------------------------------------------------------ 10  the Synthesizer


@exercise("synthesizer", "agrees with ts.layers.SynthesizerAttention")
def synthesizer() -> Cases:
    """Check synthesizer(x, A, b1, B, b2, V): softmax(ReLU(x A + b1) B + b2) x V, causal, one
    head.
    """
    torch.manual_seed(0)
    layer = SynthesizerAttention(
        d_model=4, heads=1, block=8, attention=Attention(scale=1.0, mask=causal)
    )
    x = normal(1, 5, 4)
    with torch.no_grad():
        # Numbers that count in B and b2; W_O and the bias of V are no part of this exercise.
        layer.B.normal_()
        assert layer.b2 is not None
        layer.b2.normal_()
        nn.init.eye_(layer.W_O.weight)
        layer.W_O.bias.zero_()
        layer.V.bias.zero_()
        right = layer(x)[0]
    A = layer.A.weight.detach().mT
    b1 = layer.A.bias.detach()
    B = layer.B.detach()[0]
    b2 = layer.b2.detach()[0, 0]
    V = layer.V.weight.detach().mT
    hidden = x[0] @ A + b1  # before the ReLU
    values = x[0] @ V
    mask = causal_matrix(5, 5)

    def result(logits: Tensor, mask: Tensor = mask) -> Tensor:
        return logits.masked_fill(~mask, -torch.inf).softmax(-1) @ values

    logits = (hidden.relu() @ B + b2)[:, :5]  # five columns of the table's eight
    yield Case(
        (x[0], A, b1, B, b2, V),
        right,
        {
            "the mask is missing: no query may see a later position": logits.softmax(-1) @ values,
            "the ReLU is missing": result((hidden @ B + b2)[:, :5]),
            "b2 is missing": result((hidden.relu() @ B)[:, :5]),
            "the Synthesizer has no √d_k": result(logits / 2),
            "softmax runs over the whole table; cut it to the n columns of this text first": (
                (hidden.relu() @ B + b2).softmax(-1)[:, :5] @ values
            ),
        },
    )


@exercise(
    "synthesizer_parameters", "the count does not depend on the text, but the longest text is fixed"
)
def synthesizer_parameters() -> Cases:
    """Check synthesizer_parameters(d, block): A and b1, B and b2, V, of one head, without biases of
    V.
    """
    for d, block in ((256, 128), (6, 4)):
        right = d * d + d + d * block + block + d * d
        mistakes = {
            "b1 and b2 are missing": float(2 * d * d + d * block),
            "V is missing": float(d * d + d + d * block + block),
        }
        yield Case(
            (d, block),
            float(right),
            mistakes,
        )


# ------------------------------------------------------------------------ 11  the whole Transformer


@exercise("positions", "agrees with ts.sinusoidal")
def positions() -> Cases:
    """Check positions(n, d): sinusoidal positional encoding, sines at even features and cosines at
    odd ones.
    """
    right = sinusoidal(6, 8)
    halves = torch.cat([right[:, 0::2], right[:, 1::2]], 1)
    yield Case(
        (6, 8),
        right,
        {
            "sines and cosines are exchanged: even features are sines": (
                right.reshape(6, 4, 2).flip(-1).reshape(6, 8)
            ),
            "sines come first and cosines after; they alternate": halves,
            "positions count from 0": sinusoidal(7, 8)[1:],
        },
    )


@exercise("layer_norm", "agrees with torch")
def layer_norm() -> Cases:
    """Check layer_norm(x): mean 0 and variance 1 over the features of each token."""
    x = normal(4, 6) * 3 + 2  # neither mean 0 nor variance 1
    right = torch.nn.functional.layer_norm(x, (6,))
    eps = 1e-5  # torch's own
    centred = x - x.mean(-1, keepdim=True)
    variance = x.var(-1, correction=0, keepdim=True) + eps
    of_tokens = (x - x.mean(0)) / (x.var(0, correction=0) + eps).sqrt()  # over the wrong axis
    yield Case(
        (x,),
        right,
        {
            "the mean runs over the tokens; use dim=-1, the features of one token": of_tokens,
            "the variance is divided by n - 1; use correction=0": (
                centred / (x.var(-1, keepdim=True) + eps).sqrt()
            ),
            "divide by the standard deviation, not by the variance": centred / variance,
            "the mean is not subtracted": x / variance.sqrt(),
        },
    )


@exercise("encoder_block", "agrees with ts.layers.EncoderBlock")
def encoder_block() -> Cases:
    """Check encoder_block(x, w, heads): self-attention, add & norm, feed forward, add & norm."""
    torch.manual_seed(0)
    own = MultiHeadAttention(8, 2, bias=False)
    feed_forward = FeedForward(8, 16, bias=False)
    block = EncoderBlock(8, own, feed_forward)
    other = EncoderBlock(8, own, feed_forward, pre_norm=True)  # of the same weights
    x = normal(1, 5, 8, seed=3)
    norm = torch.nn.functional.layer_norm
    with torch.no_grad():
        right = block(x)[0]
        before = other(x)[0]  # the norms before the sublayers
        attended = block.self_attention(x)
        no_residual = norm(block.feed_forward(norm(attended, (8,))), (8,))[0]
        # The feed-forward network as two products without the ReLU between them.
        linear = norm(x + attended, (8,))
        w = matrices(block)["feed_forward"]
        flat = norm(linear + linear @ w["W_1"] @ w["W_2"], (8,))[0]
    yield Case(
        (x[0], matrices(block), 2),
        right,
        {
            "the norms come before the sublayers; in this block they come after the sum": before,
            "the residual is missing: norm(x + sublayer(x))": no_residual,
            "the ReLU of the feed-forward network is missing": flat,
            "the last norm is missing": (linear + block.feed_forward(linear))[0].detach(),
        },
        tolerance=1e-3,
    )


@exercise("decoder_block", "agrees with ts.layers.DecoderBlock")
def decoder_block() -> Cases:
    """Check decoder_block(y, memory, w, heads): masked self-attention, cross-attention, feed
    forward.
    """
    torch.manual_seed(2)
    masked = MultiHeadAttention(8, 2, bias=False, attention=Attention(mask=causal))
    block = DecoderBlock(
        8, masked, MultiHeadAttention(8, 2, bias=False), FeedForward(8, 16, bias=False)
    )
    y = normal(1, 4, 8, seed=4)
    memory = normal(1, 6, 8, seed=5)
    with torch.no_grad():
        right = block(y, memory)[0]
        # The same weights without the mask, then with the wrong memory.
        masked.attention = Attention()
        seeing = block(y, memory)[0]
        masked.attention = Attention(mask=causal)
        alone = block(y, y)[0]
    yield Case(
        (y[0], memory[0], matrices(block), 2),
        right,
        {
            "the self-attention sees the future; mask it": seeing,
            "the second attention reads y; its keys and values come from the memory": alone,
        },
        tolerance=1e-3,
    )


@exercise("transformer", "agrees with ts.models.Transformer: you have written one")
def transformer() -> Cases:
    """Check transformer(source, target, w, heads): ids in, logits of the next target token out."""
    torch.manual_seed(0)
    config = TransformerConfig(
        vocabulary=11,
        d_model=8,
        heads=2,
        encoder_blocks=2,
        decoder_blocks=2,
        d_hidden=16,
        bias=False,
        dropout=0.0,
    )
    model = Transformer(config).eval()
    source = torch.tensor([[5, 2, 9, 1]])
    target = torch.tensor([[3, 7, 4]])
    w = matrices(model)
    with torch.no_grad():
        right = model(source, target)[0]
        model.embedding.weight /= sqrt(8)  # undoes the factor √d_model
        unscaled = model(source, target)[0]
        model.embedding.weight *= sqrt(8)  # restored: `w` holds a view of the embedding
    # The head is the embedding, which was divided too.
    unscaled = unscaled * sqrt(8)
    yield Case(
        (source[0], target[0], w, 2),
        right,
        {
            "the embeddings are not multiplied by √d_model before the positions are "
            "added": unscaled,
            "these are probabilities; return the logits": right.softmax(-1),
        },
        tolerance=1e-3,
    )


# ------------------------------------------------------------------------------------------ 12  GPT


@exercise("gpt", "agrees with ts.models.GPT")
def gpt() -> Cases:
    """Check gpt(ids, w, heads): a pre-norm GPT with GELU and learned positions; logits of every
    next token.
    """
    torch.manual_seed(0)
    model = GPT(
        GPTConfig(vocabulary=11, max_positions=16, d_model=8, blocks=2, heads=2, bias=False)
    ).eval()
    with torch.no_grad():
        # Larger weights than a new model has: with small ones every mistake gives nearly the same.
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.4)
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    with torch.no_grad():
        right = model(ids)[0]
        hidden = model.hidden(ids)[0]
        bare = GPT(model.config).eval()
        bare.load_state_dict(model.state_dict())
        bare.norm = nn.Identity()  # the last norm, before the head
        without_norm = bare(ids)[0]
    yield Case(
        (ids[0], matrices(model), 2),
        right,
        {
            "these are the hidden states; multiply them by the transposed embedding": hidden,
            "the last norm, before the head, is missing": without_norm,
            "these are probabilities; return the logits": right.softmax(-1),
        },
        tolerance=1e-3,
    )


# --------------------------------------------------------------------------------------- 13  recall


def corrupt(function: Solution) -> None:
    """Check corrupt(words, start, stop): prefix ⁇ suffix ⁇ cut-out."""
    words = ["Ada", "was", "born", "in", "London"]
    for start, stop, right in (
        (4, 5, ["Ada", "was", "born", "in", "⁇", "⁇", "London"]),
        (1, 3, ["Ada", "⁇", "in", "London", "⁇", "was", "born"]),
    ):
        found = call("corrupt", function, words, start, stop)
        if found != right:
            hint = ""
            if isinstance(found, list) and found.count("⁇") != 2:
                hint = (
                    "; there are two ⁇: where the words were, and before the words that were "
                    "cut out"
                )
            raise WrongAnswer(
                f"corrupt(words, {start}, {stop}) is {found}, and should be {right}{hint}"
            )
    passed("corrupt", "agrees with the pretraining of recipes/recall-*.toml")
