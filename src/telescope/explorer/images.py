"""Answers about images: what one query, or all of them, give to each patch, in every head."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..engines import torch_modes
from ..recording import RecordedCall
from ..surveys import masked_rows
from ..token_kinds import Grid
from .answers import Answer, Vector
from .run import AttentionView, RunRequest
from .weights import top_weights

MOST_QUERIES = 64  # queries that are no patches, which the page lists
MOST_OTHERS = 4  # weights of class tokens and words that are listed


@dataclass(frozen=True)
class ImageGrid(Answer):
    """An image that keys are patches of.

    name     where there are several, such as "image 1"; else empty
    queries  the query at each patch, row by row; null where there is none
    """

    name: str
    rows: int
    columns: int
    queries: Sequence[int | None]


@dataclass(frozen=True)
class ImageQuery(Answer):
    """A query that is no patch, such as a class token or a word."""

    i: int
    token: str


@dataclass(frozen=True)
class TokenWeight(Answer):
    """A token that is no patch, and the weight that it gets."""

    token: str
    weight: float


@dataclass(frozen=True)
class HeadOnImage(Answer):
    """One head.

    known    the share of the weight that is known: less than 1 where a recording kept summaries
    weights  for each image, the weight of each patch, row by row
    others   the tokens that get most of those that are no patches; rest: what all others get
    """

    h: int
    known: float
    weights: Sequence[Vector]
    others: Sequence[TokenWeight]
    rest: float


@dataclass(frozen=True)
class ImageAnswer(Answer):
    """What query i gives to each patch of the images among the keys, in every head; without i, what
    each patch receives from all queries together.

    token    of query i; null without i
    queries  the first 64 queries that are no patches
    """

    l: int
    i: int | None
    token: str | None
    grids: Sequence[ImageGrid]
    queries: Sequence[ImageQuery]
    heads: Sequence[HeadOnImage]


def image(request: RunRequest) -> ImageAnswer:
    """Answer what one query, or all of them, give to the patches of images, in every head."""
    view = request.view
    view.require("image")
    b = request.b
    i = request.i if "i" in request.parameters else None
    numbers, known = _received(view, b) if i is None else _weights(view, b, i)
    grids = grids_of(view.call)
    patches = [range(first, first + grid.count) for first, grid in grids]
    is_patch = torch.zeros(view.size[1], dtype=torch.bool)
    for places in patches:
        is_patch[places.start : places.stop] = True
    others = (~is_patch).nonzero().flatten()
    query_of = _queries_at_keys(view)
    of_patches = {query_of.get(key) for places in patches for key in places}
    named = [at for at in range(view.size[0]) if at not in of_patches][:MOST_QUERIES]
    return ImageAnswer(
        l=request.layer,
        i=i,
        token=None if i is None else view.tokens("q", b, [i])[0],
        grids=[
            ImageGrid(grid.name, grid.rows, grid.columns, [query_of.get(key) for key in places])
            for (_, grid), places in zip(grids, patches, strict=True)
        ],
        queries=[
            ImageQuery(at, token)
            for at, token in zip(named, view.tokens("q", b, named), strict=True)
        ],
        heads=[
            _on_head(view, b, h, numbers[place], float(known[place]), patches, others)
            for place, h in enumerate(view.call.heads)
        ],
    )


def grids_of(call: RecordedCall) -> list[tuple[int, Grid]]:
    """Return the grids among the keys of a call, each with the position of its first patch."""
    sides = call._facts.tokens
    if sides is None or sides.keys is None:
        return []
    return [
        (first + part.first, part) for first, part in sides.keys._parts() if isinstance(part, Grid)
    ]


def _queries_at_keys(view: AttentionView) -> dict[int, int]:
    """Return the query at each key, where both are one text; empty for two."""
    call = view.call
    if call.across:
        return {}
    ahead = call.size[1] - call.size[0]
    return {ahead + view.row_of(at): at for at in range(view.size[0])}


def _weights(
    view: AttentionView, b: int, i: int
) -> tuple[Float[Tensor, "heads key"], Float[Tensor, " heads"]]:
    """Return the weights of a query, and what share of them is known."""
    call = view.call
    if call._has_queries:
        device = call._facts.device
        queries = call.queries.to(device)
        keys = call.keys.to(device)
        attention = call._attention_of_kept()
        rows = torch.tensor([i], device=device)
        heads = range(len(call.heads))
        with torch.no_grad(), torch_modes.without_autocast(device):
            masked = masked_rows(
                queries, keys, attention, rows, range(view.size[1]), range(view.batch), heads
            )
            weights = attention.weights(masked)[b, :, 0].double().cpu()
        return weights, torch.ones(len(heads))
    # A summary holds the largest weights alone; those that fill up are 0.
    weights, keys = (part[:, i] for part in top_weights(call, b))
    known = weights.new_zeros(len(weights), view.size[1]).scatter_add_(1, keys, weights)
    return known, weights.sum(-1)


def _received(
    view: AttentionView, b: int
) -> tuple[Float[Tensor, "heads key"], Float[Tensor, " heads"]]:
    received = view.call.survey().received[b].double().cpu()
    return received, torch.ones(len(received))


def _on_head(
    view: AttentionView,
    b: int,
    h: int,
    numbers: Float[Tensor, " key"],
    known: float,
    patches: Sequence[range],
    others: Int[Tensor, " key"],
) -> HeadOnImage:
    """Return one head: its weights on patches, and on `others`, the keys that are none."""
    weights, order = numbers[others].sort(descending=True, stable=True)
    shown = others[order[:MOST_OTHERS]].tolist()
    tokens = view.tokens("k", b, shown)
    pairs = zip(tokens, weights[:MOST_OTHERS].tolist(), strict=True)
    return HeadOnImage(
        h=h,
        known=known,
        weights=[numbers[places.start : places.stop] for places in patches],
        others=[TokenWeight(token, weight) for token, weight in pairs],
        rest=float(weights[MOST_OTHERS:].sum()),
    )
