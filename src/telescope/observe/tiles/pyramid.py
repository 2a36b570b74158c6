"""How a matrix is cut into tiles: at the deepest level a pixel is one pair; a level up, twice as many each way."""

from dataclasses import dataclass

TILE = 256


@dataclass(frozen=True)
class Pyramid:
    """Level 0 is one tile; level z has tiles (x, y), x along the keys and y along the queries."""

    queries: int
    keys: int
    side: int = TILE
    """How many pixels a tile has each way."""

    @property
    def max_zoom(self) -> int:
        longest = max(self.queries, self.keys, 1)
        return ((longest - 1) // self.side).bit_length()

    def cells(self, z: int) -> int:
        """How many queries, and how many keys, there are in a pixel."""
        return 1 << (self.max_zoom - z)

    def queries_of(self, z: int, y: int) -> range:
        return _within(y * self.side * self.cells(z), self.side * self.cells(z), self.queries)

    def keys_of(self, z: int, x: int) -> range:
        return _within(x * self.side * self.cells(z), self.side * self.cells(z), self.keys)

    def has(self, z: int, x: int, y: int) -> bool:
        return (
            0 <= z <= self.max_zoom
            and min(x, y) >= 0
            and len(self.keys_of(z, x)) > 0
            and len(self.queries_of(z, y)) > 0
        )


def _within(start: int, count: int, there: int) -> range:
    return range(min(start, there), min(start + count, there))
