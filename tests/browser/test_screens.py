"""All five screens: nothing sticks out, everything can be reached, every address leads back to the same view."""

from pathlib import Path

import pytest
import torch

SCREENS = ("walk", "heads", "geometry", "alignment", "map")
AXE = Path(__file__).parents[2] / "web/node_modules/axe-core/axe.min.js"
SAME = {
    "walk": {"l": 1, "h": 2, "i": 3, "j": 1, "step": "softmax"},
    "heads": {"l": 0, "h": 1, "la": 0, "a": 1, "lb": 0, "b": 3, "i": 2},
    "geometry": {"l": 1, "i": 2, "j": 4, "alpha": 0.4},
    "alignment": {"l": 3, "h": 1, "i": 2, "of": "head"},
    "map": {"l": 0, "h": 1, "x": 4.5, "y": 3.5, "z": 5.5, "agg": "lift", "scale": "linear", "palette": "magma"},
}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_axe_finds_nothing(open_page, screen, theme):
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: npm ci --prefix web")
    page = open_page(screen, how={"color_scheme": theme}, step="scores")
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']})")
    assert [(it["id"], [node["html"][:160] for node in it["nodes"]]) for it in found["violations"]] == []


@pytest.mark.parametrize("width", [320, 768, 1440])
@pytest.mark.parametrize("screen", SCREENS)
def test_nothing_sticks_out(open_page, screen, width):
    page = open_page(screen, how={"viewport": {"width": width, "height": 800}}, step="softmax")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    small = page.evaluate(
        """() => [...document.querySelectorAll("main button, header button, select, a, [role=button]")]
            .map(one => [one.textContent, one.getBoundingClientRect()])
            .filter(([, box]) => box.width && (box.width < 24 || box.height < 24)).map(([text]) => text)"""
    )
    assert small == []


@pytest.mark.parametrize("step", ["tokens", "embedding", "qkv", "scores", "scaled", "mask", "sum", "context"])
def test_no_step_sticks_out_on_a_phone(open_page, step):
    page = open_page("walk", how={"viewport": {"width": 320, "height": 640}}, step=step)
    assert page.evaluate("document.documentElement.scrollWidth") <= 320


@pytest.mark.parametrize("screen", SCREENS)
def test_an_address_leads_back(open_page, screen):
    page = open_page(screen, **SAME[screen])
    before = page.url, page.locator("main").inner_text(), page.screenshot(animations="disabled")
    assert all(f"{name}={value}" in page.url for name, value in SAME[screen].items())
    page.reload()
    page.page.settled()
    page.wait_for_timeout(200)
    again = page.url, page.locator("main").inner_text()
    assert again == before[:2]


def test_back_goes_back(open_page):
    page = open_page("walk")
    for name in ("Heads", "Map"):
        page.get_by_role("link", name=name).click()
        page.page.settled()
    assert "/map" in page.url
    page.go_back()
    page.get_by_role("heading", name="All heads").wait_for()
    page.go_back()
    page.locator(".walk").wait_for()


def test_numbers_are_screens(open_page):
    page = open_page("walk")
    for key, heading in (("2", "All heads"), ("3", "Before and after"), ("4", "Who wrote"), ("5", "The whole matrix")):
        page.keyboard.press(key)
        page.get_by_role("heading", name=heading).wait_for()


def test_two_readings_are_the_rows_of_the_heads(open_page, served):
    page = open_page("heads", l=0, la=0, a=1, lb=0, b=3, i=2)
    looked = served.library.run(served.run).looked[0]
    weights = looked.call.trace().weights[0, :, 2].double()
    for card, head in ((0, 1), (1, 3)):
        shown = page.locator(".reading").nth(card).locator("td[title]").evaluate_all("all => all.map(a => +a.title)")
        largest = weights[head].topk(14).indices.sort().values
        assert shown[:14] == pytest.approx(weights[head][largest].tolist(), rel=1e-6)
    page.get_by_role("button", name="layer 0, head 2", exact=True).first.click()
    page.wait_for_timeout(100)
    assert "a=2" in page.url


def test_cosines_are_those_of_whole_vectors(open_page, served):
    page = open_page("geometry", l=0, i=1)
    call = served.library.run(served.run).looked[0].call
    before, after = (torch.nn.functional.normalize(x[0].double(), dim=-1) for x in (call.before, call.after))
    shown = page.locator(".pairs tbody tr").first.locator("td[title]").evaluate_all("all => all.map(a => a.title)")
    nearest = (after @ after[1]).scatter(0, torch.tensor(1), -2.0).argmax()
    wanted = [(before @ before[1])[nearest], (after @ after[1])[nearest]]
    assert [float(x.replace("−", "-")) for x in shown] == pytest.approx([float(x) for x in wanted], rel=1e-6)


def test_a_words_fan_lights_by_hover_focus_and_tap(open_page):
    page = open_page("alignment", how={"has_touch": True})
    word = page.locator("svg [role=button]", has_text="Fernrohr")
    said = page.locator("output")
    word.hover()
    hovered = said.inner_text()
    page.mouse.move(2, 2)
    word.focus()
    focused = said.inner_text()
    page.locator("svg [role=button]").first.focus()
    word.tap()
    assert hovered == focused == said.inner_text()
    assert "Fernrohr" in hovered
