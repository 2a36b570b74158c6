"""Colours of weights: viridis, which stays readable in grey and for the colour-blind."""

# viridis (van der Walt & Smith 2015, CC0), at 0, 1/8, … 1
_VIRIDIS = (
    (68, 1, 84),
    (72, 40, 120),
    (62, 74, 137),
    (49, 104, 142),
    (38, 130, 142),
    (31, 158, 137),
    (53, 183, 121),
    (110, 206, 88),
    (253, 231, 37),
)


def background(weight: float) -> tuple[int, int, int]:
    """The colour of a weight from 0 to 1; what lies outside takes the nearest end."""
    place = min(max(weight, 0.0), 1.0) * (len(_VIRIDIS) - 1) if weight == weight else 0.0
    low = min(int(place), len(_VIRIDIS) - 2)
    return tuple(  # type: ignore[return-value]
        round(a + (b - a) * (place - low)) for a, b in zip(_VIRIDIS[low], _VIRIDIS[low + 1], strict=True)
    )


def ink(paper: tuple[int, int, int]) -> str:
    """Black or white, whichever is easier to read on this colour."""
    red, green, blue = paper
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 128 else "white"
