"""Pictures of a recording that kept summaries alone: from the largest weights of each query, which
a summary holds.

What is not among them is unknown: `known_share` says how much of the weight that is, and the rest
counts as nothing.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import causal
from ..recording.recorded_call import RecordedCall
from ..tiles import TILE, Pyramid, Tile, Track


def top_weights(call: RecordedCall, b: int) -> tuple[Float[Tensor, "heads query top"], Tensor]:
    """Return the largest weights of each query, and their keys; keys of weight 0 fill up where
    there are too few.
    """
    top = call.survey().top
    return top.weights[b].double().cpu(), top.keys[b].cpu().clamp(min=0)


def known_share(call: RecordedCall, b: int) -> float:
    """Return the share of all weight that the largest weights of each query hold."""
    weights, _ = top_weights(call, b)
    return float(weights.sum(-1).mean()) if weights.numel() else 0.0


def dense_weights(call: RecordedCall, b: int, n_k: int) -> Float[Tensor, "heads query key"]:
    """Return the matrix of every head, with 0 for every weight that is not known."""
    weights, keys = top_weights(call, b)
    return weights.new_zeros(*weights.shape[:2], n_k).scatter_add_(-1, keys, weights)


def pooled_weights(
    call: RecordedCall, b: int, head: int, rows: int, columns: int, n_k: int
) -> Tensor:
    """Return one head's matrix pooled to rows x columns: the mean over queries of the sum over
    keys.
    """
    weights, keys = (part[head] for part in top_weights(call, b))
    n_q = weights.shape[0]
    row = torch.arange(n_q) * rows // n_q
    place = row[:, None] * columns + keys * columns // n_k
    summed = weights.new_zeros(rows * columns).scatter_add_(0, place.flatten(), weights.flatten())
    return summed.view(rows, columns) / row.bincount(minlength=rows)[:, None]


class TopTiles:
    """The map of one head from its largest weights, with the methods of `Tiles`. Tiles are never
    exact.
    """

    def __init__(self, call: RecordedCall, head: int, b: int) -> None:
        summary = call.survey()
        place = call.heads.index(head)
        self.weights, self.keys = (part[place] for part in top_weights(call, b))
        self.entropy = summary.entropy[b, place].double().cpu()
        self.received_weights = summary.received[b, place].double().cpu()
        self.pyramid = Pyramid(len(self.weights), len(self.received_weights), TILE)
        self.summed_fraction = known_share(call, b)
        self.causal = call.attention.mask == causal

    def tile(self, z: int, x: int, y: int, budget: int = 0) -> Tile:
        """Return a tile: weights that are not known count as nothing."""
        if not self.pyramid.has(z, x, y):
            raise ValueError(f"there is no tile {z}/{x}/{y}")
        cells = self.pyramid.cells(z)
        side = self.pyramid.side
        rows = self.pyramid.queries_of(z, y)
        columns = self.pyramid.keys_of(z, x)
        weights = self.weights[rows.start : rows.stop]
        keys = self.keys[rows.start : rows.stop]
        inside = (keys >= columns.start) & (keys < columns.stop) & (weights > 0)
        row = (torch.arange(len(weights)) // cells)[:, None].expand_as(keys)
        place = (row * side + ((keys - columns.start) // cells).clamp(0, side - 1))[inside]
        share, most = (weights.new_zeros(side * side) for _ in range(2))
        share.scatter_add_(0, place, weights[inside] / cells)
        most.scatter_reduce_(0, place, weights[inside], "amax")
        lowest = torch.tensor(2.0**-40, dtype=weights.dtype)  # not masked, but not known
        pictures = [one.maximum(lowest).log2().view(side, side) for one in (share, most)]
        if self.causal:
            row, column = (torch.arange(side) * cells + places.start for places in (rows, columns))
            masked = (
                column[None, :]
                > row[:, None] + cells - 1 + self.pyramid.keys - self.pyramid.queries
            )
            pictures = [picture.masked_fill(masked, -torch.inf) for picture in pictures]
        for picture in pictures:
            picture[-(-len(rows) // cells) :] = torch.nan
            picture[:, -(-len(columns) // cells) :] = torch.nan
        return Tile(pictures[0], pictures[1], False, self.summed_fraction)

    def entropies(self, z: int, y: int, budget: int = 0) -> Track:
        """Return the mean entropy of the queries of each pixel, which a summary holds exactly."""
        return self._track(self.entropy, z, self.pyramid.queries_of(z, y), mean=True)

    def received(self, z: int, x: int, budget: int = 0) -> Track:
        """Return the share of all weight that the keys of each pixel receive, which a summary holds
        exactly.
        """
        total = self.received_weights / self.received_weights.sum().clamp(min=1e-12)
        return self._track(total, z, self.pyramid.keys_of(z, x), mean=False)

    def _track(self, numbers: Tensor, z: int, places: range, *, mean: bool) -> Track:
        cells = self.pyramid.cells(z)
        side = self.pyramid.side
        if not len(places):
            raise ValueError("there is no such part of a track")
        pixel = torch.arange(len(places)) // cells
        summed = numbers.new_zeros(side).scatter_add_(0, pixel, numbers[places.start : places.stop])
        count = pixel.bincount(minlength=side)
        summed = summed / count.clamp(min=1) if mean else summed
        return Track(summed.masked_fill(count == 0, torch.nan).float(), True, float(cells))
