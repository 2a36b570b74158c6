"""The n x n matrix of one head as a zoomable map: tiles of 256 x 256 pixels, each computed when it
is requested.

May import attention/ and surveys/. Read tiles.py first: `Tiles.tile` and what a Tile holds.
scores.py computes the numbers.
"""

from .scores import OneHead
from .tiles import BUDGET, TILE, Pyramid, Tile, Tiles, Track

__all__ = ["BUDGET", "TILE", "OneHead", "Pyramid", "Tile", "Tiles", "Track"]
