"""Colours of weights: viridis, which stays readable in grey and for the colour-blind."""

# viridis (van der Walt & Smith 2015, CC0), at 0, 1/8, … 1
_VIRIDIS = (
    (68, 1, 84),
    (71, 45, 123),
    (59, 82, 139),
    (44, 114, 142),
    (33, 145, 140),
    (40, 174, 128),
    (94, 201, 98),
    (173, 220, 48),
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
    """Black or white, whichever is easier to read on this colour: its contrast is then at least 4.5 : 1."""
    return "black" if luminance(paper) > 0.179 else "white"


def luminance(colour: tuple[int, int, int]) -> float:
    """How bright it is to an eye, from 0 to 1 (WCAG's relative luminance)."""
    channels = (channel / 255 for channel in colour)
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
