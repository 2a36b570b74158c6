"""The map: its requests, its labels, and the numbers in its cells."""

import pytest
import torch

from support.browsing import Page, Served
from support.exploring import recorded
from telescope.explorer.library import Library

PIXELS = """() => { const c = document.querySelector('canvas[data-picture=map]');
  const pixels = new Int32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer);
  return pixels.reduce((sum, pixel, at) => (sum * 31 + pixel * (at % 97)) | 0, 7); }"""


def exact(page):
    page.tab.locator('.quality[data-exact="1"]').wait_for()
    page.settled()
    page.tab.wait_for_timeout(40)


@pytest.fixture
def long_map(page, served):
    tab = page.open("map", served.long, l=0, h=1)
    exact(page)
    return tab


def test_changing_colours_sends_no_request(page, long_map):
    pictures, asked = [long_map.evaluate(PIXELS)], len(page.asked)
    for change in (
        lambda: long_map.get_by_role("combobox", name="colours").select_option("magma"),
        lambda: long_map.get_by_role("button", name="linear").click(),
        lambda: long_map.locator("button[aria-pressed]", has_text="lift").click(),
        lambda: long_map.get_by_label("to", exact=True).fill("-1"),
        lambda: long_map.keyboard.press("t"),
    ):
        change()
        tries = 0
        while (picture := long_map.evaluate(PIXELS)) == pictures[-1] and tries < 100:
            long_map.wait_for_timeout(20)
            tries += 1
        pictures.append(picture)
    assert len(set(pictures)) == len(pictures)
    assert page.asked[asked:] == []
    long_map.keyboard.press("t")  # which theme it is, is remembered


def test_max_requests_other_tiles(page, long_map):
    asked = len(page.asked)
    long_map.locator("button[aria-pressed]", has_text="max").click()
    exact(page)
    assert any("how=max" in url for url in page.asked[asked:])


def test_go_to_a_cell(long_map, served):
    long_map.keyboard.press("g")
    long_map.keyboard.type("700")
    long_map.get_by_label("key", exact=True).fill("650")
    long_map.keyboard.press("Enter")
    long_map.locator("output", has_text="query 700").wait_for()
    output = long_map.locator("output").inner_text()
    call = served.library.run(served.long).views[0].call
    q, k = (tensor[0, 1].double() for tensor in (call.queries, call.keys))
    scores = (k[:701] @ q[700]) / q.shape[-1] ** 0.5
    weight = torch.softmax(scores, -1)[650].item()
    assert "key 650" in output
    assert float(output.split("weight ")[1].split(" ")[0]) == pytest.approx(weight, rel=1e-6)
    assert "y=700.5" in long_map.url
    assert "x=650.5" in long_map.url


def test_masked_pairs_are_labelled(long_map):
    long_map.get_by_label("query", exact=True).fill("3")
    long_map.get_by_label("key", exact=True).fill("900")
    long_map.get_by_role("button", name="go", exact=True).click()
    long_map.get_by_text("may not attend to this key").wait_for()


def test_by_keyboard_alone(long_map):
    long_map.locator(".viewer").focus()
    for key in ("+", "+", "+", "ArrowRight", "ArrowDown", "Enter"):
        long_map.keyboard.press(key)
        long_map.wait_for_timeout(60)
    long_map.locator("output", has_text="query").wait_for()
    closer = long_map.evaluate("new URLSearchParams(location.search).get('z')")
    long_map.keyboard.press("Shift+ArrowDown")
    long_map.wait_for_timeout(300)
    assert float(closer) > 3
    long_map.keyboard.press("Home")
    long_map.wait_for_timeout(100)
    assert "z=" not in long_map.url


def test_wheel_and_drag_keep_what_is_under_the_pointer(long_map):
    viewer = long_map.locator(".viewer").bounding_box()
    x, y = viewer["x"] + viewer["width"] / 2, viewer["y"] + viewer["height"] / 2
    long_map.mouse.move(x, y)
    long_map.locator("output", has_text="query").wait_for()
    before = long_map.locator("output").inner_text().split("\n")[0]
    for _ in range(5):
        long_map.mouse.wheel(0, -200)
        long_map.wait_for_timeout(40)
    long_map.mouse.move(x + 1, y)
    long_map.wait_for_timeout(400)
    after = long_map.locator("output").inner_text().split("\n")[0]
    place = [int(word.replace(",", "")) for word in before.replace("→", " ").split() if word.replace(",", "").isdigit()]
    now = [int(word.replace(",", "")) for word in after.replace("→", " ").split() if word.replace(",", "").isdigit()]
    assert all(abs(a - b) <= 3 for a, b in zip(place, now, strict=True))
    length = len(long_map.evaluate("String(history.length)"))
    long_map.mouse.down()
    long_map.mouse.move(x - 120, y - 60, steps=4)
    long_map.mouse.up()
    long_map.wait_for_timeout(300)
    assert len(long_map.evaluate("String(history.length)")) == length


def test_a_click_in_the_overview_moves_the_map(page, served):
    """The overview is a small picture of the whole map in the corner."""
    tab = page.open("map", served.long, l=0, h=1, x=900, y=1000, z=4)
    exact(page)
    tab.locator(".viewer").evaluate("one => one.scrollIntoView({block: 'end'})")
    box = tab.locator(".viewer").bounding_box()
    tab.mouse.click(box["x"] + box["width"] - 10 - 12 - 100, box["y"] + box["height"] - 10 - 12 - 60)
    tab.wait_for_function("() => new URLSearchParams(location.search).get('x') < 300")
    where = tab.evaluate("() => ['x', 'y'].map(name => Number(new URLSearchParams(location.search).get(name)))")
    assert where == pytest.approx([16 / 116 * 1100, 56 / 116 * 1100], abs=25)


def test_a_long_map_opens_and_pans(browser):
    """What is shown is exact or marked as sampled; the position is part of the address. (A million tokens: python -m
    benchmarks explore.)"""
    served, n = Served(Library({})), 131_072
    served.run = served.library.add(recorded(n, heads=1, d=8), "long", "1").name
    page = Page(browser, served)
    tab = page.tab
    tab.goto(served.at + page.path("map"))
    tab.locator(".quality[data-exact]").wait_for()
    tab.get_by_label("query", exact=True).fill(str(n - 5))
    tab.get_by_label("key", exact=True).fill(str(n // 2))
    tab.keyboard.press("Enter")
    tab.locator("output", has_text=f"key {n // 2:,}").wait_for()
    tab.locator('.quality[data-exact="1"]:not([data-missing])').wait_for()
    tab.locator(".viewer").focus()
    for key in ("-", "-", "-", "-", "ArrowLeft"):
        tab.keyboard.press(key)
    tab.locator(".quality[data-exact]:not([data-missing])").wait_for()
    assert f"y={n - 5}" in tab.url or f"y={n - 4}" in tab.url
    page.assert_quiet()
    page.leave()
    served.stop()


def test_sampled_tiles_are_marked(page, served):
    """The same tiles, marked as sampled: the page says so, and draws them differently."""
    tab = page.open("map", served.long, l=0, h=0)
    exact(page)
    whole = tab.evaluate(PIXELS)

    def sampled(route):
        answer = route.fetch()
        route.fulfill(response=answer, headers={**answer.headers, "x-exact": "0", "x-samples": "4"})

    tab.route("**/tiles/**", sampled)
    try:
        tab.reload()
        tab.locator('.quality[data-exact="0"]:not([data-missing])').wait_for()
        assert "sampled" in tab.locator(".quality").inner_text()
        assert "at least 4 queries per pixel" in tab.locator(".quality").inner_text()
        assert tab.evaluate(PIXELS) != whole
        tab.wait_for_function("() => performance.getEntriesByType('resource').some(e => e.name.includes('effort=16'))")
    finally:
        tab.unroute_all(behavior="ignoreErrors")


def test_numbers_in_cells_are_the_weights(page, served):
    """Zoomed in, the numbers of every visible row are requested in float64; zoomed out, none."""
    before = len(page.asked)
    tab = page.open("map", l=0, h=1, x=3.5, y=3.5, z=6.2)
    exact(page)
    cells = {url.split("/cells?")[1] for url in page.asked[before:] if "/cells?" in url}
    assert cells >= {f"l=0&h=1&i={i}&j=0" for i in range(7)}
    tab.get_by_role("button", name="zoom out").click()
    tab.get_by_role("button", name="zoom out").click()
    asked = len(page.asked)
    page.settled()
    assert not [url for url in page.asked[asked:] if "/cell" in url]
