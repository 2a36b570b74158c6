"""The colours of weights, in the terminal and on the page, are those of the palettes that they are named after."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from telescope.traces.render import background, luminance, text_colour

PAGE = (Path(__file__).parents[3] / "web/parts/colour.js").read_text()

# as published, at 0, 1/8, … 1: red, green and blue from 0 to 1
VIRIDIS = [
    (0.267004, 0.004874, 0.329415),
    (0.278826, 0.175490, 0.483397),
    (0.229739, 0.322361, 0.545706),
    (0.172719, 0.448791, 0.557885),
    (0.127568, 0.566949, 0.550556),
    (0.157851, 0.683765, 0.501686),
    (0.369214, 0.788888, 0.382914),
    (0.678489, 0.863742, 0.189503),
    (0.993248, 0.906157, 0.143936),
]


# what is left of red, green and blue, linear, without one of the three kinds of cones (Machado et al. 2009)
SEEN = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}


def as_seen(colour, matrix):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (x / 255 for x in colour)]
    mixed = [min(1.0, max(0.0, sum(m * c for m, c in zip(row, linear, strict=True)))) for row in matrix]
    return tuple(255 * (12.92 * c if c <= 0.0031308 else 1.055 * c ** (1 / 2.4) - 0.055) for c in mixed)


def bytes_of(colour):
    return tuple(round(255 * channel) for channel in colour)


def on_the_page(name, of="PALETTES"):
    table = PAGE[PAGE.index(f"const {of} ") :]
    stops = re.search(rf'{name}: parseStops\("([0-9a-f ]+)"\)', table)[1].split()
    return [tuple(bytes.fromhex(stop)) for stop in stops]


def test_viridis_equals_that_of_matplotlib():
    assert [background(place / 8) for place in range(9)] == [bytes_of(colour) for colour in VIRIDIS]
    assert on_the_page("viridis") == [bytes_of(colour) for colour in VIRIDIS]


def test_values_out_of_range_take_the_nearest_end():
    assert background(-1.0) == background(float("nan")) == background(0.0)
    assert background(7.0) == background(1.0)


@pytest.mark.parametrize("name", ["viridis", "magma", "cividis"])
def test_larger_weights_are_lighter(name):
    """Also in grey, and with colour blindness."""
    steps = [luminance(colour) for colour in on_the_page(name)]
    assert len(steps) == 9
    assert steps == sorted(steps)
    assert steps[-1] - steps[0] > 0.6


@pytest.mark.parametrize("kind", SEEN)
@pytest.mark.parametrize("name", ["viridis", "magma", "cividis"])
def test_larger_weights_are_lighter_with_colour_blindness(name, kind):
    seen = [luminance(as_seen(colour, SEEN[kind])) for colour in on_the_page(name)]
    assert seen == sorted(seen)
    assert min(b - a for a, b in pairwise(seen)) > 0.003


@pytest.mark.parametrize("kind", [None, *SEEN])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_larger_weights_differ_more_from_the_page(theme, kind):
    """Darker on a light page, lighter on a dark one; also with colour blindness."""
    colours = on_the_page(theme, "WEIGHTS")
    steps = [luminance(colour if kind is None else as_seen(colour, SEEN[kind])) for colour in colours]
    steps = steps[::-1] if theme == "light" else steps
    assert min(b - a for a, b in pairwise(steps)) > 0.003
    assert steps[-1] - steps[0] > 0.6


def test_negative_and_positive_numbers_differ_with_colour_blindness():
    """Signed numbers are blue and red, not green and red: they differ in hue or lightness for everyone."""
    for theme in ("light", "dark"):
        blue, _, red = on_the_page(theme, "SIGNED")
        for matrix in SEEN.values():
            apart = [abs(a - b) for a, b in zip(as_seen(blue, matrix), as_seen(red, matrix), strict=True)]
            assert max(apart) > 60


def test_every_number_can_be_read_on_its_colour():
    """Contrast as WCAG defines it; black on white is 21 : 1."""
    assert luminance((255, 255, 255)) == pytest.approx(1.0)
    for place in range(101):
        paper = background(place / 100)
        light = luminance(paper)
        contrast = {"black": (light + 0.05) / 0.05, "white": 1.05 / (light + 0.05)}
        assert contrast[text_colour(paper)] > 4.5
