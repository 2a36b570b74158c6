"""Checks of the lessons on fast kernels, and on surveys that never form the matrix."""

from collections.abc import Callable, Iterable
from math import log, sqrt
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..engines import attend
from ..surveys import survey
from .calling import Solution, WrongAnswer, call, passed
from .comparing import Case, Cases, compare, exercise, judge
from .material import normal
from .slips import Slips

# ------------------------------------------------------------------------------------ fast kernels


class Formed(TorchFunctionMode):
    """Record the shapes of all tensors that are formed, and whether torch's attention is called."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[tuple[int, ...]] = set()
        self.by_torch = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self.by_torch |= func is torch.nn.functional.scaled_dot_product_attention
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor):
                self.shapes.add(tuple(tensor.shape[-2:]))
        return result


def _must_stay_in_blocks(
    signature: str, function: Solution, arguments: tuple[Any, ...], queries: int, keys: int
) -> None:
    """Raise a WrongAnswer where a function forms all scores at once."""
    with Formed() as formed:
        call(signature, function, *arguments)
    name = signature.partition("(")[0]
    if formed.by_torch:
        raise WrongAnswer(
            f"{name} is right, and calls torch's own attention; go through the blocks yourself"
        )
    if formed.shapes & {(queries, keys), (keys, queries)}:
        raise WrongAnswer(
            f"{name} is right, and forms the whole matrix of {queries} queries and {keys} keys: "
            "never hold more than one block of it"
        )


def _in_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block: int,
    divisor: float = sqrt(8),
    total: str = "rescaled",
    summed: str = "rescaled",
    shrink: str = "right",
    largest: str = "so far",
    kept: bool = True,
    blocks: str = "all",
    step: int = 0,
    short: int = 0,
    end: str = "divided",
    values: str = "own",
    sums: str = "each",
) -> Tensor:
    """Return attention in blocks, with usual mistakes."""
    m = q.shape[0]
    high = torch.full((m, 1), -torch.inf)
    weight = torch.zeros(m, 1)
    context = torch.zeros(m, v.shape[1])
    starts = list(range(0, k.shape[0], block + step))
    if blocks == "whole ones":
        starts = [start for start in starts if start + block <= k.shape[0]]
    starts = starts[:1] if blocks == "first" else starts
    for start in starts:
        own = slice(start, start + block - short)
        scores = q @ k[own].mT / divisor
        top = scores.amax() if sums == "one largest" else scores.amax(-1, keepdim=True)
        new = torch.maximum(high, top) if largest == "so far" else top.expand(m, 1)
        powers = (scores - new).exp()
        factor = (high - new).exp() if shrink == "right" else (new - high).exp()
        added = powers.sum() if sums == "everything" else powers.sum(-1, keepdim=True)
        weight = {"rescaled": weight * factor, "kept": weight, "lost": 0 * weight}[total] + added
        before = {"rescaled": context * factor, "kept": context, "lost": 0 * context}[summed]
        context = before + powers @ (v[: own.stop - own.start] if values == "first" else v[own])
        context = context / weight if end == "each block" else context
        high = new if kept else high
    ends = {"divided": context / weight, "context": context, "weight": weight}
    if end == "each block":
        return context / weight
    return ends[end]


BLOCK_SLIPS: dict[str, dict[str, Any]] = {
    "the scores are not divided by √d_k": {"divisor": 1.0},
    "the scores are divided by d; divide by its square root": {"divisor": 8.0},
    "the scores are divided by the root of the block's size; divide by √d": {"divisor": sqrt(3)},
    "the running sum of the weights (total) is not rescaled when a larger score comes; multiply "
    "it by exp(old - new)": {"total": "kept"},
    "the running sum of the values (the context) is not rescaled when a larger score comes; "
    "multiply it by exp(old - new)": {"summed": "kept"},
    "nothing is rescaled when a larger score comes: multiply both running sums by exp(old - new)": {
        "total": "kept",
        "summed": "kept",
    },
    "the running sums are rescaled the other way, which is infinite in the first block; multiply "
    "by exp(old - new), not exp(new - old)": {"shrink": "other way"},
    "each block subtracts its own largest score; take the largest so far, of all blocks": {
        "largest": "block"
    },
    "only the last block counts: add to the running sums, and keep the largest score so far at the "
    "end of each block": {"total": "lost", "summed": "lost"},
    "only the first block counts: is the return inside the loop?": {"blocks": "first"},
    "the last block is left out where it is smaller than the others": {"blocks": "whole ones"},
    "blocks overlap: the last key of each block is counted twice, as the step is too small": {
        "step": -1
    },
    "one key of each block is left out, its last key": {"short": 1},
    "the context is not divided by the sum of the weights": {"end": "context"},
    "this is the sum of the weights; return the context, divided by it": {"end": "weight"},
    "the context is divided in each block; divide once, after the last one": {"end": "each block"},
    "the values of the first block are used in each block": {"values": "first"},
    "one sum is taken of all weights of a block; each query has its own": {"sums": "everything"},
}


def attend_in_blocks(function: Solution) -> None:
    """Check attend_in_blocks(q, k, v, block): softmax over keys that are seen block by block."""
    signature = "attend_in_blocks(q, k, v, block)"
    # Ten keys in blocks of three: the last block is smaller.
    q = normal(4, 8)
    k = normal(10, 8, seed=1)
    v = normal(10, 3, seed=2)
    k[7] *= 6  # the largest score comes late: what was summed before has to be rescaled
    right = attend(q[None, None], k[None, None], v[None, None])[0, 0]
    raw = q @ k.mT / sqrt(8)
    # What one gets without rescaling: a softmax for each block of three keys.
    each = torch.stack([raw[:, i : i + 3].softmax(-1) @ v[i : i + 3] for i in range(0, 10, 3)])
    others = {
        "each block has a softmax of its own, and they are averaged; keep one sum over all "
        "blocks": each.mean(0),
        "each block has a softmax of its own, and they are added; keep one sum over all "
        "blocks": each.sum(0),
    }
    slips = Slips(lambda **switches: _in_blocks(q, k, v, 3, **switches), BLOCK_SLIPS, others)
    judge(signature, function, Case((q, k, v, 3), right, slips), [])
    # Scores so large that exp overflows, unless the largest one is subtracted.
    big = call(signature, function, 60 * q, 60 * k, v, 4)
    if not bool(big.isfinite().all()):
        raise WrongAnswer(
            "attend_in_blocks: large scores overflow exp; subtract the largest score so far, of "
            "each query, before exp"
        )
    # Scores so small that exp is 0, if the largest one starts at 0 or is that of another query.
    q_low = torch.stack([torch.full((8,), -60.0), torch.full((8,), 60.0)])
    k_low = torch.ones(5, 8) + 0.01 * normal(5, 8, seed=3)
    small = call(signature, function, q_low, k_low, v[:5], 2)
    if not bool(small.isfinite().all()) or not bool((small[0] != 0).any()):
        raise WrongAnswer(
            "attend_in_blocks: where all scores of a query are far below 0, its weights vanish; "
            "let the largest score so far start at -inf, one of its own for each query"
        )
    compare("attend_in_blocks of scores far below 0", small, attend(
        q_low[None, None], k_low[None, None], v[None, None, :5])[0, 0], tolerance=1e-3)  # fmt: skip
    _must_stay_in_blocks(signature, function, (q, k, v, 3), 4, 10)
    passed("attend_in_blocks", "agrees with ts.attend, and formed one block of scores at a time")


@exercise("bytes_of_weights(n, heads, layers)", "32,768 tokens, 12 heads, 28 layers: 672 GiB")
def bytes_of_weights() -> Cases:
    """Check bytes_of_weights(n, heads, layers): the matrices of a model, 2 bytes a weight."""
    for n, heads, layers in ((100, 3, 5), (32_768, 12, 28)):

        def compute(
            size: float = 2.0,
            pairs: str = "n²",
            heads_of: int = heads,
            layers_of: int = layers,
            n: int = n,
        ) -> float:
            counts = {
                "n²": n * n,
                "n": n,
                "half": n * (n + 1) / 2,
                "strict half": n * (n - 1) / 2,
            }
            return float(size * counts[pairs] * heads_of * layers_of)

        yield Case(
            (n, heads, layers),
            compute(),
            Slips(
                compute,
                {
                    "a weight in half precision has 2 bytes": {"size": 1.0},
                    "4 bytes are single precision; here a weight has 2 bytes": {"size": 4.0},
                    "these are bits; a weight has 2 bytes, and a byte 8 bits": {"size": 16.0},
                    "there is a number for each pair of tokens: n²": {"pairs": "n"},
                    "only half of each matrix is counted, the triangle of a causal mask; count "
                    "all n²": {"pairs": "half"},
                    "only half of each matrix is counted, a triangle without its diagonal; count "
                    "all n²": {"pairs": "strict half"},
                    "each layer has its own matrices": {"layers_of": 1},
                    "each head has its own matrix": {"heads_of": 1},
                },
                {
                    "this is the number of GiB; return bytes": compute() / 2**30,
                    "this is the number of GB; return bytes": compute() / 1e9,
                    "this is the number of MB; return bytes": compute() / 1e6,
                    "the numbers are added; multiply n² by heads and layers, a product": (
                        float(2 * (n * n + heads + layers))
                    ),
                    "n is raised to the number of heads; it is n² for each of the heads": (
                        float(2 * n**heads * layers)
                    ),
                },
            ),
            tolerance=1e-9,
        )


# --------------------------------------------------------------------- looking without the matrix


def _received(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    block: int,
    divisor: float = 2.0,
    use: str = "subtracted",
    over: int = 0,
    end: str = "sum",
    blocks: str = "all",
) -> Tensor:
    """Return what each key receives, with usual mistakes."""
    parts = []
    for start in range(0, len(q), block):
        scores = q[start : start + block] @ k.mT / divisor
        own = lse[start : start + block, None]
        weights = {
            "subtracted": (scores - own).exp(),
            "nothing": scores.exp(),
            "added": (scores + own).exp(),
            "divided": (scores / own).exp(),
            "divided after": scores.exp() / own,
            "no exp": scores - own,
            "over the queries": scores.softmax(0),
        }[use]
        parts.append({"mean of blocks": weights.mean(0), "largest": weights.amax(0)}.get(
            end, weights.sum(0)))  # fmt: skip
    if over:
        return (q @ k.mT / divisor).softmax(-1).sum(-1)
    whole = len(q) // block
    chosen = {
        "all": parts,
        "first": parts[:1],
        "last": parts[-1:],
        "whole ones": parts[:whole],
    }[blocks]
    total = torch.stack(chosen).sum(0)
    return total / len(q) if end == "mean" else total


RECEIVED_SLIPS: dict[str, dict[str, Any]] = {
    "these are sums over the keys, which are all 1; sum over the queries": {"over": 1},
    "lse is not subtracted: exp(score - lse) is the weight": {"use": "nothing"},
    "lse is added; subtract it: exp(score - lse) is the weight": {"use": "added"},
    "the score is divided by lse; subtract it: exp(score - lse) is the weight": {"use": "divided"},
    "exp(score) is divided by lse; lse is a logarithm, so divide by exp(lse), or subtract it "
    "first": {"use": "divided after"},
    "exp is missing: score - lse is the logarithm of a weight": {"use": "no exp"},
    "softmax runs over the queries of a block; the weights of a query sum to 1 over the keys": {
        "use": "over the queries"
    },
    "the scores are not divided by √d_k": {"divisor": 1.0},
    "the scores are divided by d; divide by its square root": {"divisor": 4.0},
    "this is the mean over the queries; received is the sum": {"end": "mean"},
    "the blocks are averaged, by a mean over their queries; received is the sum": {
        "end": "mean of blocks"
    },
    "this adds the largest weight of each block; sum all of them": {"end": "largest"},
    "only the first block counts: is the return inside the loop?": {"blocks": "first"},
    "only the last block counts: add each block to the total": {"blocks": "last"},
    "the last block is left out where it is smaller than the others": {"blocks": "whole ones"},
}


def received(function: Solution) -> None:
    """Check received(q, k, lse, block): what each key gets from all queries, from a few queries at
    a time.
    """
    signature = "received(q, k, lse, block)"
    q = normal(9, 4)
    k = normal(7, 4, seed=1)
    # top=0: only the sums are compared.
    seen = survey(q[None, None], k[None, None], top=0)
    assert seen.lse is not None
    lse = seen.lse[0, 0]
    case = Case(
        (q, k, lse, 2),
        seen.received[0, 0],
        Slips(lambda **switches: _received(q, k, lse, 2, **switches), RECEIVED_SLIPS),
        raises={
            r"tensor a \(2\) must match.*\(9\)": "a block has 2 queries and lse 9: take the "
            "block's own part, lse[i : i + block, None]",
            r"tensor a \(7\) must match.*\(2\) at": "lse has a number for each query of the block: "
            "make it a column with [:, None], or sum over the queries, axis 0",
            r"\(9\) must match.*\(7\)|\(7\) must match.*\(9\)": "there are 9 queries and 7 keys: "
            "return a number for each key, k.shape[0] of them",
        },
    )
    judge(signature, function, case, [])
    _must_stay_in_blocks(signature, function, case.arguments, 9, 7)
    passed("received", "agrees with ts.survey, from one block of queries at a time")


@exercise(
    "entropy_from_lse(scores, lse)",
    "H = lse - E[s]: one number for each query, no logarithm of a weight",
)
def entropy_from_lse() -> Cases:
    """Check entropy_from_lse(scores, lse): lse - Σ w s of each row."""
    raw = normal(5, 6)
    lse = raw.logsumexp(-1)

    def compute(
        sign: float = 1.0,
        use: str = "both",
        weigh: str = "weights",
        end: str = "rows",
        base: float = 1.0,
    ) -> Tensor:
        weights = {
            "weights": raw.softmax(-1),
            "even": torch.full_like(raw, 1 / 6),
            "powers": raw.exp(),
            "ones": torch.ones_like(raw),
            "twice": raw.softmax(-1).softmax(-1),
        }[weigh]
        terms = weights * raw
        if end == "terms":
            return sign * (lse[:, None] - terms) / base
        mean = {"rows": terms.sum(-1), "all": terms.sum(), "mean": terms.mean(-1)}[end]
        parts = {
            "both": lse - mean,
            "lse": lse,
            "mean": -mean,
            "added": lse + mean,
            "largest": lse - raw.amax(-1),
            "weights": lse - weights.sum(-1),
        }
        return sign * parts[use] / base

    yield Case(
        (raw, lse),
        compute(),
        Slips(
            compute,
            {
                "the sign is exchanged: H = lse - Σ w s": {"sign": -1.0},
                "the mean score has even weights here; weigh each score with exp(s - lse)": {
                    "weigh": "even"
                },
                "the weights are exp(s) here, not normalised; they are exp(s - lse)": {
                    "weigh": "powers"
                },
                "this subtracts the sum of the scores; weigh each score with exp(s - lse)": {
                    "weigh": "ones"
                },
                "softmax is taken twice; exp(s - lse) are the weights": {"weigh": "twice"},
                "this is lse alone: subtract Σ w s, the mean score": {"use": "lse"},
                "lse is missing: H = lse - Σ w s": {"use": "mean"},
                "Σ w s is added; subtract it: H = lse - Σ w s": {"use": "added"},
                "the largest score is subtracted; subtract their mean, Σ w s": {"use": "largest"},
                "the weights alone are summed, which gives 1; sum w · s": {"use": "weights"},
                "all rows are summed; each row has its own Σ w s, with dim=-1": {"end": "all"},
                "Σ w s is a sum over the keys, not their mean": {"end": "mean"},
                "the terms w · s are not summed over the keys": {"end": "terms"},
                "this is in bits; lse and scores are natural logarithms already": {"base": log(2)},
            },
        ),
        raises={
            r"\(6\) must match.*\(5\) at|\(5\) must match.*\(6\) at": "scores have 5 rows and 6 "
            "columns, and lse a number for each row: lse[:, None] makes it a column, and sums run "
            "over dim=-1",
        },
    )
