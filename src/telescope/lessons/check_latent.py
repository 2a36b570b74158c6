"""Checks of the page on latent attention and sparse indexing: attention over a compressed cache,
and the weight that an index keeps.
"""

from math import sqrt

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .calling import Solution, WrongAnswer, call, passed
from .comparing import Case, Cases, compare, exercise
from .material import causal_matrix, normal


def latent_context(function: Solution) -> None:
    """Check latent_context(q, c, W_uk, W_uv): attention over a compressed cache, without the keys
    and values of the heads.
    """
    # All sizes differ, so that an exchanged axis is an error or a wrong shape.
    heads = 3
    queries = 4
    tokens = 7
    d = 6
    d_c = 5
    d_v = 8
    q = normal(heads, queries, d)
    c = normal(tokens, d_c, seed=1)
    W_uk = normal(heads, d_c, d, seed=2)
    W_uv = normal(heads, d_c, d_v, seed=3)
    raw = q @ (c @ W_uk).mT
    values = c @ W_uv
    weights = (raw / sqrt(d)).softmax(-1)
    of_latents = weights @ c
    with _Shapes() as formed:
        found = call("latent_context(q, c, W_uk, W_uv)", function, q, c, W_uk, W_uv)
    compare(
        "latent_context",
        found,
        weights @ values,
        {
            "the scores are not divided by √d, of the width of a query": raw.softmax(-1) @ values,
            "√ of the width of the cache is used; the scores are those of plain attention, so "
            "divide by √d, of the width of a query": (raw / sqrt(d_c)).softmax(-1) @ values,
            "the scores are divided by d; divide by its square root": (
                (raw / d).softmax(-1) @ values
            ),
            "softmax runs over the queries; use dim=-1": (raw / sqrt(d)).softmax(-2) @ values,
            "the scores are not normalised": raw / sqrt(d) @ values,
            "these are the weights; multiply them by c and W_uv": weights,
            "these are mixtures of c, the same width for every head; W_uv makes values of "
            "them": of_latents,
            "all heads use the matrices of the first one": (
                (q @ (c @ W_uk[0]).mT / sqrt(d)).softmax(-1) @ values[0]
            ),
            "the heads are summed; return a context for each": (weights @ values).sum(0),
            "the heads are averaged; return a context for each": (weights @ values).mean(0),
            "the heads stand after the queries; keep them first": (weights @ values).transpose(
                0, 1
            ),
        },
    )
    # The right numbers, made from what the cache is there to save.
    for name, width in (("keys", d), ("values", d_v)):
        # Of all heads, of one head, and of all heads in one matrix.
        shapes = {(heads, tokens, width), (tokens, width), (tokens, heads * width)}
        if any(tuple(sorted(shape)) in formed.shapes for shape in shapes):
            raise WrongAnswer(
                f"latent_context: the numbers are right, but {name} of the heads were formed, "
                "which is what a compressed cache saves; multiply q by W_ukᵀ, and the weights by c"
            )
    passed("latent_context", "agrees with plain attention, and formed no key and no value")


class _Shapes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Note the shapes of all tensors that are computed: sizes above 1, sorted."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.shapes.add(tuple(sorted(size for size in result.shape if size > 1)))
        return result


@exercise("kept_weight(weights, index, k)", "no future key, and every query's own budget")
def kept_weight() -> Cases:
    """Check kept_weight(weights, index, k): the share of each query's weight on the k keys with the
    largest index, among those that it may see.
    """
    n = 8
    future = ~causal_matrix(n, n)
    weights = normal(n, n).masked_fill(future, -torch.inf).softmax(-1)
    index = normal(n, n, seed=1)
    seen = index.masked_fill(future, -torch.inf)
    for k in (2, 4):
        chosen = seen.topk(k, -1).indices
        right = weights.gather(-1, chosen).sum(-1)
        # What other choices would keep.
        with_future = weights.gather(-1, index.topk(k, -1).indices).sum(-1)
        of_weights = weights.topk(k, -1).values.sum(-1)
        least = index.masked_fill(future, torch.inf).topk(k, -1, largest=False).indices
        one_choice = weights[:, index.mean(0).topk(k).indices].sum(-1)
        one_of_last = weights[:, seen[-1].topk(k).indices].sum(-1)
        by_column = index.topk(k, 0).indices
        overlap = torch.zeros(n, n).scatter(-1, chosen, 1.0)
        best = torch.zeros(n, n).scatter(-1, weights.topk(k, -1).indices, 1.0)
        common = (overlap * best * ~future).sum(-1)
        renewed = weights * overlap
        yield Case(
            (weights, index, k),
            right,
            {
                "keys of the future are chosen, and use up the budget: set their index to -inf "
                "before topk": with_future,
                "the k largest weights are kept; an index has to choose without knowing the "
                "weights": of_weights,
                "the keys with the smallest index are kept": weights.gather(-1, least).sum(-1),
                "all queries keep the same keys; each has a row of the index, and a choice of its "
                "own": one_choice,
                "all queries keep the keys of the last one; each has a choice of its own": (
                    one_of_last
                ),
                "topk runs over the queries; use dim=-1": (weights.gather(0, by_column).sum(0)),
                "this is the number of keys that both choices share; return the weight on the "
                "chosen keys": common,
                "this is the share of keys that both choices have in common; return the weight on "
                "the chosen keys": common / k,
                "this is the mean weight of a chosen key; return their sum": right / k,
                "this is the weight that is lost; return what is kept": 1 - right,
                "this is the mean of all queries; return a number for each": right.mean(),
                "this is the sum over all queries; return a number for each": right.sum(),
                "these are the weights of the single keys; sum them": weights.gather(-1, chosen),
                "the other weights are set to 0, and not summed: return one number for each "
                "query": renewed,
                "the weights that are kept are normalised again, so that every query keeps "
                "everything": torch.ones(n),
                "these are the places of the keys; return the weight on them": chosen.float(),
            },
        )
