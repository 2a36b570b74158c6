"""The n x n matrix of a head as a map that can be zoomed into: pictures of 256 x 256, made when they are asked for."""

from .pyramid import TILE, Pyramid
from .tiles import BUDGET, Tile, Tiles, Track

__all__ = ["BUDGET", "TILE", "Pyramid", "Tile", "Tiles", "Track"]
