"""Tables of a notebook in Chromium: hostile texts run nothing, and colours and width are the notebook's."""

import pytest
import torch

import telescope as ts

HOSTILE = "</td><script>window.pwned=1</script><img src=x onerror=window.pwned=1> [/INST]"
THEMES = {"light": ("rgb(20, 20, 20)", "rgb(255, 255, 255)"), "dark": ("rgb(220, 220, 220)", "rgb(17, 17, 17)")}


@pytest.fixture(scope="module")
def tables():
    model = ts.load("shakespeare")
    ids = torch.tensor([model.tokenizer.encode(HOSTILE).ids])
    with torch.no_grad(), ts.watch(model, keep="queries-keys") as recording:
        model(ids)
    shown = (
        recording,
        recording.heads(segments={HOSTILE: (0, 4)}),
        recording[0].survey(),
        recording.sources(-1, segments={HOSTILE: (0, 4)}),
        ts.effect(model, ids, [ts.hide(HOSTILE)]),
        ts.atlas(model, [HOSTILE]),
    )
    return [one._repr_html_() for one in shown]


@pytest.mark.parametrize("theme", THEMES)
def test_tables_are_text_in_the_notebooks_colours(browser, tables, theme):
    ink, ground = THEMES[theme]
    page = browser.new_page(viewport={"width": 500, "height": 700}, color_scheme=theme)
    style = f"<style>:root{{color-scheme:{theme}}}body{{color:{ink};background:{ground}}}</style>"
    page.set_content(style + "".join(tables))
    assert page.evaluate("window.pwned") is None
    assert page.evaluate("document.querySelectorAll('script, img').length") == 0
    # Every cell has the ink of the notebook, on the notebook's ground.
    colours = "[...document.querySelectorAll('.telescope-table :is(td, th, caption)')].map(one => getComputedStyle(one)"
    assert set(page.evaluate(f"{colours}.color)")) == {ink}
    assert set(page.evaluate(f"{colours}.backgroundColor)")) == {"rgba(0, 0, 0, 0)"}
    assert page.locator("table").count() == len(tables)
    assert HOSTILE in page.locator("table").nth(1).inner_text()
    # A table that is wider than the page scrolls in its own place.
    wide = page.locator(".telescope-scroll").nth(1)
    assert wide.evaluate("one => one.scrollWidth > one.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth") <= 500
