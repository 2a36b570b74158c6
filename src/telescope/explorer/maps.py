"""Tiles and tracks of the map of one head, computed on request; exact tiles are cached."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import causal
from ..recording import RecordedCall
from ..surveys import HOW
from ..tiles import BUDGET, TILE, Pyramid, Tile, Tiles, Track
from .answers import Answer, Refusal
from .run import RunRequest
from .weights import known_share, top_weights

# Multiples of the budget of scores that one tile may take.
EFFORTS = ("1", "4", "16")
DTYPES = ("f16", "u8")
LEAST_WEIGHT = 2.0**-40  # drawn where a weight is not masked, but not known


@dataclass(frozen=True)
class MapAnswer(Answer):
    """What the page needs before it requests tiles. At zoom max_zoom a pixel of a tile is one cell
    of the matrix.

    tile   pixels of a side
    known  the share of queries whose softmax sum is known; every tile adds to it
    top    whether the map is made of the largest weights of each query alone
    """

    l: int
    h: int
    b: int
    n_q: int
    n_k: int
    tile: int
    max_zoom: int
    how: Sequence[str]
    value: str
    dtype: str
    known: float
    top: bool


@dataclass(frozen=True)
class Picture:
    """A binary answer: little-endian numbers, whether they are exact, and how many queries a pixel
    samples.
    """

    numbers: bytes
    exact: bool
    samples: float


def describe_map(request: RunRequest) -> MapAnswer:
    """Answer what the page needs before it requests tiles."""
    tiles = _tiles(request)
    view = request.view
    return MapAnswer(
        l=request.layer,
        h=request.h,
        b=request.b,
        n_q=view.size[0],
        n_k=view.size[1],
        tile=TILE,
        max_zoom=tiles.pyramid.max_zoom,
        how=HOW,
        value="log2",
        dtype="f16",
        known=tiles.summed_fraction,
        top=isinstance(tiles, TopTiles),
    )


def tile(request: RunRequest) -> Picture:
    """Answer 256 x 256 numbers in row-major order; rows are queries.

    More effort reads more queries, up to an exact tile; 1 takes a fraction of a second. f16 is the
    little-endian log2 of the weight; -inf is masked, NaN is outside of the matrix. u8 is 0 outside,
    1 masked, and v ≥ 2 is log2 = (v - 255) / 8. The headers are X-Exact, 0 or 1, and X-Samples, how
    many of each pixel's queries were read (2^k); below 1, neighbouring rows of pixels share a
    query. At level z a pixel covers 2^(max_zoom - z) queries and keys; x counts keys, y queries.
    """
    request.view.require("map")
    z, x, y = (request.number(name) for name in "zxy")
    how = request.word("how", HOW)
    dtype = request.word("fmt", DTYPES)
    effort = int(request.word("effort", EFFORTS))

    # An exact tile is kept; more effort would not change it.
    key = (*_head_key(request), z, x, y)
    found: Tile | None = request.memory.tiles.get(key)
    if found is None:
        try:
            found = _tiles(request).tile(z, x, y, effort * BUDGET)
        except ValueError as problem:
            raise _no_tile(problem) from None
        if found.exact:
            request.memory.tiles.put(key, found)
    # A tile holds both pictures; the page shows one of them.
    numbers = found.share if how == "share" else found.max
    return Picture(_f16(numbers) if dtype == "f16" else _u8(numbers), found.exact, found.samples)


def track(request: RunRequest) -> Picture:
    """Answer 256 float32, little-endian; NaN outside.

    Entropy is in nats, the mean over a pixel's queries; received is the share of all weight on a
    pixel's keys. The headers are those of a tile.
    """
    request.view.require("map")
    z, x = (request.number(name) for name in "zx")
    kind = request.word("kind", ("entropy", "received"))
    tiles = _tiles(request)
    try:
        found: Track = tiles.entropies(z, x) if kind == "entropy" else tiles.received(z, x)
    except ValueError as problem:
        raise _no_tile(problem) from None
    return Picture(found.numbers.numpy().astype("<f4").tobytes(), found.exact, found.samples)


def _tiles(request: RunRequest) -> "Tiles | TopTiles":
    view = request.view
    view.require("map")
    h = request.h
    b = request.b

    def make() -> Tiles | TopTiles:
        return Tiles(view.head(h, b)) if view.call._has_queries else TopTiles(view.call, h, b)

    # Kept for the next request: every tile adds to the sums that others need.
    tiles: Tiles | TopTiles = request.memory.heads.get_or_make(_head_key(request), make)
    return tiles


def _head_key(request: RunRequest) -> tuple[object, ...]:
    """Return the key of a head in the memory of tiles. A view as the key would keep all of its run
    in memory.
    """
    run = request.run
    return (run.name, run.rev, request.layer, request.h, request.b)


def _no_tile(problem: ValueError) -> Refusal:
    return Refusal(404, "no-tile", str(problem))


def _f16(log2: Float[Tensor, "side side"]) -> bytes:
    """Encode as float16. Finite values below its range become its lowest number, because -inf means
    masked.
    """
    # A weight of 2^-70000 is not masked, only tiny.
    lowest = torch.finfo(torch.float16).min
    kept = torch.where(log2 == -torch.inf, log2, log2.clamp(min=lowest))
    return kept.to(torch.float16).numpy().astype("<f2").tobytes()


def _u8(log2: Float[Tensor, "side side"]) -> bytes:
    """Encode as bytes in steps of 1/8 of log2, half the size of float16, for slow connections."""
    # 0 and 1 are taken by what is outside and what is masked.
    steps = (255 + 8 * log2).round().clamp(2, 255)
    steps = torch.where(log2 == -torch.inf, 1.0, steps).masked_fill(log2.isnan(), 0.0)
    return steps.to(torch.uint8).numpy().tobytes()


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

        # Each known weight goes to the pixel of its query and key.
        weights = self.weights[rows.start : rows.stop]
        keys = self.keys[rows.start : rows.stop]
        inside = (keys >= columns.start) & (keys < columns.stop) & (weights > 0)
        row = (torch.arange(len(weights)) // cells)[:, None].expand_as(keys)
        place = (row * side + ((keys - columns.start) // cells).clamp(0, side - 1))[inside]
        # Means over a pixel's queries of the sums over its keys, and the largest weights.
        share, most = (weights.new_zeros(side * side) for _ in range(2))
        share.scatter_add_(0, place, weights[inside] / cells)
        most.scatter_reduce_(0, place, weights[inside], "amax")
        lowest = torch.tensor(LEAST_WEIGHT, dtype=weights.dtype)
        pictures = [one.maximum(lowest).log2().view(side, side) for one in (share, most)]

        # Masked is what every query of a pixel cannot see; outside is what lies beyond the matrix.
        if self.causal:
            first_query, first_key = (
                torch.arange(side) * cells + places.start for places in (rows, columns)
            )
            # The last key that a pixel sees; the last query stands at the last key.
            last_seen = first_query + cells - 1 + self.pyramid.keys - self.pyramid.queries
            masked = first_key[None, :] > last_seen[:, None]
            pictures = [picture.masked_fill(masked, -torch.inf) for picture in pictures]
        for picture in pictures:
            # -(-a // b) rounds up: a pixel that is only partly inside is drawn.
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
        # Where no weight is known, shares are 0 and not NaN.
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
        # A track of entropies has means, one of received weights has sums.
        summed = summed / count.clamp(min=1) if mean else summed
        return Track(summed.masked_fill(count == 0, torch.nan).float(), True, float(cells))
