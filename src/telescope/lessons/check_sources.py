"""Checks of the lesson on where an answer comes from: what weights carry, rollout, ranks."""

from typing import Any

import torch
from torch import Tensor

from ..interception import watch
from ..models import GPT, GPTConfig
from .comparing import Case, Cases, exercise
from .material import normal
from .slips import Slips


@exercise(
    "carried(weights, values, W_o)",
    "a key that is looked at and carries nothing counts for nothing",
)
def carried() -> Cases:
    """Check carried(weights, values, W_o): the share of what each key carries to some rows, of one
    layer.
    """
    weights = normal(3, 4, 6).softmax(-1)
    values = normal(3, 6, 2, seed=1)
    W_o = normal(3, 2, 5, seed=2)
    values[:, 0] *= 0.01  # a key that is looked at and carries nothing
    written = values @ W_o

    def compute(
        length: str = "W_o v", weigh: str = "weights", over: str = "both", end: str = "shares"
    ) -> Tensor:
        # What each key of each head would add to the residual stream, as a length.
        norms = {
            "W_o v": written.norm(dim=-1),
            "v": values.norm(dim=-1),
            "squared": written.square().sum(-1),
            "absolute": written.abs().sum(-1),
            "sum": written.sum(-1),
            "none": torch.ones(3, 6),
        }[length]
        if weigh == "head shares":
            norms = norms / norms.sum(-1, keepdim=True)
        each = norms[:, None] * (torch.ones_like(weights) if weigh == "none" else weights)
        total = {
            "both": each.sum((0, 1)),
            "heads": each.sum(1),
            "rows": each.sum(0),
            "last row": each[:, -1].sum(0),
            "keys": each.sum((0, 2)),
            "first head": each[0].sum(0),
            "largest head": each.sum(1).amax(0),
        }[over]
        ends: dict[str, Tensor] = {
            "shares": total / total.sum(),
            "total": total,
            "mean": total / 12,
            "mean of heads": total / 3,
            "softmax": total.softmax(-1),
            "largest": total / total.max(),
        }
        return ends[end]

    vectors = (weights.mT.sum(-1)[..., None] * written).sum(0).norm(dim=-1)
    yield Case(
        (weights, values, W_o),
        compute(),
        Slips(
            compute,
            {
                "these are not shares yet: divide by their sum": {"end": "total"},
                "this is a mean, and not shares yet: divide by their sum": {"end": "mean"},
                "this is a mean over the heads, and not shares yet: divide by their sum": {
                    "end": "mean of heads"
                },
                "softmax makes no shares of amounts; divide by their sum": {"end": "softmax"},
                "this is divided by the largest; divide by the sum": {"end": "largest"},
                "these are plain weights; each counts with the length of W_o v of its key": {
                    "length": "none"
                },
                "the length of v is used; a head adds W_o v to the residual stream": {
                    "length": "v"
                },
                "the lengths are squared; take their roots": {"length": "squared"},
                "sums of absolute values are used (L1, p=1); the length is the root of the sum of "
                "squares": {"length": "absolute"},
                "the features of W_o v are summed; take its length, .norm(dim=-1)": {
                    "length": "sum"
                },
                "the weights are missing: each length counts with its weight": {"weigh": "none"},
                "each head is divided by its own sum first; divide once, over all heads": {
                    "weigh": "head shares"
                },
                "only the last row counts; sum over all rows": {"over": "last row"},
                "only the first head counts; sum over all heads": {"over": "first head"},
                "only the largest head counts for each key; sum over all heads": {
                    "over": "largest head"
                },
                "this has a row for each head; sum over the heads too": {"over": "heads"},
                "this has a row for each query; sum over the rows too": {"over": "rows"},
                "this is summed over the keys; sum over heads and rows, and keep the keys": {
                    "over": "keys"
                },
            },
            {
                "the vectors of all heads are added before their length is taken": (
                    vectors / vectors.sum()
                )
            },
        ),
        raises={
            r"\(4\) must match.*\(3\) at": "weights have an axis for the rows, and the norms have "
            "not: norms[:, None] stands between heads and keys"
        },
    )


def _rollout(layers: list[Tensor], **switches: Any) -> Tensor:
    """Return rollout from the last token, with usual mistakes."""
    get = switches.get
    kept, passed_on = get("halves", (0.5, 0.5))
    order = {
        "last first": layers[::-1],
        "first first": layers,
        "without the last": layers[:-1][::-1],
        "without the first": layers[1:][::-1],
        "last alone": layers[-1:],
        "first alone": layers[:1],
    }[get("order", "last first")]
    n = len(layers[0])
    relevance = {
        "last": torch.eye(n)[-1],
        "first": torch.eye(n)[0],
        "all": torch.ones(n),
        "even": torch.full((n,), 1 / n),
        "matrix": torch.eye(n),
    }[get("start", "last")]
    for weights in order:
        match get("product", "transposed"):
            case "plain":
                through = weights @ relevance
            case "largest":
                through = (weights.mT * relevance).amax(-1)
            case _:
                through = weights.mT @ relevance
        relevance = kept * relevance + passed_on * through
    return relevance


ROLLOUT_SLIPS: dict[str, dict[str, Any]] = {
    "the residual connection is missing: half of each token stays where it is": {
        "halves": (0.0, 1.0)
    },
    "neither part is halved: r / 2 + Aᵀ r / 2": {"halves": (1.0, 1.0)},
    "what stays is not halved, only what is passed on: r / 2 + Aᵀ r / 2": {"halves": (1.0, 0.5)},
    "what is passed on is not halved, only what stays: r / 2 + Aᵀ r / 2": {"halves": (0.5, 1.0)},
    "more than half of r stays: r / 2 + Aᵀ r / 2": {"halves": (1.5, 0.5)},
    "a token keeps 0.9 of itself; half stays, and half is passed on": {"halves": (0.9, 0.1)},
    "the layers are taken from the first to the last; the last one comes first": {
        "order": "first first"
    },
    "the last layer is left out": {"order": "without the last"},
    "the first layer is left out": {"order": "without the first"},
    "only the last layer is used; multiply them all": {"order": "last alone"},
    "only the first layer is used; multiply them all": {"order": "first alone"},
    "the weights are not transposed, or multiply r element by element; relevance goes from queries "
    "to keys, Aᵀ @ r": {"product": "plain"},
    "only the largest path counts; sum over all, with @": {"product": "largest"},
    "this begins with the first token; begin with the last token": {"start": "first"},
    "this begins with all tokens; begin with the last token alone": {"start": "all"},
    "this begins with all tokens evenly; begin with the last token alone": {"start": "even"},
}


@exercise("rollout(layers)", "agrees with recording.sources(how='rollout')")
def rollout() -> Cases:
    """Check rollout(layers): what the last token comes from, through all layers and residual
    connections.
    """
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocabulary=9, max_positions=8, d_model=8, blocks=3, heads=2)).eval()
    with torch.no_grad():
        # Larger weights than a new model has, so that attention is far from even.
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.6)
        with watch(model, keep="queries-keys") as recording:
            model(torch.tensor([[3, 1, 4, 1, 5, 7]]))
    # The weights of each layer, averaged over its heads.
    layers = [watched.survey().rows(slice(None))[0].mean(0) for watched in recording.values()]
    right = recording.sources(range(6, 7), "rollout").scores
    assert right is not None
    # Half of each token comes through the residual connection.
    joined = [matrix / 2 + torch.eye(6) / 2 for matrix in layers]
    whole = joined[2] @ joined[1] @ joined[0]
    every = torch.stack(layers)
    yield Case(
        (layers,),
        right,
        Slips(
            lambda **switches: _rollout(layers, **switches),
            ROLLOUT_SLIPS,
            {
                "this is the mean of the layers; multiply them": every.mean(0)[-1],
                "this is the sum of the layers; multiply them": every.sum(0)[-1],
                "this is the last layer alone; multiply them all": layers[-1][-1],
                "this is the first layer alone; multiply them all": layers[0][-1],
                "this is the matrix of all tokens; return the row of the last one": whole,
                "this is the transposed matrix of all tokens; return the row of the last token": (
                    whole.mT
                ),
                "this is what the first token gives; return the row of the last token": (
                    whole[:, 0]
                ),
                "softmax is taken at the end; what halves leave sums to 1 already": (
                    whole[-1].softmax(-1)
                ),
            },
        ),
    )


@exercise("rank_correlation(a, b)", "1 where the order is the same, whatever the numbers are")
def rank_correlation() -> Cases:
    """Check rank_correlation(a, b): Spearman's, for numbers that are all different."""
    # exp changes the numbers and not their order: only ranks give the right answer.
    first = normal(7)
    other = normal(7, seed=1).exp()
    for a, b in ((first, other), (first, -other)):
        numbers = torch.stack([a, b])
        order = numbers.argsort(-1)
        # The rank of each number is its place in the order.
        ranks = order.argsort(-1).float()
        right = torch.corrcoef(ranks)[0, 1]
        centred = ranks - ranks.mean(-1, keepdim=True)
        products = centred[0] @ centred[1]
        squares = (ranks[0] - ranks[1]).square().sum()
        pairs = (a[:, None] - a).sign() * (b[:, None] - b).sign()
        cosine = torch.nn.functional.cosine_similarity
        yield Case(
            (a, b),
            right,
            {
                "this is the correlation of the numbers; replace each by its rank first": (
                    torch.corrcoef(numbers)[0, 1]
                ),
                "argsort gives the order, not the ranks: ranks are argsort of argsort": (
                    torch.corrcoef(order.float())[0, 1]
                ),
                "this is the covariance of the ranks; divide by both standard deviations": (
                    torch.cov(ranks)[0, 1]
                ),
                "this is the covariance of the ranks, divided by n; divide by both standard "
                "deviations": products / 7,
                "the products of the ranks are not divided; divide by both norms": products,
                "only one of the two norms divides; divide by both": products / centred[0].norm(),
                "the variances divide; divide by their roots, the norms": (
                    products / (centred[0].square().sum() * centred[1].square().sum())
                ),
                "the mean of the ranks is not subtracted first": cosine(ranks[0], ranks[1], dim=0),
                "only a is replaced by ranks; b too": torch.corrcoef(torch.stack([ranks[0], b]))[
                    0, 1
                ],
                "only b is replaced by ranks; a too": torch.corrcoef(torch.stack([a, ranks[1]]))[
                    0, 1
                ],
                "this is R², the square of the correlation": right**2,
                "the sign is lost: this is the absolute value": right.abs(),
                "one of the two is ranked in descending order, which changes the sign": -right,
                "both are sorted, which loses what belongs together; ranks keep their places": (
                    torch.corrcoef(numbers.sort(-1).values)[0, 1]
                ),
                "this is Kendall's tau, of pairs; Spearman's is the correlation of the ranks": (
                    pairs.sum() / 42
                ),
                "this is the sum of squared differences of ranks, d²; the correlation is 1 - 6 Σ "
                "d² / (n (n² - 1))": squares,
                "the 6 is missing: 1 - 6 Σ d² / (n (n² - 1))": 1 - squares / (7 * 48),
                "this is the share of places where both orders agree; correlate the ranks": (
                    (order[0] == order[1]).float().mean()
                ),
                "this is how many ranks are equal, as a share; correlate the ranks": (
                    (ranks[0] == ranks[1]).float().mean()
                ),
                "this is the matrix of corrcoef; return one number, [0, 1]": torch.corrcoef(ranks),
                "this is the cosine of the numbers; replace each by its rank, and subtract the "
                "mean": cosine(a, b, dim=0),
            },
            raises={
                "floating point": "ranks are whole numbers, and mean or norm needs .float() first",
            },
        )
    # One order, different numbers.
    yield Case((first, first.exp()), torch.tensor(1.0))
