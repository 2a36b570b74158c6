"""The map: tiles and tracks of a head, made when they are asked for; the exact ones are kept."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..tiles import BUDGET, TILE, Tile, Tiles, Track
from .lru_cache import LruCache
from .requests import Refusal, RequestParams, whole
from .run import AttentionView
from .walk import head, sequence

HEADS, TILES = 8, 512  # how many are kept; a tile takes half a megabyte
EFFORTS = ("1", "4", "16")
DTYPES = ("f16", "u8")

Key = tuple[AttentionView, int, int]  # attention, head, sequence


@dataclass(frozen=True)
class Picture:
    """Numbers as they are sent, and how they were made."""

    numbers: bytes
    exact: bool
    samples: float


class Maps:
    def __init__(self) -> None:
        self.heads: LruCache[Key, Tiles] = LruCache(HEADS)
        self.tiles: LruCache[tuple[Key, int, int, int], Tile] = LruCache(TILES)

    def told(self, looked: AttentionView, asked: RequestParams, layer: int) -> dict[str, Any]:
        """What a page has to know before it asks for tiles."""
        looked.must_have("map")
        h, b = head(looked, asked), sequence(looked, asked)
        tiles = self._of((looked, h, b))
        return {
            "l": layer,
            "h": h,
            "b": b,
            "n_q": looked.size[0],
            "n_k": looked.size[1],
            "tile": TILE,
            "max_zoom": tiles.pyramid.max_zoom,
            "aggs": ["share", "max"],
            "value": "log2",
            "dtype": "f16",
            "known": tiles.learnt_share,
        }

    def tile(self, looked: AttentionView, asked: RequestParams, *place: str) -> Picture:
        looked.must_have("map")
        z, x, y = (whole(name, said) for name, said in zip("zxy", place, strict=True))
        how, kind, effort = (
            asked.word("agg", ("share", "max")),
            asked.word("fmt", DTYPES),
            asked.word("effort", EFFORTS),
        )
        tile = self._tile((looked, head(looked, asked), sequence(looked, asked)), z, x, y, int(effort))
        numbers = tile.share if how == "share" else tile.max
        return Picture(_f16(numbers) if kind == "f16" else _u8(numbers), tile.exact, tile.samples)

    def track(self, looked: AttentionView, asked: RequestParams, *place: str) -> Picture:
        looked.must_have("map")
        z, x = (whole(name, said) for name, said in zip("zx", place, strict=True))
        kind = asked.word("kind", ("entropy", "received"))
        tiles = self._of((looked, head(looked, asked), sequence(looked, asked)))
        try:
            track: Track = tiles.entropies(z, x) if kind == "entropy" else tiles.received(z, x)
        except ValueError as problem:
            raise _no_tile(problem) from None
        return Picture(track.numbers.numpy().astype("<f4").tobytes(), track.exact, track.samples)

    def _of(self, key: Key) -> Tiles:
        looked, h, b = key
        return self.heads.get_or(key, lambda: Tiles(looked.head(h, b)))

    def _tile(self, key: Key, z: int, x: int, y: int, effort: int) -> Tile:
        made = self.tiles.get((key, z, x, y))
        if made is not None:
            return made
        try:
            made = self._of(key).tile(z, x, y, effort * BUDGET)
        except ValueError as problem:
            raise _no_tile(problem) from None
        return self.tiles.put((key, z, x, y), made) if made.exact else made


def _no_tile(problem: ValueError) -> Refusal:
    return Refusal(404, "no-tile", str(problem))


def _f16(log2: Float[Tensor, "side side"]) -> bytes:
    """A weight that is too small for float16 is the smallest that it has: -inf means masked."""
    lowest = torch.finfo(torch.float16).min
    kept = torch.where(log2 == -torch.inf, log2, log2.clamp(min=lowest))
    return kept.to(torch.float16).numpy().astype("<f2").tobytes()


def _u8(log2: Float[Tensor, "side side"]) -> bytes:
    """An eighth of a bit to the step, for a line that is slow."""
    steps = (255 + 8 * log2).round().clamp(2, 255)
    steps = torch.where(log2 == -torch.inf, 1.0, steps).masked_fill(log2.isnan(), 0.0)
    return steps.to(torch.uint8).numpy().tobytes()
