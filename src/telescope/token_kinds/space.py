"""Where tokens lie: the grids and the stretches of frames of a sequence, for distances."""

from dataclasses import dataclass
from functools import lru_cache

from .kinds import Frames, Grid, TokenKind
from .sides import Sides


@dataclass(frozen=True)
class GridSpace:
    """Patches: `first` is the position of the first one, row by row from there."""

    first: int
    rows: int
    columns: int

    @property
    def positions(self) -> range:
        return range(self.first, self.first + self.rows * self.columns)


@dataclass(frozen=True)
class FrameSpace:
    """Frames: `step` are the seconds from one to the next."""

    first: int
    count: int
    step: float

    @property
    def positions(self) -> range:
        return range(self.first, self.first + self.count)


@dataclass(frozen=True)
class Space:
    """The grids and the stretches of frames of one sequence, whose distances are measured."""

    grids: tuple[GridSpace, ...]
    frames: tuple[FrameSpace, ...]


def space_of_sides(sides: Sides | None) -> Space | None:
    """Return where the tokens of one text lie; None where they are labels alone, or queries and
    keys are two sequences.
    """
    if sides is None or sides.keys is None or sides.queries != sides.keys:
        return None
    return _space_of(sides.keys)


@lru_cache(maxsize=16)
def _space_of(kind: TokenKind) -> Space | None:
    grids = []
    frames = []
    for first, part in kind._parts():
        if isinstance(part, Grid):
            grids.append(GridSpace(first + part.first, part.rows, part.columns))
        elif isinstance(part, Frames):
            frames.append(FrameSpace(first + part.first, part.count, part.step))
    return Space(tuple(grids), tuple(frames)) if grids or frames else None
