"""How a matrix is cut into tiles: at the deepest level a pixel is one pair; a level up, twice as many each way."""

from dataclasses import dataclass

TILE = 256


@dataclass(frozen=True)
class Pyramid:
    """Level 0 is one tile; level z has tiles (x, y), x along the keys and y along the queries."""

    queries: int
    keys: int

    @property
    def max_zoom(self) -> int:
        return (-(-max(self.queries, self.keys) // TILE) - 1).bit_length() if max(self.queries, self.keys) else 0

    def cells(self, z: int) -> int:
        """How many queries, and how many keys, there are in a pixel."""
        return 2 ** (self.max_zoom - z)

    def queries_of(self, z: int, y: int) -> range:
        return _within(y * TILE * self.cells(z), TILE * self.cells(z), self.queries)

    def keys_of(self, z: int, x: int) -> range:
        return _within(x * TILE * self.cells(z), TILE * self.cells(z), self.keys)

    def has(self, z: int, x: int, y: int) -> bool:
        return (
            0 <= z <= self.max_zoom
            and min(x, y) >= 0
            and len(self.keys_of(z, x)) > 0
            and len(self.queries_of(z, y)) > 0
        )


def _within(start: int, count: int, there: int) -> range:
    return range(min(start, there), min(start + count, there))
