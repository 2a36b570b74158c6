"""The n x n matrix of one head as a zoomable map: tiles of 256 x 256 pixels, each computed when it
is requested.

May import attention/ and survey/. Read tiles.py first: `Tiles.tile` and what a Tile holds.
pyramid.py cuts the matrix into tiles and pixels; head_scores.py and row_sums.py compute the
numbers.
"""

from .pyramid import TILE, Pyramid
from .tiles import BUDGET, Tile, Tiles, Track

__all__ = ["BUDGET", "TILE", "Pyramid", "Tile", "Tiles", "Track"]
