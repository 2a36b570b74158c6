"""One weight has one colour: on every screen and in exports, in each theme."""

import math
import re
from itertools import chain
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from support import writers

SOURCE = (Path(__file__).parents[2] / "web/parts/colour.js").read_text()
BARS = """() => [...document.querySelectorAll("main .ledger tbody tr")].map((row) => [
    Number(row.querySelector("td.now").title.replace("−", "-")),
    row.querySelector("svg rect:last-of-type").getAttribute("fill")])"""
STROKES = "all => all.map((one) => [Number(one.dataset.weight), one.getAttribute('stroke')])"
PIXELS = """(canvas) => {
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    return [canvas.width, Array.from({ length: data.length / 4 }, (_, at) => [...data.slice(4 * at, 4 * at + 4)])];
}"""
COMMON = """(canvas) => {
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    const counts = new Map();
    for (let at = 0; at < data.length; at += 4) {
        const colour = data.slice(at, at + 3).join();
        counts.set(colour, (counts.get(colour) ?? 0) + 1);
    }
    return [...counts].filter(([, n]) => n > 200).map(([colour]) => colour.split(",").map(Number));
}"""


def colour_of(weight, theme):
    """Return the colour that a weight must have: nine stops, at the square root of the weight."""
    stops = re.search(rf'export const WEIGHTS.*?{theme}: parseStops\("([^"]+)"\)', SOURCE, re.S)[1].split()
    numbers = [[int(stop[at : at + 2], 16) for at in (0, 2, 4)] for stop in stops]
    position = math.sqrt(weight) * (len(stops) - 1)
    low = min(len(stops) - 2, int(position))
    return [a + (b - a) * (position - low) for a, b in zip(numbers[low], numbers[low + 1], strict=True)]


def check(pairs, theme, off=1.0):
    """Check that every weight has its colour, to within rounding."""
    assert len(pairs) > 3
    for weight, shown in pairs:
        channels = list(map(int, re.findall(r"\d+", shown))) if isinstance(shown, str) else shown[:3]
        assert channels == pytest.approx(colour_of(weight, theme), abs=off), weight


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_weight_has_one_colour_everywhere(page, served, theme, tmp_path):
    page.tab.emulate_media(color_scheme=theme)
    run = served.library.read(writers.NOTES, "translator")
    weights = run.views[0].call.trace().weights[0].double()

    tab = page.open("walk", run.name, l=0, h=1, i=3, step="softmax", pieces=1)  # the bars of the walk
    check(tab.evaluate(BARS), theme)
    tab = page.turn("walk", run.name, l=0, h=1, i=3, step="softmax", pieces=1, edits="scale")  # before and after
    tab.locator(".compared").wait_for()
    check([pair for pair in tab.evaluate(BARS) if pair[0] >= 0], theme)

    tab = page.turn("heads", run.name, l=0, h=1, i=3, pieces=1)  # the small maps and the bars of two heads
    wide, pixels = tab.locator(".mini canvas").nth(1).evaluate(PIXELS)
    assert wide == weights.shape[-1]
    check(list(zip(weights[1].flatten().tolist(), pixels, strict=True)), theme)
    bars = "all => all.map((row) => [Number(row.cells[1].title), row.querySelector('rect')?.getAttribute('fill')])"
    check([pair for pair in tab.locator(".reading tbody tr").evaluate_all(bars) if pair[1]], theme)
    tab = page.turn("heads", run.name, l=0, h=1, i=3)
    check(tab.locator(".fan path").evaluate_all(STROKES), theme)

    tab = page.turn("alignment", run.name, l=3, h=1, of="head")  # ribbons and matrix
    check(tab.locator(".ribbons path").evaluate_all(STROKES), theme)
    answer = served.api.ask(f"/runs/{run.name}/alignment", l=3, h=1)
    check(list(zip(chain(*answer["weights"]), tab.locator(".matrix canvas").evaluate(PIXELS)[1], strict=True)), theme)
    tab.get_by_role("button", name="save this view").click()  # and the same in a drawing
    with tab.expect_download() as waited:
        tab.get_by_role("button", name="Drawing").click()
    waited.value.save_as(tmp_path / "view.svg")
    drawn = {
        path.get("stroke") for path in ElementTree.parse(tmp_path / "view.svg").iter("{http://www.w3.org/2000/svg}path")
    }
    largest = max(max(row) for row in answer["weights"])
    wanted = [round(channel) for channel in colour_of(largest, theme)]
    assert any(list(map(int, re.findall(r"\d+", one or "")))[:3] == pytest.approx(wanted, abs=1) for one in drawn)

    tab = page.turn("map", "example-journey", l=0, h=0)  # a map of 36 cells; its numbers are sent in half precision
    tab.locator('.quality[data-exact="1"]').wait_for()
    page.settled()
    common = torch.tensor(tab.locator("canvas[data-picture=map]").evaluate(COMMON), dtype=torch.float64)
    journey = served.library.run("example-journey").views[0].call.trace().weights[0, 0]
    for weight in journey.flatten().tolist():
        nearest = (common - torch.tensor(colour_of(weight, theme))).abs().amax(-1).min()
        assert float(nearest) <= 3, weight
    page.tab.emulate_media(color_scheme="light")


def test_masked_cells_are_hatched_everywhere(page):
    """In the walk's table, in the small maps and in the matrix of an alignment: no colour, and lines behind."""
    tab = page.open("walk", "example-journey", l=2, h=0, i=1, step="mask")
    assert tab.locator(".ledger tbody td.share.hatch").count() == 4
    for screen, canvas in (("heads", ".mini.masked canvas"), ("alignment", ".masks .matrix canvas")):
        tab = page.turn(screen, "example-journey", l=2, h=0, of="head")
        shown = tab.locator(canvas).last
        wide, pixels = shown.evaluate(PIXELS)
        rows = [pixels[at : at + wide] for at in range(0, len(pixels), wide)]
        assert [[cell[3] > 0 for cell in row] for row in rows] == [[j <= i for j in range(6)] for i in range(6)]
        assert "repeating-linear-gradient" in shown.evaluate("one => getComputedStyle(one).backgroundImage")
