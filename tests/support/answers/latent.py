"""Wrong and right answers to the checks of latent attention and of an index that chooses keys."""

from math import sqrt

import torch

from telescope.lessons import check


def scores(q, c, k):
    """Return q W_ukᵀ cᵀ: scores that need no keys."""
    return q @ k.mT @ c.mT


def seen(i):
    """Return an index in which no query sees the future."""
    return i.masked_fill(torch.ones_like(i, dtype=torch.bool).triu(1), -torch.inf)


def kept(w, i, k):
    return w.gather(-1, seen(i).topk(k).indices)


WRONG = {
    check.latent_context: [
        ("keys", lambda q, c, k, v: ((q @ (c @ k).mT) / sqrt(6)).softmax(-1) @ c @ v, "keys of the heads"),
        ("values", lambda q, c, k, v: (scores(q, c, k) / sqrt(6)).softmax(-1) @ (c @ v), "values of the heads"),
        ("width of c", lambda q, c, k, v: (scores(q, c, k) / sqrt(5)).softmax(-1) @ c @ v, "width of the cache"),
        ("no scale", lambda q, c, k, v: scores(q, c, k).softmax(-1) @ c @ v, "not divided by √d"),
        ("by d", lambda q, c, k, v: (scores(q, c, k) / 6).softmax(-1) @ c @ v, "divided by d"),
        ("no values", lambda q, c, k, v: (scores(q, c, k) / sqrt(6)).softmax(-1) @ c, "mixtures of c"),
        ("weights", lambda q, c, k, v: (scores(q, c, k) / sqrt(6)).softmax(-1), "these are the weights"),
        ("queries", lambda q, c, k, v: (scores(q, c, k) / sqrt(6)).softmax(1) @ c @ v, "over the queries"),
        ("no softmax", lambda q, c, k, v: scores(q, c, k) / sqrt(6) @ c @ v, "not normalised"),
        ("summed", lambda q, c, k, v: ((scores(q, c, k) / sqrt(6)).softmax(-1) @ c @ v).sum(0), "heads are summed"),
        ("mean", lambda q, c, k, v: ((scores(q, c, k) / sqrt(6)).softmax(-1) @ c @ v).mean(0), "heads are averaged"),
        (
            "one head",
            lambda q, c, k, v: (scores(q, c, k[0]) / sqrt(6)).softmax(-1) @ c @ v[0],
            "matrices of the first one",
        ),
        (
            "turned",
            lambda q, c, k, v: ((scores(q, c, k) / sqrt(6)).softmax(-1) @ c @ v).transpose(0, 1),
            "heads stand after the queries",
        ),
    ],
    check.kept_weight: [
        ("future", lambda w, i, k: w.gather(-1, i.topk(k).indices).sum(-1), "keys of the future"),
        ("by weight", lambda w, i, k: w.topk(k).values.sum(-1), "without knowing the weights"),
        ("last query", lambda w, i, k: w[:, seen(i)[-1].topk(k).indices].sum(-1), "a choice of its own"),
        ("one choice", lambda w, i, k: w[:, i.mean(0).topk(k).indices].sum(-1), "a choice of its"),
        ("each", kept, "of the single keys"),
        ("mean", lambda w, i, k: kept(w, i, k).mean(-1), "mean weight of a chosen key"),
        ("over all", lambda w, i, k: kept(w, i, k).sum(-1).mean(), "a number for each"),
        ("total", lambda w, i, k: kept(w, i, k).sum(), "a number for each"),
        ("lost", lambda w, i, k: 1 - kept(w, i, k).sum(-1), "the weight that is lost"),
        ("places", lambda w, i, k: seen(i).topk(k).indices.float(), "places of the keys"),
        ("renewed", lambda w, i, k: kept(w, i, k).sum(-1) / kept(w, i, k).sum(-1), "normalised again"),
        ("columns", lambda w, i, k: w.gather(0, i.topk(k, 0).indices).sum(0), "over the queries"),
        (
            "smallest",
            lambda w, i, k: w.gather(-1, (-seen(-i)).topk(k, largest=False).indices).sum(-1),
            "the smallest index",
        ),
    ],
}

RIGHT = {
    check.latent_context: [
        ("page", lambda q, c, k, v: (q @ k.mT @ c.mT / sqrt(q.shape[-1])).softmax(-1) @ c @ v),
        (
            "einsum",
            lambda q, c, k, v: torch.einsum(
                "hqc,hcv->hqv",
                torch.einsum("hqt,tc->hqc", (scores(q, c, k) / q.shape[-1] ** 0.5).softmax(-1), c),
                v,
            ),
        ),
        (
            "loop",
            lambda q, c, k, v: torch.stack(
                [
                    ((one @ a.T) @ c.T / len(one[0]) ** 0.5).softmax(-1) @ c @ b
                    for one, a, b in zip(q, k, v, strict=True)
                ]
            ),
        ),
    ],
    check.kept_weight: [
        ("page", lambda w, i, k: kept(w, i, k).sum(-1)),
        (
            "loop",
            lambda w, i, k: torch.stack(
                [w[row, i[row, : row + 1].topk(min(k, row + 1)).indices].sum() for row in range(len(w))]
            ),
        ),
        (
            "a mask",
            lambda w, i, k: (w * torch.zeros_like(w).scatter(-1, seen(i).topk(k).indices, 1.0)).sum(-1),
        ),
    ],
}
