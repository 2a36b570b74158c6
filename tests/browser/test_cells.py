"""In a notebook many of them stand on one page, and ask the kernel by messages."""

import json

from browsing import WIDGETS


def test_twenty_maps_on_one_page(page, served):
    tab = page.open("walk")
    start = json.dumps({"run": served.run, "screen": "map", "l": 0, "h": 1})
    tab.evaluate(WIDGETS, {"start": start, "many": 20})
    tab.wait_for_function("() => document.querySelectorAll('.quality[data-exact=\"1\"]').length === 20")
    painted = tab.locator("canvas[data-picture=map]").evaluate_all(
        """all => all.map(canvas => {
            const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            return new Set(new Uint32Array(data.buffer)).size; })"""
    )
    assert len(painted) == 20
    assert min(painted) > 20


def test_a_key_is_for_the_cell_that_has_the_focus(page, served):
    tab = page.open("walk")
    tab.evaluate(WIDGETS, {"start": json.dumps({"run": served.run, "step": "scores"}), "many": 2})
    tab.wait_for_function("() => document.querySelectorAll('.walk').length === 2")
    tab.locator(".words button[aria-pressed=true]").first.focus()
    tab.keyboard.press("2")
    tab.get_by_role("heading", name="All heads").wait_for()
    assert tab.locator(".walk").count() == 1
