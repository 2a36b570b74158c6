"""Numbers and points that are dragged by mouse, touch and keyboard: what follows is what Python computes."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest
import torch

from support.browsing import Page
from telescope.explorer.make_run import example_run

CELL = "x, starts, column 1"
NUMBERS = """(name) => [...document.querySelectorAll(`[data-live=${name}] tbody td[title]`)]
  .map((cell) => Number(cell.title.replace("−", "-")))"""


@pytest.fixture
def phone(browser, served):
    page = Page(browser, served, viewport={"width": 375, "height": 740}, has_touch=True, reduced_motion="reduce")
    yield page
    page.assert_quiet()
    page.leave()


def journey(**changed):
    """Return the second scene of the example with some numbers of x changed: {(2, 0): 0.9}."""
    facts = example_run("journey").example
    inputs = {one.name: [list(row) for row in one.numbers] for one in facts.inputs}
    for (i, j), x in changed.pop("x", {}).items():
        inputs["x"][i][j] = x
    return example_run("journey", inputs, **changed)


def follows(tab, x, i=1):
    """Wait until the cell's number is shown, and check weights and context beside it."""
    made = journey(x={(2, 0): x})
    trace = made.views[1].call.trace()
    tab.wait_for_function(
        "([wanted]) => Math.abs(Number(document.querySelectorAll('[data-live=weights] tbody td[title]')[2]"
        ".title) - wanted) < 1e-6",
        arg=[float(trace.weights[0, 0, i, 2])],
    )
    weights, context = (
        torch.tensor(tab.evaluate(NUMBERS, name), dtype=torch.float64) for name in ("weights", "context")
    )
    torch.testing.assert_close(weights, trace.weights[0, 0, i], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(context, trace.context[0, 0, i], atol=1e-6, rtol=1e-6)


def middle(element):
    box = element.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def finger(page, element, steps):
    """Drag by touch, step by step."""
    client = page.context.new_cdp_session(page.tab)
    x, y = middle(element)
    touch = lambda kind, points: client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})  # noqa: E731
    touch("touchStart", [{"x": x, "y": y}])
    for dx, dy in steps:
        touch("touchMove", [{"x": x + dx, "y": y + dy}])
    touch("touchEnd", [])


def test_a_number_is_dragged_by_mouse(page, served):
    """Weights and context follow on every move; the cell keeps the focus, and history gets no entries."""
    tab = page.open("walk", "example-journey", l=1, i=1, step="embedding")
    follows(tab, 0.57)
    cell = tab.get_by_label(CELL)
    entries = tab.evaluate("history.length")
    x, y = middle(cell)
    tab.mouse.move(x, y)
    tab.mouse.down()
    for along in (10, 25, 43):
        tab.mouse.move(x + along, y)
        follows(tab, round(0.57 + 0.01 * along, 2))
    tab.mouse.move(x - 30, y)
    follows(tab, 0.27)
    tab.mouse.up()
    assert cell.input_value() == "0.27"
    assert tab.evaluate("document.activeElement.ariaLabel") == CELL
    tab.wait_for_timeout(500)
    assert tab.evaluate("history.length") == entries
    # The address has the run of the last number.
    run = re.search(r"/s/([^/]+)/", tab.url)[1]
    tab.goto(tab.url)
    page.settled()
    follows(tab, 0.27)
    assert run != "example-journey"
    tab.get_by_role("button", name="undo all changes").click()
    follows(tab, 0.57)


def test_escape_gives_a_dragged_number_back(page):
    tab = page.open("walk", "example-journey", l=1, i=1, step="embedding")
    cell = tab.get_by_label(CELL)
    x, y = middle(cell)
    cell.focus()
    tab.mouse.move(x, y)
    tab.mouse.down()
    tab.mouse.move(x + 60, y)
    follows(tab, 1.17)
    tab.keyboard.press("Escape")
    follows(tab, 0.57)
    tab.mouse.move(x + 90, y)
    tab.mouse.up()
    follows(tab, 0.57)


def test_a_click_chooses_a_number_to_type_over(page):
    tab = page.open("walk", "example-journey", l=1, i=1, step="embedding")
    tab.get_by_label(CELL).click()
    tab.keyboard.type("−1,5")
    tab.keyboard.press("Enter")
    follows(tab, -1.5)


def test_a_number_is_stepped_by_keys(page):
    """By 0.01, with Shift by 0.1; the steps of the walk and its queries stay."""
    tab = page.open("walk", "example-journey", l=1, i=1, step="embedding")
    cell = tab.get_by_label(CELL)
    cell.focus()
    for key, x in (("ArrowUp", 0.58), ("Shift+ArrowUp", 0.68), ("ArrowDown", 0.67), ("Shift+ArrowDown", 0.57)):
        tab.keyboard.press(key)
        follows(tab, x)
        assert float(cell.get_attribute("aria-valuenow")) == x
    assert tab.evaluate("document.activeElement.ariaLabel") == CELL
    assert parse_qs(urlsplit(tab.url).query)["i"] == ["1"]


def test_a_number_is_dragged_by_a_finger(phone):
    """On a phone weights and context stay in view; a drag opens no keyboard, and up and down scrolls the page."""
    tab = phone.open("walk", "example-journey", l=1, i=1, step="embedding")
    cell = tab.get_by_label(CELL)
    finger(phone, cell, [(20, 0), (40, 1), (50, 1)])
    follows(tab, 1.07)
    assert tab.evaluate("document.activeElement.ariaLabel") != CELL
    assert tab.evaluate("document.documentElement.scrollWidth") <= 375
    seen = tab.locator("[data-live=weights]").bounding_box()
    assert seen["y"] < 740
    before = cell.input_value()
    finger(phone, cell, [(0, -30), (0, -80), (0, -140)])
    tab.wait_for_timeout(300)
    assert cell.input_value() == before


def test_a_drag_through_a_sum_of_zero_goes_on(page):
    """Divided by the sum, some numbers have no weights: the cells stay, with a sentence, until the sum is not zero."""
    tab = page.open("walk", "example-thinking-machines", l=0, i=0, step="embedding")
    tab.get_by_role("button", name="divide by the sum").click()
    cell = tab.get_by_label("k, Machines, column 1")
    cell.fill("-1.75")
    cell.press("Enter")
    tab.get_by_text("the scores of a query sum to zero").wait_for()
    tab.get_by_label("k, Machines, column 1").fill("1.75")
    tab.get_by_label("k, Machines, column 1").press("Enter")
    tab.get_by_text("the scores of a query sum to zero").wait_for(state="detached")
    assert tab.evaluate(NUMBERS, "weights") == pytest.approx([0.5, 0.5])
    page.complaints.clear()  # the browser itself reports the 409


def points(tab, kind):
    return tab.locator(kind).evaluate_all("all => all.map(one => [+one.getAttribute('cx'), +one.getAttribute('cy')])")


def bank(tab):
    """Return the row of bank as its cells show it."""
    cells = [tab.get_by_label(f"x, bank, column {at}") for at in (1, 2, 3)]
    return [float(cell.get_attribute("aria-valuenow")) for cell in cells]


def check_plane(tab, row):
    """Check that the points, apart from where the picture lies, are those of the example with this row."""
    made = example_run("bank", {"x": [[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], row]})
    before = torch.cat([view.call.before[0] for view in made.views]).double()
    after = torch.cat([view.call.after[0] for view in made.views]).double()
    both = torch.cat([before, after])
    tab.wait_for_function(
        "() => document.querySelectorAll('circle.dot').length === 4 && !document.querySelector('[data-held]')"
    )
    drawn = torch.tensor(points(tab, "circle.dot"), dtype=torch.float64)
    # All vectors lie in a plane nearly: distances are those of the space, on one scale.
    flat = torch.pca_lowrank(both, q=2, niter=8)[2]
    there = torch.cdist(after @ flat, after @ flat)
    here = torch.cdist(drawn, drawn)
    scale = here.sum() / there.sum()
    torch.testing.assert_close(here / scale, there, atol=2e-2, rtol=0)


def test_a_point_is_dragged_and_its_vector_moves(page):
    """The other points keep their places meanwhile; the filled points of the word follow."""
    tab = page.open("geometry", "example-bank", i=1)
    assert bank(tab) == [0.7, 0.7, 1]
    hollow = tab.get_by_role("button", name="bank beside money before")
    others = points(tab, ".movable")
    after = points(tab, "circle.dot")
    x, y = middle(hollow)
    tab.mouse.move(x, y)
    tab.mouse.down()
    for step in range(1, 9):
        tab.mouse.move(x + 8 * step, y + 4 * step)
    tab.locator("[data-held]").wait_for()
    tab.wait_for_function(
        "(old) => +document.querySelectorAll('circle.dot')[1].getAttribute('cx') !== old", arg=after[1][0]
    )
    moved = points(tab, ".movable")
    assert [moved[0], moved[2]] == [pytest.approx(others[0], abs=0.01), pytest.approx(others[2], abs=0.01)]
    assert moved[1] == pytest.approx([others[1][0] + 64, others[1][1] + 32], abs=1.5)
    row = bank(tab)
    assert row != [0.7, 0.7, 1]
    tab.mouse.up()
    tab.locator("[data-held]").wait_for(state="detached")
    page.settled()
    check_plane(tab, bank(tab))
    run = re.search(r"/s/([^/]+)/", tab.url)
    assert run


def test_a_point_is_moved_by_keys(page):
    tab = page.open("geometry", "example-bank", i=1)
    hollow = tab.get_by_role("button", name="bank beside money before")
    hollow.focus()
    start = points(tab, ".movable")[1]
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Shift+ArrowUp")
    tab.wait_for_function(
        "([x, y]) => { const one = document.querySelectorAll('.movable')[1];"
        " return Math.abs(one.getAttribute('cx') - x) < 1 && Math.abs(one.getAttribute('cy') - y) < 1; }",
        arg=[start[0] + 4, start[1] - 40],
    )
    assert tab.locator("[data-held]").count() == 1
    tab.keyboard.press("Enter")
    tab.locator("[data-held]").wait_for(state="detached")
    page.settled()
    check_plane(tab, bank(tab))


def test_a_point_is_dragged_by_a_finger(phone):
    tab = phone.open("geometry", "example-bank", i=1)
    finger(phone, tab.get_by_role("button", name="bank beside money before"), [(6, 6), (20, 20), (30, 30)])
    tab.wait_for_function("() => !document.querySelector('[data-held]')")
    phone.settled()
    assert bank(tab) != [0.7, 0.7, 1]
    check_plane(tab, bank(tab))


def test_points_of_a_model_cannot_be_moved(page):
    tab = page.open("geometry", l=0, i=1)
    assert tab.locator(".movable").count() == 0
