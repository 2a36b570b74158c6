"""Checks of the exercises: each takes the reader's solution, and says what is wrong with a wrong one.

A check compares with the library on inputs that the reader has not seen, and knows the usual mistakes of its exercise.
"""

from collections.abc import Callable, Sequence
from math import log, sqrt
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import Attention, by_sum, causal, sinusoidal
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
from ..survey import survey
from ..trace import trace
from .answers import WrongAnswer, call, compare, given, passed
from .material import journey, matrices

Solution = Callable[..., Any]

__all__ = [
    "attend_in_blocks",
    "attention_of",
    "bytes_of_weights",
    "causal_mask",
    "corrupt",
    "cosine",
    "cross_attention",
    "decoder_block",
    "encoder_block",
    "entropy",
    "entropy_from_lse",
    "even_weights",
    "general_score",
    "gpt",
    "hidden",
    "induction_share",
    "layer_norm",
    "luong",
    "masked_softmax",
    "merge_heads",
    "multi_head",
    "muted",
    "negative_weight",
    "parameters",
    "positions",
    "previous_share",
    "reads",
    "received",
    "score_variance",
    "scores",
    "softmax",
    "split_heads",
    "synthesizer",
    "synthesizer_parameters",
    "towards",
    "transformer",
    "two_readings",
    "weight_free",
]


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# ------------------------------------------------------------------------------------------------- 1  without weights


def scores(function: Solution) -> None:
    """Check scores(x): the dot product of every vector with every other."""
    for x in (journey(), _random(4, 5)):
        found = call("scores", function, x)
        units = torch.nn.functional.normalize(x, dim=-1)
        compare(
            "scores",
            found,
            x @ x.mT,
            {
                "these are cosines; a dot product is not divided by the lengths of the vectors": units @ units.mT,
                "the products are not summed: a score is one number for each pair": x[:, None] * x[None],
                "these are products of features, (d, d); multiply x by its transpose, not its transpose by x": x.mT @ x,
            },
        )
    passed("scores", "every dot product agrees")


def weight_free(function: Solution) -> None:
    """Check context(x): softmax of the scores of x with itself, times x."""
    for x in (journey(), _random(5, 4)):
        steps = trace(x[None, None], x[None, None], x[None, None], Attention(scale=1.0))
        raw = x @ x.mT
        compare(
            "context",
            call("context", function, x),
            steps.context[0, 0],
            {
                "these are the weights; the context is the weights times x": steps.weights[0, 0],
                "softmax runs over the queries: each row of weights should sum to 1, so use dim=-1": raw.softmax(0) @ x,
                "the scores are divided by their sum; this exercise wants softmax": raw / raw.sum(-1, keepdim=True) @ x,
                "the scores are divided by √d already; that comes in lesson 4": (raw / sqrt(x.shape[-1])).softmax(-1)
                @ x,
                "the scores are not normalised": raw @ x,
            },
        )
    passed("context", "agrees with ts.trace")


# -------------------------------------------------------------------------------------------------- 2  softmax or sum


def softmax(function: Solution) -> None:
    """Check softmax(scores), along the last axis, also where exp overflows."""
    plain = _random(3, 4)
    compare(
        "softmax",
        call("softmax", function, plain),
        plain.softmax(-1),
        {
            "all numbers are divided by one sum; each row has its own, over dim=-1": plain.exp() / plain.exp().sum(),
            "the sum runs over the columns; use dim=-1 and keepdim=True": plain.softmax(0),
            "this is exp(scores); divide by its sum over the last axis": plain.exp(),
            "this is the logarithm of softmax": plain.log_softmax(-1),
        },
    )
    large = torch.tensor([[1000.0, 1000.0], [1000.0, 990.0]])
    found = call("softmax", function, large)
    if isinstance(found, Tensor) and bool(found.isnan().any()):
        raise WrongAnswer(
            "softmax: exp(1000) is infinite, and inf / inf is NaN; subtract the largest score of each row first"
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
            "the sum of these scores is 0, so that division gives no numbers at all: another reason for softmax"
        )
    weights = numbers / numbers.sum()
    if bool((weights >= 0).all()):
        raise WrongAnswer(f"the weights are {weights.tolist()}, all from 0 to 1; a score must have the other sign")
    x = numbers[None, None, None]
    compare("by_sum", weights, trace(x.mT * 0 + 1, x.mT, x.mT, Attention(scale=1.0, normalize=by_sum)).weights[0, 0, 0])
    passed("scores", f"by sum the weights are {[round(w, 3) for w in weights.tolist()]}; no mean of values has these")


# ------------------------------------------------------------------------------------------- 3  queries, keys, values


def attention_of(function: Solution) -> None:
    """Check attention(x, W_q, W_k, W_v): softmax(q k^T / √d_k) v."""
    for n, d, d_k, d_v in ((6, 3, 2, 2), (5, 4, 3, 6)):
        x, W_q, W_k, W_v = _random(n, d), _random(d, d_k, seed=1), _random(d, d_k, seed=2), _random(d, d_v, seed=3)
        q, k, v = x @ W_q, x @ W_k, x @ W_v
        right = attend(q[None, None], k[None, None], v[None, None])[0, 0]
        raw = q @ k.mT
        compare(
            "attention",
            call("attention", function, x, W_q, W_k, W_v),
            right,
            {
                "the scores are not divided by √d_k": raw.softmax(-1) @ v,
                "the scores are divided by d_k; divide by its square root": (raw / d_k).softmax(-1) @ v,
                "√ of the number of tokens is used; d_k is the width of a key": (raw / sqrt(n)).softmax(-1) @ v,
                "√ of the width of x is used; d_k is the width of a key": (raw / sqrt(d)).softmax(-1) @ v,
                "softmax runs over the queries; use dim=-1": (raw / sqrt(d_k)).softmax(0) @ v,
                "keys ask and queries answer: scores are q kᵀ": (raw.mT / sqrt(d_k)).softmax(-1) @ v,
                "the weights multiply x; they should multiply the values": (raw / sqrt(d_k)).softmax(-1) @ x,
                "these are the weights; the context is the weights times the values": (raw / sqrt(d_k)).softmax(-1),
            },
        )
    passed("attention", "agrees with ts.attend")


def even_weights(W_k: Tensor) -> None:
    """Check a W_k with which every query of the journey gives every key the same weight."""
    given("W_k", W_k)
    x = journey()
    if not isinstance(W_k, Tensor) or W_k.ndim != 2 or W_k.shape[0] != 3:
        raise WrongAnswer(f"W_k should be a matrix (3, d_k), and is {tuple(getattr(W_k, 'shape', ()))}")
    k = (x @ W_k)[None, None]
    weights = trace(_random(1, 1, 6, W_k.shape[1]), k, k).weights[0, 0]
    if not torch.allclose(weights, torch.full_like(weights, 1 / 6), atol=1e-4):
        i, j = divmod(int((weights - 1 / 6).abs().argmax()), 6)
        raise WrongAnswer(
            f"query {i} gives key {j} the weight {weights[i, j]:.3f}, not 1/6: are all keys the same vector?"
        )
    passed("W_k", "every weight is 1/6: keys that are equal cannot be told apart")


# ------------------------------------------------------------------------------------------------------- 4  why √d_k


def score_variance(function: Solution) -> None:
    """Check variances(q, k): the variance of q·k and of q·k / √d_k, over all pairs."""
    for d_k in (4, 64):
        q, k = _random(50, d_k), _random(40, d_k, seed=1)
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
            {"this is a standard deviation; its square is the variance": before**0.5, "this is the mean": raw.mean()},
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
    weights = _random(3, 5).softmax(-1)
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
        raise WrongAnswer("entropy: 0 · ln 0 is NaN, and should count as 0; torch.xlogy(w, w) does that")
    compare("entropy", found, torch.tensor([0.0, log(2)]))
    passed("entropy", "agrees with ts.survey, also where a weight is 0")


# ------------------------------------------------------------------------------------------------------- 5  geometry


def cosine(function: Solution) -> None:
    """Check cosine(a, b), of two vectors."""
    for seed in (0, 1):
        a, b = _random(4, seed=seed), 3 * _random(4, seed=seed + 5)
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
    money, river = torch.tensor([2.0, 0.0, 0.0]), torch.tensor([0.0, 2.0, 0.0])
    if not isinstance(x, Tensor) or x.shape != (3,):
        raise WrongAnswer("bank should be a vector of three numbers")
    tokens = torch.stack([money, river, x])[None, None]
    moved = trace(tokens, tokens, tokens).context[0, 0, 2]
    near, far = ((moved - word).norm().item() for word in (money, river))
    if not near < far:
        raise WrongAnswer(
            f"after attention, bank is {near:.3f} from money and {far:.3f} from river; give bank a larger dot product "
            "with money than with river"
        )
    passed("bank", f"after attention it is {near:.3f} from money and {far:.3f} from river")


# ---------------------------------------------------------------------------------------------------------- 6  masks


def causal_mask(function: Solution) -> None:
    """Check causal_mask(queries, keys): True where a query may see a key; the last query sees the last key."""
    for queries, keys in ((4, 4), (2, 5), (1, 3)):
        right = _causal(queries, keys)
        strict = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries - 1)
        top_left = torch.ones(queries, keys, dtype=torch.bool).tril()
        found = call("causal_mask", function, queries, keys)
        if isinstance(found, Tensor) and found.dtype != torch.bool:
            raise WrongAnswer(f"causal_mask holds {found.dtype}; True and False say who may see, so use torch.bool")
        compare(
            f"causal_mask({queries}, {keys})",
            found,
            right,
            {
                "True and False are exchanged: True means that a query may see a key": ~right,
                "a token should see itself too": strict,
                "the mask is aligned to the first query; with a cache, the last query is the last key": top_left,
            },
        )
    passed("causal_mask", "agrees with ts.causal, also with a cache")


def _causal(queries: int, keys: int) -> Tensor:
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


def masked_softmax(function: Solution) -> None:
    """Check masked_softmax(scores, mask): weights 0 where the mask is False, and zeros where a row sees nothing."""
    raw, mask = _random(4, 4), _causal(4, 4)
    right = raw.masked_fill(~mask, -torch.inf).softmax(-1)
    compare(
        "masked_softmax",
        call("masked_softmax", function, raw, mask),
        right,
        {
            "the mask is exchanged: True means may see": raw.masked_fill(mask, -torch.inf).softmax(-1).nan_to_num(),
            "the weights are set to 0 after softmax, so rows do not sum to 1; put -inf before it": raw.softmax(-1)
            * mask,
            "masked scores are 0, and exp(0) = 1 is a weight; use -inf": (raw * mask).softmax(-1),
            "the mask is not used": raw.softmax(-1),
        },
    )
    nothing = torch.zeros(4, 4, dtype=torch.bool)
    found = call("masked_softmax", function, raw, nothing)
    if isinstance(found, Tensor) and bool(found.isnan().any()):
        raise WrongAnswer("masked_softmax: a query that sees nothing gives NaN (0 / 0); let its weights be 0")
    compare("masked_softmax of a row that sees nothing", found, torch.zeros(4, 4))
    passed("masked_softmax", "agrees with ts.attend, also for a query that sees nothing")


# --------------------------------------------------------------------------------------------- 7  one head, one reading


def two_readings(function: Solution) -> None:
    """Check query_for(target): a query, of the features of the telescope sentence, that reads one word."""
    features = torch.eye(6)
    for target, name in ((1, "subject"), (3, "object")):
        query = call("query_for", function, target)
        if not isinstance(query, Tensor) or query.shape != (6,):
            raise WrongAnswer("query_for should return a vector of six numbers, one for each feature")
        weights = (features @ query.float() / sqrt(6)).softmax(-1)
        best = int(weights.argmax())
        if best != target:
            raise WrongAnswer(
                f"query_for({target}) reads feature {best} with weight {weights[best]:.2f}, not the {name}"
            )
        if weights[target] < 0.8:
            raise WrongAnswer(f"query_for({target}) gives the {name} {weights[target]:.2f}; make it clearer, above 0.8")
    passed("query_for", "two queries, two readings")


def reads(function: Solution) -> None:
    """Check reads(weights, even): which of two words gets more than even, and more so than the other; else None."""
    cases = [
        (([0.5, 0.1], [0.1, 0.1]), 0),
        (([0.1, 0.5], [0.1, 0.1]), 1),
        (([0.3, 0.4], [0.1, 0.3]), 0),
        (([0.05, 0.1], [0.1, 0.2]), None),
    ]
    for (weights, even), right in cases:
        try:
            found = function(torch.tensor(weights), torch.tensor(even))
        except NotImplementedError:
            raise WrongAnswer("reads is not written yet: replace `raise NotImplementedError` by your code") from None
        if found != right:
            larger = int(torch.tensor(weights).argmax())
            hint = ""
            if right is None:
                hint = "; neither word gets more than even weights would give it"
            elif found == larger:
                hint = "; compare each weight with its even share: a long word has several tokens"
            raise WrongAnswer(f"reads({weights}, {even}) is {found}, and should be {right}{hint}")
    passed("reads", "four cases agree")


# ----------------------------------------------------------------------------------------------------- 8  many heads


def split_heads(function: Solution) -> None:
    """Check split_heads(x, heads): (n, heads · d) to (heads, n, d)."""
    x = _random(5, 6)
    compare(
        "split_heads",
        call("split_heads", function, x, 3),
        x.reshape(5, 3, 2).transpose(0, 1),
        {
            "rows are mixed: view as (n, heads, d) first, then exchange the first two axes": x.reshape(3, 5, 2),
            "the heads stand in the middle; exchange the first two axes": x.reshape(5, 3, 2),
            "neighbouring features went to different heads: view as (n, heads, d), not (n, d, heads)": x.reshape(
                5, 2, 3
            ).permute(2, 0, 1),
        },
    )
    passed("split_heads", "agrees")


def merge_heads(function: Solution) -> None:
    """Check merge_heads(y): (heads, n, d) back to (n, heads · d)."""
    y = _random(3, 5, 2)
    compare(
        "merge_heads",
        call("merge_heads", function, y),
        y.transpose(0, 1).reshape(5, 6),
        {"rows are mixed: exchange the first two axes before you reshape": y.reshape(5, 6)},
    )
    passed("merge_heads", "is the inverse of split_heads")


def multi_head(function: Solution) -> None:
    """Check multi_head(x, W_q, W_k, W_v, W_o, heads)."""
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(8, 2, bias=False), _random(1, 5, 8)
    w = matrices(layer)
    q, k, v = (x[0] @ w[name] for name in ("W_q", "W_k", "W_v"))
    heads = [tensor.reshape(5, 2, 4).transpose(0, 1)[None] for tensor in (q, k, v)]
    context = attend(heads[0], heads[1], heads[2])[0].transpose(0, 1).reshape(5, 8)
    wide = (
        attend(heads[0], heads[1], heads[2], Attention(scale=1 / sqrt(8)))[0].transpose(0, 1).reshape(5, 8) @ w["W_o"]
    )
    one = attend(q[None, None], k[None, None], v[None, None])[0, 0] @ w["W_o"]
    with torch.no_grad():
        right = layer(x)[0]
    compare(
        "multi_head",
        call("multi_head", function, x[0], w["W_q"], w["W_k"], w["W_v"], w["W_o"], 2),
        right,
        {
            "W_o is not used": context,
            "scores are divided by √d_model; each head has d_k = d_model / heads": wide,
            "this is one head of the whole width; split queries, keys and values": one,
        },
    )
    passed("multi_head", "agrees with ts.layers.MultiHeadAttention")


def parameters(function: Solution) -> None:
    """Check parameters(d, m, l, T): d·(2m + l)·T + T·l·d."""
    for d, m, width, heads in ((512, 64, 64, 8), (10, 3, 5, 2)):
        found = call("parameters", function, d, m, width, heads)
        right = d * (2 * m + width) * heads + heads * width * d
        mistakes = {
            "W_o is missing: T·l·d more": d * (2 * m + width) * heads,
            "this is one head; there are T": d * (2 * m + width) + width * d,
            "W_o maps all heads together: T·l rows, not l": d * (2 * m + width) * heads + width * d,
            "W_q and W_k are both d x m": d * (m + width) * heads + heads * width * d,
        }
        compare("parameters", found, float(right), {key: float(value) for key, value in mistakes.items()})
    passed("parameters", "d·(2m + l)·T + T·l·d")


# ------------------------------------------------------------------------------------- 9  Luong, and two sequences


def luong(function: Solution) -> None:
    """Check luong(states, memory): c_i = Σ_j softmax(s_i · h_j) h_j."""
    states, memory = _random(1, 3, 4), _random(1, 5, 4, seed=1)
    right = LuongAttention("dot", d_query=4)(states, memory)[0]
    raw = states[0] @ memory[0].mT
    compare(
        "luong",
        call("luong", function, states[0], memory[0]),
        right,
        {
            "Luong's dot score has no √d_k": (raw / 2).softmax(-1) @ memory[0],
            "softmax runs over the states; each state spreads its weight over the memory, dim=-1": raw.softmax(0)
            @ memory[0],
            "the states attend to themselves; keys and values are the memory": (states[0] @ states[0].mT).softmax(-1)
            @ states[0],
        },
    )
    passed("luong", 'agrees with ts.layers.LuongAttention("dot")')


def general_score(function: Solution) -> None:
    """Check general(states, memory, W): s W h^T, with a matrix between two widths."""
    torch.manual_seed(0)
    layer = LuongAttention("general", d_query=4, d_memory=6)
    states, memory = _random(1, 3, 4), _random(1, 5, 6, seed=1)
    W = layer.W.detach()
    with torch.no_grad():
        right = layer(states, memory)[0]
    compare(
        "general",
        call("general", function, states[0], memory[0], W),
        right,
        {"these are the weights; multiply them by the memory": (states[0] @ W @ memory[0].mT).softmax(-1)},
    )
    passed("general", 'agrees with ts.layers.LuongAttention("general")')


def cross_attention(function: Solution) -> None:
    """Check cross_attention(y, memory, W_q, W_k, W_v, W_o, heads)."""
    torch.manual_seed(1)
    layer, y, memory = MultiHeadAttention(8, 2, bias=False), _random(1, 3, 8), _random(1, 5, 8, seed=1)
    w = matrices(layer)
    with torch.no_grad():
        right, within, swapped = layer(y, memory)[0], layer(y)[0], layer(memory, y)[0]
    compare(
        "cross_attention",
        call("cross_attention", function, y[0], memory[0], w["W_q"], w["W_k"], w["W_v"], w["W_o"], 2),
        right,
        {
            "keys and values are made of y; they come from the memory": within,
            "queries come from y, keys and values from the memory; here it is the other way round": swapped,
        },
    )
    passed("cross_attention", "agrees with ts.layers.MultiHeadAttention(...)(y, memory)")


# ------------------------------------------------------------------------------------------------- 10  the Synthesizer


def synthesizer(function: Solution) -> None:
    """Check synthesizer(x, A, b1, B, b2, V): softmax(ReLU(x A + b1) B + b2) x V, causal, one head."""
    torch.manual_seed(0)
    layer = SynthesizerAttention(d_model=4, heads=1, block=8, attention=Attention(scale=1.0, mask=causal))
    x = _random(1, 5, 4)
    with torch.no_grad():
        layer.B.normal_()
        assert layer.b2 is not None
        layer.b2.normal_()
        nn.init.eye_(layer.W_O.weight)
        layer.W_O.bias.zero_()
        layer.V.bias.zero_()
        right = layer(x)[0]
    A, b1, B, b2 = layer.A.weight.detach().mT, layer.A.bias.detach(), layer.B.detach()[0], layer.b2.detach()[0, 0]
    V = layer.V.weight.detach().mT
    hidden, values, mask = x[0] @ A + b1, x[0] @ V, _causal(5, 5)

    def result(logits: Tensor, mask: Tensor = mask) -> Tensor:
        return logits.masked_fill(~mask, -torch.inf).softmax(-1) @ values

    logits = (hidden.relu() @ B + b2)[:, :5]
    compare(
        "synthesizer",
        call("synthesizer", function, x[0], A, b1, B, b2, V),
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
    passed("synthesizer", "agrees with ts.layers.SynthesizerAttention")


def synthesizer_parameters(function: Solution) -> None:
    """Check synthesizer_parameters(d, block): A and b1, B and b2, V, of one head, without biases of V."""
    for d, block in ((256, 128), (6, 4)):
        right = d * d + d + d * block + block + d * d
        mistakes = {
            "b1 and b2 are missing": float(2 * d * d + d * block),
            "V is missing": float(d * d + d + d * block + block),
        }
        compare("synthesizer_parameters", call("synthesizer_parameters", function, d, block), float(right), mistakes)
    passed("synthesizer_parameters", "the count does not depend on the text, but the longest text is fixed")


# -------------------------------------------------------------------------------------------- 11  the whole Transformer


def positions(function: Solution) -> None:
    """Check positions(n, d): sinusoidal positional encoding, sines at even features and cosines at odd ones."""
    right = sinusoidal(6, 8)
    halves = torch.cat([right[:, 0::2], right[:, 1::2]], 1)
    compare(
        "positions",
        call("positions", function, 6, 8),
        right,
        {
            "sines and cosines are exchanged: even features are sines": right.reshape(6, 4, 2).flip(-1).reshape(6, 8),
            "sines come first and cosines after; they alternate": halves,
            "positions count from 0": sinusoidal(7, 8)[1:],
        },
    )
    passed("positions", "agrees with ts.sinusoidal")


def layer_norm(function: Solution) -> None:
    """Check layer_norm(x): mean 0 and variance 1 over the features of each token."""
    x = _random(4, 6) * 3 + 2
    right = torch.nn.functional.layer_norm(x, (6,))
    eps = 1e-5
    compare(
        "layer_norm",
        call("layer_norm", function, x),
        right,
        {
            "the mean runs over the tokens; use dim=-1, the features of one token": (x - x.mean(0))
            / (x.var(0, correction=0) + eps).sqrt(),
            "the variance is divided by n - 1; use correction=0": (x - x.mean(-1, keepdim=True))
            / (x.var(-1, keepdim=True) + eps).sqrt(),
            "divide by the standard deviation, not by the variance": (x - x.mean(-1, keepdim=True))
            / (x.var(-1, correction=0, keepdim=True) + eps),
            "the mean is not subtracted": x / (x.var(-1, correction=0, keepdim=True) + eps).sqrt(),
        },
    )
    passed("layer_norm", "agrees with torch")


def _block(pre_norm: bool = False, mask: Any = None) -> EncoderBlock:
    torch.manual_seed(0)
    attention = Attention() if mask is None else Attention(mask=mask)
    own = MultiHeadAttention(8, 2, bias=False, attention=attention)
    return EncoderBlock(8, own, FeedForward(8, 16, bias=False), pre_norm=pre_norm)


def encoder_block(function: Solution) -> None:
    """Check encoder_block(x, w, heads): self-attention, add & norm, feed forward, add & norm."""
    block, other = _block(), _block(pre_norm=True)
    other.load_state_dict(block.state_dict())
    x = _random(1, 5, 8, seed=3)
    norm = torch.nn.functional.layer_norm
    with torch.no_grad():
        right, before = block(x)[0], other(x)[0]
        attended = block.self_attention(x)
        no_residual = norm(block.feed_forward(norm(attended, (8,))), (8,))[0]
        linear = norm(x + attended, (8,))
        flat = norm(
            linear + linear @ matrices(block)["feed_forward"]["W_1"] @ matrices(block)["feed_forward"]["W_2"], (8,)
        )[0]
    compare(
        "encoder_block",
        call("encoder_block", function, x[0], matrices(block), 2),
        right,
        {
            "the norms come before the sublayers; in this block they come after the sum": before,
            "the residual is missing: norm(x + sublayer(x))": no_residual,
            "the ReLU of the feed-forward network is missing": flat,
            "the last norm is missing": (linear + block.feed_forward(linear))[0].detach(),
        },
        tolerance=1e-3,
    )
    passed("encoder_block", "agrees with ts.layers.EncoderBlock")


def decoder_block(function: Solution) -> None:
    """Check decoder_block(y, memory, w, heads): masked self-attention, cross-attention, feed forward."""
    torch.manual_seed(2)
    masked = MultiHeadAttention(8, 2, bias=False, attention=Attention(mask=causal))
    block = DecoderBlock(8, masked, MultiHeadAttention(8, 2, bias=False), FeedForward(8, 16, bias=False))
    y, memory = _random(1, 4, 8, seed=4), _random(1, 6, 8, seed=5)
    with torch.no_grad():
        right = block(y, memory)[0]
        masked.attention = Attention()
        seeing, alone = block(y, memory)[0], None
        masked.attention = Attention(mask=causal)
        alone = block(y, y)[0]
    compare(
        "decoder_block",
        call("decoder_block", function, y[0], memory[0], matrices(block), 2),
        right,
        {
            "the self-attention sees the future; mask it": seeing,
            "the second attention reads y; its keys and values come from the memory": alone,
        },
        tolerance=1e-3,
    )
    passed("decoder_block", "agrees with ts.layers.DecoderBlock")


def transformer(function: Solution) -> None:
    """Check transformer(source, target, w, heads): ids in, logits of the next target token out."""
    torch.manual_seed(0)
    sizes = {"d_model": 8, "heads": 2, "encoder_blocks": 2, "decoder_blocks": 2, "d_hidden": 16}
    model = Transformer(TransformerConfig(vocabulary=11, bias=False, dropout=0.0, **sizes)).eval()  # type: ignore[arg-type]
    source, target = torch.tensor([[5, 2, 9, 1]]), torch.tensor([[3, 7, 4]])
    w = matrices(model)
    with torch.no_grad():
        right = model(source, target)[0]
        model.embedding.weight /= sqrt(8)
        unscaled = model(source, target)[0]
        model.embedding.weight *= sqrt(8)
    unscaled = unscaled * sqrt(8)  # the head is the embedding, which was divided too
    compare(
        "transformer",
        call("transformer", function, source[0], target[0], w, 2),
        right,
        {
            "the embeddings are not multiplied by √d_model before the positions are added": unscaled,
            "these are probabilities; return the logits": right.softmax(-1),
        },
        tolerance=1e-3,
    )
    passed("transformer", "agrees with ts.models.Transformer: you have written one")


# ------------------------------------------------------------------------------------------------------------ 12  GPT


def gpt(function: Solution) -> None:
    """Check gpt(ids, w, heads): a pre-norm GPT with GELU and learned positions; logits of every next token."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocabulary=11, max_positions=16, d_model=8, blocks=2, heads=2, bias=False)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.4)
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    with torch.no_grad():
        right = model(ids)[0]
        hidden = model.hidden(ids)[0]
        bare = GPT(model.config).eval()
        bare.load_state_dict(model.state_dict())
        bare.norm = nn.Identity()
        without_norm = bare(ids)[0]
    compare(
        "gpt",
        call("gpt", function, ids[0], matrices(model), 2),
        right,
        {
            "these are the hidden states; multiply them by the transposed embedding": hidden,
            "the last norm, before the head, is missing": without_norm,
            "these are probabilities; return the logits": right.softmax(-1),
        },
        tolerance=1e-3,
    )
    passed("gpt", "agrees with ts.models.GPT")


# --------------------------------------------------------------------------------------------------------- 13  recall


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
                hint = "; there are two ⁇: where the words were, and before the words that were cut out"
            raise WrongAnswer(f"corrupt(words, {start}, {stop}) is {found}, and should be {right}{hint}")
    passed("corrupt", "agrees with the pretraining of recipes/recall-*.toml")


# --------------------------------------------------------------------------------------------------- 14  fast kernels


def attend_in_blocks(function: Solution) -> None:
    """Check attend_in_blocks(q, k, v, block): softmax over keys that are seen block by block."""
    q, k, v = _random(4, 8), _random(10, 8, seed=1), _random(10, 3, seed=2)
    k[7] *= 6  # the largest score comes late: what was summed before has to be rescaled
    right = attend(q[None, None], k[None, None], v[None, None])[0, 0]
    raw = q @ k.mT / sqrt(8)
    each = torch.stack([raw[:, i : i + 3].softmax(-1) @ v[i : i + 3] for i in range(0, 10, 3)])
    compare(
        "attend_in_blocks",
        call("attend_in_blocks", function, q, k, v, 3),
        right,
        {
            "each block has a softmax of its own, and they are averaged; keep one sum over all blocks": each.mean(0),
            "each block has a softmax of its own, and they are added; keep one sum over all blocks": each.sum(0),
            "the scores are not divided by √d_k": (q @ k.mT).softmax(-1) @ v,
        },
    )
    big = call("attend_in_blocks", function, 60 * q, 60 * k, v, 4)
    if isinstance(big, Tensor) and not bool(big.isfinite().all()):
        raise WrongAnswer("attend_in_blocks: large scores overflow; subtract the largest score so far before exp")
    passed("attend_in_blocks", "agrees with ts.attend, and never held more than one block of scores")


def bytes_of_weights(function: Solution) -> None:
    """Check bytes_of_weights(n, heads, layers): the matrices of a model, 2 bytes a weight."""
    for n, heads, layers in ((32_768, 12, 28), (100, 2, 3)):
        right = float(2 * n * n * heads * layers)
        mistakes = {
            "a weight in half precision has 2 bytes": right / 2,
            "there is a number for each pair of tokens: n²": float(2 * n * heads * layers),
            "each layer has its own matrices": right / layers,
        }
        compare("bytes_of_weights", call("bytes_of_weights", function, n, heads, layers), right, mistakes)
    passed("bytes_of_weights", "32,768 tokens, 12 heads, 28 layers: 672 GiB")


# ------------------------------------------------------------------------------------ 15  looking without the matrix


def received(function: Solution) -> None:
    """Check received(q, k, lse, block): what each key gets from all queries, from a few queries at a time."""
    q, k = _random(9, 4), _random(7, 4, seed=1)
    seen = survey(q[None, None], k[None, None], top=0)
    assert seen.lse is not None
    raw = q @ k.mT / 2
    compare(
        "received",
        call("received", function, q, k, seen.lse[0, 0], 2),
        seen.received[0, 0],
        {
            "these are sums over the keys, which are all 1; sum over the queries": torch.ones(9),
            "lse is not subtracted: exp(score - lse) is the weight": raw.exp().sum(0),
            "the scores are not divided by √d_k": (q @ k.mT - seen.lse[0, 0][:, None]).exp().sum(0),
            "this is the mean over the queries; received is the sum": seen.received[0, 0] / 9,
        },
    )
    passed("received", "agrees with ts.survey")


def entropy_from_lse(function: Solution) -> None:
    """Check entropy_from_lse(scores, lse): lse - Σ w s of each row."""
    raw = _random(5, 6)
    lse = raw.logsumexp(-1)
    weights = raw.softmax(-1)
    right = -torch.xlogy(weights, weights).sum(-1)
    compare(
        "entropy_from_lse",
        call("entropy_from_lse", function, raw, lse),
        right,
        {
            "the sign is exchanged: H = lse - Σ w s": -right,
            "the mean score has even weights here; weigh each score with exp(s - lse)": lse - raw.mean(-1),
        },
    )
    passed("entropy_from_lse", "H = lse - E[s]: one number for each query, no logarithm of a weight")


# ------------------------------------------------------------------------------------------- 16  watching a real model


def previous_share(function: Solution) -> None:
    """Check previous_share(weights): the mean weight that queries, from the second on, give to the token before."""
    weights = _random(3, 6, 6).masked_fill(~_causal(6, 6), -torch.inf).softmax(-1)
    right = weights.diagonal(-1, 1, 2).mean(-1)
    compare(
        "previous_share",
        call("previous_share", function, weights),
        right,
        {
            "this is the weight on the token itself; the one before stands one below the diagonal": weights.diagonal(
                0, 1, 2
            ).mean(-1),
            "the first query has no token before it; do not count it": weights.diagonal(-1, 1, 2).sum(-1) / 6,
            "all heads are averaged; return one number for each head": right.mean(),
        },
    )
    passed("previous_share", "agrees with recording.heads()")


def induction_share(function: Solution) -> None:
    """Check induction_share(weights, ids): to the tokens that followed earlier occurrences of the query's token."""
    ids = [7, 3, 5, 7, 3, 9, 7]
    weights = _random(2, 7, 7).masked_fill(~_causal(7, 7), -torch.inf).softmax(-1)
    n = len(ids)
    after = torch.tensor([[0 < j <= i and ids[j - 1] == ids[i] and j - 1 < i for j in range(n)] for i in range(n)])
    same = torch.tensor([[j < i and ids[j] == ids[i] for j in range(n)] for i in range(n)])
    repeated = same.any(-1)
    right = (weights * after).sum(-1)[:, repeated].mean(-1)
    compare(
        "induction_share",
        call("induction_share", function, weights, torch.tensor(ids)),
        right,
        {
            "this is the weight on the earlier token itself; induction is the token after it": (weights * same)
            .sum(-1)[:, repeated]
            .mean(-1),
            "average over the queries whose token occurred before, not over all": (weights * after).sum(-1).mean(-1),
        },
    )
    passed("induction_share", "agrees with recording.heads()")


# --------------------------------------------------------------------------------------------------- 17  changing it


def muted(function: Solution) -> None:
    """Check muted(x, W_q, W_k, W_v, W_o, heads, off): multi-head attention with the context of one head set to 0."""
    torch.manual_seed(3)
    layer, x = MultiHeadAttention(8, 4, bias=False), _random(1, 5, 8)
    w = matrices(layer)
    q, k, v = ((x[0] @ w[name]).reshape(5, 4, 2).transpose(0, 1)[None] for name in ("W_q", "W_k", "W_v"))
    context = attend(q, k, v)[0]
    for off in (0, 2):
        kept = context.clone()
        kept[off] = 0.0
        after = context.transpose(0, 1).reshape(5, 8) @ w["W_o"]
        sliced = after.clone()
        sliced[:, 2 * off : 2 * off + 2] = 0.0
        compare(
            "muted",
            call("muted", function, x[0], w["W_q"], w["W_k"], w["W_v"], w["W_o"], 4, off),
            kept.transpose(0, 1).reshape(5, 8) @ w["W_o"],
            {
                "a slice of the output is 0; W_o has mixed the heads by then, so put the 0 before it": sliced,
                "no head is muted": after,
                "the context is not multiplied by W_o": kept.transpose(0, 1).reshape(5, 8),
            },
        )
    passed("muted", "agrees with ts.mute")


def hidden(function: Solution) -> None:
    """Check hidden(o, lse, o_g, lse_g): the context without a group of keys."""
    q, k, v = _random(4, 8), _random(9, 8, seed=1), _random(9, 3, seed=2)
    raw = q @ k.mT / sqrt(8)
    group = slice(2, 5)
    o, o_g = raw.softmax(-1) @ v, raw[:, group].softmax(-1) @ v[group]
    lse, lse_g = raw.logsumexp(-1), raw[:, group].logsumexp(-1)
    a = (lse_g - lse).exp()[:, None]
    others = [0, 1, 5, 6, 7, 8]
    compare(
        "hidden",
        call("hidden", function, o, lse, o_g, lse_g),
        raw[:, others].softmax(-1) @ v[others],
        {
            "the weights that are left must sum to 1 again: divide by 1 - a": o - a * o_g,
            "the group's context counts with its share of the weight: a · o_g": (o - o_g) / (1 - a),
            "divide by 1 - a, the share of the other keys, not by a": (o - a * o_g) / a,
        },
    )
    passed("hidden", "agrees with attention over the other keys: no weight was formed again")
