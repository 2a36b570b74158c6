# ruff: noqa: E501, E741, RUF005  a row of the table stays together, and l is the exercise's own name
"""Right answers that are written in another way than the lesson's: loops, einsum, torch's own functions, other orders
of the same steps. The first of each check is the lesson's.
"""

from collections import Counter
from math import cos, exp, log, sin, sqrt

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from telescope.lessons import check

from . import latent
from .looking_inside import (
    ATTRIBUTED,
    BLOCKS,
    CARRIED,
    CHANGED,
    CLIPPED,
    ENTROPY,
    HELD,
    HIDDEN,
    INDUCTION,
    RANKS,
    RECEIVED,
    ROLLOUT,
    SPLIT,
)
from .one_attention import ATTENTION, MASKED, SOFTMAX, TEMPERATURE, VARIANCES
from .several_heads import CROSS, GENERAL, LUONG, MULTI_HEAD, MUTED, SYNTHESIZER
from .whole_models import DECODER, ENCODER, GPT, HEAD, LAYER_NORM, POSITIONS, TRANSFORMER
from .written import edited


def scores_in_loops(x):
    return torch.tensor([[sum(a * b for a, b in zip(v, w, strict=True)) for w in x.tolist()] for v in x.tolist()])


def context_in_loops(x):
    rows = []
    for query in x:
        weights = torch.stack([query @ key for key in x]).softmax(0)
        rows.append(sum(weight * value for weight, value in zip(weights, x, strict=True)))
    return torch.stack(rows)


def softmax_in_loops(scores):
    rows = []
    for row in scores.tolist():
        powers = [exp(score - max(row)) for score in row]
        rows.append([power / sum(powers) for power in powers])
    return torch.tensor(rows)


def mask_in_loops(queries, keys):
    mask = torch.zeros(queries, keys, dtype=torch.bool)
    for i in range(queries):
        mask[i, : keys - queries + i + 1] = True
    return mask


def masked_in_loops(scores, mask):
    weights = torch.zeros_like(scores)
    for i in range(len(scores)):
        if mask[i].any():
            weights[i, mask[i]] = scores[i, mask[i]].softmax(0)
    return weights


def entropy_in_loops(weights):
    return torch.tensor([-sum(w * log(w) for w in row if w > 0) for row in weights.tolist()])


def with_torch(x, W_q, W_k, W_v, W_o, heads):
    layer = nn.MultiheadAttention(len(W_q), heads, bias=False, batch_first=True)
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.cat([W_q.T, W_k.T, W_v.T]))
        layer.out_proj.weight.copy_(W_o.T)
        return layer(x[None], x[None], x[None])[0][0]


def head_by_head(x, W_q, W_k, W_v, W_o, heads, off=None):
    d = W_q.shape[1] // heads
    result = torch.zeros(len(x), W_o.shape[1])
    for head in range(heads):
        if head == off:
            continue
        own = slice(head * d, (head + 1) * d)
        q, k, v = x @ W_q[:, own], x @ W_k[:, own], x @ W_v[:, own]
        result = result + (q @ k.T / sqrt(d)).softmax(-1) @ v @ W_o[own]
    return result


def cross_by_einsum(y, memory, W_q, W_k, W_v, W_o, heads):
    d = W_q.shape[1] // heads
    parts = [(a @ W).reshape(len(a), heads, d) for a, W in ((y, W_q), (memory, W_k), (memory, W_v))]
    weights = (torch.einsum("ihd,jhd->hij", parts[0], parts[1]) / sqrt(d)).softmax(-1)
    return torch.einsum("hij,jhd->ihd", weights, parts[2]).flatten(1) @ W_o


def positions_in_loops(n, d):
    table = torch.zeros(n, d)
    for p in range(n):
        for i in range(0, d, 2):
            table[p, i] = sin(p / 10_000 ** (i / d))
            table[p, i + 1] = cos(p / 10_000 ** (i / d))
    return table


def positions_by_logarithm(n, d):
    table = torch.zeros(n, d)
    rates = torch.exp(torch.arange(0, d, 2) * (-log(10_000.0) / d))
    angle = torch.arange(n).unsqueeze(1) * rates
    table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()
    return table


def induction_in_loops(weights, ids):
    ids = ids.tolist()
    shares = []
    for i, token in enumerate(ids):
        places = [j + 1 for j in range(i) if ids[j] == token]
        if places:
            shares.append(weights[:, i, places].sum(-1))
    return torch.stack(shares).mean(0)


def blocks_that_return(q, k, v, block):
    parts = []
    for i in range(0, len(k), block):
        scores = q @ k[i : i + block].T / sqrt(k.shape[1])
        parts.append((scores.logsumexp(-1, keepdim=True), scores.softmax(-1) @ v[i : i + block]))
    context, lse = torch.zeros(len(q), v.shape[1]), torch.full((len(q), 1), -torch.inf)
    for part, own in parts:
        new = torch.logaddexp(lse, part)
        context = context * (lse - new).exp() + own * (part - new).exp()
        lse = new
    return context


RIGHT = {
    **latent.RIGHT,
    check.scores: [
        ("lesson", lambda x: x @ x.mT),
        ("loops", scores_in_loops),
        ("einsum", lambda x: torch.einsum("id,jd->ij", x, x)),
        ("broadcast", lambda x: (x[:, None] * x[None]).sum(-1)),
        ("a module", type("Scores", (nn.Module,), {"forward": lambda self, x: F.linear(x, x)})()),
    ],
    check.weight_free: [
        ("lesson", lambda x: (x @ x.mT).softmax(-1) @ x),
        ("loops", context_in_loops),
        ("transposed", lambda x: (x.T @ (x @ x.T).softmax(0)).T),
        ("torch", lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], scale=1.0)[0]),
    ],
    check.softmax: [
        ("lesson", edited(SOFTMAX)),
        ("loops", softmax_in_loops),
        ("logsumexp", lambda s: (s - s.logsumexp(-1, keepdim=True)).exp()),
        ("torch", lambda s: s.softmax(dim=1)),
        ("float64", lambda s: s.double().softmax(-1)),
    ],
    check.with_temperature: [
        ("lesson", edited(TEMPERATURE)),
        ("by hand", lambda s, t: edited(SOFTMAX)(s / t)),
        ("multiplied by the inverse", lambda s, t: (s * (1 / t)).softmax(-1)),
        ("largest first", lambda s, t: ((s - s.amax(-1, True)) / t).softmax(-1)),
    ],
    check.negative_weight: [("lesson", [2.0, 1.0, -1.0]), ("whole", (5, 1, -2)), ("tensor", torch.tensor([-3, 1, 1]))],
    check.attention_of: [
        ("lesson", edited(ATTENTION)),
        ("torch", lambda x, q, k, v: F.scaled_dot_product_attention((x @ q)[None], (x @ k)[None], (x @ v)[None])[0]),
        ("scaled queries", lambda x, q, k, v: (x @ q / sqrt(q.shape[1]) @ (x @ k).T).softmax(1) @ (x @ v)),
        ("W_v last", lambda x, q, k, v: (x @ q @ k.T @ x.T * q.shape[1] ** -0.5).softmax(-1) @ x @ v),
    ],
    check.even_weights: [
        ("lesson", torch.zeros(3, 2)),
        ("list", [[0.0, 0.0, 0.0, 0.0]] * 3),
        ("nearly", torch.full((3, 1), 1e-9)),
        ("parameter", nn.Parameter(torch.zeros(3, 2))),
    ],
    check.score_variance: [
        ("lesson", edited(VARIANCES)),
        ("divided", lambda q, k: ((q @ k.T).var(), (q @ k.T).var() / q.shape[1])),
        ("list", lambda q, k: [float((q @ k.T / by).flatten().var()) for by in (1, sqrt(k.shape[1]))]),
    ],
    check.entropy: [
        ("lesson", lambda w: -torch.xlogy(w, w).sum(-1)),
        ("loops", entropy_in_loops),
        ("clamped", lambda w: -(w * w.clamp(min=1e-12).log()).sum(-1)),
        ("torch", lambda w: torch.special.entr(w).sum(-1)),
        ("nan_to_num", lambda w: -(w * w.log()).nan_to_num().sum(1)),
    ],
    check.cosine: [
        ("lesson", lambda a, b: a @ b / (a.norm() * b.norm())),
        ("torch", lambda a, b: F.cosine_similarity(a, b, dim=0)),
        ("units", lambda a, b: F.normalize(a, dim=0) @ F.normalize(b, dim=0)),
        ("a number", lambda a, b: float(a @ b) / sqrt(float(a @ a) * float(b @ b))),
    ],
    check.towards: [("lesson", torch.tensor([1.5, 0.1, 1.0])), ("list", [1, 0, 0]), ("far", [9.0, -9.0, 0.0])],
    check.causal_mask: [
        ("lesson", lambda q, k: torch.ones(q, k, dtype=torch.bool).tril(k - q)),
        ("places", lambda q, k: torch.arange(k) <= torch.arange(k - q, k)[:, None]),
        ("loops", mask_in_loops),
        ("last rows", lambda q, k: torch.ones(k, k).tril().bool()[-q:]),
        ("not the future", lambda q, k: ~torch.ones(q, k).triu(k - q + 1).bool()),
    ],
    check.masked_softmax: [
        ("lesson", edited(MASKED)),
        ("loops", masked_in_loops),
        ("nan_to_num", lambda s, m: s.masked_fill(~m, -torch.inf).softmax(-1).nan_to_num()),
        ("where", lambda s, m: torch.where(m, torch.where(m, s, -1e30).softmax(-1), torch.zeros_like(s))),
        ("powers", lambda s, m: s.exp() * m / (s.exp() * m).sum(-1, keepdim=True).clamp(min=1e-30)),
    ],
    check.two_readings: [
        ("lesson", lambda target: 12 * torch.eye(6)[target]),
        ("list", lambda target: [20 * (i == target) for i in range(6)]),
        ("one-hot", lambda target: F.one_hot(torch.tensor(target), 6) * 15),
        ("others down", lambda target: -20.0 * (torch.arange(6) != target)),
    ],
    check.reads: [
        ("lesson", lambda w, even: int((w / even).argmax()) if (w / even).max() > 1 else None),
        ("tensor", lambda w, even: (w / even).argmax() if (w > even).any() else None),
        ("compared", lambda w, even: None if (w <= even).all() else int(w[1] * even[0] > w[0] * even[1])),
    ],
    check.split_heads: [
        ("lesson", lambda x, heads: x.reshape(x.shape[0], heads, -1).transpose(0, 1)),
        ("chunks", lambda x, heads: torch.stack(x.chunk(heads, -1))),
        ("permuted", lambda x, heads: x.T.reshape(heads, -1, len(x)).mT),
    ],
    check.merge_heads: [
        ("lesson", lambda y: y.transpose(0, 1).reshape(y.shape[1], -1)),
        ("cat", lambda y: torch.cat(list(y), -1)),
        ("hstack", lambda y: torch.hstack(tuple(y))),
    ],
    check.multi_head: [("lesson", edited(MULTI_HEAD)), ("head by head", head_by_head), ("torch", with_torch)],
    check.parameters: [
        ("lesson", lambda d, m, l, T: d * (2 * m + l) * T + T * l * d),
        ("short", lambda d, m, l, T: 2 * d * T * (m + l)),
        ("a float", lambda d, m, l, T: 2.0 * d * T * (m + l)),
    ],
    check.luong: [
        ("lesson", edited(LUONG)),
        ("row by row", lambda s, h: torch.stack([(h @ row).softmax(0) @ h for row in s])),
        ("torch", lambda s, h: F.scaled_dot_product_attention(s[None], h[None], h[None], scale=1.0)[0]),
    ],
    check.general_score: [
        ("lesson", edited(GENERAL)),
        ("memory first", lambda s, h, W: (s @ (h @ W.T).T).softmax(-1) @ h),
        ("einsum", lambda s, h, W: torch.einsum("md,de,ne->mn", s, W, h).softmax(-1) @ h),
    ],
    check.cross_attention: [("lesson", edited(CROSS)), ("einsum", cross_by_einsum)],
    check.synthesizer: [
        ("lesson", edited(SYNTHESIZER)),
        ("cut first", edited(SYNTHESIZER, ("@ B + b2)[:, :n]", "@ B[:, :n] + b2[:n])"))),
        ("clamped", edited(SYNTHESIZER, (".relu()", ".clamp(min=0)"))),
    ],
    check.synthesizer_parameters: [
        ("lesson", lambda d, block: d * d + d + d * block + block + d * d),
        ("short", lambda d, block: (d + 1) * (d + block) + d * d),
    ],
    check.positions: [
        ("lesson", edited(POSITIONS)),
        ("loops", positions_in_loops),
        ("by logarithm", positions_by_logarithm),
    ],
    check.layer_norm: [
        ("lesson", edited(LAYER_NORM)),
        ("torch", lambda x: F.layer_norm(x, x.shape[-1:])),
        ("module", lambda x: nn.LayerNorm(x.shape[-1], elementwise_affine=False)(x)),
        ("squares", lambda x: (x - x.mean(1, True)) / ((x**2).mean(1, True) - x.mean(1, True) ** 2 + 1e-5).sqrt()),
    ],
    check.encoder_block: [
        ("lesson", edited(ENCODER)),
        ("torch's norm", edited(ENCODER, ("layer_norm(x + attention", "F.layer_norm(x + attention"),
                                ('heads))\n    return', 'heads), x.shape[-1:])\n    return'))),
        ("softmax with the largest off", edited(ENCODER, ("scores.softmax(-1)", "(scores - scores.amax(-1, True)).softmax(-1)"))),
    ],
    check.decoder_block: [
        ("lesson", edited(DECODER)),
        ("-1e30", edited(DECODER, ("-torch.inf", "-1e30"))),
        ("max for ReLU", edited(DECODER, (".relu()", ".clamp(min=0)"))),
    ],
    check.transformer: [
        ("lesson", edited(TRANSFORMER)),
        # The norm of a norm is the norm.
        ("a norm at the end", edited(TRANSFORMER, (HEAD, HEAD.replace("y @", "layer_norm(y) @")))),
        ("linear", edited(TRANSFORMER, (HEAD, 'return F.linear(y, w["embedding"])'))),
    ],
    check.gpt: [
        ("lesson", edited(GPT)),
        ("torch's GELU", edited(GPT, ("F.gelu(", "torch.nn.GELU()("))),
        ("its formula", edited(GPT, ("F.gelu(", "(lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2)("))),
    ],
    check.corrupt: [
        ("lesson", lambda w, a, b: [*w[:a], "⁇", *w[b:], "⁇", *w[a:b]]),
        ("added", lambda w, a, b: w[:a] + ["⁇"] + w[b:] + ["⁇"] + w[a:b]),
    ],
    check.next_token_loss: [
        ("lesson", lambda x, ids: F.cross_entropy(x[:-1], ids[1:])),
        ("gathered", lambda x, ids: -x.log_softmax(-1)[:-1].gather(1, ids[1:, None]).mean()),
        ("a number", lambda x, ids: F.cross_entropy(x[:-1], ids[1:]).item()),
    ],
    check.baseline: [
        ("lesson", lambda answers: max(answers.count(word) for word in answers) / len(answers)),
        ("counted", lambda answers: Counter(answers).most_common(1)[0][1] / len(answers)),
        ("a tensor", lambda answers: torch.tensor(max(map(answers.count, answers)) / len(answers))),
    ],
    check.attend_in_blocks: [("lesson", edited(BLOCKS)), ("by lse", blocks_that_return)],
    check.bytes_of_weights: [
        ("lesson", lambda n, heads, layers: 2 * n * n * heads * layers),
        ("power", lambda n, heads, layers: layers * heads * n**2 * 2.0),
    ],
    check.received: [
        ("lesson", edited(RECEIVED)),
        ("softmax of whole rows", edited(RECEIVED, ("(scores - lse[i : i + block, None]).exp()", "scores.softmax(-1)"))),
    ],
    check.entropy_from_lse: [
        ("lesson", edited(ENTROPY)),
        ("expected", lambda s, lse: ((lse[:, None] - s) * (s - lse[:, None]).exp()).sum(-1)),
    ],
    check.previous_share: [
        ("lesson", lambda w: w.diagonal(-1, 1, 2).mean(-1)),
        ("loops", lambda w: torch.stack([sum(h[i, i - 1] for i in range(1, len(h))) / (len(h) - 1) for h in w])),
        ("cut", lambda w: w[:, 1:, :-1].diagonal(dim1=-2, dim2=-1).mean(-1)),
    ],
    check.induction_share: [("lesson", edited(INDUCTION)), ("loops", induction_in_loops)],
    check.muted: [("lesson", edited(MUTED)), ("head by head", head_by_head)],
    check.hidden: [
        ("lesson", edited(HIDDEN)),
        ("sums", lambda o, lse, g, lse_g: (o * lse.exp()[:, None] - g * lse_g.exp()[:, None])
         / (lse.exp() - lse_g.exp())[:, None]),
    ],
    check.carried: [
        ("lesson", edited(CARRIED)),
        ("einsum", lambda w, v, o: F.normalize(torch.einsum("hnm,hm->m", w, (v @ o).norm(dim=-1)), p=1, dim=0)),
    ],
    check.rollout: [
        ("lesson", edited(ROLLOUT)),
        ("matrices", lambda layers: torch.linalg.multi_dot([(w + torch.eye(len(w))) / 2 for w in layers[::-1]])[-1]),
    ],
    check.rank_correlation: [
        ("lesson", edited(RANKS)),
        ("corrcoef", lambda a, b: torch.corrcoef(torch.stack([x.argsort().argsort().float() for x in (a, b)]))[0, 1]),
        ("d²", lambda a, b: 1 - 6 * (a.argsort().argsort() - b.argsort().argsort()).square().sum()
         / (len(a) * (len(a) ** 2 - 1))),
        ("ranks from 1", lambda a, b: torch.corrcoef(torch.stack([1.0 + (x > x[:, None]).sum(0) for x in (a, b)]))[0, 1]),
    ],
    check.split_score: [
        ("lesson", edited(SPLIT)),
        ("einsum", lambda a, b, q, k, s: torch.einsum("ad,dk,ek,be->ab", a, q, k, b) * s),
    ],
    check.held_norm: [
        ("lesson", edited(HELD)),
        ("no epsilon", edited(HELD, (" + 1e-5", ""))),
    ],
    check.attributed: [
        ("lesson", edited(ATTRIBUTED)),
        ("centred W_o", lambda w, v, o, f, row: w * (v @ (o - o.mean(-1, keepdim=True)) @ (f * row))),
    ],
    check.corpus_mean: [
        ("lesson", lambda s, c: s.sum() / c.sum()),
        ("a number", lambda s, c: float(s.sum()) / float(c.sum())),
        ("weighted", lambda s, c: (s[c > 0] / c[c > 0] * c[c > 0] / c.sum()).sum()),
    ],
    check.changed: [
        ("lesson", edited(CHANGED)),
        ("correction 0", edited(CHANGED, ("var()", "var(correction=0)"))),
        ("deviations", lambda a, b: (b.mean() - a.mean()) / sqrt(a.std() ** 2 / len(a) + b.std() ** 2 / len(b))),
    ],
    check.clipped: [
        ("lesson", edited(CLIPPED)),
        ("if", lambda q, k, logit, tau: (q, k) if logit <= tau else [m * sqrt(tau / logit) for m in (q, k)]),
    ],
}  # fmt: skip
