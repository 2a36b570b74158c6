"""Several explorers on one page, as in a notebook, where they send their requests to the kernel."""

import json

from support.browsing import WIDGETS


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


def test_keys_go_to_the_focused_cell(page, served):
    tab = page.open("walk")
    tab.evaluate(WIDGETS, {"start": json.dumps({"run": served.run, "step": "scores"}), "many": 2})
    tab.wait_for_function("() => document.querySelectorAll('.walk').length === 2")
    tab.locator(".words button[aria-pressed=true]").first.focus()
    tab.keyboard.press("2")
    tab.get_by_role("heading", name="All heads").wait_for()
    assert tab.locator(".walk").count() == 1


def test_a_cell_keeps_its_keys_from_the_notebook(page, served):
    """Otherwise keys would delete or cut the notebook's cell; shortcuts that save and run a notebook still reach it."""
    tab = page.open("walk")
    tab.evaluate(WIDGETS, {"start": json.dumps({"run": served.run, "step": "scores"}), "many": 1})
    tab.locator(".words button[aria-pressed=true]").focus()
    tab.evaluate("() => { window.heard = []; document.addEventListener('keydown', (event) => heard.push(event.key)); }")
    tab.keyboard.press("2")
    tab.get_by_role("heading", name="All heads").wait_for()  # the button that had the focus is gone
    tab.wait_for_function("() => document.activeElement.matches('.telescope')")
    for key in ("d", "x", "ArrowDown", "Enter", "Control+s", "Shift+Enter", "Escape"):
        tab.keyboard.press(key)
    assert tab.evaluate("heard") == ["Control", "s", "Enter", "Escape"]
    tab.keyboard.press("5")
    tab.get_by_role("heading", name="The whole matrix").wait_for()


def test_a_cell_follows_the_theme_of_its_notebook(page, served):
    """Whatever the theme of the system. A theme that the reader chose stays."""
    tab = page.open("walk")
    tab.evaluate("() => { document.body.style.background = '#111'; }")
    tab.evaluate(WIDGETS, {"start": json.dumps({"run": served.run}), "many": 1})
    tab.locator('[data-theme="dark"]').wait_for()
    tab.evaluate("() => { document.body.style.background = '#eee'; }")
    tab.locator('[data-theme="light"]').wait_for()
    tab.get_by_role("button", name="dark colours").click()
    tab.evaluate("() => { document.body.style.background = '#fff'; }")
    tab.wait_for_timeout(300)
    assert tab.locator('[data-theme="dark"]').count() == 1
    tab.evaluate("() => localStorage.clear()")


def test_a_page_is_saved_from_a_cell(page, served, tmp_path):
    tab, run = page.open("walk"), served.runs["Good morning."].name
    tab.evaluate(WIDGETS, {"start": json.dumps({"run": run, "screen": "alignment"}), "many": 1})
    best = served.api.ask(f"/runs/{run}/sharpest")
    start = f"/s/{run}/alignment?l={best['l']}&h={best['h']}"

    def saved(label, ending):
        tab.get_by_role("button", name="save this view").click()
        with tab.expect_download() as download:
            tab.get_by_role("button", name=label).click()
        download.value.save_as(tmp_path / f"file.{ending}")
        return (tmp_path / f"file.{ending}").read_bytes()

    # A cell shows the first head until it knows the sharpest.
    for _ in range(20):
        if json.loads(saved("All numbers (JSON)", "json"))["start"] == start:
            break
        tab.wait_for_timeout(250)
    query = {"l": str(best["l"]), "h": str(best["h"]), "start": start, "format": "html"}
    answer = served.api.answer("GET", f"/runs/{run}/export", query)
    assert saved("Page that opens from disk (HTML)", "html") == answer.body
    assert json.loads((tmp_path / "file.json").read_text())["start"].endswith(f"l={best['l']}&h={best['h']}")
