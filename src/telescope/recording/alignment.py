"""`alignments`: which heads of a cross-attention follow another sequence step by step, such as the
sound that a model writes down or the sentence that it translates.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from .recording import Recording


class AlignedHead(NamedTuple):
    """A head of a cross-attention, and how it follows the other sequence.

    Attributes:
        layer: the name of the cross-attention.
        number: of the head in the attention.

    Example:
        >>> import torch, telescope as ts
        >>> config = ts.models.TransformerConfig(vocabulary=8, d_model=8, heads=2)
        >>> model = ts.models.Transformer(config).eval()
        >>> with ts.watch(model) as recording:
        ...     _ = model(torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 5, 6, 7]]))
        >>> -1 <= ts.alignments(recording)[0].order <= 1
        True
    """

    layer: str
    number: int
    order: float
    """How steadily its keys move forward with the queries: Kendall's tau, from -1 to 1."""
    ahead: float
    """How many keys farther on it looks than the heads that follow best, in the median."""


def alignments(recording: Recording, *, queries: slice = slice(None)) -> list[AlignedHead]:
    """Return the heads of all cross-attentions, those first that align what is written.

    Where a head looks is the mean position of its largest weights. Half of the heads, those whose
    keys keep the order of the queries best, come first. Of these, the ones that look farthest ahead
    lead: a query has read one token and writes the next, and heads that look at what was read lie
    behind those that look at what is written.

    Args:
        recording: with cross-attention, of one or several sequences; at least one of the largest
            weights of each query must have been kept.
        queries: which queries count, without the tokens that only begin or end a text.

    Raises:
        ValueError: if there is no cross-attention, or their queries differ.

    Example:
        >>> import torch, telescope as ts
        >>> layer = ts.layers.MultiHeadAttention(8, 2)
        >>> with ts.watch(layer) as recording:
        ...     _ = layer(torch.randn(1, 5, 8), torch.randn(1, 20, 8))
        >>> [*ts.alignments(recording)[0]._fields]
        ['layer', 'number', 'order', 'ahead']
    """
    names = [name for name, one in recording.items() if any(call.across for call in one.calls)]
    if not names:
        raise ValueError(f"alignments: {recording.model} was recorded without a cross-attention")
    places = {name: _places(recording, name, queries) for name in names}
    texts = {tuple(one.shape[1:] for one in each) for each in places.values()}
    if len(texts) > 1:
        raise ValueError(
            "alignments: the cross-attentions have other numbers of queries, and cannot be compared"
        )
    numbers = [(name, number) for name in names for number in recording[name].calls[0].heads]
    # All heads below each other, for each text.
    looked = [torch.cat(parts) for parts in zip(*places.values(), strict=True)]

    # The order of each head over all texts, and half of the heads that keep it best.
    pairs = sum(one.shape[1] * (one.shape[1] - 1) // 2 for one in looked)
    order = sum((_ordered_pairs(one) for one in looked), torch.zeros(())) / max(pairs, 1)
    best = order.argsort(descending=True, stable=True)[: (len(numbers) + 1) // 2]
    # How far each looks beyond the middle of these.
    middle = [one[best].median(0).values for one in looked]
    apart = [one - own for one, own in zip(looked, middle, strict=True)]
    ahead = torch.cat(apart, 1).nanmedian(1).values

    chosen = set(best.tolist())
    rows = [
        AlignedHead(*number, float(order[i]), float(ahead[i])) for i, number in enumerate(numbers)
    ]
    leading = [row for i, row in enumerate(rows) if i in chosen]
    others = [row for i, row in enumerate(rows) if i not in chosen]
    return [
        *sorted(leading, key=lambda row: -row.ahead),
        *sorted(others, key=lambda row: -row.order),
    ]


def _places(recording: Recording, name: str, queries: slice) -> list[Float[Tensor, "heads query"]]:
    """Return where each head looks, for each sequence of each call; without queries that see
    nothing.
    """
    found = []
    for call in recording[name].calls:
        top = call.survey().top
        if not top.keys.shape[-1]:
            raise ValueError("alignments: no largest weight was kept; record with top=1 or more")
        weights = top.weights.double()
        looked = (weights * top.keys).sum(-1) / weights.sum(-1)
        for own in looked[:, :, queries].cpu():
            found.append(own[:, own.isfinite().all(0)])
    return found


def _ordered_pairs(looked: Float[Tensor, "heads query"]) -> Float[Tensor, " heads"]:
    """Return for each head how many more pairs of queries look at keys in their order than against
    it.
    """
    later = torch.ones(looked.shape[1], looked.shape[1]).triu(1)
    # One head at a time: the pairs of a long text take memory.
    signs = [((one[None] - one[:, None]).sign() * later).sum() for one in looked]
    return torch.stack(signs)
