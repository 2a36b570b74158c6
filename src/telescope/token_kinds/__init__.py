"""What the tokens of a sequence are: words, patches of an image, frames of sound, or several of
these in one sequence.

Imports words alone. `ts.watch(tokens=...)`, `ts.trace`, `ts.plot` and the page take these values:
they name tokens, and tell where a token lies in its image or in time. Read kinds.py first, then
sides.py.
"""

from .kinds import (
    Frames,
    Grid,
    Labels,
    Segments,
    TokenKind,
    TokenPlace,
    kind_from_json,
    read_part,
    token_name,
)
from .sides import Sides, TokenNames, Tokens, check_count, known_names, names_of_sides, split_tokens
from .space import FrameSpace, GridSpace, Space, space_of_sides

__all__ = [
    "FrameSpace",
    "Frames",
    "Grid",
    "GridSpace",
    "Labels",
    "Segments",
    "Sides",
    "Space",
    "TokenKind",
    "TokenNames",
    "TokenPlace",
    "Tokens",
    "check_count",
    "kind_from_json",
    "known_names",
    "names_of_sides",
    "read_part",
    "space_of_sides",
    "split_tokens",
    "token_name",
]
