"""Tiles and tracks of the map of one head, computed on request; exact tiles are cached."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..recording.summaries_call import SummariesCall
from ..surveys import HOW
from ..tiles import BUDGET, TILE, Tile, Tiles, Track
from .lru_cache import LruCache
from .requests import Refusal, RequestParams, parse_int
from .run import AttentionView
from .summaries import TopTiles
from .walk import head, sequence

# How many are cached; a tile takes half a megabyte
HEADS = 8
TILES = 512
EFFORTS = ("1", "4", "16")
DTYPES = ("f16", "u8")

Key = tuple[AttentionView, int, int]  # attention, head, sequence


@dataclass(frozen=True)
class Picture:
    """A binary answer: little-endian numbers, whether they are exact, and how many queries a pixel
    samples.
    """

    numbers: bytes
    exact: bool
    samples: float


class Maps:
    """Answer requests for the map, its tiles and its tracks, with a cache of heads and one of exact
    tiles.
    """

    def __init__(self) -> None:
        self.heads: LruCache[Key, Tiles | TopTiles] = LruCache(HEADS)
        self.tiles: LruCache[tuple[Key, int, int, int], Tile] = LruCache(TILES)

    def describe(self, view: AttentionView, params: RequestParams, layer: int) -> dict[str, Any]:
        """Answer GET /runs/{run}/map: what the page needs before it requests tiles."""
        view.require("map")
        h = head(view, params)
        b = sequence(view, params)
        tiles = self._tiles((view, h, b))
        return {
            "l": layer,
            "h": h,
            "b": b,
            "n_q": view.size[0],
            "n_k": view.size[1],
            "tile": TILE,
            "max_zoom": tiles.pyramid.max_zoom,
            "how": list(HOW),
            "value": "log2",
            "dtype": "f16",
            "known": tiles.summed_fraction,
            "top": isinstance(tiles, TopTiles),
        }

    def tile(self, view: AttentionView, params: RequestParams, *place: str) -> Picture:
        """Answer GET /runs/{run}/tiles/{z}/{x}/{y}."""
        view.require("map")
        z, x, y = (parse_int(name, text) for name, text in zip("zxy", place, strict=True))
        how = params.word("how", HOW)
        dtype = params.word("fmt", DTYPES)
        effort = params.word("effort", EFFORTS)
        tile = self._tile((view, head(view, params), sequence(view, params)), z, x, y, int(effort))
        numbers = tile.share if how == "share" else tile.max
        return Picture(_f16(numbers) if dtype == "f16" else _u8(numbers), tile.exact, tile.samples)

    def track(self, view: AttentionView, params: RequestParams, *place: str) -> Picture:
        """Answer GET /runs/{run}/tracks/{z}/{x}."""
        view.require("map")
        z, x = (parse_int(name, text) for name, text in zip("zx", place, strict=True))
        kind = params.word("kind", ("entropy", "received"))
        tiles = self._tiles((view, head(view, params), sequence(view, params)))
        try:
            track: Track = tiles.entropies(z, x) if kind == "entropy" else tiles.received(z, x)
        except ValueError as problem:
            raise _no_tile(problem) from None
        return Picture(track.numbers.numpy().astype("<f4").tobytes(), track.exact, track.samples)

    def _tiles(self, key: Key) -> Tiles | TopTiles:
        view, h, b = key
        if isinstance(view.call, SummariesCall):
            return self.heads.get_or_make(key, lambda: TopTiles(view.call, h, b))
        return self.heads.get_or_make(key, lambda: Tiles(view.head(h, b)))

    def _tile(self, key: Key, z: int, x: int, y: int, effort: int) -> Tile:
        """Return a tile, from the cache if it is exact there; more effort reads more queries."""
        tile = self.tiles.get((key, z, x, y))
        if tile is not None:
            return tile
        try:
            tile = self._tiles(key).tile(z, x, y, effort * BUDGET)
        except ValueError as problem:
            raise _no_tile(problem) from None
        return self.tiles.put((key, z, x, y), tile) if tile.exact else tile


def _no_tile(problem: ValueError) -> Refusal:
    return Refusal(404, "no-tile", str(problem))


def _f16(log2: Float[Tensor, "side side"]) -> bytes:
    """Encode as float16. Finite values below its range become its lowest number, because -inf means
    masked.
    """
    lowest = torch.finfo(torch.float16).min
    kept = torch.where(log2 == -torch.inf, log2, log2.clamp(min=lowest))
    return kept.to(torch.float16).numpy().astype("<f2").tobytes()


def _u8(log2: Float[Tensor, "side side"]) -> bytes:
    """Encode as bytes in steps of 1/8 of log2, half the size of float16, for slow connections."""
    steps = (255 + 8 * log2).round().clamp(2, 255)
    steps = torch.where(log2 == -torch.inf, 1.0, steps).masked_fill(log2.isnan(), 0.0)
    return steps.to(torch.uint8).numpy().tobytes()
